"""The PostgreSQL engine keeps the port."""

import secrets
from collections.abc import AsyncIterator

import pytest

from holdfast.store.conformance import *  # noqa: F403
from holdfast.stores.postgres import PostgresStore
from tests.servers.postgres import Postgres

TABLES = (
    "job, edge, release_due, dedup, step, worker, job_type, rate, fair_lane, fair_key, queue, schedule, counter,"
    " archive"
)


@pytest.fixture(scope="module")
def schema() -> str:
    return f"conformance_{secrets.token_hex(4)}"


@pytest.fixture
async def store(postgres: Postgres, schema: str) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(postgres.url(schema=schema, clock="caller"))
    await opened.open()
    tables = ", ".join(f'"{schema}".{table}' for table in TABLES.split(", "))
    async with opened._session.pool().acquire() as connection:
        await connection.execute(f"TRUNCATE {tables} RESTART IDENTITY")
    yield opened
    await opened.close()


@pytest.fixture
async def second_store(postgres: Postgres, store: PostgresStore, schema: str) -> AsyncIterator[PostgresStore]:
    second = PostgresStore(postgres.url(schema=schema, clock="caller"))
    await second.open()
    yield second
    await second.close()
