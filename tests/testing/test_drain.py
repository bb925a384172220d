"""drain: what is runnable runs, one job after another, and nothing else does."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backstay import Backoff, Backstay, Context, InvalidOption, Snooze, StoreGone, StoreMoved, sync
from backstay.clock import within
from backstay.core.dumps import FROM, MoveState
from backstay.testing import ManualClock, drain, drainer, throwaway_url
from tests.support.eventually import eventually


async def test_everything_that_is_runnable_runs_in_claim_order_and_is_returned(app: Backstay) -> None:
    order: list[str] = []

    @app.job("work")
    async def work(payload: str) -> str:
        order.append(payload)
        return payload.upper()

    async with app:
        await app.submit_many([(work, "normal"), (work, "low", {"priority": 1}), (work, "high", {"priority": 99})])
        jobs = await drain(app)
        assert await drain(app) == []
    assert order == ["high", "normal", "low"]
    assert [job.result for job in jobs] == ["HIGH", "NORMAL", "LOW"]
    assert [job.status for job in jobs] == ["completed"] * 3


async def test_one_job_runs_at_a_time(app: Backstay) -> None:
    running = most = 0
    another = asyncio.Event()

    @app.job("work")
    async def work(payload: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running > 1:
            another.set()
        await within(0.2, another.wait())
        running -= 1

    async with app:
        await app.submit_many([(work, n) for n in range(3)])
        assert len(await drain(app)) == 3
    assert most == 1


async def test_what_jobs_submit_and_what_depends_on_them_runs_too(app: Backstay) -> None:
    @app.job("parent")
    async def parent(payload: int) -> None:
        await child.submit(payload)

    @app.job("child")
    def child(payload: int) -> None: ...

    async with app:
        first = await parent.submit(1)
        await child.submit(2, depends_on=[first])
        jobs = await drain(app)
    assert [(job.job_type, job.payload) for job in jobs] == [("parent", 1), ("child", 2), ("child", 1)]
    assert {job.status for job in jobs} == {"completed"}


async def test_a_job_in_a_queue_that_no_handler_names_runs_too(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> None: ...

    async with app:
        await work.submit(1, queue="elsewhere")
        assert [job.queue for job in await drain(app)] == ["elsewhere"]


async def test_what_is_due_later_stays_until_the_clock_is_moved(app: Backstay, clock: ManualClock) -> None:
    @app.job("work", backoff=Backoff(base=60, jitter=0))
    async def work(payload: str, ctx: Context) -> str:
        if payload == "flaky" and ctx.attempt == 1:
            raise ConnectionError("not yet")
        return payload

    async with app:
        later = await work.submit("later", delay=3600)
        flaky = await work.submit("flaky")
        assert [job.status for job in await drain(app)] == ["retrying"]
        clock.advance(59)
        assert await drain(app) == []
        clock.advance(1)
        assert [job.job_id for job in await drain(app)] == [flaky.job_id]
        clock.set(later.scheduled_for)
        assert [job.result for job in await drain(app)] == ["later"]


async def test_with_advance_the_clock_goes_from_due_time_to_due_time(app: Backstay, clock: ManualClock) -> None:
    begun, times = clock.moment, []

    @app.job("work", backoff=Backoff(base=60, factor=2, jitter=0), max_attempts=3)
    async def work(payload: str, ctx: Context) -> None:
        times.append((clock.moment - begun).total_seconds())
        if payload == "bad":
            raise ValueError("always")

    async with app:
        await work.submit("bad")
        await work.submit("good", delay=timedelta(days=1))
        jobs = await drain(app, advance=True)
    assert times == [0, 60, 180, 86400]
    assert [job.status for job in jobs] == ["failed", "completed"]


async def test_with_until_it_runs_what_is_due_up_to_a_moment_and_the_clock_is_there(
    app: Backstay, clock: ManualClock
) -> None:
    @app.job("hourly")
    async def hourly(payload: int) -> None:
        await hourly.submit(payload + 1, delay=3600)

    end = clock.moment + timedelta(hours=5, minutes=30)
    async with app:
        await hourly.submit(0)
        jobs = await drain(app, until=end)
        assert [job.payload for job in jobs] == [0, 1, 2, 3, 4, 5]
        assert clock.moment == end
        assert (await app.counts())["scheduled"] == 1


async def test_jobs_over_their_rate_wait_for_the_clock(app: Backstay, clock: ManualClock) -> None:
    begun = clock.moment
    times = []

    @app.job("call", rate="2/m")
    async def call(payload: int) -> None:
        times.append((clock.moment - begun).total_seconds())

    async with app:
        await app.submit_many([(call, n) for n in range(4)])
        assert len(await drain(app)) == 2
        assert len(await drain(app, advance=True)) == 2
    assert times[:2] == [0, 0] and 0 < times[2] <= times[3] <= 120


async def test_the_jobs_of_a_schedule_run_as_its_ticks_come(app: Backstay, clock: ManualClock) -> None:
    times = []

    @app.job("report")
    async def report(payload: str) -> None:
        times.append(clock.moment.hour)

    async with app:
        await app.schedule("six-hourly", "0 */6 * * *", report, "numbers")
        assert await drain(app) == []
        await drain(app, until=clock.moment + timedelta(hours=20))
        assert times == [6, 12, 18]
        assert await drain(app, advance=True) == []  # it never ends: only a moment leads to its ticks
        clock.advance(timedelta(hours=4))
        assert len(await drain(app)) == 1


async def test_a_job_that_always_snoozes_ends_an_advancing_drain(app: Backstay) -> None:
    @app.job("sleepy", max_attempts=2)
    async def sleepy(payload: int) -> None:
        raise Snooze(60)

    async with app:
        await sleepy.submit(1)
        (job,) = await drain(app, advance=True)
    assert job.status == "failed" and "snoozed" in str(job.last_error)


@pytest.mark.parametrize(
    ("limit", "delay"), [("DRAIN_ADVANCES_MAX", 60), ("DRAIN_RUNS_MAX", 0)], ids=["for later", "at once"]
)
async def test_a_job_that_submits_itself_for_ever_is_an_error_and_not_a_hang(
    app: Backstay, monkeypatch: pytest.MonkeyPatch, limit: str, delay: float
) -> None:
    monkeypatch.setattr(drainer, limit, 20)

    @app.job("again")
    async def again(payload: int) -> None:
        await again.submit(payload + 1, delay=delay)

    async with app:
        await again.submit(0)
        with pytest.raises(AssertionError, match=limit):
            await drain(app, advance=True)


async def test_the_real_clock_cannot_be_moved(tmp_path: Any) -> None:
    app = Backstay(throwaway_url(tmp_path))

    @app.job("work")
    async def work(payload: int) -> None: ...

    async with app:
        with pytest.raises(InvalidOption, match="ManualClock"):
            await drain(app, advance=True)


async def test_a_job_that_is_cancelled_while_it_runs_does_not_hold_up_the_others(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: str, ctx: Context) -> None:
        if payload == "stops itself":
            await app.cancel(ctx.job_id)
            await asyncio.Event().wait()

    async with app:
        await app.submit_many([(work, "stops itself"), (work, "other")])
        assert [job.status for job in await drain(app)] == ["cancelled", "completed"]


async def test_a_thread_that_outlives_its_timeout_does_not_hold_up_the_others(app: Backstay) -> None:
    release = threading.Event()

    @app.job("work", max_attempts=1)
    def work(payload: str) -> None:
        if payload == "stuck":
            release.wait(60)

    async with app:
        await work.submit("stuck", timeout=0.05)
        await work.submit("other")
        task = asyncio.create_task(drain(app))

        async def other_has_ended() -> bool:
            return (await app.counts())["completed"] == 1

        await eventually(other_has_ended)
        release.set()
        assert [job.status for job in await task] == ["failed", "completed"]


async def test_a_drain_that_is_stopped_gives_back_what_runs(app: Backstay) -> None:
    begun = asyncio.Event()

    @app.job("work")
    async def work(payload: int) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with app:
        handle = await work.submit(1)
        task = asyncio.create_task(drain(app))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await handle.record()).status == "pending"


@pytest.mark.parametrize("when", ["as it settles", "as it claims"])
async def test_a_queue_that_vanishes_is_an_error_and_not_a_hang(app: Backstay, tmp_path: Path, when: str) -> None:
    @app.job("work")
    async def work(payload: int) -> None:
        (tmp_path / "jobs.db").unlink()

    class Gone(drainer.Front):
        async def claim(self, *_: object) -> None:
            raise StoreGone("vanished")

    async with app:
        await work.submit(1)
        with pytest.raises(StoreGone):
            await drain(app if when == "as it settles" else drainer.behind(app, Gone(app.store)))


def test_the_blocking_face_drains_without_await(blocking_app: sync.Backstay, clock: ManualClock) -> None:
    app = blocking_app

    @app.job("work")
    def work(payload: int) -> int:
        return payload + 1

    with app:
        work.submit(1)
        work.submit(2, delay=60)
        assert [job.result for job in drain(app)] == [2]
        assert [job.result for job in drain(app, advance=True)] == [3]


@pytest.mark.parametrize("until", [timedelta(hours=3), datetime(2030, 1, 1, 3, tzinfo=UTC)])
async def test_until_is_a_moment_or_a_span_from_now(tmp_path: Path, until: datetime | timedelta) -> None:
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    app = Backstay(throwaway_url(tmp_path), clock=clock)

    @app.job("report")
    async def report(payload: None, ctx: Context) -> None: ...

    async with app:
        await app.schedule("hourly", "@hourly", report)
        jobs = await drain(app, until=until)
    assert [job.tick_at for job in jobs] == [datetime(2030, 1, 1, hour, tzinfo=UTC) for hour in (1, 2, 3)]
    assert clock.moment == datetime(2030, 1, 1, 3, tzinfo=UTC)


async def test_until_is_nothing_else(tmp_path: Path) -> None:
    app = Backstay(throwaway_url(tmp_path), clock=ManualClock())
    async with app:
        with pytest.raises(InvalidOption, match="a datetime, or a timedelta from now"):
            await drain(app, until=3600)  # type: ignore[call-overload]


async def test_a_queue_that_has_moved_away_is_refused_instead_of_waited_for(app: Backstay) -> None:
    async with app:
        await app.store.freeze(MoveState(role=FROM, move_id="m", other="elsewhere"))
        with pytest.raises(StoreMoved, match="elsewhere"):
            await drain(app)
