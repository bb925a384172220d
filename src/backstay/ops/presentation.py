"""A job as a one-line summary, for the command line and the dashboard."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from backstay.core.checks import count, span
from backstay.core.states import Status
from backstay.core.suspicion import RUNS_ALONE
from backstay.job import Job
from backstay.ops.explanation import ended_with_children, failed_dependency

Naming = Callable[[str], str]


def note(job: Job, now: datetime, *, percent: bool = True, named: Naming = str) -> str:
    """Return the text of the details column, next to the status. `named` formats an id."""
    if ended_with_children(job.row):
        return job.history[-1].why or ""
    if (dependency := failed_dependency(job.row)) is not None:
        return f"because of {named(str(dependency))}"
    match job.status:
        case Status.WAITING:
            return f"waiting for {_awaited(job, 'job')}"
        case Status.SCHEDULED:
            return f"due {_in(job.scheduled_for, now)}"
        case Status.RETRYING:
            return f"retry {_in(job.scheduled_for, now)}: {job.last_error or ''}"
        case Status.PENDING:
            return "runs alone after losing a worker" if job.row.suspicion >= RUNS_ALONE else ""
        case Status.PROCESSING:
            return ", ".join(part for part in (_at(job) if percent else job.stage, _running(job, now)) if part)
        case Status.COMPLETED:
            return "result reused" if job.reused_from else took(job)
        case Status.FAILED:
            return job.last_error or ""
        case Status.CANCELLED:
            return why_cancelled(job) or ""


def short_line(job: Job, now: datetime, *, named: Naming = str) -> str:
    """Return a line on a job, for following it next to its progress bar."""
    if job.status is Status.RETRYING:
        return f"retrying {_in(job.scheduled_for, now)}"
    return progress_line(job, now, named=named)


def progress_line(job: Job, now: datetime, *, named: Naming = str) -> str:
    """Return a line on a job, for following it line by line."""
    match job.status:
        case Status.WAITING:
            return f"waiting for {_awaited(job, 'other job')}"
        case Status.RETRYING:
            return (
                f"{job.failures} of {job.max_attempts} attempts failed, retrying {_in(job.scheduled_for, now)}:"
                f" {job.last_error or 'no reason recorded'}"
            )
        case Status.PENDING:
            return "waiting to run alone" if job.row.suspicion >= RUNS_ALONE else "waiting for a worker"
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
    """Return the run time; for a job that waited for its children, that of the run after the wait."""
    last = "last run " if job.child_count else ""
    return "" if job.processing_time_ms is None else f"{last}took {span(job.processing_time_ms / 1000)}"


def why_cancelled(job: Job) -> str | None:
    """Return why the last event happened. What was before a retry does not count."""
    return job.history[-1].why if job.history else None


def _in(moment: datetime, now: datetime) -> str:
    seconds = (moment - now).total_seconds()
    return "now" if seconds < 1 else f"in {span(seconds)}"


def _at(job: Job) -> str:
    return f"{job.progress:.0%} {job.stage}".rstrip() if job.progress or job.stage else ""


def _running(job: Job, now: datetime) -> str:
    return "" if job.started_at is None else f"running {span(max(0.0, (now - job.started_at).total_seconds()))}"
