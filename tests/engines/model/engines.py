"""A fresh store for each run of the machine."""

import asyncio
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from backstay.core.port import Store
from backstay.engines.dynamodb.store import DynamoStore
from backstay.engines.postgres.store import PostgresStore
from backstay.engines.sqlite.store import SQLiteStore
from backstay.testing.history import Edge
from tests.support.servers.dynamodb import DynamoDB
from tests.support.servers.dynamodb import empty as emptied
from tests.support.servers.postgres import Postgres
from tests.support.servers.schemas import empty

Engine = Callable[[asyncio.AbstractEventLoop], AbstractContextManager[Store]]
FAST_DISK = "/dev/shm" if os.path.isdir("/dev/shm") else None


@contextmanager
def on_sqlite(loop: asyncio.AbstractEventLoop) -> Iterator[Store]:
    with tempfile.TemporaryDirectory(dir=FAST_DISK) as folder:
        store = SQLiteStore(f"sqlite:///{folder}/jobs.db")
        loop.run_until_complete(store.open())
        yield store
        loop.run_until_complete(store.close())


def on_postgres(server: Postgres) -> Engine:
    """One schema for all runs, emptied for each: to make one takes longer than to empty it."""
    url = server.url(schema=f"model_{secrets.token_hex(4)}", clock="caller", wake="false")

    @contextmanager
    def fresh(loop: asyncio.AbstractEventLoop) -> Iterator[Store]:
        store = PostgresStore(url)
        loop.run_until_complete(store.open())
        empty(store)
        yield store
        loop.run_until_complete(store.close())

    return fresh


def on_dynamodb(server: DynamoDB) -> Engine:
    url = server.url(f"model_{secrets.token_hex(4)}")
    asyncio.run(DynamoStore(url).migrate())

    @contextmanager
    def fresh(loop: asyncio.AbstractEventLoop) -> Iterator[Store]:
        store = DynamoStore(url)
        loop.run_until_complete(emptied(store))
        loop.run_until_complete(store.open())
        yield store
        loop.run_until_complete(store.close())

    return fresh


async def edges_of(store: Store) -> list[Edge] | None:
    """The port has no verb for them; None where they are not to be had cheaply."""
    match store:
        case SQLiteStore():
            rows = await store._read(lambda c: c.execute("SELECT parent_id, child_id, met FROM edge").fetchall())
        case PostgresStore():
            statement = store._session.sql.named("SELECT parent_id::text, child_id::text, met FROM backstay.edge")
            rows = await store._read(lambda tx: tx.connection.fetch(statement))
        case _:
            return None
    return [Edge(parent, child, bool(met)) for parent, child, met in rows]
