"""Migrations: numbered, forward only, one transaction each, one starter at a time."""

from __future__ import annotations

import re
from typing import Any

import asyncpg

from holdfast.errors import SchemaMismatch
from holdfast.stores.postgres.sql import Statements, migrations

MIGRATION_SECONDS = 3600.0  # a new index on many jobs takes as long as it takes
_BREAKING = re.compile(r"^-- breaking\b", re.MULTILINE)
_TABLE = """
CREATE TABLE IF NOT EXISTS holdfast.migration (
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    breaking   boolean NOT NULL, -- an older release cannot work with what comes after
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""


def is_breaking(text: str) -> bool:
    return bool(_BREAKING.search(text))


async def migrate(connection: Any, sql: Statements) -> list[str]:
    """Apply what is missing; the names of what was."""
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '10s'")
            return await _apply_missing(connection, sql)
    except asyncpg.InsufficientPrivilegeError as error:
        raise SchemaMismatch(
            f'this role may not make or change the schema "{sql.schema}" ({error}): run "holdfast migrate" as one that'
            ' may, or have the script applied that "holdfast migrate --sql" prints'
        ) from None


async def _apply_missing(connection: Any, sql: Statements) -> list[str]:
    names = []
    # One lock for the whole: twenty starters wait for the first, and find everything done.
    await connection.execute(f"SELECT {_lock(sql)}", timeout=MIGRATION_SECONDS)
    if not await connection.fetchval("SELECT to_regnamespace($1) IS NOT NULL", f'"{sql.schema}"'):
        await connection.execute(f'CREATE SCHEMA "{sql.schema}"')  # where there is one, no right to make one is needed
    await connection.execute(sql.named(_TABLE))
    done = {row["number"] for row in await applied(connection, sql)}
    for number, name, text in migrations():
        if number not in done:
            await connection.execute(sql.named(text), timeout=MIGRATION_SECONDS)
            await connection.execute(_mark(sql, number, name, text))
            names.append(name)
    return names


def _lock(sql: Statements) -> str:
    return f"pg_advisory_xact_lock(hashtextextended('{sql.named('holdfast.migrate')}', 0))"


def _mark(sql: Statements, number: int, name: str, text: str) -> str:
    values = f"({number}, '{name}', {'true' if is_breaking(text) else 'false'})"
    return sql.named(f"INSERT INTO holdfast.migration (number, name, breaking) VALUES {values}")  # noqa: S608


async def exists(connection: Any, sql: Statements) -> bool:
    return bool(await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", sql.named("holdfast.migration")))


async def check(connection: Any, sql: Statements, where: str) -> bool:
    """Whether the schema is there and this release can work with it; SchemaMismatch where it cannot."""
    if not await exists(connection, sql):
        return False
    rows = await applied(connection, sql)
    later = newer(rows)
    if any(row["breaking"] for row in later):
        raise SchemaMismatch(
            f"{where} was migrated to {later[-1]['name']}, which this release cannot work with: upgrade holdfast"
        )
    return {number for number, _, _ in migrations()} <= {row["number"] for row in rows}


async def applied(connection: Any, sql: Statements) -> list[Any]:
    return list(
        await connection.fetch(sql.named("SELECT number, name, breaking FROM holdfast.migration ORDER BY number"))
    )


def newer(rows: list[Any]) -> list[Any]:
    """What a later release has applied."""
    known = {number for number, _, _ in migrations()}
    return [row for row in rows if row["number"] not in known]


def last() -> str:
    """The name of the last one that this release has."""
    return migrations()[-1][1]


def script(sql: Statements) -> str:
    """All of them, each with a look whether it was applied: to be run by hand, once or again after an upgrade."""
    parts = [
        f'-- The migrations of Holdfast for the schema "{sql.schema}". What was applied before is left as it is.',
        "BEGIN;",
        "SET LOCAL client_min_messages = warning;",
        f"DO $holdfast$ BEGIN PERFORM {_lock(sql)}; END $holdfast$;",
        f'CREATE SCHEMA IF NOT EXISTS "{sql.schema}";',
        f"{sql.named(_TABLE).strip()};",
    ]
    for number, name, text in migrations():
        missing = sql.named(f"NOT EXISTS (SELECT FROM holdfast.migration WHERE number = {number})")
        parts += [
            f"\n-- {name}",
            f"DO $holdfast$ BEGIN IF {missing} THEN EXECUTE $migration$",
            sql.named(text).strip(),
            f"$migration$; {_mark(sql, number, name, text)}; END IF; END $holdfast$;",
        ]
    return "\n".join([*parts, "\nCOMMIT;", ""])
