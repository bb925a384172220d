"""Options of a schedule: overlapping jobs, jitter, a first and a last moment, and the jobs of past ticks."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from backstay import Backstay, InvalidOption, Job, ScheduleNotFound
from backstay.core.states import Event
from backstay.testing import ManualClock
from tests.app.report_app import HOUR, MINUTE, NOON, go_to, jobs, look, ticks, with_report

SHORT = {"kind": "short"}


@pytest.fixture
async def app(make_app: Callable[..., Backstay]) -> AsyncIterator[Backstay]:
    async with with_report(make_app(clock=ManualClock(NOON - 5 * MINUTE))) as app:
        yield app


async def _hourly(app: Backstay, **options: Any) -> None:
    await app.schedule("hourly", "@hourly", "report", SHORT, **options)


# Overlap


async def test_a_tick_queues_its_job_behind_one_that_is_active(app: Backstay) -> None:
    await _hourly(app)
    await look(app, NOON)
    await look(app, NOON + HOUR)
    assert await ticks(app) == [NOON, NOON + HOUR]


async def test_a_tick_is_skipped_while_the_last_job_is_active_and_the_job_says_so(app: Backstay) -> None:
    await _hourly(app, overlap="skip")
    for hours in range(3):
        await look(app, NOON + hours * HOUR)

    [job] = await jobs(app)
    [schedule] = await app.schedules()
    assert (schedule.skipped, schedule.skipped_at, schedule.next_at) == (2, NOON + 2 * HOUR, NOON + 3 * HOUR)
    assert (schedule.last_at, schedule.last_job_id) == (NOON, job.job_id)
    lines = [each.why for each in job.history if each.event is Event.SKIP_TICK]
    assert lines == [
        f"schedule hourly skipped its tick at 2030-01-01 {hour}:00:00 UTC: this job was active" for hour in (13, 14)
    ]
    explained = await app.explain(job.job_id)
    assert (explained.params.skipped, explained.params.skipped_at) == (2, NOON + 2 * HOUR)
    assert str(explained).endswith(
        "; its schedule hourly skipped 2 ticks, the last at 2030-01-01 14:00:00 UTC, because this job was active"
    )


async def test_a_tick_after_the_last_job_has_ended_makes_one(app: Backstay) -> None:
    await _hourly(app, overlap="skip")
    await look(app, NOON)
    await app.cancel((await jobs(app))[0].job_id)

    await look(app, NOON + HOUR)

    assert await ticks(app) == [NOON, NOON + HOUR]


async def test_a_tick_replaces_the_job_that_is_active(app: Backstay) -> None:
    await _hourly(app, overlap="replace")
    await look(app, NOON)
    await look(app, NOON + HOUR)

    first, second = await jobs(app)
    assert (first.status, second.status) == ("cancelled", "pending")
    assert str(await app.explain(first.job_id)).endswith(
        "by schedule:hourly: replaced by the tick at 2030-01-01 13:00:00 UTC"
    )
    [schedule] = await app.schedules()
    assert (schedule.last_job_id, schedule.skipped) == (second.job_id, 0)


async def test_a_tick_replaces_no_job_that_only_has_its_dedup_key(app: Backstay) -> None:
    other = await app.submit("report", SHORT, dedup_key="k")
    await _hourly(app, overlap="replace", dedup_key="k")
    await look(app, NOON)
    assert (await app.get_schedule("hourly")).last_job_id == other.job_id

    await look(app, NOON + HOUR)

    assert (await app.get(other.job_id)).status == "pending"


async def test_a_schedule_that_was_paused_in_between_replaces_nothing(app: Backstay) -> None:
    await _hourly(app, overlap="replace")
    await look(app, NOON)
    go_to(app, NOON + HOUR)
    from backstay.worker.maintenance import Scheduler

    scheduler = Scheduler(app.store, app.clock, look_seconds=60)
    scheduler._known = {each.name: each for each in await app.store.schedules()}
    await app.pause_schedule("hourly")

    await scheduler._decide()  # by what it read before the pause

    assert [job.status for job in await jobs(app)] == ["pending"]


@pytest.mark.parametrize(("overlap", "made"), [("skip", NOON), ("replace", NOON + 3 * HOUR)])
async def test_of_several_missed_ticks_one_makes_a_job_unless_they_may_queue(
    app: Backstay, overlap: str, made: Any
) -> None:
    await _hourly(app, overlap=overlap, missed="all")
    await look(app, NOON + 3 * HOUR)
    assert await ticks(app) == [made]
    [schedule] = await app.schedules()
    assert schedule.skipped == 3


async def test_a_job_run_by_hand_does_not_hold_a_tick_up(app: Backstay) -> None:
    await _hourly(app, overlap="skip")
    await app.run_schedule("hourly")
    await look(app, NOON)
    assert NOON in await ticks(app)


# Jitter


async def test_jobs_are_due_within_the_jitter_after_their_tick_and_always_at_the_same_moment(
    app: Backstay, make_app: Callable[..., Backstay]
) -> None:
    await _hourly(app, jitter=600, missed="all")
    offsets = []
    for hours in range(20):
        await look(app, NOON + hours * HOUR)
    for job in await jobs(app):
        assert job.tick_at is not None
        offsets.append(job.scheduled_for - job.tick_at)
    assert all(timedelta(0) <= offset <= timedelta(seconds=600) for offset in offsets)
    assert len(set(offsets)) > 15
    first = (await jobs(app))[0]
    assert first.status == ("scheduled" if offsets[0] else "pending")
    [schedule] = await app.store.schedules()
    from backstay.core.schedules import jitter_of

    assert [timedelta(microseconds=jitter_of(schedule, _instant(job))) for job in await jobs(app)] == offsets


def _instant(job: Job) -> int:
    from backstay.clock import to_instant

    assert job.tick_at is not None
    return to_instant(job.tick_at)


async def test_a_missed_tick_has_no_jitter_left(app: Backstay) -> None:
    await _hourly(app, jitter=600)
    await look(app, NOON + 30 * MINUTE)
    [job] = await jobs(app)
    assert job.scheduled_for == NOON + 30 * MINUTE


# Bounds


@pytest.mark.parametrize("beside", [timedelta(0), 30 * MINUTE], ids=["ticks", "between ticks"])
async def test_there_is_no_tick_before_the_first_moment_or_after_the_last(app: Backstay, beside: timedelta) -> None:
    await _hourly(app, starts_at=NOON + HOUR - beside, ends_at=NOON + 3 * HOUR + beside, missed="all")
    [schedule] = await app.schedules()
    assert schedule.next_at == NOON + HOUR
    assert schedule.ticks(NOON - HOUR, 9) == [NOON + n * HOUR for n in (1, 2, 3)]

    for hours in range(6):
        await look(app, NOON + hours * HOUR)

    assert await ticks(app) == [NOON + n * HOUR for n in (1, 2, 3)]
    [schedule] = await app.schedules()
    assert (schedule.next_at, schedule.ended) == (None, True)


@pytest.mark.parametrize("missed", ["one", "skip"])
async def test_a_tick_missed_at_the_end_is_the_last_one_within_it(app: Backstay, missed: str) -> None:
    await _hourly(app, ends_at=NOON + HOUR + MINUTE, missed=missed)
    await look(app, NOON + 5 * HOUR)
    assert await ticks(app) == ([NOON + HOUR] if missed == "one" else [])
    await look(app, NOON + 9 * HOUR)
    assert len(await jobs(app)) <= 1


async def test_a_schedule_that_has_ended_ticks_again_once_its_end_is_moved(app: Backstay) -> None:
    await _hourly(app, ends_at=NOON)
    await look(app, NOON + 2 * HOUR)
    assert (await app.get_schedule("hourly")).ended

    await _hourly(app)
    await look(app, NOON + 3 * HOUR)

    assert await ticks(app) == [NOON, NOON + 3 * HOUR]


async def test_one_that_is_paused_and_resumed_after_its_end_has_ended(app: Backstay) -> None:
    await _hourly(app, ends_at=NOON + HOUR)
    await app.pause_schedule("hourly")
    go_to(app, NOON + 5 * HOUR)
    assert (await app.resume_schedule("hourly")).ended


# Backfill


async def test_each_tick_in_a_span_gets_its_job_at_most_once(app: Backstay) -> None:
    await _hourly(app)
    await look(app, NOON)
    go_to(app, NOON + 30 * MINUTE)

    preview = await app.backfill("hourly", NOON - 3 * HOUR, NOON, dry_run=True)
    assert len(await jobs(app)) == 1
    done = await app.backfill("hourly", NOON - 3 * HOUR, NOON, by="ada")
    again = await app.backfill("hourly", NOON - 3 * HOUR, NOON)

    assert done == preview
    assert (done.ticks, len(done.submitted), len(done.existing)) == (4, 3, 1)
    assert (again.submitted, len(again.existing)) == ((), 4)
    assert await ticks(app) == [NOON - n * HOUR for n in (3, 2, 1, 0)]
    made = {job.job_id: job for job in await jobs(app)}
    assert {made[each].scheduled_for for each in done.submitted} == {NOON + 30 * MINUTE}
    entry = (await app.audit_trail())[1]
    assert (entry.by, entry.action, entry.target) == ("ada", "schedule.backfill", "hourly")


async def test_a_tick_that_was_backfilled_makes_no_second_job(app: Backstay) -> None:
    await _hourly(app)
    go_to(app, NOON + MINUTE)
    await app.backfill("hourly", NOON, NOON + MINUTE)  # no worker has fired it yet
    await look(app)
    assert await ticks(app) == [NOON]


async def test_a_paused_schedule_can_be_backfilled_within_its_bounds(app: Backstay) -> None:
    await _hourly(app, starts_at=NOON - 2 * HOUR)
    await app.pause_schedule("hourly")
    go_to(app, NOON)
    assert (await app.backfill("hourly", NOON - 9 * HOUR, NOON)).ticks == 3


async def test_a_backfill_is_bounded_and_says_how_far_it_may_go(app: Backstay) -> None:
    await app.schedule("often", "* * * * *", "report", SHORT)
    with pytest.raises(InvalidOption, match=r"1,000 ticks.*backfill up to 2030-01-01 08:39 first"):
        await app.backfill("often", NOON - 20 * HOUR, NOON - 5 * MINUTE)
    for span in ((NOON, NOON - HOUR), (NOON, NOON + HOUR)):
        with pytest.raises(InvalidOption, match="not in the future"):
            await app.backfill("often", *span)
    with pytest.raises(InvalidOption, match="no time zone"):
        await app.backfill("often", NOON.replace(tzinfo=None), NOON)
    with pytest.raises(ScheduleNotFound):
        await app.backfill("never", NOON - HOUR, NOON - 6 * MINUTE)
    assert await jobs(app) == []
