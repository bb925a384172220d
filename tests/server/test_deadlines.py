"""Time limits that share a timer."""

from __future__ import annotations

import asyncio

import pytest

from backstay.server.request import Deadlines


async def test_a_limit_ends_what_runs_within_it_and_nothing_else() -> None:
    limits = Deadlines()
    ended = asyncio.Event()

    async def hang(seconds: float) -> None:
        with limits.within(seconds):
            await ended.wait()

    patient = [asyncio.create_task(hang(60)) for _ in range(3)]
    with pytest.raises(TimeoutError):
        await hang(0.01)
    with pytest.raises(TimeoutError):  # the timer was started for the patient ones, and has to start again for this
        await hang(0.01)
    assert not any(task.done() for task in patient)
    ended.set()
    await asyncio.gather(*patient)
    assert len(limits) == 0


async def test_a_limit_can_be_lifted_and_brought_closer() -> None:
    limits = Deadlines()

    async def hang(seconds: float, at: float) -> None:
        with limits.within(seconds) as limit:
            limit.move(at)
            await asyncio.Event().wait()

    lifted = asyncio.create_task(hang(0.01, float("inf")))
    with pytest.raises(TimeoutError):
        await hang(60, asyncio.get_running_loop().time() + 0.05)  # by then the lifted one would have been reached
    assert not lifted.done()
    lifted.cancel()


async def test_a_cancellation_is_not_taken_for_a_limit() -> None:
    limits = Deadlines()
    began = asyncio.Event()

    async def hang() -> None:
        with limits.within(60):
            began.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(hang())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(limits) == 0


def test_limits_hold_on_a_second_event_loop_too() -> None:
    limits = Deadlines()

    async def hang(seconds: float) -> None:
        with limits.within(seconds):
            await asyncio.Event().wait()

    async def leave() -> None:
        task = asyncio.create_task(hang(0.05))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())  # its timer ends with its loop
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(hang(0.1), 30))
