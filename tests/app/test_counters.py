"""stats: the figures agree with what ran."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backstay import Backoff, Backstay, Context, Discard, InvalidOption, JobFailed, Snooze
from backstay.core.states import BOUNDS
from backstay.testing import ManualClock, drain
from tests.support.eventually import eventually

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


async def test_the_figures_are_those_of_every_job_by_its_history(app: Backstay) -> None:
    @app.job("mixed", max_attempts=2, backoff=Backoff(0.001, 1, jitter=0))
    async def mixed(payload: str, ctx: Context) -> None:
        match payload:
            case "fail":
                raise ValueError("always")
            case "once" if ctx.attempt == 1:
                raise ValueError("once")
            case "snooze" if ctx.attempt == 1:
                raise Snooze(0.001)
            case "discard":
                raise Discard("no")

    async with app:
        payloads = ["ok"] * 7 + ["fail"] * 2 + ["once"] * 3 + ["snooze"] * 4 + ["discard"]
        handles = [await mixed.submit(payload) for payload in payloads]
        cancelled = [await mixed.submit("ok", delay=60) for _ in range(2)]
        for handle in cancelled:
            await app.cancel(handle.job_id)
        async with app.worker():
            for handle in handles:
                try:
                    await handle.result(timeout=20)
                except JobFailed:
                    await app.retry(handle.job_id)
                    with pytest.raises(JobFailed):
                        await handle.result(timeout=20)
        found = await app.stats(minutes=5)
        events: Counter[Any] = Counter()
        for handle in (*handles, *cancelled):
            events.update(entry.event for entry in await app.history(handle.job_id))

        ever = {each.outcome: each.count for each in await app.totals()}

    total = found.total
    assert ever == {name: number for name in ever if (number := getattr(total, name))}
    assert total.time_buckets[-1] == total.wait_buckets[-1] == total.completed + total.failed + total.retried
    assert total.submitted == events["submit"] == 19
    assert total.completed == events["complete"] == 14
    assert total.failed == events["exhaust"] + events["discard"] == 6
    assert total.retried == events["retry"] == 7
    assert total.snoozed == events["snooze"] == 4
    assert total.cancelled == events["cancel"] == 2
    assert total.retried_by_hand == events["manual_retry"] == 3
    assert found.counts["completed"] == 14 and found.counts["failed"] == 3


async def test_a_job_that_is_given_back_is_counted_as_that(app: Backstay) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    @app.job("work")
    async def work(payload: int) -> None:
        begun.set()
        await never.wait()

    async with app:
        await work.submit(1)
        async with app.worker(grace=0):
            await begun.wait()
        total = (await app.stats()).total
    assert (total.submitted, total.given_back, total.completed, total.failed) == (1, 1, 0, 0)


async def test_times_of_running_and_waiting_are_measured(make_app: Callable[..., Backstay]) -> None:
    clock = ManualClock(NOON)
    app = make_app(clock=clock)

    @app.job("work")
    async def work(payload: float) -> None:
        clock.advance(payload)

    async with app:
        await work.submit(2.0)
        clock.advance(4)
        await drain(app)
        total = (await app.stats()).total
    assert (total.average_time_ms, total.average_wait_ms) == (2_000, 4_000)
    assert [count for bound, count in zip(BOUNDS, total.time_buckets, strict=False) if bound in (1.0, 2.5)] == [0, 1]
    assert [count for bound, count in zip(BOUNDS, total.wait_buckets, strict=False) if bound in (2.5, 5.0)] == [0, 1]


async def test_minutes_and_types_are_told_apart(make_app: Callable[..., Backstay]) -> None:
    clock = ManualClock(NOON + timedelta(seconds=30))
    app = make_app(clock=clock)

    @app.job("one")
    async def one(payload: None) -> None: ...

    @app.job("two", queue="other")
    async def two(payload: None) -> None: ...

    async with app:
        for handler, count in ((one, 3), (two, 1)):
            for _ in range(count):
                await handler.submit(None)
            await drain(app)
            clock.advance(60)
        found = await app.stats(minutes=10)
        assert [(each.minute, each.completed) for each in found.by_minute] == [
            (NOON, 3),
            (NOON + timedelta(minutes=1), 1),
        ]
        assert [(each.job_type, each.queue, each.completed) for each in found.by_type] == [
            ("one", "default", 3),
            ("two", "other", 1),
        ]
        assert (found.until, found.per_minute) == (NOON + timedelta(minutes=3), 0.4)
        assert (await app.stats(minutes=2)).total.completed == 1


async def test_figures_outlive_the_jobs_and_go_after_a_month(make_app: Callable[..., Backstay]) -> None:
    clock = ManualClock(NOON)
    app = make_app(clock=clock)

    @app.job("work")
    async def work(payload: None) -> None: ...

    async with app:
        await work.submit(None)
        await drain(app)
        await app.purge(older_than=0)
        assert (await app.stats()).total.completed == 1
        clock.advance(timedelta(days=31))
        await app.purge()
        assert await app.store.counters(0, clock.now()) == []
        assert {each.outcome: each.count for each in await app.totals()} == {"submitted": 1, "completed": 1}


async def test_two_apps_add_to_the_same_figures(app: Backstay, make_app: Callable[..., Backstay]) -> None:
    apps = [app, make_app()]
    for each in apps:

        @each.job("work")
        async def work(payload: int) -> None: ...

    async with apps[0], apps[1], apps[0].worker(), apps[1].worker():
        for n in range(10):
            await apps[n % 2].submit_many([("work", n) for _ in range(20)])

        async def done() -> bool:
            return (await app.counts())["completed"] == 200

        await eventually(done)
        total = (await app.stats()).total
    assert (total.submitted, total.completed) == (200, 200)


@pytest.mark.parametrize("minutes", [0, -1, 1.5, True, "5", 10**6])
async def test_a_span_that_cannot_be_meant_is_refused(app: Backstay, minutes: Any) -> None:
    async with app:
        with pytest.raises(InvalidOption, match="minutes"):
            await app.stats(minutes)


async def test_reuse_counts_what_it_saved(make_app: Callable[..., Backstay]) -> None:
    clock = ManualClock(NOON)
    app = make_app(clock=clock)

    @app.job("slow", reuse_by=["n"])
    async def slow(payload: dict[str, int]) -> int:
        clock.advance(2)
        return 1

    async with app:
        for _ in range(3):
            await app.submit("slow", {"n": 1}, reuse=True)
            await drain(app)
        total = (await app.stats()).total
    assert (total.completed, total.reused, total.saved_ms) == (3, 2, 4_000)
