"""Observe jobs from outside: traces, error reports, or an observer of your own.

    submit ──submitting──▶ store ──▶ claim ──running──▶ handler ──ended──▶ settlement

`Backstay(url, observers=[Tracing(), Sentry()])`. An observer is called when a job is submitted and when its attempts
run and end, in the process in which that happens; the job's `traceparent` carries its context from one process to the
other. It never breaks a job: an error in an observer is logged once. Without observers, none of this is called.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from backstay.observers.base import Attempted, Ending, Observer, Observers

if TYPE_CHECKING:
    from backstay.observers.sentry import Sentry as Sentry
    from backstay.observers.tracing import Tracing as Tracing


_EXTRAS = {"Sentry": "backstay.observers.sentry", "Tracing": "backstay.observers.tracing"}


def __getattr__(name: str) -> Any:
    """Load optional packages only when they are named."""
    if name not in _EXTRAS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_EXTRAS[name]), name)


__all__ = ["Attempted", "Ending", "Observer", "Observers", "Sentry", "Tracing"]
