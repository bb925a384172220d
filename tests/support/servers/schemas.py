"""Empties a schema, and adds constraints so that no statement can leave a row that the lifecycle does not allow."""

import psycopg

from backstay.engines.postgres.store import PostgresStore

TABLES = "SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables"

# Constraints for each state, and ranges of numbers. Production does without: see migrations/0001_core.sql.
LAWFUL = """
    status IN ('waiting', 'scheduled', 'pending', 'processing', 'retrying', 'completed', 'failed', 'cancelled')
    AND (status = 'processing') = (lease_expires_at IS NOT NULL)
    AND (status <> 'processing' OR (worker_id IS NOT NULL AND claim_token IS NOT NULL AND attempt >= 1))
    AND (status IN ('completed', 'failed', 'cancelled')) = (completed_at IS NOT NULL)
    AND (status = 'completed' OR (result IS NULL AND result_artifact IS NULL))
    AND (status <> 'retrying' OR failures < max_attempts)
    AND (NOT parked OR status = 'pending')
    AND (NOT rate_parked OR parked)
    AND priority BETWEEN 0 AND 100 AND progress BETWEEN 0 AND 1 AND attempt >= 0 AND version >= 1
    AND failures >= 0 AND max_attempts >= 1 AND timeout_micros > 0 AND fairness_weight >= 1
    AND on_dependency_failure IN ('cancel', 'fail') AND unmet_dependencies >= 0 AND payload_version >= 1
"""


def empty(store: PostgresStore) -> None:
    with psycopg.connect(store.address.dsn, autocommit=True) as connection:
        empty_over(connection, store.address.schema)


def empty_over(connection: psycopg.Connection, schema: str) -> None:
    """Every row but those that say which migrations were applied. Not TRUNCATE: that makes all files anew. Result
    tables were made by a test, and go."""
    made = connection.execute(
        f"{TABLES} WHERE schemaname = %s AND tablename LIKE 'result\\_%%' AND tablename <> 'result_table'", [schema]
    ).fetchall()
    if made:
        connection.execute(f"DROP TABLE {', '.join(table for (table,) in made)}".encode())
    tables = connection.execute(f"{TABLES} WHERE schemaname = %s AND tablename <> 'migration'", [schema]).fetchall()
    connection.execute("; ".join(f"DELETE FROM {table}" for (table,) in tables).encode())
    job = f'"{schema}".job'
    lawful = "SELECT 1 FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'c'"
    if connection.execute(lawful, [job]).fetchone() is None:
        connection.execute(f"ALTER TABLE {job} ADD CONSTRAINT lawful CHECK ({LAWFUL})".encode())
