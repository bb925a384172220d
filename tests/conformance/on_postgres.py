"""Stores on a PostgreSQL server, one schema for all tests of a module. Which server is the module's to say."""

import secrets
from collections.abc import AsyncIterator

import pytest

from holdfast.stores.postgres import PostgresStore
from tests.servers.postgres import Postgres
from tests.servers.schemas import empty


@pytest.fixture(scope="module")
def url(server: Postgres) -> str:
    return server.url(schema=f"conformance_{secrets.token_hex(4)}", clock="caller")


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(url)
    await opened.open()
    await empty(opened)
    yield opened
    await opened.close()


@pytest.fixture
async def second_store(store: PostgresStore, url: str) -> AsyncIterator[PostgresStore]:
    second = PostgresStore(url)
    await second.open()
    yield second
    await second.close()


@pytest.fixture
async def elsewhere(server: Postgres) -> AsyncIterator[PostgresStore]:
    other = PostgresStore(server.url(schema=f"elsewhere_{secrets.token_hex(4)}", clock="caller"))
    await other.open()
    await empty(other)
    yield other
    await other.close()
