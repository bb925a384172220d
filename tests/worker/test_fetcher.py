"""What a worker has claimed and not begun costs nobody anything."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from backstay import Backstay
from backstay.limits import PREFETCH_MAX
from backstay.worker.slots import Pace
from tests.support.eventually import eventually


async def test_a_claim_whose_answer_a_blocked_loop_has_not_read_keeps_its_leases(
    make_app: Callable[..., Backstay],
) -> None:
    blocking, other = make_app(lease=1.5), make_app(lease=1.5)
    blocked = 0

    async def work(payload: int) -> int:
        nonlocal blocked
        if payload > 300 and not blocked and threading.current_thread() is threading.main_thread():
            blocked += 1
            time.sleep(4)  # noqa: ASYNC251  # what a careless handler does
        return payload

    async def elsewhere() -> None:
        async with other, other.worker(concurrency=1):
            await asyncio.to_thread(over.wait)

    for app in (blocking, other):
        app.job("work", max_attempts=1)(work)
    over = threading.Event()
    rescuer = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    async with blocking:
        await blocking.submit_many([("work", number) for number in range(3_000)])
        async with blocking.worker(concurrency=10):
            rescuer.start()
            await eventually(lambda: _all_ended(blocking, 3_000), seconds=30)
        over.set()
        await asyncio.to_thread(rescuer.join)
        counts = await blocking.counts()
    assert (blocked, counts["completed"]) == (1, 3_000)


async def _all_ended(app: Backstay, count: int) -> bool:
    counts = await app.counts()
    return counts["completed"] + counts["failed"] == count


async def test_buffered_jobs_of_a_full_type_leave_the_slots_to_others(make_app: Callable[..., Backstay]) -> None:
    app = make_app()
    release, began = asyncio.Event(), asyncio.Event()

    @app.job("narrow", concurrency=1)
    async def narrow(payload: int) -> None:
        if payload == 50:
            began.set()
            await release.wait()

    @app.job("wide")
    async def wide(payload: int) -> None:
        pass

    async with app, app.worker(concurrency=4):
        await app.submit_many([("narrow", number) for number in range(200)])
        await asyncio.wait_for(began.wait(), 10)
        jobs = await app.submit_many([("wide", number) for number in range(5)])
        for job in jobs:
            await job.result(timeout=5)
        release.set()


async def test_what_was_claimed_ahead_is_given_back_when_its_turn_does_not_come(
    make_app: Callable[..., Backstay],
) -> None:
    busy, idle = make_app(), make_app()
    release, began = asyncio.Event(), asyncio.Event()
    done: list[int] = []

    async def work(payload: int) -> None:
        if payload == 100:
            began.set()
            await release.wait()
        done.append(payload)

    for app in (busy, idle):
        app.job("work")(work)
    async with busy, idle:
        await busy.submit_many([("work", number) for number in range(300)])
        async with busy.worker(concurrency=1):
            await asyncio.wait_for(began.wait(), 10)
            async with idle.worker(concurrency=1):
                await eventually(lambda: _done(done, 299))
            release.set()


async def _done(done: list[int], count: int) -> bool:
    return len(done) >= count


async def test_cancelling_what_was_claimed_ahead_lets_other_jobs_in(make_app: Callable[..., Backstay]) -> None:
    app = make_app(poll_interval=60)
    release, began = asyncio.Event(), asyncio.Event()

    @app.job("narrow", concurrency=1)
    async def narrow(payload: int) -> None:
        if payload == 20:
            began.set()
            await release.wait()

    @app.job("wide")
    async def wide(payload: int) -> None:
        pass

    async with app, app.worker(concurrency=2):
        jobs = await app.submit_many([("narrow", number) for number in range(120)])
        await asyncio.wait_for(began.wait(), 10)
        for job in jobs[21:]:
            await app.cancel(job.job_id)
        other = await app.submit("wide", 1)
        await other.result(timeout=5)
        release.set()


def test_one_job_that_ends_at_once_is_not_a_pace() -> None:
    pace = Pace(0.0)
    pace.ended = 1
    assert pace.prefetch(0.002) == 0
    assert pace.prefetch(0.06) == 0
    pace.ended = 100
    assert pace.prefetch(0.07) > 100


@pytest.mark.parametrize("kind", ["job", "batch_job"])
async def test_an_urgent_job_does_not_wait_for_the_short_jobs_of_another_type(app: Backstay, kind: str) -> None:
    """It waits for what is claimed ahead, PREFETCH_MAX at most, and for a claim on its way: not for a backlog."""
    count, ran, submitted_at, ran_at = 5_000, 0, 0, 0
    had_its_turn = asyncio.Event()

    def urgent(payload: object) -> None:
        nonlocal ran_at
        ran_at = ran
        had_its_turn.set()

    if kind == "job":
        app.job("urgent")(lambda payload: urgent(payload))
    else:
        app.batch_job("urgent", max_size=1, max_wait=0)(lambda payloads: [urgent(each) for each in payloads])

    @app.job("short", priority=0)
    async def short(payload: int) -> None:
        nonlocal ran, submitted_at
        ran += 1
        if ran == 500:
            await app.submit("urgent", 1, priority=100)
            submitted_at = ran

    async with app:
        await app.submit_many([("short", n) for n in range(count)])
        async with app.worker(concurrency=2):
            await asyncio.wait_for(had_its_turn.wait(), 60)
    assert ran_at - submitted_at <= 3 * PREFETCH_MAX
