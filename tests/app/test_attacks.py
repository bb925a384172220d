"""What was broken on purpose once, and must not break again."""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import apsw
import pytest
from pydantic import BaseModel, Field

from backstay import Backstay, BackstayError, InvalidOption, InvalidPayload, Retention
from backstay.clock import to_datetime, to_instant
from backstay.core import schedules
from backstay.limits import FAIR_KEY_SECONDS
from backstay.testing import ManualClock, drain
from tests.support.eventually import eventually

MakeApp = Callable[..., Backstay]


def with_work(app: Backstay, name: str = "work", **options: Any) -> Backstay:
    async def work(payload: Any) -> None: ...

    app.job(name, **options)(work)
    return app


def edited(app: Backstay, statement: str, *values: Any) -> None:
    """As another process might leave it."""
    read(app, statement, *values)


def read(app: Backstay, statement: str, *values: Any) -> Any:
    connection = apsw.Connection(app.url.removeprefix("sqlite:///"))
    connection.set_busy_timeout(5000)
    found = connection.execute(statement, values).get
    connection.close()
    return found


@pytest.mark.parametrize("active", [False, True], ids=["all of it over", "its root still active"])
async def test_retention_of_a_large_tree_takes_a_moment_and_keeps_nobody_waiting(
    make_app: MakeApp, active: bool
) -> None:
    app = with_work(make_app())
    async with app:
        root = await app.submit("work")
        await app.submit_many([("work", None, {"parent": root.job_id})] * 3_000)
        old = app.clock.now() - 10 * 86_400 * 1_000_000
        only = "parent_job_id IS NOT NULL" if active else "true"
        edited(app, f"UPDATE job SET created_at = ? WHERE {only}", old)
        edited(app, f"DELETE FROM ready WHERE seq IN (SELECT seq FROM job WHERE {only})")
        edited(
            app,
            "INSERT INTO ended (seq, status, attempt, failures, version, completed_at)"
            f" SELECT seq, 'completed', 1, 0, 3, ? FROM job WHERE {only}",
            old,
        )
        edited(app, "UPDATE detail SET open_children = NULL")
        started = time.monotonic()

        moved = await app.purge()

        assert moved == (0 if active else 3_001)
        assert time.monotonic() - started < 5  # it was quadratic: half a minute and more


async def test_a_limited_queue_is_counted_once_for_a_batch(make_app: MakeApp) -> None:
    app = with_work(make_app())
    async with app:
        await app.submit_many([("work", None)] * 40_000)
        await app.limit_queue("default", 100_000)
        started = time.monotonic()

        await app.submit_many([("work", None, {"dedup_key": f"k{n}"}) for n in range(1_000)])

        assert time.monotonic() - started < 4  # it took forty times as long


async def test_a_job_that_would_only_wait_does_not_count_as_pending(make_app: MakeApp) -> None:
    app = with_work(make_app())
    async with app:
        first = await app.submit("work", queue="other")
        await app.submit("work")
        await app.limit_queue("default", 1)

        assert (await app.submit("work", depends_on=[first.job_id])).status == "waiting"


@pytest.mark.parametrize("span", [timedelta.max, 1e13, -1, float("nan"), "x" * 100_000])
def test_a_span_that_cannot_be_meant_is_refused_where_it_is_written(make_app: MakeApp, span: Any) -> None:
    with pytest.raises(InvalidOption):
        make_app(retention=Retention(completed=span))


async def test_a_text_is_no_delay(make_app: MakeApp) -> None:
    app = with_work(make_app())
    async with app:
        with pytest.raises(InvalidOption, match="delay"):
            await app.submit("work", delay="x" * 100_000)  # type: ignore[typeddict-item]


def test_where_clocks_change_by_half_an_hour_the_last_tick_is_found() -> None:
    rule = schedules.parse("*/30 2 * * *", "Pacific/Chatham")

    found = rule.latest(1775356840893887)

    assert to_datetime(found) <= to_datetime(1775356840893887) < to_datetime(rule.after(found))


@pytest.mark.parametrize("expression", ["* * * * *", "0 0 29 2 *", "30 3 * * 1-5", "0 0 1 1 *"])
def test_the_last_tick_is_the_one_before_the_next(expression: str) -> None:
    rule = schedules.parse(expression, "Europe/Berlin")
    for moment in (datetime(2026, 3, 29, 1, 30, tzinfo=UTC), datetime(2027, 2, 28, 23, 59, 59, tzinfo=UTC)):
        instant = to_instant(moment)
        assert rule.latest(instant) <= instant < rule.after(rule.latest(instant))


async def test_jobs_that_a_rate_holds_back_do_not_hide_those_of_another_type(make_app: MakeApp) -> None:
    app = with_work(with_work(make_app(), "limited", rate="1/h"), "free")
    async with app:
        await app.submit_many([("limited", None, {"delay": 3600})] * 5_000)
        edited(
            app,
            "INSERT INTO ready SELECT l.queue, l.job_type, 0, 0, l.priority, l.scheduled_for, job_id, seq, 1, 0, 0, 0,"
            " 1, 0, NULL, NULL, rate_key, rate_count, rate_micros, rate_cost, NULL, 1, NULL"
            " FROM later AS l JOIN job USING (seq)",
        )
        edited(app, "DELETE FROM later")
        async with app.worker(concurrency=2):
            job = await app.submit("free")
            assert await job.result(timeout=3) is None


async def test_the_turns_of_tenants_that_ran_once_are_forgotten(make_app: MakeApp) -> None:
    clock = ManualClock()
    app = with_work(make_app(clock=clock))
    async with app:
        for tenant in range(5):
            await app.submit("work", fairness_key=f"tenant-{tenant}")
            await drain(app)
        assert read(app, "SELECT count(*) FROM fair_key") == 5

        clock.advance(FAIR_KEY_SECONDS + 1)
        await app.store.release(clock.now(), 100)

        assert read(app, "SELECT count(*) FROM fair_key") == 0


async def test_a_pattern_is_left_to_the_handlers_own_model(make_app: MakeApp) -> None:
    class Name(BaseModel):
        name: str = Field(pattern=r"^(\p{L}+)+$")

    app = make_app()

    @app.job("greet")
    async def greet(payload: Name) -> str:
        return payload.name

    async with app, make_app() as elsewhere, app.worker():
        job = await elsewhere.submit("greet", {"name": "é" * 30})
        assert await job.result(timeout=10) == "é" * 30
        with pytest.raises(InvalidPayload):
            await elsewhere.submit("greet", {"name": 7})


async def test_one_schedule_that_cannot_be_read_does_not_stop_the_others(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app = with_work(make_app())
    async with app:
        for name in ("broken", "sound"):
            await app.schedule(name, "@every 1s", "work")
        edited(app, "UPDATE schedule SET template = '{}' WHERE name = 'broken'")
        with caplog.at_level(logging.ERROR, "backstay.worker"):
            async with app.worker(poll_interval=0.2) as worker, asyncio.timeout(10):
                while not [job for job in await app.find() if job.schedule == "sound"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        assert worker.failure is None
    assert "broken" in caplog.text


async def test_thousands_of_schedules_are_not_read_again_for_every_job_for_later(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = with_work(make_app())
    async with app:
        await app.schedule("yearly", "@yearly", "work")
        reads = 0
        real = app.store.upcoming

        async def upcoming(limit: int) -> Any:
            nonlocal reads
            reads += 1
            return await real(limit)

        monkeypatch.setattr(app.store, "upcoming", upcoming)
        async with app.worker(poll_interval=60):
            for _ in range(20):
                job = await app.submit("work", delay=0.01)
                await job.result(timeout=10)
            assert reads == 1

            async def ticked() -> bool:
                return any(each.schedule == "often" for each in await app.find())

            await app.schedule("often", "@every 1s", "work")  # and one that is saved takes effect at once
            await eventually(ticked)
        assert reads == 2


@pytest.mark.parametrize("name", ["\ud800", [], {}, 10**30])
async def test_rubbish_names_are_refused_as_such(make_app: MakeApp, name: Any) -> None:
    app = with_work(make_app())
    async with app:
        for call in (app.unschedule(name), app.submit(name), app.schedule("s", "@daily", name)):
            with pytest.raises(BackstayError):
                await call
