"""A database with the application's tables for each test, and a model that answers at once."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from rules import database
from rules.jobs import app as the_app
from rules.models import model_named

from backstay import Backstay
from tests.examples.ollama import Ollama, ollama_server
from tests.support.servers.postgres import Postgres

MODEL = "nomic-embed-text"
_TEMPLATE = "rules_template"
_numbers = itertools.count()


def in_database(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def _make_template(postgres: Postgres) -> None:
    connection = await asyncpg.connect(postgres.url())
    try:
        if await connection.fetchval("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", _TEMPLATE):
            return
        await connection.execute(f"CREATE DATABASE {_TEMPLATE}")
    finally:
        await connection.close()
    url, the_app.url = the_app.url, in_database(postgres.url(), _TEMPLATE)
    with ollama_server() as server, pytest.MonkeyPatch.context() as patched:
        patched.setenv("OLLAMA_URL", server.url)
        async with the_app:
            inside = await database.connect()
            await database.set_up(inside, MODEL)
            await inside.close()
    model_named.cache_clear()
    the_app.url = url


@pytest.fixture
async def database_url(postgres: Postgres) -> AsyncIterator[str]:
    """Set up once, and copied for each test: that is quicker."""
    await _make_template(postgres)
    name = f"rules_{next(_numbers)}"
    await execute(postgres.url(), f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}")
    yield in_database(postgres.url(), name)
    await execute(postgres.url(), f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def ollama(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ollama]:
    with ollama_server() as server:
        monkeypatch.setenv("OLLAMA_URL", server.url)
        model_named.cache_clear()  # a model keeps the address that it was made with
        yield server
    model_named.cache_clear()


@pytest.fixture
async def sql(database_url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


@pytest.fixture
async def app(database_url: str, ollama: Ollama, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Backstay]:
    monkeypatch.setattr(the_app, "url", database_url)
    async with the_app:
        yield the_app


async def insert(sql: Any, rule_id: str, **columns: Any) -> Any:
    """A rule with a text of its own; its id."""
    values = {"rule_id": rule_id, "title": f"Rule {rule_id}", "guidance": f"Do as {rule_id} says.", **columns}
    places = ", ".join(f"${place}" for place in range(1, len(values) + 1))
    statement = f"INSERT INTO rules ({', '.join(values)}) VALUES ({places}) RETURNING id"
    return await sql.fetchval(statement, *values.values())


async def embedded(sql: Any) -> int:
    return int(await sql.fetchval("SELECT count(embedding) FROM rules"))
