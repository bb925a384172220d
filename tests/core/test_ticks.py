"""From a schedule and the time to its next firing: which ticks make a job, and where it goes on."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from backstay import ids
from backstay.clock import to_datetime, to_instant
from backstay.core import schedules
from backstay.core.records import NewJob, Schedule
from backstay.errors import InvalidSchedule
from backstay.limits import SCHEDULE_LATE_SECONDS, TICKS_PER_FIRING_MAX

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def a_schedule(**changes: Any) -> Schedule:
    template = NewJob("", "report", "default", 50, '{"kind":"daily"}', 0, 3, 1_000_000)
    fields: dict[str, Any] = {
        "name": "hourly",
        "cron": "@hourly",
        "timezone": "UTC",
        "missed": "one",
        "job_type": "report",
        "template": msgspec.json.encode(template).decode(),
        "created_at": 0,
        "updated_at": 0,
        "next_at": to_instant(NOON),
    }
    return Schedule(**(fields | changes))


def fired(now: datetime, **changes: Any) -> tuple[list[datetime], datetime]:
    """The ticks that make a job, and the one at which it goes on."""
    firing = schedules.firing(a_schedule(**changes), to_instant(now))
    assert firing is not None
    return [to_datetime(job.tick_at or 0) for job in firing.jobs], to_datetime(firing.next_at)


@pytest.mark.parametrize("missed", schedules.MISSED)
def test_a_tick_on_time_makes_one_job_under_every_policy(missed: str) -> None:
    assert fired(NOON, missed=missed) == ([NOON], NOON + HOUR)


@pytest.mark.parametrize("missed", schedules.MISSED)
def test_before_its_tick_nothing_is_to_be_done(missed: str) -> None:
    assert schedules.firing(a_schedule(missed=missed), to_instant(NOON) - 1) is None


def test_a_paused_schedule_does_nothing() -> None:
    assert schedules.firing(a_schedule(paused_at=1), to_instant(NOON + HOUR)) is None


def test_of_missed_ticks_skip_makes_none_one_makes_the_last_and_all_makes_each() -> None:
    now = NOON + 3 * HOUR + timedelta(minutes=30)
    each = [NOON + n * HOUR for n in range(4)]

    assert fired(now, missed="skip") == ([], NOON + 4 * HOUR)
    assert fired(now, missed="one") == ([each[-1]], NOON + 4 * HOUR)
    assert fired(now, missed="all") == (each, NOON + 4 * HOUR)


def test_a_tick_that_is_decided_a_little_late_is_not_missed() -> None:
    late = timedelta(seconds=SCHEDULE_LATE_SECONDS)

    assert fired(NOON + late, missed="skip")[0] == [NOON]
    assert fired(NOON + late + timedelta(microseconds=1), missed="skip")[0] == []


def test_of_those_skipped_the_last_still_counts_where_it_is_on_time() -> None:
    assert fired(NOON + 2 * HOUR, missed="skip") == ([NOON + 2 * HOUR], NOON + 3 * HOUR)


def test_more_missed_ticks_than_one_firing_takes_go_on_where_it_stopped() -> None:
    now = NOON + 2 * TICKS_PER_FIRING_MAX * HOUR
    made, next_at = fired(now, missed="all")

    assert len(made) == TICKS_PER_FIRING_MAX
    assert next_at == made[-1] + HOUR
    assert fired(now, missed="all", next_at=to_instant(next_at))[0][0] == next_at


def test_a_tick_that_was_noted_counts_where_the_rule_would_not_name_it() -> None:
    """As after a change of a time zone's rules: what was announced as the next tick still comes."""
    odd = NOON + timedelta(minutes=17)

    assert fired(odd + timedelta(minutes=1), next_at=to_instant(odd)) == ([odd], NOON + HOUR)


def test_the_job_of_a_tick_says_where_it_comes_from_and_its_turn_begins_now() -> None:
    now = to_instant(NOON + timedelta(seconds=5))
    firing = schedules.firing(a_schedule(), now)
    assert firing is not None
    [job] = firing.jobs

    assert (job.schedule, job.tick_at, job.created_by) == ("hourly", to_instant(NOON), "schedule:hourly")
    assert (job.scheduled_for, job.job_type, job.payload) == (now, "report", '{"kind":"daily"}')
    assert job.own_id
    assert (firing.version, firing.due_at) == (1, to_instant(NOON))


def test_every_worker_makes_the_same_id_for_a_tick_and_no_other_tick_has_it() -> None:
    instant = to_instant(NOON)
    made = {schedules.tick_id(name, at) for name in ("a", "b") for at in (instant, instant + 1)}

    assert schedules.tick_id("a", instant) == schedules.tick_id("a", instant)
    assert len(made) == 4
    assert all(ids.canonical(each) == each for each in made)


def test_the_id_of_a_tick_carries_its_time_as_every_id_does() -> None:
    instant = to_instant(NOON)

    assert uuid.UUID(schedules.tick_id("a", instant)).int >> 80 == instant // 1000
    assert uuid.UUID(schedules.tick_id("a", instant)).version == 7


def test_a_policy_that_nobody_knows_is_an_error_and_no_firing() -> None:
    with pytest.raises(InvalidSchedule, match="skip, one, all"):
        schedules.firing(a_schedule(missed="perhaps"), to_instant(NOON))
