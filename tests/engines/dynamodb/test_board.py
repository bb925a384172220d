"""The board tells other processes that something happened, soon, and never nothing at all."""

from __future__ import annotations

import asyncio

from backstay.core.records import QueueChange, QueueRow, Signal
from backstay.engines.dynamodb.board import changed
from backstay.engines.dynamodb.store import DynamoStore

NOW = 1_763_300_000_000_000


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


def test_pausing_what_is_paused_keeps_who_did_it_first() -> None:
    paused = changed(QueueRow(name="q"), QueueChange(paused=True, by="me", reason="why"), NOW)

    assert changed(paused, QueueChange(paused=True, by="you"), NOW + 1) == paused
    assert changed(paused, QueueChange(paused=False), NOW + 1) == QueueRow(name="q")
    assert changed(QueueRow(name="q"), QueueChange(max_pending=5), NOW).max_pending == 5
    assert changed(QueueRow(name="q", max_pending=5), QueueChange(max_pending=0), NOW).max_pending is None
