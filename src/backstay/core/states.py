"""The states of a job, the events that change them, and the names under which counters record them."""

from __future__ import annotations

import functools
from bisect import bisect_left
from enum import StrEnum

from backstay.clock import MICROS


class Status(StrEnum):
    WAITING = "waiting"
    SCHEDULED = "scheduled"
    PENDING = "pending"
    PROCESSING = "processing"
    RETRYING = "retrying"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


# What other queues call these states.
OTHER_NAMES = {
    "running": Status.PROCESSING,
    "active": Status.PROCESSING,
    "started": Status.PROCESSING,
    "queued": Status.PENDING,
    "ready": Status.PENDING,
    "delayed": Status.SCHEDULED,
    "blocked": Status.WAITING,
    "done": Status.COMPLETED,
    "success": Status.COMPLETED,
    "succeeded": Status.COMPLETED,
    "finished": Status.COMPLETED,
    "dead": Status.FAILED,
    "error": Status.FAILED,
    "canceled": Status.CANCELLED,
    "revoked": Status.CANCELLED,
}


class Event(StrEnum):
    SUBMIT = "submit"
    REUSE = "reuse"
    RELEASE = "release"
    DUE = "due"
    CLAIM = "claim"
    COMPLETE = "complete"
    RETRY = "retry"
    EXHAUST = "exhaust"
    DISCARD = "discard"
    SNOOZE = "snooze"
    GIVE_BACK = "give_back"
    WAIT_FOR_CHILDREN = "wait_for_children"
    SLEEP = "sleep"
    WAIT_FOR_EVENT = "wait_for_event"
    RESCUE = "rescue"
    RESCHEDULE = "reschedule"
    REPRIORITISE = "reprioritise"
    UPDATE = "update"
    REPLACE = "replace"
    EXPIRE = "expire"
    CANCEL = "cancel"
    MANUAL_RETRY = "manual_retry"
    SKIP_TICK = "skip_tick"  # its schedule made no job for a tick, because this one was active


STAYING = frozenset({Event.REPRIORITISE, Event.UPDATE, Event.SKIP_TICK})  # they never change the state of a job
TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
ACTIVE = frozenset(Status) - TERMINAL


class Counted(StrEnum):
    """What the per-minute counters count: submitted jobs, and the outcomes of attempts and jobs."""

    SUBMITTED = "submitted"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RETRIED = "retried"
    SNOOZED = "snoozed"
    GIVEN_BACK = "given_back"
    RETRIED_BY_HAND = "retried_by_hand"
    REUSED = "reused"  # completed with another job's result; `ran_micros` is the run time of that job: the time saved
    RESCUED = "rescued"  # its lease expired: its worker died or stalled. Also counted as retried or failed


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

_UNCOUNTED = STAYING | {Event.REPLACE}  # the outcome of no attempt
_COUNTED_BESIDE = {Event.REUSE: Counted.REUSED, Event.RESCUE: Counted.RESCUED}


@functools.cache  # cached: called for every settlement
def counted(event: Event, target: Status) -> Counted | None:
    """Return what a transition is counted as; None if it is not the outcome of an attempt or job."""
    if event in _UNCOUNTED:
        return None
    return _COUNTED_BY_EVENT.get(event) or _COUNTED_BY_TARGET.get(target)


@functools.cache
def also_counted(event: Event) -> Counted | None:
    """Return what it is additionally counted as."""
    return _COUNTED_BESIDE.get(event)


# Run and wait times of attempts are counted in buckets, one number for both: one row of counters for each pair that
# occurs, and few occur in a minute. Bounds are seconds and belong to the bucket below them.
BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
NO_BUCKET = 0  # of changes that are not attempts
BUCKETS = len(BOUNDS) + 1
BOUNDS_MICROS = tuple(round(bound * MICROS) for bound in BOUNDS)
_IN_BUCKETS = frozenset({Counted.COMPLETED, Counted.FAILED, Counted.RETRIED})


def bucket_of(outcome: Counted, source: Status, ran_micros: int, waited_micros: int) -> int:
    """Return the bucket of a settled attempt; NO_BUCKET for every other change."""
    if source is not Status.PROCESSING or outcome not in _IN_BUCKETS:
        return NO_BUCKET
    return bucket_of_attempt(ran_micros, waited_micros)


def bucket_of_attempt(ran_micros: int, waited_micros: int) -> int:
    return 1 + bisect_left(BOUNDS_MICROS, ran_micros) * BUCKETS + bisect_left(BOUNDS_MICROS, waited_micros)


def spans_of(bucket: int) -> tuple[int, int]:
    """Return the indexes of a bucket's bounds: for the run time and for the wait time."""
    return (bucket - 1) // BUCKETS, (bucket - 1) % BUCKETS
