"""The store port: verbs on plain data, and the suite that proves an engine keeps them.

How a job moves through it:

    insert ─▶ [waiting | scheduled | pending] ─ promote, release ─▶ pending ─ claim ─▶ processing ─ apply ─▶ ended

* `claim` hands out a fence (attempt) and a credential (token). Every write of a worker carries both, and an engine
  checks them inside the write, never before it: a stalled worker cannot overwrite its successor.
* `apply` takes transitions that lifecycle.py decided. An engine adds no policy of its own.
* Waking is a hint (`listen`); nothing depends on it.
"""
