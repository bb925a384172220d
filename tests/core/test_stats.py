"""Figures from the per-minute counters."""

from datetime import UTC, datetime

import msgspec

from backstay.clock import MICROS, to_instant
from backstay.core import stats
from backstay.core.records import Counter, Total
from backstay.core.states import BOUNDS, NO_BUCKET, Counted, Status, bucket_of, spans_of
from backstay.core.stats import Figures, quantile

START = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
MINUTE = 60 * 1_000_000
MILLI = 1_000


def counter(minute: int, outcome: Counted, count: int, job_type: str = "a", ran: int = 0, waited: int = 0) -> Counter:
    return Counter(to_instant(START) + minute * MINUTE, job_type, "default", 50, outcome, count, ran, waited)


def summary(*counters: Counter, minutes: int = 10) -> stats.Stats:
    return stats.summary(counters, counters, {"pending": 3}, to_instant(START), to_instant(START) + minutes * MINUTE)


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


# Buckets


def attempts(*spans: tuple[float, float]) -> Counter:
    """Completed ones that ran and waited so many seconds."""
    buckets: dict[int, int] = {}
    for ran, waited in spans:
        bucket = bucket_of(Counted.COMPLETED, Status.PROCESSING, round(ran * MICROS), round(waited * MICROS))
        buckets[bucket] = buckets.get(bucket, 0) + 1
    whole = counter(0, Counted.COMPLETED, len(spans))
    return msgspec.structs.replace(whole, buckets=tuple(sorted(buckets.items())))


def test_buckets_say_how_many_took_and_waited_up_to_each_bound() -> None:
    found = summary(attempts((0.01, 0), (0.02, 2.0), (20_000, 0.3)), counter(0, Counted.SUBMITTED, 9)).total

    assert len(found.time_buckets) == len(found.wait_buckets) == len(BOUNDS) + 1
    assert found.time_buckets[:3] == (1, 2, 2)
    assert found.time_buckets[-2:] == (2, 3)
    assert found.wait_buckets[BOUNDS.index(0.25)] == 1
    assert found.wait_buckets[BOUNDS.index(0.5)] == 2
    assert found.wait_buckets[-1] == 3


def test_where_no_attempt_ended_there_are_no_buckets() -> None:
    found = summary(counter(0, Counted.SUBMITTED, 5)).total

    assert (found.time_buckets, found.wait_buckets) == ((), ())


def test_a_quantile_lies_in_the_bucket_of_its_attempt() -> None:
    found = summary(attempts(*[(0.03, 0.0)] * 90, *[(7.0, 0.0)] * 9, (99_999, 0.0))).total

    assert 0.01 < quantile(found.time_buckets, 0.5) <= 0.05
    assert 5 < quantile(found.time_buckets, 0.95) <= 10
    assert quantile(found.time_buckets, 1.0) == BOUNDS[-1]
    assert quantile((), 0.5) is None


def test_every_span_has_one_bucket_and_a_bound_belongs_to_the_one_below() -> None:
    for place, bound in enumerate(BOUNDS):
        for ran, expected in ((bound, place), (bound + 0.000001, place + 1)):
            bucket = bucket_of(Counted.FAILED, Status.PROCESSING, round(ran * MICROS), 0)
            assert spans_of(bucket) == (expected, 0)
            bucket = bucket_of(Counted.FAILED, Status.PROCESSING, 0, round(ran * MICROS))
            assert spans_of(bucket) == (0, expected)


def test_what_is_no_end_of_an_attempt_has_no_bucket() -> None:
    assert bucket_of(Counted.SNOOZED, Status.PROCESSING, 1, 1) == NO_BUCKET
    assert bucket_of(Counted.FAILED, Status.WAITING, 1, 1) == NO_BUCKET


def test_a_total_is_told_in_seconds_and_cumulative_buckets() -> None:
    done = attempts((0.03, 0.0), (7.0, 0.2))
    found = stats.total_figures(
        Total("a", "default", Counted.COMPLETED, 3, 7_030_000, 200_000, done.buckets)  # one of them was reused
    )

    assert (found.job_type, found.queue, found.outcome, found.count) == ("a", "default", "completed", 3)
    assert (found.time_seconds, found.wait_seconds) == (7.03, 0.2)
    assert (found.time_buckets[-1], found.wait_buckets[0]) == (2, 1)
