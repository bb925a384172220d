"""Submitting inside a transaction of the caller's own, on a connection of whatever driver they use.

Each driver is known by the module its class comes from, so that none has to be installed that is not used. What is
sent is one statement with two values; the wake-up goes with the caller's commit, and is gone with a rollback.
"""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.clock import Instant
from holdfast.errors import InvalidOption

_KINDS = "an asyncpg, psycopg 3 or SQLAlchemy 2 connection"


async def insert_jobs(
    connection: Any, schema: str, jobs: str, now: Instant, store_now: Instant | None, notify: bool
) -> str:
    """The function's answer as JSON text."""
    call = f'"{schema}".insert_jobs'
    flag = "true" if notify else "false"
    module = type(connection).__module__.partition(".")[0]
    at = "NULL" if store_now is None else str(int(store_now))
    match module:
        case "asyncpg":
            return str(await connection.fetchval(f"SELECT {call}($1::jsonb, $2, {at}, {flag})", jobs, now))
        case "psycopg":
            return await _psycopg(connection, f"SELECT {call}(%s::jsonb, %s, {at}, {flag})::text", (jobs, now))
        case "sqlalchemy":
            statement = f"SELECT {call}(CAST(:jobs AS jsonb), :now, {at}, {flag})::text"
            return await _sqlalchemy(connection, statement, {"jobs": jobs, "now": now})
        case _:
            raise InvalidOption(f"connection={type(connection)!r}: give {_KINDS}")


async def _psycopg(connection: Any, statement: str, values: tuple[Any, ...]) -> str:
    from psycopg.rows import tuple_row  # whatever rows the caller has asked for on this connection

    cursor = connection.cursor(row_factory=tuple_row)
    if type(connection).__name__.startswith("Async"):
        await cursor.execute(statement, values)
        row = await cursor.fetchone()
    else:
        row = await asyncio.to_thread(lambda: cursor.execute(statement, values).fetchone())
    return str(row[0])


async def _sqlalchemy(connection: Any, statement: str, values: dict[str, Any]) -> str:
    from sqlalchemy import text

    name = type(connection).__name__
    if name in ("AsyncConnection", "AsyncSession"):
        return str((await connection.execute(text(statement), values)).scalar_one())
    if name in ("Connection", "Session"):
        return str(await asyncio.to_thread(lambda: connection.execute(text(statement), values).scalar_one()))
    raise InvalidOption(f"connection={type(connection)!r}: give {_KINDS}")
