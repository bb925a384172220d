"""The board tells other processes that something happened, soon, and never nothing at all."""

from __future__ import annotations

import asyncio

from backstay.core.records import Signal
from backstay.engines.dynamodb.store import DynamoStore


async def test_who_signals_and_ends_at_once_is_heard(store: DynamoStore, second_store: DynamoStore) -> None:
    heard = asyncio.Event()
    stop = store.listen(frozenset({Signal.READY}), lambda _: heard.set())
    board = second_store._open().board
    board.committed({Signal.DUE})
    board.committed({Signal.READY})
    await second_store.close()

    async with asyncio.timeout(20):
        await heard.wait()
    stop()


async def test_one_does_not_hear_oneself_twice(store: DynamoStore) -> None:
    heard: list[Signal] = []
    board = store._open().board
    stop = store.listen(frozenset(Signal), heard.append)
    board.committed({Signal.READY})
    await board._tell()

    assert await board._moved() == set()
    assert heard == [Signal.READY]
    stop()
