"""Changing jobs that wait: another place in line, another time; and what stands against it."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backstay import Backstay, IllegalTransition, InvalidOption, JobNotFound, VersionConflict
from backstay.testing import ManualClock

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


async def test_a_reprioritised_job_runs_before_those_it_was_behind(app: Backstay) -> None:
    order: list[str] = []

    @app.job("work")
    async def work(payload: str) -> None:
        order.append(payload)

    async with app:
        handles = [await work.submit(name) for name in ("first", "second", "third")]
        changed = await app.reprioritise(handles[2].job_id, "urgent", by="ada", reason="the boss waits")
        assert (changed.priority, changed.version, changed.status) == (100, 2, "pending")
        await app.reprioritise(handles[0].job_id, 10)
        async with app.worker(concurrency=1):
            for handle in handles:
                await handle.result(timeout=10)
        entry = (await app.history(handles[2].job_id))[1]
    assert order == ["third", "second", "first"]
    assert (entry.event, entry.by, entry.reason) == ("reprioritise", "ada", "the boss waits")


async def test_a_running_job_can_be_reprioritised_and_goes_on(app: Backstay) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    @app.job("work")
    async def work(payload: int) -> str:
        begun.set()
        await release.wait()
        return "done"

    async with app, app.worker():
        handle = await work.submit(1)
        await begun.wait()
        assert (await app.reprioritise(handle.job_id, 1)).status == "processing"
        release.set()
        assert await handle.result(timeout=10) == "done"
        assert (await handle.record()).attempt == 1


async def test_a_job_can_be_put_off_and_fetched_forward(make_app: Any) -> None:
    app: Backstay = make_app(clock=ManualClock(NOON))

    @app.job("work")
    async def work(payload: int) -> str:
        return "ran"

    async with app:
        handle = await work.submit(1)
        later = await app.reschedule(handle.job_id, run_at=NOON + timedelta(hours=2), by="ada")
        assert (later.status, later.scheduled_for) == ("scheduled", NOON + timedelta(hours=2))
        sooner = await app.reschedule(handle.job_id, delay=60)
        assert (sooner.status, sooner.scheduled_for) == ("scheduled", NOON + timedelta(minutes=1))
        async with app.worker(poll_interval=60):
            now = await app.reschedule(handle.job_id)
            assert now.scheduled_for == NOON
            assert await handle.result(timeout=10) == "ran"


async def test_a_job_that_is_fetched_forward_does_not_overtake_those_that_wait(make_app: Any) -> None:
    app: Backstay = make_app(clock=ManualClock(NOON))

    @app.job("work")
    async def work(payload: int) -> None: ...

    async with app:
        handle = await work.submit(1)
        moved = await app.reschedule(handle.job_id, run_at=NOON - timedelta(days=1))
        assert (moved.status, moved.scheduled_for) == ("pending", NOON)


async def test_an_editor_who_has_seen_an_older_version_is_told_so(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> None: ...

    async with app:
        handle = await work.submit(1)
        seen = (await handle.record()).version
        await app.reprioritise(handle.job_id, 90, expected_version=seen)

        for change in (
            app.reprioritise(handle.job_id, 10, expected_version=seen),
            app.reschedule(handle.job_id, delay=60, expected_version=seen),
            app.cancel(handle.job_id, expected_version=seen),
        ):
            with pytest.raises(VersionConflict, match="read it again"):
                await change
        job = await handle.record()
        assert (job.priority, job.status, job.version) == (90, "pending", 2)
        await app.reschedule(handle.job_id, delay=60, expected_version=2)


async def test_of_many_editors_who_have_seen_the_same_one_wins(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> None: ...

    async with app:
        handle = await work.submit(1)
        answers = await asyncio.gather(
            *(app.reprioritise(handle.job_id, n, expected_version=1) for n in range(10)), return_exceptions=True
        )
        assert sum(isinstance(answer, VersionConflict) for answer in answers) == 9
        assert (await handle.record()).version == 2


async def test_an_ended_job_cannot_be_moved_and_the_error_says_what_can_be_done(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> None: ...

    async with app:
        handle = await work.submit(1)
        await app.cancel(handle.job_id)
        for change in (app.reprioritise(handle.job_id, 1), app.reschedule(handle.job_id, delay=60)):
            with pytest.raises(IllegalTransition, match="retried"):
                await change


async def test_a_running_job_cannot_be_rescheduled(app: Backstay) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    @app.job("work")
    async def work(payload: int) -> None:
        begun.set()
        await never.wait()

    async with app, app.worker(grace=0):
        handle = await work.submit(1)
        await begun.wait()
        with pytest.raises(IllegalTransition, match="running"):
            await app.reschedule(handle.job_id, delay=60)


async def test_what_waits_for_something_else_cannot_be_rescheduled_and_the_error_says_what_can_be_done(
    app: Backstay,
) -> None:
    @app.job("work")
    async def work(payload: int) -> None: ...

    async with app:
        first = await work.submit(1)
        waits = await work.submit(2, depends_on=[first])
        with pytest.raises(IllegalTransition, match=r"waiting: .* cancelled or reprioritised"):
            await app.reschedule(waits.job_id, delay=60)
        assert (await app.reprioritise(waits.job_id, 90)).status == "waiting"


async def test_what_cannot_be_meant_is_refused(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> None: ...

    async with app:
        handle = await work.submit(1)
        for change, words in {
            app.reprioritise(handle.job_id, 101): "priority",
            app.reprioritise(handle.job_id, "soon"): "priority",
            app.reprioritise(handle.job_id, 5, by="x" * 1000): "by",
            app.reschedule(handle.job_id, delay=-1): "delay",
            app.reschedule(handle.job_id, delay=1, run_at=NOON): "mutually exclusive",
            app.reschedule(handle.job_id, run_at=datetime(2030, 1, 1)): "time zone",  # noqa: DTZ001
        }.items():
            with pytest.raises(InvalidOption, match=words):
                await change
        assert (await handle.record()).version == 1


async def test_a_job_that_is_not_there_is_an_error(app: Backstay) -> None:
    nowhere = "01890000-0000-7000-8000-000000000000"
    async with app:
        for change in (app.reprioritise(nowhere, 1), app.reschedule(nowhere)):
            with pytest.raises(JobNotFound, match=nowhere):
                await change
