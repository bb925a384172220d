"""Days as users live them: which are due, and how long they are, around changes of the clocks."""

from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise

import pytest
from companion import days

LONG_AGO = date(2020, 1, 1)
BERLIN = "Europe/Berlin"


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_a_day_is_due_at_the_users_own_time_on_the_day_after() -> None:
    before, after = moment("2026-11-16T05:59"), moment("2026-11-16T06:00")  # 06:59 and 07:00 in Berlin
    assert days.due(before, BERLIN, time(7), LONG_AGO, 1) == [date(2026, 11, 14)]
    assert days.due(after, BERLIN, time(7), LONG_AGO, 1) == [date(2026, 11, 15)]


def test_the_same_moment_ends_other_days_elsewhere() -> None:
    noon = moment("2026-11-16T12:00")
    assert days.due(noon, "Pacific/Kiritimati", time(0), LONG_AGO, 1) == [date(2026, 11, 16)]
    assert days.due(noon, "Pacific/Pago_Pago", time(7), LONG_AGO, 1) == [date(2026, 11, 14)]


def test_no_day_before_the_user_came_is_due() -> None:
    noon = moment("2026-11-16T12:00")
    assert days.due(noon, BERLIN, time(7), date(2026, 11, 15), 7) == [date(2026, 11, 15)]
    assert days.due(noon, BERLIN, time(7), date(2026, 11, 16), 7) == []


def test_what_was_missed_is_due_oldest_first_up_to_a_number_of_days() -> None:
    due = days.due(moment("2026-11-16T12:00"), BERLIN, time(7), LONG_AGO, 3)
    assert due == [date(2026, 11, 13), date(2026, 11, 14), date(2026, 11, 15)]


def test_a_summary_at_a_time_that_is_skipped_is_due_right_after_the_gap() -> None:
    """In Berlin 02:30 does not exist on 29 March 2026: the clock goes from 02:00 to 03:00, at 01:00 UTC."""
    assert days.due(moment("2026-03-29T00:59"), BERLIN, time(2, 30), LONG_AGO, 1) == [date(2026, 3, 27)]
    assert days.due(moment("2026-03-29T01:00"), BERLIN, time(2, 30), LONG_AGO, 1) == [date(2026, 3, 28)]


@pytest.mark.parametrize(("day", "hours"), [((2026, 3, 29), 23), ((2026, 10, 25), 25), ((2026, 11, 16), 24)])
def test_a_day_is_as_long_as_the_clocks_make_it(day: tuple[int, int, int], hours: int) -> None:
    begin, end = days.span(date(*day), BERLIN)
    assert end - begin == timedelta(hours=hours)


@pytest.mark.parametrize("zone", [BERLIN, "America/St_Johns", "Africa/Cairo", "Australia/Lord_Howe", "Asia/Kathmandu"])
def test_every_moment_belongs_to_one_day(zone: str) -> None:
    """In Cairo the clocks change at midnight itself."""
    year = [date(2026, 1, 1) + index * days.DAY for index in range(365)]
    spans = [days.span(day, zone) for day in year]
    assert all(end == begin for (_, end), (begin, _) in pairwise(spans))
