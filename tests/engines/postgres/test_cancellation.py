"""A task that is told to end does so, whatever happens to its connection at that moment."""

import asyncio
import secrets

import pytest

from backstay.engines.postgres.connection import Session, Tx, parse
from tests.support.servers.postgres import Postgres
from tests.support.servers.proxy import Proxy


@pytest.mark.parametrize("transaction", [True, False])
async def test_a_cancellation_is_not_lost_with_the_connection(postgres: Postgres, transaction: bool) -> None:
    with Proxy(postgres.port) as proxy:
        url = postgres.url(schema=f"cancel_{secrets.token_hex(3)}", pool="2")
        session = Session(parse(url.replace(str(postgres.port), str(proxy.port))))
        await session.open()
        begun = asyncio.Event()
        tries = 0

        async def verb(tx: Tx, _repeat: bool) -> None:
            nonlocal tries
            tries += 1
            await tx.connection.execute("SELECT 1")
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                proxy.cut()  # so that what is sent to end the transaction fails

        task = asyncio.create_task(session.run(verb, transaction=transaction))
        await begun.wait()
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=20)
        task.cancel()
        await session.close()

        assert done and task.cancelled()
        assert tries == 1
