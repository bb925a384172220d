"""Schedules from a user's side: a job for each tick, what becomes of missed ones, and changes at run time."""

import logging
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backstay import (
    Backstay,
    InvalidOption,
    InvalidPayload,
    InvalidSchedule,
    QueueFull,
    ScheduleNotFound,
    UnknownJobType,
)
from backstay.clock import to_instant
from backstay.testing import ManualClock
from backstay.worker import maintenance
from backstay.worker.maintenance import Scheduler
from tests.app.report_app import HOUR, MINUTE, NOON, Report, go_to, jobs, look, ticks, with_report
from tests.support.eventually import eventually


@pytest.fixture
async def app(make_app: Callable[..., Backstay]) -> AsyncIterator[Backstay]:
    async with with_report(make_app(clock=ManualClock(NOON - 5 * MINUTE))) as app:
        yield app


# Ticks


async def test_a_tick_makes_one_job_that_says_where_it_comes_from(app: Backstay) -> None:
    await app.schedule("hourly", "@hourly", "report", {"kind": "short"}, subject="s", tags=["t"])
    await look(app, NOON - MINUTE)
    assert await jobs(app) == []

    await look(app, NOON + timedelta(seconds=2))
    await look(app)

    [job] = await jobs(app)
    assert (job.schedule, job.tick_at, job.created_by) == ("hourly", NOON, "schedule:hourly")
    assert (job.scheduled_for, job.created_at) == (NOON + timedelta(seconds=2), NOON + timedelta(seconds=2))
    assert (job.payload, job.priority, job.subject, job.tags) == ({"kind": "short", "pages": 1}, 70, "s", ["t"])
    [schedule] = await app.schedules()
    assert (schedule.last_at, schedule.last_job_id, schedule.next_at) == (NOON, job.job_id, NOON + HOUR)


async def test_the_job_of_a_tick_has_the_same_id_whichever_worker_makes_it(
    make_app: Callable[..., Backstay], app: Backstay
) -> None:
    await app.schedule("hourly", "@hourly", "report", {"kind": "short"})
    async with make_app(clock=app.clock) as other:
        await look(app, NOON)
        [first] = await jobs(app)
        await app.unschedule("hourly")
        go_to(app, NOON - MINUTE)
        await other.schedule("hourly", "@hourly", "report", {"kind": "short"})
        await look(other, NOON)

    assert [job.job_id for job in await jobs(app)] == [first.job_id]


async def test_a_worker_runs_what_its_schedules_make(app: Backstay) -> None:
    await app.schedule("hourly", "@hourly", "report", {"kind": "short"})
    go_to(app, NOON)
    async with app.worker():

        async def ran() -> bool:
            return [job.status for job in await jobs(app)] == ["completed"]

        await eventually(ran)
    assert [job.result for job in await jobs(app)] == ["short by hourly"]


async def test_many_schedules_each_come_when_they_are_due(app: Backstay) -> None:
    for minute in (10, 20, 30):
        await app.schedule(f"at-{minute}", f"{minute} * * * *", "report", {"kind": str(minute)})

    await look(app, NOON + 20 * MINUTE)

    assert sorted(job.schedule or "" for job in await jobs(app)) == ["at-10", "at-20"]


# Missed ticks


@pytest.mark.parametrize(
    ("missed", "made"), [("skip", []), ("one", [NOON + 3 * HOUR]), ("all", [NOON + n * HOUR for n in range(4)])]
)
async def test_ticks_at_which_no_worker_ran_are_decided_by_the_policy(
    app: Backstay, missed: str, made: list[datetime]
) -> None:
    await app.schedule("hourly", "@hourly", "report", {"kind": "short"}, missed=missed)

    await look(app, NOON + 3 * HOUR + 30 * MINUTE)
    assert await ticks(app) == made

    await look(app, NOON + 4 * HOUR)
    assert await ticks(app) == [*made, NOON + 4 * HOUR]


async def test_more_missed_ticks_than_one_commit_takes_all_come(app: Backstay) -> None:
    await app.schedule("often", "* * * * *", "report", {"kind": "short"}, missed="all")
    go_to(app, NOON + 2 * HOUR)
    async with app.worker(job_types=["report"], queues=["elsewhere"]):

        async def all_there() -> bool:
            return (await app.counts())["pending"] == 125  # from four minutes before noon on

        await eventually(all_there)
    every = {job.tick_at for job in await app.find(limit=500)}
    assert every == {NOON + n * MINUTE for n in range(-4, 121)}


async def test_more_schedules_than_a_worker_keeps_in_mind_all_tick(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "SCHEDULES_AHEAD", 3)
    for number in range(10):
        await app.schedule(f"hourly-{number}", "@hourly", "report", {"kind": "short"})
    await app.schedule("daily", "@daily", "report", {"kind": "long"})
    go_to(app, NOON)

    assert await Scheduler(app.store, app.clock, look_seconds=60).look() == to_instant(NOON + HOUR)

    assert await ticks(app) == [NOON] * 10


async def test_schedules_that_cannot_tick_do_not_hide_the_others(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "SCHEDULES_AHEAD", 2)
    for number in range(5):
        await app.schedule(f"blocked-{number}", "@hourly", "report", {"kind": "short"}, queue="full")
    await app.schedule("other", "1 * * * *", "report", {"kind": "short"})
    await app.limit_queue("full", 1)
    await app.submit("report", {"kind": "blocker"}, queue="full")
    go_to(app, NOON + MINUTE)

    await Scheduler(app.store, app.clock, look_seconds=60).look()

    assert NOON + MINUTE in await ticks(app)


async def test_a_full_queue_keeps_the_tick_and_the_log_tells_it_once(
    app: Backstay, caplog: pytest.LogCaptureFixture
) -> None:
    await app.schedule("hourly", "@hourly", "report", {"kind": "short"})
    await app.limit_queue("default", 1)
    blocker = await app.submit("report", {"kind": "blocker"})
    scheduler = Scheduler(app.store, app.clock, look_seconds=60)
    go_to(app, NOON)

    with caplog.at_level(logging.ERROR, logger="backstay.worker"):
        for _ in range(3):
            await scheduler.look()
    assert [record.getMessage() for record in caplog.records if "hourly" in record.getMessage()] == [
        "schedule hourly: its tick is delayed: the queue default accepts 1 pending jobs and has room for 0:"
        " nothing was stored; submit again when workers have caught up"
    ]
    assert [schedule.next_at for schedule in await app.schedules()] == [NOON]

    await app.cancel(blocker.job_id)
    await scheduler.look()

    assert NOON in await ticks(app)


async def test_ticks_that_do_not_fit_into_their_queue_together_come_one_by_one(app: Backstay) -> None:
    await app.schedule("hourly", "@hourly", "report", {"kind": "short"}, missed="all")
    await app.limit_queue("default", 2)
    go_to(app, NOON + 5 * HOUR)

    for _ in range(4):
        await look(app)
    assert await ticks(app) == [NOON, NOON + HOUR]

    for job in await jobs(app):
        await app.cancel(job.job_id)
    for _ in range(4):
        await look(app)
    assert await ticks(app) == [NOON + n * HOUR for n in range(4)]


# Changing


async def test_saying_the_same_again_changes_nothing_not_even_missed_ticks(
    make_app: Callable[..., Backstay], app: Backstay
) -> None:
    said: dict[str, Any] = {"timezone": "Europe/Berlin", "missed": "all", "priority": "high"}
    first = await app.schedule("hourly", "0 * * * *", "report", Report(kind="short"), **said)
    go_to(app, NOON + 2 * HOUR)

    again = await app.schedule("hourly", "0 * * * *", "report", {"kind": "short"}, **said)

    assert again == first == (await app.schedules())[0]
    await look(app)
    assert await ticks(app) == [NOON, NOON + HOUR, NOON + 2 * HOUR]
    assert (await app.schedule("hourly", "0 * * * *", "report", {"kind": "short"}, **said)).version == 1


async def test_another_payload_changes_the_jobs_and_not_the_ticks(app: Backstay) -> None:
    await app.schedule("hourly", "@hourly", "report", {"kind": "short"}, missed="all")
    go_to(app, NOON + HOUR)

    changed = await app.schedule("hourly", "@hourly", "report", {"kind": "long"}, missed="all")
    await look(app)

    assert (changed.version, changed.next_at) == (2, NOON)
    assert [(job.tick_at, job.payload["kind"]) for job in await jobs(app)] == [(NOON, "long"), (NOON + HOUR, "long")]


async def test_another_rule_counts_from_now_on(app: Backstay) -> None:
    await app.schedule("it", "@hourly", "report", {"kind": "short"}, missed="all")
    go_to(app, NOON + 3 * HOUR + MINUTE)

    changed = await app.schedule("it", "30 * * * *", "report", {"kind": "short"}, missed="all")

    assert changed.next_at == NOON + 3 * HOUR + 30 * MINUTE
    await look(app, NOON + 4 * HOUR)
    assert await ticks(app) == [NOON + 3 * HOUR + 30 * MINUTE]


async def test_another_time_zone_moves_the_next_tick(app: Backstay) -> None:
    await app.schedule("morning", "0 9 * * *", "report", {"kind": "short"})

    changed = await app.schedule("morning", "0 9 * * *", "report", {"kind": "short"}, timezone="America/New_York")

    assert changed.next_at == datetime(2030, 1, 1, 14, tzinfo=UTC)


async def test_a_paused_schedule_makes_nothing_and_goes_on_with_the_next_tick_after_it_is_resumed(
    app: Backstay,
) -> None:
    await app.schedule("hourly", "@hourly", "report", {"kind": "short"}, missed="all")
    paused = await app.pause_schedule("hourly", by="ada")
    assert (paused.paused, paused.paused_by, paused.next_at) == (True, "ada", None)
    await look(app, NOON + 2 * HOUR)
    assert await ticks(app) == []
    assert await app.pause_schedule("hourly", by="eve") == paused  # who did it first stays

    go_to(app, NOON + 2 * HOUR + MINUTE)
    resumed = await app.resume_schedule("hourly")

    assert (resumed.paused, resumed.next_at) == (False, NOON + 3 * HOUR)
    assert await app.resume_schedule("hourly") == resumed
    await look(app, NOON + 3 * HOUR)
    assert await ticks(app) == [NOON + 3 * HOUR]


async def test_a_paused_schedule_that_is_said_again_stays_paused(app: Backstay) -> None:
    await app.schedule("hourly", "@hourly", "report", {"kind": "short"})
    await app.pause_schedule("hourly")

    assert (await app.schedule("hourly", "@hourly", "report", {"kind": "short"})).paused
    assert (await app.schedule("hourly", "30 * * * *", "report", {"kind": "short"})).paused


async def test_a_schedule_can_be_run_now_beside_its_ticks_and_while_it_is_paused(app: Backstay) -> None:
    await app.schedule("hourly", "@hourly", "report", {"kind": "short"})
    await app.pause_schedule("hourly")

    handles = [await app.run_schedule("hourly", by="ada"), await app.run_schedule("hourly")]

    found = [await handle.record() for handle in handles]
    assert [(job.schedule, job.tick_at, job.created_by) for job in found] == [
        ("hourly", None, "ada"),
        ("hourly", None, "schedule:hourly"),
    ]
    assert found[0].payload == {"kind": "short", "pages": 1}
    [schedule] = await app.schedules()
    assert (schedule.last_at, schedule.version) == (None, 2)


async def test_a_removed_schedule_makes_nothing_more_and_its_jobs_stay(app: Backstay) -> None:
    await app.schedule("hourly", "@hourly", "report", {"kind": "short"})
    await look(app, NOON)

    await app.unschedule("hourly")
    await look(app, NOON + 2 * HOUR)

    assert await app.schedules() == []
    assert await ticks(app) == [NOON]


async def test_what_is_not_there_cannot_be_changed(app: Backstay) -> None:
    for change in (app.unschedule, app.pause_schedule, app.resume_schedule, app.run_schedule):
        with pytest.raises(ScheduleNotFound, match="nightly"):
            await change("nightly")


# What cannot be meant


@pytest.mark.parametrize(
    ("said", "help"),
    [
        ({"cron": "* * *"}, "five fields"),
        ({"cron": ["@daily"]}, "five fields"),
        ({"cron": None}, "five fields"),
        ({"timezone": "Berlin"}, "Europe/Berlin"),
        ({"timezone": ["UTC"]}, "Europe/Berlin"),
        ({"missed": "perhaps"}, "skip, one, all"),
        ({"missed": ["one"]}, "skip, one, all"),
    ],
    ids=str,
)
async def test_a_rule_that_cannot_be_meant_is_refused_with_help(app: Backstay, said: dict[str, Any], help: str) -> None:
    rule = {"cron": "@daily"} | said

    with pytest.raises(InvalidSchedule, match=help):
        await app.schedule("it", job_type="report", payload={"kind": "short"}, **rule)
    assert await app.schedules() == []


async def test_a_schedule_is_checked_as_a_submit_is(app: Backstay) -> None:
    with pytest.raises(UnknownJobType, match="register it"):
        await app.schedule("it", "@daily", "unknown")
    with pytest.raises(InvalidPayload, match="kind"):
        await app.schedule("it", "@daily", "report", {"pages": 5})
    with pytest.raises(InvalidOption, match="priority"):
        await app.schedule("it", "@daily", "report", {"kind": "short"}, priority=500)
    with pytest.raises(InvalidOption, match="delay"):
        await app.schedule("it", "@daily", "report", {"kind": "short"}, delay=5)  # type: ignore[call-arg]
    with pytest.raises(InvalidOption, match="cannot be a schedule"):
        await app.schedule("no such name", "@daily", "report", {"kind": "short"})
    assert await app.schedules() == []


async def test_a_run_by_hand_is_refused_by_a_full_queue_like_any_submit(app: Backstay) -> None:
    await app.schedule("hourly", "@hourly", "report", {"kind": "short"})
    await app.limit_queue("default", 1)
    await app.run_schedule("hourly")

    with pytest.raises(QueueFull):
        await app.run_schedule("hourly")
