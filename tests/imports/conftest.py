"""Sources on real servers, and queues on every engine to import them into."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from backstay import ConfigurationError
from backstay.imports import opened
from backstay.imports.importer import Importer, Part, Plan, Report
from backstay.ops.audit import Actor
from tests.imports import delphi_source
from tests.support.servers.dynamodb import DynamoDB
from tests.support.servers.postgres import Postgres
from tests.support.servers.redis import Absent, Redis

Place = Callable[[str], str]
ENGINES = ("sqlite", "postgres", "dynamodb")


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    """The address of an empty queue on an engine."""

    def made(engine: str) -> str:
        name = f"i_{secrets.token_hex(4)}"
        if engine == "sqlite":
            return f"sqlite:///{tmp_path}/{name}.db"
        server = request.getfixturevalue(engine)
        return str(server.url(name) if engine == "dynamodb" else server.url(schema=name))

    return made


@pytest.fixture
def table_address(dynamodb: DynamoDB) -> str:
    """The address of a table that a test makes, as a user would give it."""
    return dynamodb.url(f"source_{secrets.token_hex(4)}")


@pytest.fixture
def boto(table_address: str, patient: None) -> Any:
    return delphi_source.resource(table_address)


@pytest.fixture(scope="session")
def redis() -> Iterator[Redis]:
    """One server for all tests of this process."""
    try:
        server = Redis()
    except Absent as error:
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def redis_url(redis: Redis) -> str:
    """The address of an empty database."""
    return redis.empty()


@pytest.fixture
def redis_url_too(redis: Redis) -> str:
    """The address of another empty database."""
    return redis.empty()


def database(server: Postgres) -> str:
    """The address of an empty database."""
    name = f"source_{secrets.token_hex(4)}"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"{server.url().rpartition('/')[0]}/{name}"


async def imported(app: Any, name: str, address: str, **options: Any) -> Report:
    async with opened(name, address) as source:
        return await Importer(app, name, source, **options).run(Actor("me"))


async def planned(app: Any, name: str, address: str, part: Part = Part.ALL) -> Plan:
    async with opened(name, address) as source:
        return await Importer(app, name, source, part=part).plan()


async def refused(name: str, address: str, why: str) -> None:
    """Assert that this cannot be opened as a source."""
    with pytest.raises(ConfigurationError, match=why):
        async with opened(name, address):
            pass
