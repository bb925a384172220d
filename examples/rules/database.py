"""The application's side of the database: its tables, its sample, its search."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
from embedding import Embedder

from rules.jobs import app
from rules.models import DEFAULT, mismatch, model_named

SCHEMA = Path(__file__).with_name("schema.sql")
SAMPLE = Path(__file__).with_name("sample.json")
FOUND_MAX = 100
COLUMNS = ("rule_id", "project", "author", "title", "guidance", "rationale", "priority")

_INSERT = """
INSERT INTO rules (rule_id, project_id, created_by, title, guidance, rationale, priority)
SELECT $1, (SELECT id FROM projects WHERE name = $2), (SELECT id FROM users WHERE email = $3), $4, $5, $6,
    coalesce($7, 'normal')
ON CONFLICT (project_id, rule_id) DO UPDATE SET title = excluded.title, guidance = excluded.guidance,
    rationale = excluded.rationale, priority = excluded.priority
"""


def search_sql(dimensions: int) -> str:
    """Return the query for the nearest rules, by the expression that the index of `choose_model` has."""
    kind = f"halfvec({dimensions})" if 2_000 < dimensions <= 4_000 else f"vector({dimensions})"
    distance = (
        f"embedding::{kind} <=> $1::real[]::vector::{kind}" if "half" in kind else "embedding <=> $1::real[]::vector"
    )
    return (
        f"SELECT rule_id, title, priority, 1 - ({distance}) AS similarity FROM rules"  # noqa: S608 - numbers only
        f" WHERE embedding IS NOT NULL ORDER BY {distance} LIMIT $2"
    )


class NotSetUp(Exception):
    """The tables do not exist, or are made for another model."""


@dataclass(frozen=True, slots=True)
class SetUp:
    model: str
    dimensions: int
    again: int  # rules that a new choice of the model embeds again


@dataclass(frozen=True, slots=True)
class Found:
    rule_id: str
    title: str
    priority: str
    similarity: float


async def connect() -> Any:
    return await asyncpg.connect(app.url)


async def set_up(connection: Any, model: str | None = None) -> SetUp:
    """Create tables and triggers. The app must be open: its schema has the functions that the triggers call, and the
    type of their job."""
    async with connection.transaction():
        # Two processes that set up at once would each find nothing and create it.
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('rules set_up', 0))")
        await connection.execute(SCHEMA.read_text())
        chosen = model or await connection.fetchval("SELECT name FROM embedding_model") or DEFAULT
        dimensions = model_named(chosen).dimensions
        again = await connection.fetchval("SELECT choose_model($1, $2)", chosen, dimensions)
        return SetUp(model=chosen, dimensions=dimensions, again=again)


def read_rules(path: Path = SAMPLE) -> list[dict[str, str]]:
    """Read rules from a JSON file: a list of objects."""
    try:
        rows = json.loads(path.read_text())
    except RecursionError:
        raise ValueError(f"{path}: not a list of rules") from None
    if not isinstance(rows, list):
        raise ValueError(f"{path}: not a list of rules")
    for place, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(f"{path}: rule {place} is not an object")
        if missing := {"rule_id", "project", "author", "title", "guidance"} - row.keys():
            raise ValueError(f"{path}: rule {place} has no {', '.join(sorted(missing))}")
        for name in COLUMNS:
            value = row.get(name)
            if not isinstance(value, str) and not (value is None and name in ("rationale", "priority")):
                raise ValueError(f"{path}: rule {place} has the {name} {value!r:.40}: it is a text")
    return rows


async def load(connection: Any, rows: Sequence[Mapping[str, str]]) -> int:
    """Store all rules or none. An existing one is updated; the triggers do the rest."""
    async with connection.transaction():
        for name in sorted({row["project"] for row in rows}):
            await connection.execute("INSERT INTO projects (name) VALUES ($1) ON CONFLICT DO NOTHING", name)
        for email in sorted({row["author"] for row in rows}):
            await connection.execute("INSERT INTO users (email) VALUES ($1) ON CONFLICT DO NOTHING", email)
        await connection.executemany(_INSERT, [[row.get(name) for name in COLUMNS] for row in rows])
    return len(rows)


async def search(connection: Any, question: str, limit: int = 5) -> Sequence[Found]:
    """Return the rules closest in meaning to the question, by the index of pgvector."""
    if not question.strip():
        raise ValueError("the question is empty")
    if not 1 <= limit <= FOUND_MAX:
        raise ValueError(f"limit {limit}: use 1 to {FOUND_MAX}")
    model = await chosen_model(connection)
    (vector,) = model.embed([question])
    return [Found(**row) for row in await connection.fetch(search_sql(model.dimensions), vector.tolist(), limit)]


async def chosen_model(connection: Any) -> Embedder:
    """Return the model of the rules, once it is known that its vectors fit into their column."""
    try:
        row = await connection.fetchrow("SELECT name, dimensions FROM embedding_model")
    except asyncpg.UndefinedTableError:
        row = None
    if row is None:
        raise NotSetUp('there are no rules yet: run "python -m rules setup"')
    model = model_named(row["name"])
    if model.dimensions != row["dimensions"]:
        raise NotSetUp(mismatch(model.name, model.dimensions, row["dimensions"]))
    return model
