"""The pool lends each connection to one borrower at a time, and none that could give a wrong answer."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from backstay.engines.postgres.connection import Pool
from tests.support.servers.postgres import Postgres

PATIENCE = 5.0


@pytest.fixture
async def pool(postgres: Postgres) -> AsyncIterator[Pool]:
    opened = Pool(lambda: asyncpg.connect(postgres.url()), 2, PATIENCE)
    yield opened
    await opened.close(1)


async def backend(connection: Any) -> int:
    return int(await connection.fetchval("SELECT pg_backend_pid()"))


async def test_no_more_connections_are_opened_than_allowed_and_who_waits_gets_one_that_came_back(pool: Pool) -> None:
    async def borrow() -> int:
        async with pool.lend() as connection:
            return await backend(connection)

    assert len(set(await asyncio.gather(*(borrow() for _ in range(20))))) <= 2


async def test_a_connection_whose_borrower_was_cancelled_is_not_lent_again(pool: Pool) -> None:
    borrowed: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def borrow() -> None:
        async with pool.lend() as connection:
            borrowed.set_result(await backend(connection))
            await connection.fetchval("SELECT pg_sleep(60)")

    task = asyncio.create_task(borrow())
    left_behind = await borrowed
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with pool.lend() as one, pool.lend() as other:
        assert left_behind not in (await backend(one), await backend(other))


async def test_an_error_of_the_server_does_not_cost_the_connection(pool: Pool) -> None:
    seen = []
    for statement in ("SELECT 1/0", "SELECT 1"):
        try:
            async with pool.lend() as connection:
                seen.append(await backend(connection))
                await connection.execute(statement)
        except asyncpg.DivisionByZeroError:
            pass
    assert seen[0] == seen[1]


async def test_connections_that_the_server_has_ended_are_replaced(pool: Pool, postgres: Postgres) -> None:
    async with pool.lend() as connection:
        ended = await backend(connection)
    admin = await asyncpg.connect(postgres.url())
    gone = asyncio.Event()
    connection.add_termination_listener(lambda _: gone.set())
    await admin.execute("SELECT pg_terminate_backend($1)", ended)
    await gone.wait()
    await admin.close()
    async with pool.lend() as one, pool.lend() as other:
        assert ended not in (await backend(one), await backend(other))


async def test_who_waits_tries_in_the_place_of_one_that_could_not_connect(postgres: Postgres) -> None:
    answers = iter([False, True])

    async def connect() -> Any:
        if not next(answers):
            await asyncio.sleep(0)
            raise ConnectionRefusedError
        return await asyncpg.connect(postgres.url())

    async def borrow(pool: Pool) -> int:
        async with pool.lend() as connection:
            return await backend(connection)

    pool = Pool(connect, 1, PATIENCE)
    refused, served = await asyncio.gather(borrow(pool), borrow(pool), return_exceptions=True)
    await pool.close(1)
    assert isinstance(refused, ConnectionRefusedError)
    assert isinstance(served, int)


async def test_waiting_has_an_end_and_whoever_gave_up_takes_nothing_with_it(postgres: Postgres) -> None:
    pool = Pool(lambda: asyncpg.connect(postgres.url()), 1, 0.01)
    async with pool.lend():
        with pytest.raises(TimeoutError):
            async with pool.lend():
                pass
    async with pool.lend() as connection:
        assert await connection.fetchval("SELECT 1") == 1
    await pool.close(1)


async def test_closing_ends_what_waits_and_what_is_lent(postgres: Postgres) -> None:
    pool = Pool(lambda: asyncpg.connect(postgres.url()), 1, PATIENCE)
    async with pool.lend() as connection:
        waiting = asyncio.create_task(pool.lend().__aenter__())
        await asyncio.sleep(0)
        await pool.close(1)
        with pytest.raises(asyncpg.InterfaceError):
            await waiting
        assert connection.is_closed()
