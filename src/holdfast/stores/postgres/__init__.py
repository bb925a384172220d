"""The port on PostgreSQL.

One schema of its own, named by `?schema=`. Every verb is one statement, or one short transaction that locks rows in
the order of their ids; leases and due times are judged by the server's clock. What decides (submitted, released, the
guards of a transition) is the lifecycle's, as on every engine; `insert_special` alone is written in SQL, because a
job may also be submitted from there.
"""

from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.postgres.triggers import trigger_sql

__all__ = ["PostgresStore", "trigger_sql"]
