"""The clock of a test: it moves only when it is told to."""

from datetime import UTC, datetime, timedelta

import pytest

from backstay.clock import SystemClock, to_instant
from backstay.testing import ManualClock

START = datetime(2030, 1, 1, tzinfo=UTC)


def test_it_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(START)
    assert clock.now() == clock.now() == to_instant(START)
    assert clock.monotonic() == clock.monotonic()
    clock.advance(1.5)
    clock.advance(timedelta(hours=1))
    assert clock.moment == START + timedelta(hours=1, seconds=1.5)


def test_without_a_start_it_begins_now() -> None:
    before = SystemClock().now()
    assert before <= ManualClock().now() <= SystemClock().now()


def test_spans_are_measured_by_the_same_moves() -> None:
    clock = ManualClock(START)
    before = clock.monotonic()
    clock.advance(60)
    clock.set(START + timedelta(seconds=100))
    assert clock.monotonic() - before == 100


def test_turned_back_it_shows_an_earlier_time_and_no_span_gets_shorter() -> None:
    clock = ManualClock(START)
    before = clock.monotonic()
    clock.set(START - timedelta(days=1))
    assert clock.moment == START - timedelta(days=1)
    assert clock.monotonic() == before


def test_time_does_not_pass_backwards_and_has_a_zone() -> None:
    clock = ManualClock(START)
    with pytest.raises(ValueError, match="set"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="time zone"):
        clock.set(datetime(2030, 1, 1))  # noqa: DTZ001
    assert clock.moment == START
