"""Migrations: numbered, forward only, one transaction each, one starter at a time."""

from __future__ import annotations

import re
from typing import Any

from holdfast.errors import SchemaMismatch
from holdfast.stores.postgres.sql import Statements, migrations

_BREAKING = re.compile(r"^-- breaking\b", re.MULTILINE)
_TABLE = """
CREATE SCHEMA IF NOT EXISTS holdfast.;
CREATE TABLE IF NOT EXISTS holdfast.migration (
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    breaking   boolean NOT NULL, -- an older release cannot work with what comes after
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""


def _bootstrap(sql: Statements) -> str:
    return sql.named(_TABLE).replace('".;', '";')


def is_breaking(text: str) -> bool:
    return bool(_BREAKING.search(text))


async def migrate(connection: Any, sql: Statements) -> list[str]:
    """Apply what is missing; the names of what was."""
    applied = []
    async with connection.transaction():
        # One lock for the whole: twenty starters wait for the first, and find everything done.
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", sql.named("holdfast.migrate"))
        await connection.execute("SET LOCAL lock_timeout = '10s'")
        await connection.execute(_bootstrap(sql))
        done = {row[0] for row in await connection.fetch(sql.named("SELECT number FROM holdfast.migration"))}
        for number, name, text in migrations():
            if number not in done:
                await connection.execute(sql.named(text))
                await connection.execute(
                    sql.named("INSERT INTO holdfast.migration (number, name, breaking) VALUES ($1, $2, $3)"),
                    number,
                    name,
                    is_breaking(text),
                )
                applied.append(name)
    return applied


async def check(connection: Any, sql: Statements, where: str) -> bool:
    """Whether the schema is there and this release can work with it; SchemaMismatch where it cannot."""
    exists = await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", sql.named("holdfast.migration"))
    if not exists:
        return False
    rows = await connection.fetch(sql.named("SELECT number, name, breaking FROM holdfast.migration ORDER BY number"))
    known = {number for number, _, _ in migrations()}
    newer = [row for row in rows if row["number"] not in known]
    if any(row["breaking"] for row in newer):
        raise SchemaMismatch(
            f"{where} was migrated to {newer[-1]['name']}, which this release cannot work with: upgrade holdfast"
        )
    return known <= {row["number"] for row in rows}


def statements(sql: Statements) -> str:
    """All of them, for people who apply migrations by hand."""
    parts = [f"{_bootstrap(sql).strip()};\n"]
    for number, name, text in migrations():
        parts.append(f"-- {name}\n{sql.named(text).strip()}\n")
        mark = (
            f"INSERT INTO holdfast.migration (number, name, breaking) VALUES ({number}, '{name}', {is_breaking(text)});"  # noqa: S608
        )
        parts.append(sql.named(mark))
    return "\n".join(["BEGIN;", *parts, "COMMIT;", ""])
