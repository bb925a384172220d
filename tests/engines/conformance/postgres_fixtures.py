"""Stores on a PostgreSQL server, one schema for all tests of a module. Which server is the module's to say."""

import secrets
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from backstay.engines.postgres.store import PostgresStore
from tests.support.servers.postgres import Postgres
from tests.support.servers.schemas import empty_over


@pytest.fixture(scope="module")
def url(server: Postgres) -> str:
    return server.url(schema=f"conformance_{secrets.token_hex(4)}", clock="caller")


@pytest.fixture(scope="module")
def emptying(server: Postgres) -> Iterator[psycopg.Connection]:
    """Kept open: a new connection would plan its statements anew before each of a thousand tests."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        yield connection


@pytest.fixture
async def store(url: str, emptying: psycopg.Connection) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(url)
    await opened.open()
    empty_over(emptying, opened.address.schema)
    yield opened
    await opened.close()


@pytest.fixture
async def second_store(store: PostgresStore, url: str) -> AsyncIterator[PostgresStore]:
    second = PostgresStore(url)
    await second.open()
    yield second
    await second.close()


@pytest.fixture
async def elsewhere(server: Postgres, emptying: psycopg.Connection) -> AsyncIterator[PostgresStore]:
    other = PostgresStore(server.url(schema=f"elsewhere_{secrets.token_hex(4)}", clock="caller"))
    await other.open()
    empty_over(emptying, other.address.schema)
    yield other
    await other.close()


@pytest.fixture
def nowhere(server: Postgres) -> PostgresStore:
    return PostgresStore(server.url(schema=f"nowhere_{secrets.token_hex(4)}", clock="caller"))
