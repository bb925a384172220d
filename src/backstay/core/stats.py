"""Statistics from the per-minute counters: what happened in a time span, by type and over time. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate

import msgspec

from backstay.clock import MICROS, Instant, Moment, to_datetime
from backstay.core.records import Counter, Total
from backstay.core.states import BOUNDS, BUCKETS, Counted, spans_of

_FINISHED = (Counted.COMPLETED, Counted.FAILED, Counted.RETRIED)


class Figures(msgspec.Struct, kw_only=True):
    """What happened to a set of jobs in a time span."""

    submitted: int = 0
    completed: int = 0
    failed: int = 0  # final failures
    cancelled: int = 0
    retried: int = 0  # failed attempts that were retried
    snoozed: int = 0
    given_back: int = 0
    retried_by_hand: int = 0
    rescued: int = 0  # attempts whose lease expired; also counted as retried or failed
    reused: int = 0  # completed with another job's result; also counted as completed
    saved_ms: float = 0.0  # run time of the jobs whose results were reused
    average_time_ms: float | None = None  # per attempt that completed or failed
    average_wait_ms: float | None = None  # from due time to start
    time_buckets: tuple[int, ...] = ()  # how many such attempts ran up to each of states.BOUNDS, and in total …
    wait_buckets: tuple[int, ...] = ()  # … and waited; empty if there were none


class TypeFigures(Figures, kw_only=True):
    """The figures of one type and queue."""

    job_type: str
    queue: str


class MinuteFigures(Figures, kw_only=True):
    """The figures of one minute."""

    minute: Moment


class Stats(msgspec.Struct, kw_only=True):
    """What `app.stats` returns."""

    since: Moment
    until: Moment
    counts: dict[str, int]  # jobs by state, now
    total: Figures
    by_type: list[TypeFigures]  # busiest first
    by_minute: list[MinuteFigures]  # only minutes in which something happened

    @property
    def per_minute(self) -> float:
        """Completed jobs per minute, on average over the time span."""
        minutes = max(1.0, (self.until - self.since).total_seconds() / 60)
        return self.total.completed / minutes


class TotalFigures(msgspec.Struct, frozen=True, kw_only=True):
    """All-time totals for one type, queue and outcome. None of the numbers ever decreases."""

    job_type: str
    queue: str
    outcome: str
    count: int
    time_seconds: float  # sums
    wait_seconds: float
    time_buckets: tuple[int, ...]  # as in Figures; empty if this is not the outcome of an attempt
    wait_buckets: tuple[int, ...]


class _Sums:
    def __init__(self) -> None:
        self.counts = dict.fromkeys(Counted, 0)
        self.finished = self.ran = self.waited = self.saved = 0
        self.buckets: list[tuple[int, int]] = []

    def add(self, counter: Counter) -> None:
        self.counts[counter.outcome] += counter.count
        if counter.outcome is Counted.REUSED:
            self.saved += counter.ran_micros
            self.finished -= counter.count  # also counted as completed, without an attempt
        if counter.outcome in _FINISHED:
            self.finished += counter.count
            self.ran += counter.ran_micros
            self.waited += counter.waited_micros
            self.buckets += counter.buckets

    def fields(self) -> dict[str, int | float | tuple[int, ...] | None]:
        times, waits = cumulative(self.buckets)
        return {
            **{outcome.value: count for outcome, count in self.counts.items()},
            "saved_ms": self.saved / 1000,
            "average_time_ms": self.ran / self.finished / 1000 if self.finished > 0 else None,
            "average_wait_ms": self.waited / self.finished / 1000 if self.finished > 0 else None,
            "time_buckets": times,
            "wait_buckets": waits,
        }


def cumulative(buckets: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return how many attempts took, and waited, up to each bound; the last is the total. Empty if there are none."""
    times, waits = [0] * BUCKETS, [0] * BUCKETS
    for bucket, count in buckets:
        took, waited = spans_of(bucket)
        times[took] += count
        waits[waited] += count
    return (tuple(accumulate(times)), tuple(accumulate(waits))) if any(times) else ((), ())


def quantile(buckets: tuple[int, ...], share: float) -> float | None:
    """Estimate the number of seconds within which a share of the attempts stayed: 0.95 gives the 95th percentile.

    Within a bucket they are assumed to be spread evenly; beyond the last bound nothing is known, and that bound is
    returned.
    """
    if not buckets or not buckets[-1]:
        return None
    wanted = share * buckets[-1]
    place = next(place for place, count in enumerate(buckets) if count >= wanted)
    if place == len(BOUNDS):
        return BOUNDS[-1]
    below, start = (buckets[place - 1], BOUNDS[place - 1]) if place else (0, 0.0)
    inside = buckets[place] - below
    return start + (BOUNDS[place] - start) * ((wanted - below) / inside if inside else 0.0)


def total_figures(total: Total) -> TotalFigures:
    times, waits = cumulative(total.buckets)
    return TotalFigures(
        job_type=total.job_type,
        queue=total.queue,
        outcome=total.outcome.value,
        count=total.count,
        time_seconds=total.ran_micros / MICROS,
        wait_seconds=total.waited_micros / MICROS,
        time_buckets=times,
        wait_buckets=waits,
    )


def summary(
    kinds: Iterable[Counter], minutes: Iterable[Counter], counts: dict[str, int], since: Instant, until: Instant
) -> Stats:
    """`kinds`: the counters of the whole span, with types and queues; `minutes`: those of each minute, for which types
    and queues do not matter."""
    total = _Sums()
    by_type: defaultdict[tuple[str, str], _Sums] = defaultdict(_Sums)
    by_minute: defaultdict[Instant, _Sums] = defaultdict(_Sums)
    for counter in kinds:
        total.add(counter)
        by_type[counter.job_type, counter.queue].add(counter)
    for counter in minutes:
        by_minute[counter.minute].add(counter)
    busiest = sorted(by_type.items(), key=lambda each: (-sum(each[1].counts.values()), each[0]))
    return Stats(
        since=to_datetime(since),
        until=to_datetime(until),
        counts=counts,
        total=Figures(**total.fields()),  # type: ignore[arg-type]
        by_type=[
            TypeFigures(job_type=job_type, queue=queue, **sums.fields())  # type: ignore[arg-type]
            for (job_type, queue), sums in busiest
        ],
        by_minute=[
            MinuteFigures(minute=to_datetime(minute), **sums.fields())  # type: ignore[arg-type]
            for minute, sums in sorted(by_minute.items())
        ],
    )


def span(until: Instant, minutes: int) -> tuple[Instant, Instant]:
    """Return the last whole minutes, and the current one."""
    end = until - until % (60 * MICROS) + 60 * MICROS
    return end - minutes * 60 * MICROS, end
