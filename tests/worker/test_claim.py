"""Order, timing, concurrency, leases: which job runs when, and who holds it."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backstay import Backstay, Context
from backstay.core.lifecycle import rescue
from backstay.core.records import ClaimRequest, Verdict
from backstay.worker.run import Run
from backstay.worker.slots import Lane
from tests.support.eventually import eventually


async def test_jobs_run_by_priority_then_due_time(app: Backstay) -> None:
    order: list[str] = []

    @app.job("work")
    async def work(payload: str) -> None:
        order.append(payload)

    async with app:
        handles = [
            await work.submit("normal 1"),
            await work.submit("low", priority="low"),
            await work.submit("urgent", priority=100),
            await work.submit("normal 2"),
            await work.submit("high", priority="high"),
        ]
        async with app.worker(concurrency=1):
            for handle in handles:
                await handle.result(timeout=10)
    assert order == ["urgent", "high", "normal 1", "normal 2", "low"]


@pytest.mark.parametrize("by", ["delay", "run_at"])
async def test_a_job_starts_within_50_ms_of_its_due_time_and_never_before(app: Backstay, by: str) -> None:
    @app.job("work")
    async def work(payload: int) -> None: ...

    async with app, app.worker(poll_interval=60):
        lateness = []
        for n in range(5):
            later = timedelta(milliseconds=150 + 10 * n)
            option: Any = {"delay": later} if by == "delay" else {"run_at": datetime.now(UTC) + later}
            handle = await work.submit(n, **option)
            await handle.result(timeout=10)
            job = await app.get(handle.job_id)
            assert job.started_at is not None
            lateness.append((job.started_at - job.scheduled_for).total_seconds())
    assert min(lateness) >= 0
    assert sorted(lateness)[2] < 0.05, lateness


async def test_a_type_that_was_full_goes_on_as_soon_as_it_has_room(app: Backstay) -> None:
    @app.job("slow", concurrency=1)
    async def slow(payload: int) -> None:
        await asyncio.sleep(0.02)

    @app.job("other")  # asked for, and found to have none, while the first type is full
    async def other(payload: int) -> None: ...

    async with app:
        handles = await app.submit_many([("slow", n) for n in range(4)])
        async with app.worker(poll_interval=60):
            for handle in handles:
                await handle.result(timeout=10)


async def test_a_job_with_an_earlier_due_time_wakes_the_promoter(app: Backstay, make_app: Any) -> None:
    @app.job("work")
    async def work(payload: int) -> int:
        return payload

    async with app, make_app() as other, app.worker(poll_interval=60):
        await work.submit(1, delay=3600)
        handle = await other.submit("work", 2, delay=0.05)
        assert await handle.result(timeout=5) == 2


async def test_a_worker_in_another_app_is_woken_by_a_submit_without_polling(app: Backstay, make_app: Any) -> None:
    @app.job("work")
    async def work(payload: int) -> int:
        return payload

    async with app, make_app() as other, app.worker(poll_interval=60):
        for n in range(20):
            assert await (await other.submit("work", n)).result(timeout=5) == n


async def test_a_worker_takes_only_the_types_and_queues_it_serves(app: Backstay) -> None:
    @app.job("mine")
    async def mine(payload: int) -> None: ...

    @app.job("theirs")
    async def theirs(payload: int) -> None: ...

    async with app:
        foreign = await theirs.submit(1, priority=100)
        elsewhere = await mine.submit(2, queue="other")
        own = await mine.submit(3)
        async with app.worker(job_types=["mine"]):
            await own.result(timeout=10)
        assert [(await app.get(each.job_id)).status for each in (foreign, elsewhere)] == ["pending", "pending"]
        async with app.worker(queues=["default", "other"]):
            await foreign.result(timeout=10)
            await elsewhere.result(timeout=10)


async def test_a_type_never_runs_more_than_its_concurrency_and_does_not_hold_up_others(app: Backstay) -> None:
    running = most = 0
    release = asyncio.Event()

    @app.job("limited", concurrency=2, priority="urgent")
    async def limited(payload: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1

    @app.job("free")
    async def free(payload: int) -> str:
        return "ran"

    async with app, app.worker(concurrency=5):
        handles = [await limited.submit(n) for n in range(6)]
        assert await (await free.submit(1)).result(timeout=10) == "ran"
        release.set()
        for handle in handles:
            await handle.result(timeout=10)
    assert most == 2


async def test_a_global_limit_per_key_holds_over_several_workers(app: Backstay, make_app: Any) -> None:
    running: dict[str, int] = {}
    most: dict[str, int] = {}
    apps = [app, make_app()]

    for each in apps:

        @each.job("call", global_concurrency=2)
        async def call(payload: str) -> None:
            running[payload] = running.get(payload, 0) + 1
            most[payload] = max(most.get(payload, 0), running[payload])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            running[payload] -= 1

    async with apps[0], apps[1], apps[0].worker(concurrency=8), apps[1].worker(concurrency=8):
        handles = [await app.submit("call", key, concurrency_key=key) for _ in range(15) for key in ("x", "y")]
        for handle in handles:
            await handle.result(timeout=20)
    assert max(most.values()) <= 2


async def test_a_job_of_a_dead_claim_is_rescued_counted_as_a_failure_and_runs_again(make_app: Any) -> None:
    app = make_app(lease=0.3)

    @app.job("work")
    async def work(payload: int, ctx: Context) -> int:
        return ctx.attempt

    async with app:
        handle = await work.submit(1)
        request = ClaimRequest("ghost", "0", ("default",), {"work": 1}, 1, 100_000, "token")
        assert len(await app.store.claim(request, app.clock.now())) == 1
        async with app.worker():
            assert await handle.result(timeout=10) == 2
        job = await app.get(handle.job_id)
    assert (job.failures, job.attempt) == (1, 2)
    rescue = next(h for h in job.history if h.event == "rescue")
    assert rescue.attempt == 1 and "ghost" in str(rescue.reason)
    assert job.errors[0]["type"] == "LeaseLost"


async def test_a_worker_whose_claim_was_rescued_is_told_and_its_handler_stopped(make_app: Any) -> None:
    app = make_app(lease=0.4)
    started, stopped = asyncio.Event(), asyncio.Event()

    @app.job("work")
    async def work(payload: int, ctx: Context) -> str:
        if ctx.attempt == 1:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
        return f"attempt {ctx.attempt}"

    async with app, app.worker(grace=0):
        handle = await work.submit(1)
        await started.wait()
        # What another worker does when it finds the lease run out, as after a long pause of this process.
        now = app.clock.now()
        verdicts: list[Verdict] = []
        while Verdict.APPLIED not in verdicts:  # until no extension comes between reading the lease and rescuing
            record = (await app.store.get([handle.job_id]))[0]
            decided = rescue(record, lease=record.lease_expires_at, now=now, reason="ran out", by="another")  # type: ignore
            verdicts = await app.store.apply([decided], now)
        async with asyncio.timeout(10):
            await stopped.wait()
        assert await handle.result(timeout=10) == "attempt 2"
        job = await app.get(handle.job_id)
    assert (job.failures, job.attempt) == (1, 2)


async def test_workers_are_listed_with_what_they_run_and_leave_when_they_stop(app: Backstay) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    @app.job("work")
    async def work(payload: int) -> None:
        started.set()
        await release.wait()

    async with app:
        async with app.worker(concurrency=3, lease=0.3, grace=1) as worker:
            handle = await work.submit(1)
            await started.wait()

            async def listed() -> bool:
                return [w.running for w in await app.workers()] == [(handle.job_id,)]

            await eventually(listed)
            (row,) = await app.workers()
            assert (row.worker_id, row.concurrency, row.job_types) == (worker.worker_id, 3, ("work",))
            assert row.heartbeat_at <= app.clock.now() and row.host and row.pid
            release.set()
        assert await app.workers() == []


async def test_three_hundred_short_jobs_in_threads_run_once_each(app: Backstay) -> None:
    seen: list[int] = []
    lock = threading.Lock()

    @app.job("work")
    def work(payload: int) -> int:
        with lock:
            seen.append(payload)
        return payload

    async with app, app.worker(concurrency=4):
        handles = await app.submit_many([("work", n) for n in range(300)])
        assert [await handle.result(timeout=20) for handle in handles] == list(range(300))
    assert sorted(seen) == list(range(300))


async def test_slow_jobs_are_not_hoarded_after_many_fast_ones(app: Backstay) -> None:
    release = asyncio.Event()
    begun = asyncio.Semaphore(0)

    @app.job("fast")
    async def fast(payload: int) -> None: ...

    @app.job("slow", concurrency=2)
    async def slow(payload: int) -> None:
        begun.release()
        await release.wait()

    async with app, app.worker(concurrency=10):
        last = (await app.submit_many([("fast", n) for n in range(2000)]))[-1]
        await last.result(timeout=20)
        handles = await app.submit_many([("slow", n) for n in range(12)])
        await begun.acquire()
        await begun.acquire()
        await (await fast.submit(1)).result(timeout=10)
        assert len(await app.find(status="processing", job_type="slow")) == 2
        release.set()
        for handle in handles:
            await handle.result(timeout=10)


async def test_a_claim_that_is_lost_before_its_handler_begins_frees_its_slot(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> int:
        return payload

    async with app, app.worker(concurrency=1, grace=0) as worker:
        slots = worker._slots
        start = slots._start

        def start_and_lose(run: Run, lane: Lane) -> None:
            slots._start = start  # type: ignore[method-assign]
            start(run, lane)
            worker._slots.lose(run)

        slots._start = start_and_lose  # type: ignore[method-assign]
        lost = await work.submit(1)
        kept = await work.submit(2)
        assert await kept.result(timeout=10) == 2
        assert (await app.get(lost.job_id)).status == "processing"  # until its lease runs out
