"""Schedules and the clock: days on which it changes, and how soon after a tick its job starts."""

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

import pytest

from backstay import Backstay
from backstay.testing import ManualClock
from tests.app.report_app import HOUR, MINUTE, NOON, go_to, look, ticks, with_report
from tests.support.eventually import eventually


@pytest.fixture
async def app(make_app: Callable[..., Backstay]) -> AsyncIterator[Backstay]:
    async with with_report(make_app(clock=ManualClock(NOON - 5 * MINUTE))) as app:
        yield app


# Days on which the clocks change


async def test_a_tick_in_the_hour_that_is_skipped_comes_right_after_it(app: Backstay) -> None:
    go_to(app, datetime(2030, 3, 30, 12, tzinfo=UTC))
    await app.schedule("night", "30 2 * * *", "report", {"kind": "short"}, timezone="Europe/Berlin")

    for hour in range(48):
        await look(app, datetime(2030, 3, 30, 12, tzinfo=UTC) + hour * HOUR)

    assert await ticks(app) == [datetime(2030, 3, 31, 1, tzinfo=UTC), datetime(2030, 4, 1, 0, 30, tzinfo=UTC)]


@pytest.mark.parametrize("missed", ["skip", "one", "all"])
async def test_a_tick_in_the_hour_that_comes_twice_comes_once(app: Backstay, missed: str) -> None:
    start = datetime(2030, 10, 26, 12, tzinfo=UTC)
    go_to(app, start)
    await app.schedule("night", "30 2 * * *", "report", {"kind": "short"}, timezone="Europe/Berlin", missed=missed)

    for minute in range(0, 36 * 60, 10):
        await look(app, start + minute * MINUTE)

    assert await ticks(app) == [datetime(2030, 10, 27, 0, 30, tzinfo=UTC)]


async def test_a_worker_that_comes_back_within_the_hour_that_comes_twice_has_nothing_more_to_do(app: Backstay) -> None:
    go_to(app, datetime(2030, 10, 26, 12, tzinfo=UTC))
    await app.schedule("night", "30 2 * * *", "report", {"kind": "short"}, timezone="Europe/Berlin")

    await look(app, datetime(2030, 10, 27, 1, 10, tzinfo=UTC))  # 02:10, for the second time

    assert await ticks(app) == [datetime(2030, 10, 27, 0, 30, tzinfo=UTC)]
    [schedule] = await app.schedules()
    assert schedule.next_at == datetime(2030, 10, 28, 1, 30, tzinfo=UTC)


# In real time


async def test_a_schedule_that_is_added_wakes_a_sleeping_worker_and_its_job_starts_within_50_ms_of_the_tick(
    make_app: Callable[..., Backstay],
) -> None:
    app = make_app()

    @app.job("work")
    async def work(payload: None) -> None: ...

    async with app, make_app() as other, app.worker(poll_interval=60):
        for n in range(3):  # the worker has looked, found nothing, and sleeps for a minute
            await other.schedule(f"s{n}", "@every 1s", "work")

        async def ticked() -> bool:
            return len(await app.find(status="completed")) >= 9

        await eventually(ticked)
        lateness = []
        for job in await app.find(status="completed"):
            assert job.started_at is not None and job.tick_at is not None
            lateness.append((job.started_at - job.tick_at).total_seconds())
    assert min(lateness) >= 0
    assert sorted(lateness)[len(lateness) // 2] < 0.05, lateness
