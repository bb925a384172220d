"""When a job starts, from run times, slots and what comes before it."""

import pytest

from backstay.clock import MICROS
from backstay.core import forecast
from backstay.core.forecast import Line, Room, RunTime
from backstay.core.records import Counter
from backstay.core.states import Counted, bucket_of_attempt
from backstay.testing.conformance.factories import a_worker


def _counter(outcome: Counted, seconds: float, count: int, job_type: str = "work") -> Counter:
    bucket = bucket_of_attempt(round(seconds * MICROS), 0)
    return Counter(0, job_type, "q", 50, outcome, count, round(seconds * MICROS) * count, 0, ((bucket, count),))


TIMES = {"work": RunTime(1_000, 0.9, 0.3), "other": RunTime(1_000, 9.0, 1.0)}


def _seconds(line: Line, slots: Room, **options: float) -> float:
    found = forecast.estimate("work", TIMES, line, slots, **options)  # type: ignore[arg-type]
    assert found is not None
    assert found.high is None or found.low <= found.seconds <= found.high
    return found.seconds


def test_run_times_are_those_of_attempts_by_type() -> None:
    found = forecast.run_times(
        [
            _counter(Counted.COMPLETED, 2.0, 3),
            _counter(Counted.RETRIED, 6.0, 1),
            _counter(Counted.SUBMITTED, 99.0, 50),
            _counter(Counted.COMPLETED, 0.2, 5, "quick"),
        ]
    )
    assert {name: (each.count, each.mean) for name, each in found.items()} == {"work": (4, 3.0), "quick": (5, 0.2)}
    assert 0.5 < found["work"].deviation < 4


def test_a_job_starts_when_those_before_it_have_had_their_time_in_the_slots() -> None:
    assert _seconds(Line(ahead=212), Room(own=10, pool=10)) == pytest.approx(213 * 0.9 / 10)
    assert _seconds(Line(ahead=212), Room(own=2, pool=10)) == pytest.approx(213 * 0.9 / 2)


def test_jobs_of_other_types_take_the_slots_they_share() -> None:
    alone = _seconds(Line(ahead=10), Room(own=10, pool=10))
    assert _seconds(Line(ahead=10, others={"other": 20}), Room(own=10, pool=10)) == pytest.approx(alone + 20 * 0.9)
    # … and none of those that its own limit leaves free for it anyway.
    assert _seconds(Line(ahead=10, others={"other": 1}), Room(own=1, pool=10)) == pytest.approx(11 * 0.9)


def test_what_has_ended_while_it_waited_says_more_than_run_times_once_it_is_enough() -> None:
    line, slots = Line(ahead=99), Room(own=10, pool=10)
    by_run_times = _seconds(line, slots)
    assert _seconds(line, slots, ended=19, span_seconds=60) == by_run_times
    assert _seconds(line, slots, ended=200, span_seconds=60) == pytest.approx(100 * 60 / 200)


def test_a_rate_lets_one_start_after_another() -> None:
    slots = Room(own=10, pool=10)
    assert _seconds(Line(ahead=4), slots, wait_seconds=3.0, seconds_per_start=12.0) == 3.0 + 4 * 12.0


def test_a_job_with_a_free_slot_starts_at_once() -> None:
    assert _seconds(Line(ahead=0, has_room=True), Room(own=10, pool=10)) == 0.0
    assert _seconds(Line(ahead=3, has_room=True), Room(own=10, pool=10)) > 0.0


def test_a_line_longer_than_is_counted_has_no_upper_bound() -> None:
    found = forecast.estimate("work", TIMES, Line(ahead=1_000, is_capped=True), Room(own=10, pool=10))
    assert found is not None
    assert (found.high, found.low) == (None, found.seconds)


def test_nothing_is_foretold_of_a_type_of_which_nothing_is_known() -> None:
    assert forecast.estimate("new", TIMES, Line(ahead=3), Room(own=10, pool=10)) is None
    assert forecast.run_times([_counter(Counted.SUBMITTED, 0.0, 5)]) == {}


def test_slots_are_those_of_the_type_within_its_limits() -> None:
    workers = [
        a_worker("a", concurrency=10, limits={"work": 4}, batches={}),
        a_worker("b", concurrency=6, limits={}, batches={"work": 5}),
    ]
    assert forecast.room("work", workers, None) == Room(own=4 + 30, pool=16)
    assert forecast.room("work", workers, 3) == Room(own=3, pool=16)


def test_jobs_claimed_ahead_wait_in_what_is_measured_as_run_time() -> None:
    assert forecast.without_line(TIMES, held=13, slots=10)["work"].mean == pytest.approx(0.9 / 1.3)
    assert forecast.without_line(TIMES, held=4, slots=10) == TIMES
