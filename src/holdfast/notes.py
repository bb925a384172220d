"""What a job is at, in a few words that cannot be misread."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from holdfast.fallen import went_down_with_children
from holdfast.job import Job
from holdfast.lifecycle import Event, Status
from holdfast.words import count, span

Naming = Callable[[str], str]


def note(job: Job, now: datetime, *, percent: bool = True, named: Naming = str) -> str:
    """For a column of its own, beside the status. `named` says how an id is written."""
    if went_down_with_children(job):
        return job.history[-1].reason or ""
    if job.status in (Status.FAILED, Status.CANCELLED) and (culprit := _went_down_with(job)):
        return f"because of {named(culprit)}"
    match job.status:
        case Status.WAITING:
            return f"for {_awaited(job, 'job')}"
        case Status.SCHEDULED:
            return f"due {_in(job.scheduled_for, now)}"
        case Status.RETRYING:
            return f"retries {_in(job.scheduled_for, now)}: {job.last_error or ''}"
        case Status.PENDING:
            return ""
        case Status.PROCESSING:
            return ", ".join(part for part in (_at(job) if percent else job.stage, _running(job, now)) if part)
        case Status.COMPLETED:
            return "reused" if job.reused_from else took(job)
        case Status.FAILED:
            return job.last_error or ""
        case Status.CANCELLED:
            return why_cancelled(job) or ""


def short_line(job: Job, now: datetime, *, named: Naming = str) -> str:
    """For someone who follows one job, beside its bar."""
    if job.status is Status.RETRYING:
        return f"retries {_in(job.scheduled_for, now)}"
    return progress_line(job, now, named=named)


def progress_line(job: Job, now: datetime, *, named: Naming = str) -> str:
    """For someone who follows one job line by line."""
    match job.status:
        case Status.WAITING:
            return f"waits for {_awaited(job, 'other job')}"
        case Status.RETRYING:
            return (
                f"{job.failures} of {job.max_attempts} attempts failed, retries {_in(job.scheduled_for, now)}:"
                f" {job.last_error or 'no reason was kept'}"
            )
        case Status.PENDING:
            return "waits for a worker"
        case Status.PROCESSING:
            return job.stage
        case Status.COMPLETED | Status.SCHEDULED | Status.FAILED | Status.CANCELLED:
            return note(job, now, named=named)


def _awaited(job: Job, other: str) -> str:
    if job.waits_for == "children":
        children = "child" if job.child_count == 1 else "children"
        return f"{job.open_child_count:,} of {job.child_count:,} {children}"
    return count(len(job.dependencies), other)


def took(job: Job) -> str:
    """Of one that waited for its children, this is what it did after them."""
    last = "last run " if job.child_count else ""
    return "" if job.processing_time_ms is None else f"{last}took {span(job.processing_time_ms / 1000)}"


def why_cancelled(job: Job) -> str | None:
    """The reason that the last event gives; one from an earlier life is none."""
    return job.history[-1].reason if job.history else None


def _went_down_with(job: Job) -> str | None:
    """The job that it depended on and that came to nothing."""
    last = job.history[-1] if job.history else None
    return None if last is None or last.event is not Event.RELEASE or not last.reason else last.reason.partition(" ")[0]


def _in(moment: datetime, now: datetime) -> str:
    seconds = (moment - now).total_seconds()
    return "now" if seconds < 1 else f"in {span(seconds)}"


def _at(job: Job) -> str:
    return f"{job.progress:.0%} {job.stage}".rstrip() if job.progress or job.stage else ""


def _running(job: Job, now: datetime) -> str:
    return "" if job.started_at is None else f"running {span(max(0.0, (now - job.started_at).total_seconds()))}"
