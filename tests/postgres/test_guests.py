"""A job is submitted inside the caller's own transaction: it is there with the commit, and gone with a rollback."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import class_row, dict_row, scalar_row
from sqlalchemy.ext.asyncio import create_async_engine

from holdfast import DedupConflict, Holdfast, InvalidOption
from tests.servers.postgres import Postgres

Guest = Callable[[str], Any]


@asynccontextmanager
async def by_asyncpg(url: str) -> AsyncIterator[tuple[Any, Callable[[str], Awaitable[None]]]]:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()

    async def end(how: str) -> None:
        await getattr(transaction, how)()

    yield connection, end
    await connection.close()


@asynccontextmanager
async def by_psycopg(url: str) -> AsyncIterator[tuple[Any, Callable[[str], Awaitable[None]]]]:
    connection = await asyncio.to_thread(psycopg.connect, url)

    async def end(how: str) -> None:
        await asyncio.to_thread(getattr(connection, how))

    yield connection, end
    await asyncio.to_thread(connection.close)


@asynccontextmanager
async def by_psycopg_async(url: str) -> AsyncIterator[tuple[Any, Callable[[str], Awaitable[None]]]]:
    connection = await psycopg.AsyncConnection.connect(url)

    async def end(how: str) -> None:
        await getattr(connection, how)()

    yield connection, end
    await connection.close()


@asynccontextmanager
async def by_sqlalchemy(url: str) -> AsyncIterator[tuple[Any, Callable[[str], Awaitable[None]]]]:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    connection = await asyncio.to_thread(engine.connect)

    async def end(how: str) -> None:
        await asyncio.to_thread(getattr(connection, how))

    yield connection, end
    await asyncio.to_thread(connection.close)
    engine.dispose()


@asynccontextmanager
async def by_sqlalchemy_async(url: str) -> AsyncIterator[tuple[Any, Callable[[str], Awaitable[None]]]]:
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    connection = await engine.connect()

    async def end(how: str) -> None:
        await getattr(connection, how)()

    yield connection, end
    await connection.close()
    await engine.dispose()


GUESTS = [by_asyncpg, by_psycopg, by_psycopg_async, by_sqlalchemy, by_sqlalchemy_async]


@pytest.fixture
async def app(postgres: Postgres) -> AsyncIterator[Holdfast]:
    app = Holdfast(postgres.url(schema=f"guest_{secrets.token_hex(3)}"), poll_interval=60)

    @app.job("greet")
    async def greet(payload: dict[str, Any], ctx: Any) -> str:
        return f"hello {payload['name']}"

    async with app:
        yield app


@pytest.mark.parametrize("guest", GUESTS)
async def test_a_job_comes_with_the_commit_and_wakes_a_worker(app: Holdfast, postgres: Postgres, guest: Guest) -> None:
    async with app.worker(), guest(postgres.url()) as (connection, end):
        job = await app.submit("greet", {"name": "ada"}, connection=connection)
        assert await app.counts() == dict.fromkeys(await app.counts(), 0)
        await end("commit")
        assert await job.result(timeout=5) == "hello ada"


@pytest.mark.parametrize("guest", GUESTS)
async def test_a_rollback_takes_the_job_along(app: Holdfast, postgres: Postgres, guest: Guest) -> None:
    async with guest(postgres.url()) as (connection, end):
        await app.submit("greet", {"name": "ada"}, connection=connection)
        await end("rollback")
    assert sum((await app.counts()).values()) == 0


@pytest.mark.parametrize("guest", GUESTS)
async def test_a_duplicate_is_found_inside_the_transaction_too(app: Holdfast, postgres: Postgres, guest: Guest) -> None:
    async with guest(postgres.url()) as (connection, end):
        first = await app.submit("greet", {"name": "ada"}, dedup_key="k", connection=connection)
        again = await app.submit("greet", {"name": "ada"}, dedup_key="k", connection=connection)
        assert again.job_id == first.job_id
        with pytest.raises(DedupConflict):
            await app.submit("greet", {"name": "eve"}, dedup_key="k", dedup_conflict="error", connection=connection)
        await end("rollback")


@pytest.mark.parametrize("rows", [dict_row, class_row(SimpleNamespace), scalar_row], ids=["dict", "class", "scalar"])
async def test_it_does_not_matter_what_rows_the_caller_has_asked_for(
    app: Holdfast, postgres: Postgres, rows: Any
) -> None:
    with await asyncio.to_thread(psycopg.connect, postgres.url(), row_factory=rows) as connection:
        job = await app.submit("greet", {"name": "ada"}, connection=connection)
    async with await psycopg.AsyncConnection.connect(postgres.url(), row_factory=rows) as connection:
        other = await app.submit("greet", {"name": "eve"}, connection=connection)
    assert {each.job_id for each in await app.find()} == {job.job_id, other.job_id}


async def test_anything_else_is_refused_with_what_to_give(app: Holdfast) -> None:
    with pytest.raises(InvalidOption, match="asyncpg"):
        await app.submit("greet", {"name": "ada"}, connection=object())
