"""When a schedule comes round: what can be written, and where the ticks are, on days when the clocks change too."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backstay.clock import to_datetime, to_instant
from backstay.core import schedules
from backstay.errors import InvalidSchedule


def ticks(expression: str, zone: str, after: str, count: int) -> list[str]:
    """The next ticks after a local time, as local times with their offset from UTC."""
    rule = schedules.parse(expression, zone)
    instant = to_instant(datetime.fromisoformat(after).replace(tzinfo=ZoneInfo(zone)))
    found = []
    for _ in range(count):
        instant = rule.after(instant)
        found.append(f"{to_datetime(instant).astimezone(ZoneInfo(zone)):%m-%d %H:%M %z}")
    return found


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("30 3 * * *", ["01-01 03:30", "01-02 03:30", "01-03 03:30"]),
        ("*/20 * * * *", ["01-01 00:20", "01-01 00:40", "01-01 01:00"]),
        ("0 9 * * MON-FRI", ["01-01 09:00", "01-02 09:00", "01-05 09:00"]),
        ("0 0 1 * *", ["02-01 00:00", "03-01 00:00", "04-01 00:00"]),
        ("0 0 L * *", ["01-31 00:00", "02-28 00:00", "03-31 00:00"]),
        ("@hourly", ["01-01 01:00", "01-01 02:00", "01-01 03:00"]),
        ("@daily", ["01-02 00:00", "01-03 00:00", "01-04 00:00"]),
        ("@weekly", ["01-04 00:00", "01-11 00:00", "01-18 00:00"]),
        (" @Monthly ", ["02-01 00:00", "03-01 00:00", "04-01 00:00"]),
        ("@every 90m", ["01-01 01:30", "01-01 03:00", "01-01 04:30"]),
    ],
)
def test_ticks_come_when_the_rule_says(expression: str, expected: list[str]) -> None:
    assert ticks(expression, "UTC", "2026-01-01T00:00", 3) == [f"{each} +0000" for each in expected]


def test_a_rule_is_read_in_its_time_zone() -> None:
    assert ticks("0 9 * * *", "America/New_York", "2026-01-01T00:00", 1) == ["01-01 09:00 -0500"]
    assert ticks("0 9 * * *", "Asia/Kolkata", "2026-01-01T00:00", 1) == ["01-01 09:00 +0530"]


def test_a_fixed_time_that_is_skipped_comes_right_after_the_gap() -> None:
    assert ticks("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00", 3) == [
        "03-28 02:30 +0100",
        "03-29 03:00 +0200",
        "03-30 02:30 +0200",
    ]


def test_a_fixed_time_that_comes_twice_comes_once() -> None:
    assert ticks("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", 2) == ["10-25 02:30 +0200", "10-26 02:30 +0100"]


def test_within_the_hour_that_comes_twice_the_next_tick_is_not_the_one_that_was() -> None:
    rule = schedules.parse("30 2 * * *", "Europe/Berlin")
    second_time = to_instant(datetime(2026, 10, 25, 1, 10, tzinfo=UTC))  # 02:10 for the second time

    assert to_datetime(rule.after(second_time)) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)
    assert to_datetime(rule.latest(second_time)) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)


def test_a_tick_of_every_so_many_minutes_keeps_its_pace() -> None:
    assert ticks("*/30 * * * *", "Europe/Berlin", "2026-03-29T01:00", 2) == ["03-29 01:30 +0100", "03-29 03:00 +0200"]
    assert ticks("*/30 * * * *", "Europe/Berlin", "2026-10-25T01:45", 4) == [
        "10-25 02:00 +0200",
        "10-25 02:30 +0200",
        "10-25 02:00 +0100",
        "10-25 02:30 +0100",
    ]


def test_the_ticks_of_a_span_are_the_same_for_everyone() -> None:
    """Multiples since the epoch: two workers that start at different times do not make two rows of ticks."""
    rule = schedules.parse("@every 7s", "UTC")

    assert {rule.after(second * 1_000_000 + 1) for second in range(7)} == {7_000_000}
    assert rule.latest(6_999_999) == 0


# When clocks change, in UTC: by an hour, by half an hour, at midnight; and where they do not.
CHANGES = [
    ("Europe/Berlin", "2026-03-29T01:00"),
    ("Europe/Berlin", "2026-10-25T01:00"),
    ("America/New_York", "2026-03-08T07:00"),
    ("America/New_York", "2026-11-01T06:00"),
    ("Australia/Lord_Howe", "2026-04-04T15:00"),
    ("Australia/Lord_Howe", "2026-10-03T15:30"),
    ("America/Sao_Paulo", "2017-10-15T03:00"),
    ("America/Sao_Paulo", "2018-02-18T02:00"),
    ("UTC", "2026-01-01T00:00"),
]
RULES = ["30 2 * * *", "30 1 * * *", "15 0 * * *", "*/20 * * * *", "15 */3 * * *", "10 2 * * SUN", "@every 45m"]


@settings(max_examples=500)
@given(
    expression=st.sampled_from(RULES),
    change=st.sampled_from(CHANGES),
    offset=st.integers(-3 * 3600 * 1_000_000, 3 * 3600 * 1_000_000),
)
def test_no_tick_is_passed_over_and_none_comes_twice(expression: str, change: tuple[str, str], offset: int) -> None:
    """Around every change of the clocks: `after` lies ahead, `latest` does not, and nothing lies between the two."""
    zone, changes_at = change
    rule = schedules.parse(expression, zone)
    now = to_instant(datetime.fromisoformat(changes_at).replace(tzinfo=UTC)) + offset

    following, latest = rule.after(now), rule.latest(now)

    assert latest <= now < following
    assert rule.after(latest) == following
    assert rule.latest(following) == following
    assert rule.after(following - 1) == following


@pytest.mark.parametrize(
    "expression",
    ["", "x", "* * * *", "61 * * * *", "* 24 * * *", "0 0 32 2 *", "0 0 * * MON#6", "@reboot", "@every", "@every -1s"],
)
def test_what_is_no_rule_is_refused_with_help(expression: str) -> None:
    with pytest.raises(InvalidSchedule, match=r"five fields .*30 3"):
        schedules.parse(expression, "UTC")


@pytest.mark.parametrize("expression", ["0 0 31 2 *", "0 0 30,31 FEB *"])
def test_a_day_that_no_month_in_question_has_is_said_to_never_come(expression: str) -> None:
    with pytest.raises(InvalidSchedule, match="that day never occurs"):
        schedules.parse(expression, "UTC")


def test_six_fields_are_not_taken_for_five_and_something() -> None:
    with pytest.raises(InvalidSchedule, match="five fields"):
        schedules.parse("0 30 3 * * 1-5", "UTC")


def test_a_span_begins_at_one_second() -> None:
    with pytest.raises(InvalidSchedule, match="one second"):
        schedules.parse("@every 0s", "UTC")
    with pytest.raises(InvalidSchedule, match=r"@every needs a unit \(s, m, h or d\): @every 5s"):
        schedules.parse("@every 5", "UTC")
    assert schedules.parse("@every 1s", "UTC").after(0) == 1_000_000


@pytest.mark.parametrize("expression", [None, 5, ["@daily"], b"@daily", timedelta(1)])
def test_a_rule_is_text(expression: Any) -> None:
    with pytest.raises(InvalidSchedule, match="as a string"):
        schedules.parse(expression, "UTC")


@pytest.mark.parametrize("zone", ["", "Nowhere", "Europe", "../etc/passwd", "/etc/localtime", "\0", None, 5, ["UTC"]])
def test_what_is_no_time_zone_is_refused_with_help(zone: Any) -> None:
    with pytest.raises(InvalidSchedule, match="Europe/Berlin"):
        schedules.parse("@daily", zone)
