"""A schema as good as new, in which no statement can leave a row that the lifecycle does not allow."""

import asyncpg

from holdfast.stores.postgres import PostgresStore

TABLES = "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"

# What a state implies, and the bounds of numbers. The product goes without: see migrations/0001_core.sql.
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


async def empty(store: PostgresStore) -> None:
    """Every row but those that say which migrations were applied. Not TRUNCATE: that makes all files anew. Result
    tables were made by a test, and go."""
    connection = await asyncpg.connect(store.address.dsn)
    made = await connection.fetch(
        f"{TABLES} WHERE schemaname = $1 AND tablename LIKE 'result\\_%' AND tablename <> 'result_table'",
        store.address.schema,
    )
    if made:
        await connection.execute(f"DROP TABLE {', '.join(table for (table,) in made)}")
    tables = await connection.fetch(
        f"{TABLES} WHERE schemaname = $1 AND tablename <> 'migration'", store.address.schema
    )
    await connection.execute("; ".join(f"DELETE FROM {table}" for (table,) in tables))
    job = f'"{store.address.schema}".job'
    if not await connection.fetchval(
        "SELECT 1 FROM pg_constraint WHERE conrelid = $1::regclass AND contype = 'c'", job
    ):
        await connection.execute(f"ALTER TABLE {job} ADD CONSTRAINT lawful CHECK ({LAWFUL})")
    await connection.close()
