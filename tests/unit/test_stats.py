"""Figures from the per-minute counters."""

from datetime import UTC, datetime

from holdfast import stats
from holdfast.clock import to_instant
from holdfast.lifecycle import Counted
from holdfast.stats import Figures
from holdfast.store.types import Counter

START = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
MINUTE = 60 * 1_000_000
MILLI = 1_000


def counter(minute: int, outcome: Counted, count: int, job_type: str = "a", ran: int = 0, waited: int = 0) -> Counter:
    return Counter(to_instant(START) + minute * MINUTE, job_type, "default", 50, outcome, count, ran, waited)


def summary(*counters: Counter, minutes: int = 10) -> stats.Stats:
    return stats.summary(counters, {"pending": 3}, to_instant(START), to_instant(START) + minutes * MINUTE)


def test_every_outcome_has_a_figure_of_its_own() -> None:
    found = summary(*(counter(0, outcome, n) for n, outcome in enumerate(Counted, start=1)))

    for n, outcome in enumerate(Counted, start=1):
        assert getattr(found.total, outcome.value) == n


def test_times_are_averaged_over_attempts_that_completed_or_failed() -> None:
    found = summary(
        counter(0, Counted.COMPLETED, 2, ran=20 * MILLI, waited=4 * MILLI),
        counter(0, Counted.FAILED, 1, ran=40 * MILLI, waited=8 * MILLI),
        counter(0, Counted.RETRIED, 1, ran=20 * MILLI),
        counter(0, Counted.SNOOZED, 5, ran=1000 * MILLI, waited=1000 * MILLI),
    ).total

    assert (found.average_time_ms, found.average_wait_ms) == (20, 3)


def test_where_nothing_ended_there_is_no_average() -> None:
    found = summary(counter(0, Counted.SUBMITTED, 5)).total

    assert (found.average_time_ms, found.average_wait_ms) == (None, None)
    assert summary().total == Figures()


def test_types_are_listed_by_how_much_happened_and_add_up() -> None:
    found = summary(
        counter(0, Counted.COMPLETED, 2, "few"),
        counter(0, Counted.COMPLETED, 5, "many"),
        counter(1, Counted.SUBMITTED, 7, "many"),
    )

    assert [(each.job_type, each.completed, each.submitted) for each in found.by_type] == [
        ("many", 5, 7),
        ("few", 2, 0),
    ]
    assert found.total.completed == 7


def test_minutes_are_listed_in_order_and_only_those_in_which_something_happened() -> None:
    found = summary(counter(7, Counted.COMPLETED, 1), counter(2, Counted.COMPLETED, 3), counter(7, Counted.FAILED, 1))

    assert [(each.minute.minute, each.completed, each.failed) for each in found.by_minute] == [(2, 3, 0), (7, 1, 1)]


def test_the_pace_is_an_average_over_the_span() -> None:
    assert summary(counter(0, Counted.COMPLETED, 50), minutes=10).per_minute == 5


def test_a_span_is_so_many_minutes_and_ends_with_the_one_that_runs() -> None:
    now = to_instant(datetime(2026, 5, 1, 12, 34, 56, tzinfo=UTC))

    since, until = stats.span(now, 10)

    assert since == to_instant(datetime(2026, 5, 1, 12, 25, tzinfo=UTC))
    assert until == to_instant(datetime(2026, 5, 1, 12, 35, tzinfo=UTC))
    assert stats.span(since, 1) == (since, since + MINUTE)


def test_what_reuse_saved_is_the_time_that_the_work_took_once() -> None:
    found = summary(
        counter(0, Counted.COMPLETED, 3, ran=30 * MILLI),
        counter(0, Counted.REUSED, 2, ran=500 * MILLI),
    ).total

    assert (found.reused, found.saved_ms, found.average_time_ms) == (2, 500, 30)
