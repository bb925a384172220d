"""The words of the lifecycle: the states a job can be in, and the events that move it."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    WAITING = "waiting"
    SCHEDULED = "scheduled"
    PENDING = "pending"
    PROCESSING = "processing"
    RETRYING = "retrying"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


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
    RESCUE = "rescue"
    RESCHEDULE = "reschedule"
    REPRIORITISE = "reprioritise"
    CANCEL = "cancel"
    MANUAL_RETRY = "manual_retry"


TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
ACTIVE = frozenset(Status) - TERMINAL
