"""A claim that walks from lane to lane keeps the rules of one that looks at each pair: the same tests, made to walk."""

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from backstay.core.port import Store
from backstay.engines.dynamodb import claim as dynamodb_claim
from backstay.engines.dynamodb.store import DynamoStore
from backstay.engines.lanes import Asked
from backstay.engines.postgres.store import PostgresStore
from backstay.engines.sqlite.store import SQLiteStore
from backstay.testing.conformance import (
    TestClaim,
    TestConcurrencyKeys,
    TestPause,
    TestPayloadVersions,
    TestTurns,
)
from tests.engines.conformance.postgres_fixtures import emptying, url  # noqa: F401
from tests.support.servers.dynamodb import DynamoDB, empty
from tests.support.servers.postgres import Postgres
from tests.support.servers.schemas import empty_over

__all__ = ["TestClaim", "TestConcurrencyKeys", "TestPause", "TestPayloadVersions", "TestTurns"]

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture(autouse=True)
def walks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamodb_claim, "CLAIM_LANES_FEW", 0)
    monkeypatch.setattr(Asked, "is_few", property(lambda asked: not (asked.queues and asked.types)))


@pytest.fixture(scope="module")
def server(postgres: Postgres) -> Postgres:
    return postgres


@pytest.fixture(scope="module")
def tables(dynamodb: DynamoDB) -> str:
    return dynamodb.url(f"l_{secrets.token_hex(4)}")


@pytest.fixture(params=["sqlite", "postgres", "dynamodb"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened: SQLiteStore | PostgresStore | DynamoStore
    if request.param == "sqlite":
        opened = SQLiteStore(f"sqlite:///{tmp_path}/jobs.db")
        await opened.open()
    elif request.param == "dynamodb":
        opened = DynamoStore(request.getfixturevalue("tables"))
        await opened.migrate()
        await empty(opened)
        await opened.open()
    else:
        emptied: psycopg.Connection = request.getfixturevalue("emptying")
        opened = PostgresStore(request.getfixturevalue("url"))
        await opened.open()
        empty_over(emptied, opened.address.schema)
    yield opened
    await opened.close()


@pytest.fixture
async def second_store(
    request: pytest.FixtureRequest, store: SQLiteStore | PostgresStore | DynamoStore
) -> AsyncIterator[Store]:
    second: SQLiteStore | PostgresStore | DynamoStore
    if isinstance(store, SQLiteStore):
        second = SQLiteStore(store.location)
    elif isinstance(store, DynamoStore):
        second = DynamoStore(request.getfixturevalue("tables"))
    else:
        second = PostgresStore(request.getfixturevalue("url"))
    await second.open()
    yield second
    await second.close()
