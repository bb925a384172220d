"""Companion: one summary for each user and day, at the user's own time, whatever clocks, zones and workers do."""

from __future__ import annotations

import asyncio
import time as time_module
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from companion import jobs

from backstay.clock import to_instant
from backstay.testing import drain, throwaway_url
from tests.examples.companion_stage import Stage, on_stage
from tests.support.servers.dynamodb import DynamoDB

DAY = timedelta(days=1)


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    async with on_stage(throwaway_url(tmp_path), monkeypatch) as stage:
        yield stage


@pytest.fixture(params=["sqlite", "dynamodb"])
async def on_either(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stage]:
    if request.param == "dynamodb":
        server: DynamoDB = request.getfixturevalue("dynamodb")
        url = server.url()
    else:
        url = throwaway_url(tmp_path)
    async with on_stage(url, monkeypatch) as stage:
        yield stage


async def test_every_user_gets_one_summary_a_day_at_seven_wherever_they_are(on_either: Stage) -> None:
    stage = on_either
    zones = {"ada": "Europe/London", "grace": "America/New_York", "mary": "Pacific/Auckland"}
    for user_id, zone in zones.items():
        stage.knows(user_id, zone)
    await stage.sync()
    plans = await drain(stage.app, until=2 * DAY)

    ticks = {
        (job.subject, f"{job.tick_at.astimezone(ZoneInfo(zones[job.subject])):%H:%M}") for job in plans if job.tick_at
    }
    assert ticks == {(user_id, "07:00") for user_id in zones}
    assert await stage.days("ada") == ["11-16", "11-17"]
    assert await stage.days("grace") == ["11-16", "11-17"]
    assert await stage.days("mary") == ["11-16", "11-17"]  # it was the 17th there already
    assert {job.status for job in await stage.summaries()} == {"completed"}
    assert len(stage.chat.messages) == 6
    assert set(stage.chat.sends.values()) == {1}


async def test_a_summary_tells_what_was_written_on_that_day_where_the_user_is(stage: Stage) -> None:
    inside = ("2026-11-15T23:00+00:00", "2026-11-16T22:59+00:00")  # midnight to midnight in Berlin
    outside = ("2026-11-15T22:59+00:00", "2026-11-16T23:00+00:00")
    stage.knows("ada", written=inside + outside)
    await stage.sync()
    await drain(stage.app, until=DAY)

    [message] = stage.chat.messages.values()
    assert message.text.startswith("Ada, on Monday, 16 November you wrote 2 times:")
    assert [each in message.text for each in inside + outside] == [True, True, False, False]
    [job] = await stage.summaries()
    assert job.result["entries"] == 2
    assert datetime.fromisoformat(job.result["summary_sent_at"]) == stage.chat.received_at[message.token]


async def test_due_times_are_compared_in_utc_in_whatever_zone_they_were_given(
    on_either: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Pacific/Auckland")  # the machine's own zone says nothing
    time_module.tzset()
    stage = on_either
    stage.knows("ada")
    due = {  # the clock says 12:00 UTC
        "2026-11-13": "2026-11-16T14:30:00+02:00",  # 12:30
        "2026-11-12": "2026-11-16T07:15:00-05:00",  # 12:15
        "2026-11-11": "2026-11-16T12:20:00+00:00",
        "2026-11-10": "2026-11-17T01:05:00+13:00",  # 12:05
    }
    for day, at in due.items():
        payload = {"user_id": "ada", "day": day, "timezone": "Europe/Berlin"}
        job = await stage.app.submit("daily_summary", payload, run_at=datetime.fromisoformat(at))
        assert job.row.scheduled_for == to_instant(datetime.fromisoformat(at))
    ran = await drain(stage.app, until=timedelta(minutes=22))
    assert [job.payload["day"] for job in ran] == ["2026-11-10", "2026-11-12", "2026-11-11"]
    monkeypatch.delenv("TZ")
    time_module.tzset()


async def test_records_of_every_kind_but_jobs_share_one_table(
    dynamodb: DynamoDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_stage(dynamodb.url("companion_tables"), monkeypatch) as stage:
        stage.knows("ada")
        await jobs.set_up()
        await stage.sync()
        await drain(stage.app, until=DAY)
        assert len(await stage.app.schedules()) == 2 and len(stage.chat.messages) == 1
        tables = stage.app.store._tables()  # type: ignore[attr-defined]
        names = (await tables.call("ListTables", {"ExclusiveStartTableName": "companion_tables"}))["TableNames"]
        await tables.wire.close()
    ours = [name for name in names if name.startswith("companion_tables")]
    assert len(ours) == 2, "jobs; schedules, dedup guards, workers, counters and all else"


async def test_the_record_tells_who_runs_a_summary_until_when_and_how_it_went(on_either: Stage) -> None:
    stage, loop, seen = on_either, asyncio.get_running_loop(), []
    stage.chat.on_kept = lambda _: seen.append(asyncio.run_coroutine_threadsafe(stage.summaries(), loop).result(20))
    stage.knows("ada")
    job_id = await stage.submit("ada", "2026-11-15")
    waiting = await stage.app.get(job_id)
    await drain(stage.app)

    assert uuid.UUID(waiting.job_id).version == 7
    assert (waiting.job_type, waiting.status, waiting.failures) == ("daily_summary", "pending", 0)
    assert waiting.payload == {"user_id": "ada", "day": "2026-11-15", "timezone": "Europe/Berlin"}
    assert waiting.scheduled_for == waiting.created_at == stage.clock.moment
    assert waiting.created_at.tzinfo is UTC
    [[running]] = seen
    assert running.status == "processing"
    assert running.worker_id
    assert running.lease_expires_at == stage.clock.moment + timedelta(seconds=60)
    done = await stage.app.get(job_id)
    assert (done.status, done.completed_at, done.last_error) == ("completed", stage.clock.moment, None)
    assert (done.worker_id, done.lease_expires_at) == (running.worker_id, None)


@pytest.mark.parametrize(
    "eve", [date(2026, 3, 27), date(2026, 10, 23)], ids=["an hour is skipped", "an hour is doubled"]
)
async def test_clocks_that_change_make_no_summary_come_twice_and_none_be_left_out(stage: Stage, eve: date) -> None:
    stage.clock.set(datetime.combine(eve, time(12), UTC))
    stage.knows("ada", summary_at=time(2, 30))  # the time that is skipped in March, and comes twice in October
    await stage.sync()
    ran = await drain(stage.app, until=4 * DAY)

    assert await stage.days() == [f"{eve + index * DAY:%m-%d}" for index in range(4)]
    assert len([job for job in ran if job.tick_at]) == 4
    assert list(stage.chat.sends.values()) == [1, 1, 1, 1]


async def test_two_schedulers_at_once_make_one_summary(on_either: Stage) -> None:
    stage = on_either
    stage.knows("ada")
    await stage.sync()
    stage.clock.advance(DAY)
    for _ in range(3):  # and somebody plans by hand beside them
        await stage.app.run_schedule("summary:ada")
    await asyncio.gather(drain(stage.app), drain(stage.app))

    assert await stage.days() == ["11-16"]
    assert list(stage.chat.sends.values()) == [1]


async def test_a_user_who_moves_west_gets_no_day_twice(stage: Stage) -> None:
    stage.knows("ada", "Asia/Tokyo")
    await stage.sync()
    await drain(stage.app, until=datetime(2026, 11, 17, 23, tzinfo=UTC))  # 08:00 on the 18th in Tokyo
    assert await stage.days() == ["11-16", "11-17"]

    stage.knows("ada", "America/Los_Angeles", since=date(2026, 11, 16))  # where it is the 17th
    await stage.sync()
    await drain(stage.app, until=2 * DAY)
    assert await stage.days() == ["11-16", "11-17", "11-18"]
    assert set(stage.chat.sends.values()) == {1}


async def test_a_user_who_moves_east_over_the_date_line_misses_no_day(stage: Stage) -> None:
    stage.knows("ada", "America/Los_Angeles")
    await stage.sync()
    await drain(stage.app, until=datetime(2026, 11, 18, 6, tzinfo=UTC))  # 22:00 on the 17th in Los Angeles
    assert await stage.days() == ["11-16"]

    stage.knows("ada", "Asia/Tokyo", since=date(2026, 11, 16))  # where it is 15:00 on the 18th
    await stage.sync()
    await drain(stage.app, until=DAY)
    assert await stage.days() == ["11-16", "11-17", "11-18"]
    assert set(stage.chat.sends.values()) == {1}


async def test_after_a_downtime_every_missed_day_is_made_up_for_in_order(stage: Stage) -> None:
    stage.knows("ada")
    await stage.sync()
    stage.clock.advance(4 * DAY)  # no worker ran
    ran = await drain(stage.app)

    assert await stage.days() == ["11-16", "11-17", "11-18", "11-19"]
    sent = [job.payload["day"] for job in ran if job.job_type == "daily_summary"]
    assert sent == sorted(sent)
    assert len([job for job in ran if job.tick_at and job.subject == "ada"]) == 1  # one plan for all ticks


async def test_after_a_month_of_downtime_only_the_last_week_is_sent(stage: Stage) -> None:
    stage.knows("ada")
    await stage.sync()
    stage.clock.advance(30 * DAY)
    await drain(stage.app)
    assert await stage.days() == [f"12-{day:02}" for day in range(9, 16)]


async def test_a_new_user_gets_nothing_for_days_before_they_came(stage: Stage) -> None:
    stage.knows("ada")
    await stage.sync()
    assert await stage.days() == []
    assert [each.name for each in await stage.app.schedules()] == ["summary:ada"]


async def test_syncing_again_changes_nothing(stage: Stage) -> None:
    stage.knows("ada")
    await stage.sync()
    [before] = await stage.app.schedules()
    await stage.sync()
    assert await stage.app.schedules() == [before]


async def test_users_are_looked_for_every_hour(stage: Stage) -> None:
    await jobs.set_up()
    await jobs.set_up()
    stage.knows("ada")
    await drain(stage.app, until=timedelta(hours=1))
    assert {each.name for each in await stage.app.schedules()} == {"sync-users", "summary:ada"}


async def test_a_user_who_left_is_forgotten_with_the_next_sync(stage: Stage) -> None:
    stage.knows("ada")
    await stage.sync()
    del stage.chat.users["ada"]
    await stage.sync()

    assert await stage.app.schedules() == []
    [left, _] = await stage.app.find(job_type="user_sync")
    assert left.result == {"user_id": "ada", "known": False}


async def test_a_new_time_of_day_holds_from_the_next_summary_on(stage: Stage) -> None:
    stage.knows("ada")
    await stage.sync()
    stage.knows("ada", summary_at=time(21, 15))
    await stage.sync()
    [schedule] = await stage.app.schedules()
    assert schedule.next_at == datetime(2026, 11, 16, 20, 15, tzinfo=UTC)


async def test_a_summary_that_was_cancelled_is_not_sent_and_not_planned_again(stage: Stage) -> None:
    stage.knows("ada")
    await stage.sync()
    await stage.app.pause_queue("default")
    summary = jobs.SummaryOf(user_id="ada", day=date(2026, 11, 16), timezone="Europe/Berlin")
    planned = await stage.app.submit(
        "daily_summary", summary, dedup_key=summary.key, dedup_for="forever", subject="ada", delay=3600
    )
    await stage.app.cancel(planned.job_id, by="ada")
    await stage.app.resume_queue("default")
    await drain(stage.app, until=DAY)

    [job] = await stage.summaries()
    assert (job.job_id, job.status) == (planned.job_id, "cancelled")
    assert stage.chat.sends.total() == 0
