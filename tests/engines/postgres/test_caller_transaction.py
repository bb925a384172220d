"""A job is submitted inside the caller's own transaction: it is there with the commit, and gone with a rollback."""

import asyncio
import contextlib
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
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from backstay import Backstay, DedupConflict, InvalidOption, QueueFull, StoreUnavailable, UnknownDependency
from tests.support.servers.postgres import Postgres

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
async def app(postgres: Postgres) -> AsyncIterator[Backstay]:
    app = Backstay(postgres.url(schema=f"guest_{secrets.token_hex(3)}"), poll_interval=60)

    @app.job("greet")
    async def greet(payload: dict[str, Any], ctx: Any) -> str:
        return f"hello {payload['name']}"

    async with app:
        yield app


@pytest.mark.parametrize("guest", GUESTS)
async def test_a_job_comes_with_the_commit_and_wakes_a_worker(app: Backstay, postgres: Postgres, guest: Guest) -> None:
    async with app.worker(), guest(postgres.url()) as (connection, end):
        job = await app.submit("greet", {"name": "ada"}, connection=connection)
        assert await app.counts() == dict.fromkeys(await app.counts(), 0)
        await end("commit")
        assert await job.result(timeout=5) == "hello ada"


@pytest.mark.parametrize("guest", GUESTS)
async def test_a_rollback_takes_the_job_along(app: Backstay, postgres: Postgres, guest: Guest) -> None:
    async with guest(postgres.url()) as (connection, end):
        await app.submit("greet", {"name": "ada"}, connection=connection)
        await end("rollback")
    assert sum((await app.counts()).values()) == 0


@pytest.mark.parametrize("guest", GUESTS)
async def test_a_duplicate_is_found_inside_the_transaction_too(app: Backstay, postgres: Postgres, guest: Guest) -> None:
    async with guest(postgres.url()) as (connection, end):
        first = await app.submit("greet", {"name": "ada"}, dedup_key="k", connection=connection)
        again = await app.submit("greet", {"name": "ada"}, dedup_key="k", connection=connection)
        assert again.job_id == first.job_id
        with pytest.raises(DedupConflict):
            await app.submit("greet", {"name": "eve"}, dedup_key="k", dedup="error", connection=connection)
        await end("rollback")


@pytest.mark.parametrize("rows", [dict_row, class_row(SimpleNamespace), scalar_row], ids=["dict", "class", "scalar"])
async def test_it_does_not_matter_what_rows_the_caller_has_asked_for(
    app: Backstay, postgres: Postgres, rows: Any
) -> None:
    with await asyncio.to_thread(psycopg.connect, postgres.url(), row_factory=rows) as connection:
        job = await app.submit("greet", {"name": "ada"}, connection=connection)
    async with await psycopg.AsyncConnection.connect(postgres.url(), row_factory=rows) as connection:
        other = await app.submit("greet", {"name": "eve"}, connection=connection)
    assert {each.job_id for each in await app.find()} == {job.job_id, other.job_id}


async def test_anything_else_is_refused_with_what_to_give(app: Backstay) -> None:
    with pytest.raises(InvalidOption, match="asyncpg"):
        await app.submit("greet", {"name": "ada"}, connection=object())


# Many at once


@pytest.mark.parametrize("guest", GUESTS)
async def test_many_jobs_come_with_the_commit_or_not_at_all(app: Backstay, postgres: Postgres, guest: Guest) -> None:
    many = [("greet", {"name": "ada"}), ("greet", {"name": "eve"}, {"priority": 80})]
    async with guest(postgres.url()) as (connection, end):
        await app.submit_many(many, connection=connection)
        await end("rollback")
    assert sum((await app.counts()).values()) == 0
    async with guest(postgres.url()) as (connection, end):
        handles = await app.submit_many(many, connection=connection)
        await end("commit")
    assert {job.job_id for job in await app.find()} == {handle.job_id for handle in handles}


async def test_a_connection_for_one_of_many_is_refused_instead_of_ignored(app: Backstay, postgres: Postgres) -> None:
    async with by_asyncpg(postgres.url()) as (connection, end):
        with pytest.raises(InvalidOption, match=r"job 0 of 1: .*submit_many\(…, connection=…\)"):
            await app.submit_many([("greet", {"name": "ada"}, {"connection": connection})])
        await end("rollback")
    assert sum((await app.counts()).values()) == 0


# What is refused


NOBODY = "00000000-0000-7000-8000-000000000000"


@pytest.mark.parametrize("guest", GUESTS)
async def test_a_submit_that_is_refused_leaves_the_callers_transaction_as_it_was(
    app: Backstay, postgres: Postgres, guest: Guest
) -> None:
    await app.limit_queue("full", max_pending=1)
    await app.submit("greet", {"name": "first"}, queue="full")
    async with guest(postgres.url()) as (connection, end):
        await app.submit("greet", {"name": "ada"}, dedup_key="k", connection=connection)
        with pytest.raises(DedupConflict):
            await app.submit("greet", {"name": "eve"}, dedup_key="k", dedup="error", connection=connection)
        with pytest.raises(UnknownDependency, match=NOBODY):
            await app.submit("greet", {"name": "eve"}, depends_on=[NOBODY], connection=connection)
        with pytest.raises(QueueFull) as full:
            await app.submit("greet", {"name": "eve"}, queue="full", connection=connection)
        assert full.value.queue == "full"
        await app.submit("greet", {"name": "bob"}, connection=connection)
        await end("commit")
    assert {job.payload["name"] for job in await app.find()} == {"first", "ada", "bob"}


async def no_transaction_by_asyncpg(url: str) -> Any:
    return await asyncpg.connect(url)


async def autocommit_by_psycopg(url: str) -> Any:
    return await psycopg.AsyncConnection.connect(url, autocommit=True)


async def autocommit_by_sqlalchemy(url: str) -> Any:
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    return await (await engine.connect()).execution_options(isolation_level="AUTOCOMMIT")


async def autocommit_engine_of_sqlalchemy(url: str) -> Any:
    url = url.replace("postgresql://", "postgresql+asyncpg://")
    return await create_async_engine(url, isolation_level="AUTOCOMMIT").connect()


@pytest.mark.parametrize(
    "connect",
    [
        no_transaction_by_asyncpg,
        autocommit_by_psycopg,
        autocommit_by_sqlalchemy,
        autocommit_engine_of_sqlalchemy,
    ],
)
async def test_a_connection_without_a_transaction_is_refused(
    app: Backstay, postgres: Postgres, connect: Callable[[str], Awaitable[Any]]
) -> None:
    connection = await connect(postgres.url())
    with pytest.raises(InvalidOption, match="has no transaction"):
        await app.submit("greet", {"name": "ada"}, connection=connection)
    assert sum((await app.counts()).values()) == 0
    await connection.close()
    if (engine := getattr(connection, "engine", None)) is not None:
        await engine.dispose()


async def test_a_transaction_on_an_autocommit_connection_is_one(app: Backstay, postgres: Postgres) -> None:
    connection = await psycopg.AsyncConnection.connect(postgres.url(), autocommit=True)
    async with connection, connection.transaction(force_rollback=True):
        await app.submit("greet", {"name": "ada"}, connection=connection)
    assert sum((await app.counts()).values()) == 0


@pytest.mark.parametrize("guest", GUESTS)
async def test_a_transaction_that_has_failed_is_said_to_be_so(app: Backstay, postgres: Postgres, guest: Guest) -> None:
    async with guest(postgres.url()) as (connection, end):
        with pytest.raises(Exception, match="zero"):
            await run(connection, "SELECT 1 / 0")
        with pytest.raises(InvalidOption, match=r"has failed: roll it back|cannot be used"):
            await app.submit("greet", {"name": "ada"}, connection=connection)
        await end("rollback")


@pytest.mark.parametrize("guest", GUESTS)
async def test_a_transaction_that_only_reads_is_said_to_be_so(app: Backstay, postgres: Postgres, guest: Guest) -> None:
    async with guest(postgres.url()) as (connection, end):
        await run(connection, "SET TRANSACTION READ ONLY")
        with pytest.raises(InvalidOption, match="read-only"):
            await app.submit("greet", {"name": "ada"}, connection=connection)
        await end("rollback")


@pytest.mark.parametrize("guest", GUESTS)
async def test_a_connection_to_another_database_does_not_see_the_queue(
    app: Backstay, postgres: Postgres, guest: Guest
) -> None:
    other = postgres.url().removesuffix("/postgres") + "/template1"
    async with guest(other) as (connection, end):
        with pytest.raises(InvalidOption, match="does not see the queue"):
            await app.submit("greet", {"name": "ada"}, connection=connection)
        await end("rollback")


@pytest.mark.parametrize("guest", GUESTS)
async def test_a_connection_that_is_closed_is_said_to_be_so(app: Backstay, postgres: Postgres, guest: Guest) -> None:
    async with guest(postgres.url()) as (connection, end):
        await end("rollback")
        if (closing := connection.close()) is not None:
            await closing
        with pytest.raises(InvalidOption, match="closed"):
            await app.submit("greet", {"name": "ada"}, connection=connection)


@pytest.mark.parametrize("guest", GUESTS)
async def test_a_connection_that_was_lost_is_an_outage(app: Backstay, postgres: Postgres, guest: Guest) -> None:
    async with guest(postgres.url()) as (connection, end):
        await app.submit("greet", {"name": "ada"}, connection=connection)
        operator = await asyncpg.connect(postgres.url())
        await operator.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE state = 'idle in transaction'"
        )
        await operator.close()
        with pytest.raises((StoreUnavailable, InvalidOption), match=r"lost|closed"):
            await app.submit("greet", {"name": "eve"}, connection=connection)
        with contextlib.suppress(Exception):
            await end("rollback")
    assert sum((await app.counts()).values()) == 0


async def test_a_cursor_is_refused_with_what_to_give_instead(app: Backstay, postgres: Postgres) -> None:
    async with await psycopg.AsyncConnection.connect(postgres.url()) as connection:
        with pytest.raises(InvalidOption, match="give its connection"):
            await app.submit("greet", {"name": "ada"}, connection=connection.cursor())


async def test_a_session_class_of_the_users_own_is_taken(app: Backstay, postgres: Postgres) -> None:
    class Mine(AsyncSession):
        pass

    engine = create_async_engine(postgres.url().replace("postgresql://", "postgresql+asyncpg://"))
    async with Mine(engine) as session, session.begin():
        job = await app.submit("greet", {"name": "ada"}, connection=session)
    await engine.dispose()
    assert [each.job_id for each in await app.find()] == [job.job_id]


async def run(connection: Any, statement: str) -> None:
    """On whatever kind of connection this is."""
    kind = type(connection).__module__.partition(".")[0]
    given: Any = sqlalchemy.text(statement) if kind == "sqlalchemy" else statement
    if type(connection) in (psycopg.Connection, sqlalchemy.Connection):
        await asyncio.to_thread(connection.execute, given)
    else:
        await connection.execute(given)
