"""Submitting inside a transaction of the caller's own, on a connection of whatever driver they use.

Each driver is known by the modules its classes come from, so that none has to be installed that is not used. What is
sent is one statement with two values. The function behind it catches what it refuses and answers with it, so that the
caller's transaction goes on; the wake-up goes with their commit, and is gone with a rollback.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from holdfast.clock import Instant
from holdfast.errors import InvalidOption
from holdfast.stores.postgres.errors import refused

_KINDS = "an asyncpg, psycopg 3 or SQLAlchemy 2 connection"
_NO_TRANSACTION = (
    "connection= has no transaction, and the job would be stored at once: begin one, or submit without connection="
)
_CLOSED = "connection= is closed: give one that is open, with your transaction on it"


async def insert_jobs(
    connection: Any, schema: str, jobs: str, now: Instant, store_now: Instant | None, notify: bool, where: str
) -> list[dict[str, Any]]:
    """The answer for each job."""
    call = f'"{schema}".insert_in'
    flag = "true" if notify else "false"
    at = "NULL" if store_now is None else str(int(store_now))
    match _driver(connection):
        case "asyncpg":
            statement = f"SELECT {call}($1::jsonb, $2, {at}, {flag})"
            text = await _asyncpg(connection, statement, (jobs, now))
        case "psycopg":
            statement = f"SELECT {call}(%s::jsonb, %s, {at}, {flag})::text"
            text = await _psycopg(connection, statement, (jobs, now))
        case "sqlalchemy":
            statement = f"SELECT {call}(CAST(:jobs AS jsonb), :now, {at}, {flag})::text"
            text = await _sqlalchemy(connection, statement, {"jobs": jobs, "now": now})
        case _:
            raise InvalidOption(f"connection={type(connection)!r}: give {_KINDS}")
    answer = msgspec.json.decode(text)
    if isinstance(answer, dict):
        raise refused(answer["sqlstate"], answer["message"], answer["detail"], where)
    return list(answer)


def _driver(connection: Any) -> str | None:
    """By any of its classes: many have one of their own that derives from the driver's."""
    modules = {cls.__module__.partition(".")[0] for cls in type(connection).__mro__}
    return next((name for name in ("asyncpg", "psycopg", "sqlalchemy") if name in modules), None)


def _is_a(connection: Any, *names: str) -> bool:
    return any(cls.__name__ in names for cls in type(connection).__mro__)


async def _asyncpg(connection: Any, statement: str, values: tuple[Any, ...]) -> str:
    if not hasattr(connection, "is_in_transaction"):  # a pool, say
        raise InvalidOption(f"connection={type(connection)!r}: give {_KINDS}")
    if connection.is_closed():
        raise InvalidOption(_CLOSED)
    if not connection.is_in_transaction():
        raise InvalidOption(_NO_TRANSACTION)
    return str(await connection.fetchval(statement, *values))


async def _psycopg(connection: Any, statement: str, values: tuple[Any, ...]) -> str:
    from psycopg.pq import TransactionStatus
    from psycopg.rows import tuple_row  # whatever rows the caller has asked for on this connection

    if _is_a(connection, "Cursor", "AsyncCursor"):
        raise InvalidOption("connection= is a cursor: give its connection")
    if not _is_a(connection, "Connection", "AsyncConnection"):
        raise InvalidOption(f"connection={type(connection)!r}: give {_KINDS}")
    if connection.closed:
        raise InvalidOption(_CLOSED)
    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise InvalidOption(_NO_TRANSACTION)
    cursor = connection.cursor(row_factory=tuple_row)
    if _is_a(connection, "AsyncConnection"):
        await cursor.execute(statement, values)
        row = await cursor.fetchone()
    else:
        row = await asyncio.to_thread(lambda: cursor.execute(statement, values).fetchone())
    return str(row[0])


async def _sqlalchemy(connection: Any, statement: str, values: dict[str, Any]) -> str:
    from sqlalchemy import text

    if _is_a(connection, "AsyncConnection", "AsyncSession"):
        plain = await connection.connection() if _is_a(connection, "AsyncSession") else connection
        _refuse_autocommit(plain.sync_connection)
        return str((await connection.execute(text(statement), values)).scalar_one())
    if _is_a(connection, "Connection", "Session"):

        def run() -> str:
            _refuse_autocommit(connection.connection() if _is_a(connection, "Session") else connection)
            return str(connection.execute(text(statement), values).scalar_one())

        return await asyncio.to_thread(run)
    raise InvalidOption(f"connection={type(connection)!r}: give {_KINDS}")


def _refuse_autocommit(connection: Any) -> None:
    """SQLAlchemy begins a transaction by itself with the first statement, unless it was told not to."""
    if connection is None or connection.closed:
        raise InvalidOption(_CLOSED)
    engine_wide = getattr(connection.dialect, "_on_connect_isolation_level", None)
    level = connection.get_execution_options().get("isolation_level", engine_wide)
    if str(level).upper() == "AUTOCOMMIT":
        raise InvalidOption(_NO_TRANSACTION)
