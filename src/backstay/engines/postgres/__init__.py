"""The PostgreSQL engine: one schema, named by `?schema=`, in an ordinary database.

Every verb is one statement, or one short transaction that locks rows in the order of their ids; leases and due times
are judged by the server's clock. Decisions (submit, release, the guards of a transition) are those of the lifecycle, as
on every engine; `insert_round` alone is written in SQL, because a job may also be submitted from there.
"""

# Only what needs no driver: `trigger_sql` writes SQL, and is of use where asyncpg is not installed.
from backstay.engines.postgres.triggers import trigger_sql

__all__ = ["trigger_sql"]
