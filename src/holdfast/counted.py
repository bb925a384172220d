"""As what a change is counted: the names under which the per-minute counters keep it."""

from __future__ import annotations

from enum import StrEnum

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


def counted(event: Event, target: Status) -> Counted | None:
    """As what a transition is counted; None for one that only moves a job along, or in line."""
    if event is Event.REPRIORITISE:
        return None
    return _COUNTED_BY_EVENT.get(event) or _COUNTED_BY_TARGET.get(target)


def also_counted(event: Event) -> Counted | None:
    """As what it is counted beside that."""
    return Counted.REUSED if event is Event.REUSE else None
