"""Retention from a user's side: how long ended jobs stay, and that nothing else goes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from backstay import Backstay, ConfigurationError, InvalidOption, JobNotFound, Retention
from backstay.testing import ManualClock, drain
from backstay.worker import maintenance
from tests.app.ended_jobs import DAY, NOON, archived, ended, with_work
from tests.support.eventually import eventually


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
async def app(make_app: Callable[..., Backstay], clock: ManualClock) -> AsyncIterator[Backstay]:
    async with with_work(make_app(clock=clock)) as app:
        yield app


# How long


async def test_completed_and_cancelled_jobs_stay_a_week_and_failed_ones_a_month(
    app: Backstay, clock: ManualClock
) -> None:
    done, failed = await ended(app, "ok", "fail")
    waiting = await app.submit("work", "waits", delay=10 * 366 * DAY)
    gone = await app.submit("work", "cancelled", delay=60)
    await app.cancel(gone.job_id)
    jobs = (done, gone.job_id, failed, waiting.job_id)

    clock.advance(7 * DAY)
    assert await app.purge() == 0
    clock.advance(1)
    assert await app.purge() == 2
    assert await archived(app, *jobs) == [True, True, False, False]

    clock.advance(23 * DAY)
    assert await app.purge() == 1
    clock.advance(3650 * DAY)
    await app.purge()
    assert (await app.get(waiting.job_id)).status == "scheduled"


async def test_a_type_has_its_own_spans_and_any_app_keeps_to_them(
    make_app: Callable[..., Backstay], clock: ManualClock
) -> None:
    app = make_app(clock=clock)
    spans = {"short": 60, "long": 30 * DAY, "never": Retention(completed=None), "usual": None}
    for name, span in spans.items():

        @app.job(name, retention=span)  # type: ignore[arg-type]
        async def work(payload: None) -> None: ...

    async with app:
        ids = {name: (await app.submit(name)).job_id for name in spans}
        await drain(app)
    async with make_app(clock=clock) as other:  # has none of the handlers
        gone = []
        for passed in (timedelta(minutes=2), 10 * DAY, 40 * DAY):
            clock.advance(passed)
            await other.purge()
            gone.append([name for name, job_id in ids.items() if (await archived(other, job_id))[0]])
    assert gone == [["short"], ["short", "usual"], ["short", "long", "usual"]]


async def test_an_app_has_its_own_spans_by_option(make_app: Callable[..., Backstay], clock: ManualClock) -> None:
    keep = Retention(completed=timedelta(hours=1), failed=None, archive=timedelta(hours=2))
    async with with_work(make_app(clock=clock, retention=keep)) as app:
        done, failed = await ended(app, "ok", "fail")
        clock.advance(timedelta(hours=1, seconds=1))
        assert await app.purge() == 1
        clock.advance(timedelta(hours=2, seconds=1))
        assert await app.purge() == 0
        with pytest.raises(JobNotFound):
            await app.get(done)
        assert await archived(app, failed) == [False]


async def test_spans_can_be_set_in_the_environment(
    make_app: Callable[..., Backstay], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKSTAY_RETENTION_COMPLETED", "3600")
    monkeypatch.setenv("BACKSTAY_RETENTION_FAILED", "never")
    async with with_work(make_app(clock=clock)) as app:
        done, failed = await ended(app, "ok", "fail")
        clock.advance(3601)
        await app.purge()
        assert await archived(app, done, failed) == [True, False]
        clock.advance(3650 * DAY)
        await app.purge()
        assert await archived(app, failed) == [False]


@pytest.mark.parametrize("value", ["soon", "-1", "inf"])
def test_a_setting_that_cannot_be_meant_is_an_error_at_once(
    make_app: Callable[..., Backstay], monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("BACKSTAY_RETENTION_ARCHIVE", value)
    with pytest.raises(ConfigurationError, match="BACKSTAY_RETENTION_ARCHIVE"):
        make_app()


@pytest.mark.parametrize("keep", [Retention(completed=-1), Retention(archive="long"), Retention(failed=[1]), 7])  # type: ignore[arg-type]
def test_a_span_that_cannot_be_meant_is_an_error_at_once(make_app: Callable[..., Backstay], keep: Any) -> None:
    with pytest.raises(InvalidOption):
        make_app(retention=keep)


# On demand


async def test_purge_takes_what_is_older_than_it_is_told_and_says_how_many(app: Backstay, clock: ManualClock) -> None:
    old = await ended(app, "a", "fail")
    clock.advance(3600)
    young = await ended(app, "b")
    running = await app.submit("work", "waits")

    assert await app.purge(older_than=timedelta(minutes=30)) == 2
    assert await archived(app, *old, *young) == [True, True, False]

    assert await app.purge(older_than=0) == 1  # all that has ended, this very moment included
    assert await archived(app, *young) == [True]
    assert (await running.record()).status == "pending"
    assert await app.purge(older_than=0) == 0


async def test_purge_takes_only_the_types_it_is_told(app: Backstay) -> None:
    @app.job("other")
    async def other(payload: None) -> None: ...

    [mine] = await ended(app, "a")
    theirs = (await other.submit(None)).job_id
    await drain(app)

    assert await app.purge(older_than=0, job_types=["other"]) == 1
    assert await archived(app, mine, theirs) == [False, True]
    for wrong in ("other", ["no such name"]):
        with pytest.raises(InvalidOption):
            await app.purge(older_than=0, job_types=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="older_than"):
        await app.purge(older_than=-1)


async def test_more_than_one_step_takes_are_all_moved(app: Backstay) -> None:
    handles = await app.submit_many([("work", n, {"delay": 60}) for n in range(1_300)])
    for handle in handles:
        await app.cancel(handle.job_id)

    assert await app.purge(older_than=0) == 1_300
    assert (await app.counts())["cancelled"] == 0


async def test_purge_on_start_does_it_as_the_app_opens(
    make_app: Callable[..., Backstay], clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "backstay")
    async with with_work(make_app(clock=clock)) as app:
        old = await ended(app, "a")
        clock.advance(8 * DAY)
        young = await ended(app, "b")
    async with make_app(clock=clock) as app:
        assert await archived(app, *old, *young) == [False, False]
    async with make_app(clock=clock, purge_on_start=True) as app:
        assert await archived(app, *old, *young) == [True, False]
    assert "retention archived 1 job" in caplog.messages


async def test_a_worker_does_it_by_itself(
    make_app: Callable[..., Backstay], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "START_SECONDS", 0.01)
    async with with_work(make_app(clock=clock)) as app:
        [old] = await ended(app, "large")
        clock.advance(8 * DAY)
        async with app.worker():

            async def moved() -> bool:
                return (await archived(app, old))[0] and not await app.store.with_files(1)

            await eventually(moved)


# While others work


async def test_active_jobs_are_never_touched_while_retention_goes_over_them(make_app: Callable[..., Backstay]) -> None:
    app = make_app(retention=Retention(completed=0, failed=0, cancelled=0))

    @app.job("work")
    async def work(payload: int) -> int:
        return payload

    async with app, app.worker(concurrency=4):
        handles = []

        async def submitting() -> None:
            for n in range(20):
                handles.extend(await app.submit_many([("work", 20 * n + m) for m in range(20)]))

        async def purging() -> int:
            moved = 0
            while len(handles) < 400 or (await app.counts())["completed"] or await pending():
                moved += await app.purge()
            return moved

        async def pending() -> int:
            counts = await app.counts()
            return counts["pending"] + counts["processing"]

        async with asyncio.timeout(60):
            _, moved = await asyncio.gather(submitting(), purging())
        assert moved == 400
        assert {(await handle.record()).status for handle in handles} == {"completed"}
