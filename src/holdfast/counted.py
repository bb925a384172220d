"""As what a change is counted: the names under which the per-minute counters keep it."""

from __future__ import annotations

import functools
from bisect import bisect_left
from enum import StrEnum

from holdfast.clock import MICROS
from holdfast.statuses import Event, Status


class Counted(StrEnum):
    """What the per-minute counters count: jobs that came, and how each attempt or life ended."""

    SUBMITTED = "submitted"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RETRIED = "retried"
    SNOOZED = "snoozed"
    GIVEN_BACK = "given_back"
    RETRIED_BY_HAND = "retried_by_hand"
    REUSED = "reused"  # completed by another's result; `ran_micros` is what that one took: the time saved
    RESCUED = "rescued"  # its lease ran out: its worker died or stalled. Counted as retried or failed too


_COUNTED_BY_TARGET = {
    Status.COMPLETED: Counted.COMPLETED,
    Status.FAILED: Counted.FAILED,
    Status.CANCELLED: Counted.CANCELLED,
    Status.RETRYING: Counted.RETRIED,
}
_COUNTED_BY_EVENT = {
    Event.SUBMIT: Counted.SUBMITTED,
    Event.SNOOZE: Counted.SNOOZED,
    Event.GIVE_BACK: Counted.GIVEN_BACK,
    Event.MANUAL_RETRY: Counted.RETRIED_BY_HAND,
}

_COUNTED_BESIDE = {Event.REUSE: Counted.REUSED, Event.RESCUE: Counted.RESCUED}


@functools.cache  # asked for every settlement
def counted(event: Event, target: Status) -> Counted | None:
    """As what a transition is counted; None for one that only moves a job along, or in line."""
    if event is Event.REPRIORITISE:
        return None
    return _COUNTED_BY_EVENT.get(event) or _COUNTED_BY_TARGET.get(target)


@functools.cache
def also_counted(event: Event) -> Counted | None:
    """As what it is counted beside that."""
    return _COUNTED_BESIDE.get(event)


# How long attempts took and waited is kept in buckets, one number for both: a row of the counters for each pair that
# occurs, which are few in a minute. Bounds are seconds, and belong to the bucket below them; PostgreSQL has them too,
# in holdfast.bucket_of.
BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
NO_BUCKET = 0  # of what was no attempt
BUCKETS = len(BOUNDS) + 1
_BOUNDS_MICROS = [round(bound * MICROS) for bound in BOUNDS]
_IN_BUCKETS = frozenset({Counted.COMPLETED, Counted.FAILED, Counted.RETRIED})


def bucket_of(outcome: Counted, source: Status, ran_micros: int, waited_micros: int) -> int:
    """The bucket of a settled attempt; NO_BUCKET for every other change."""
    if source is not Status.PROCESSING or outcome not in _IN_BUCKETS:
        return NO_BUCKET
    return 1 + bisect_left(_BOUNDS_MICROS, ran_micros) * BUCKETS + bisect_left(_BOUNDS_MICROS, waited_micros)


def spans_of(bucket: int) -> tuple[int, int]:
    """Which of the bounds a bucket's attempts are under: by how long they ran, and by how long they waited."""
    return (bucket - 1) // BUCKETS, (bucket - 1) % BUCKETS
