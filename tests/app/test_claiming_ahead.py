"""What a worker has claimed and not begun costs nobody anything."""

import asyncio
import threading
import time
from collections.abc import Callable

from holdfast import Holdfast
from tests.eventually import eventually


async def test_a_claim_whose_answer_a_blocked_loop_has_not_read_keeps_its_leases(
    make_app: Callable[..., Holdfast],
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


async def _all_ended(app: Holdfast, count: int) -> bool:
    counts = await app.counts()
    return counts["completed"] + counts["failed"] == count


async def test_buffered_jobs_of_a_full_type_leave_the_slots_to_others(make_app: Callable[..., Holdfast]) -> None:
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
    make_app: Callable[..., Holdfast],
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


async def test_cancelling_what_was_claimed_ahead_lets_other_jobs_in(make_app: Callable[..., Holdfast]) -> None:
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
