"""Parents that went down with their children. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.statuses import Event, Status
from holdfast.store.types import JobRecord


class Happening(Protocol):
    @property
    def event(self) -> Event: ...


class Ended(Protocol):
    @property
    def status(self) -> Status: ...
    @property
    def history(self) -> Sequence[Happening]: ...


def went_down_with_children(job: Ended) -> bool:
    """Whether it waited for its children, and its rule did not bear how they ended."""
    if job.status not in (Status.FAILED, Status.CANCELLED) or not job.history:
        return False
    came = (each.event for each in reversed(job.history[:-1]) if each.event is not Event.REPRIORITISE)
    return job.history[-1].event is Event.RELEASE and next(came, None) is Event.WAIT_FOR_CHILDREN


def said(job: JobRecord, bad_children: Sequence[JobRecord], at: str) -> str:
    """Which of them it went down with, by name and error, as far as they are given."""
    named = [
        f"{each.job_stage or each.job_type} {each.job_id} {each.status.value}"
        + (f" ({each.last_error})" if each.last_error else "")
        for each in bad_children
    ]
    more = job.failed_children + job.cancelled_children - len(named)
    whom = ", ".join([*named, f"{more} more"] if more > 0 else named)
    ended = "failed" if job.status is Status.FAILED else "was cancelled"
    return f"it {ended} at {at} because of its children{f': {whom}' if whom else ''}"
