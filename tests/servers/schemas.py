"""A schema as good as new."""

import asyncpg

from holdfast.stores.postgres import PostgresStore

TABLES = "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"


async def empty(store: PostgresStore) -> None:
    """Every row but those that say which migrations were applied. Not TRUNCATE: that makes all files anew."""
    connection = await asyncpg.connect(store.address.dsn)
    tables = await connection.fetch(
        f"{TABLES} WHERE schemaname = $1 AND tablename <> 'migration'", store.address.schema
    )
    await connection.execute("; ".join(f"DELETE FROM {table}" for (table,) in tables))
    await connection.close()
