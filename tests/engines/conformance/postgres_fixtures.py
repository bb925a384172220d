"""Stores on a PostgreSQL server, one schema for all tests of a module. Which server is the module's to say."""

import secrets
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
import pytest_asyncio

from backstay.engines.postgres import connection
from backstay.engines.postgres.connection import Address, Connection, Pool, parse
from backstay.engines.postgres.store import PostgresStore
from tests.support.servers.postgres import Postgres
from tests.support.servers.schemas import empty_over

ONE_LOOP = pytest.mark.asyncio(loop_scope="module")  # for modules with these fixtures: connections outlive a test


class Spares:
    """Connections of closed stores, for the next ones. On a new connection, the server plans every statement anew: that
    costs as much as the rest of a test."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connect, self._close = connection.connect, Pool.close
        self._idle: list[Connection] = []

    async def connect(self, address: Address) -> Connection:
        while address == self._address and self._idle:
            spare = self._idle.pop()
            if not spare.is_closed():
                return spare
        return await self._connect(address)

    async def close(self, pool: Pool, seconds: float) -> None:
        if pool._connect.args == (self._address,):  # type: ignore[attr-defined]
            for idle, _ in pool._idle:
                pool._all.discard(idle)
                self._idle.append(idle)
            pool._idle.clear()
        await self._close(pool, seconds)

    def terminate(self) -> None:
        for spare in self._idle:
            spare.terminate()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def spares(url: str) -> AsyncIterator[Spares]:
    spares = Spares(parse(url))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "connect", spares.connect)
        patch.setattr(Pool, "close", lambda pool, seconds: spares.close(pool, seconds))
        yield spares
    spares.terminate()


@pytest.fixture(scope="module")
def url(server: Postgres) -> str:
    return server.url(schema=f"conformance_{secrets.token_hex(4)}", clock="caller")


@pytest.fixture(scope="module")
def emptying(server: Postgres) -> Iterator[psycopg.Connection]:
    """Kept open: a new connection would plan its statements anew before each of a thousand tests."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        yield connection


@pytest_asyncio.fixture(loop_scope="module")
async def store(url: str, emptying: psycopg.Connection, spares: Spares) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(url)
    await opened.open()
    empty_over(emptying, opened.address.schema)
    yield opened
    await opened.close()


@pytest_asyncio.fixture(loop_scope="module")
async def second_store(store: PostgresStore, url: str) -> AsyncIterator[PostgresStore]:
    second = PostgresStore(url)
    await second.open()
    yield second
    await second.close()


@pytest_asyncio.fixture(loop_scope="module")
async def elsewhere(server: Postgres, emptying: psycopg.Connection) -> AsyncIterator[PostgresStore]:
    other = PostgresStore(server.url(schema=f"elsewhere_{secrets.token_hex(4)}", clock="caller"))
    await other.open()
    empty_over(emptying, other.address.schema)
    yield other
    await other.close()


@pytest.fixture
def nowhere(server: Postgres) -> PostgresStore:
    return PostgresStore(server.url(schema=f"nowhere_{secrets.token_hex(4)}", clock="caller"))
