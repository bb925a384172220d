"""What an event of a job's history says besides its reason, as data: other jobs that it is about, new values.

Code decides by these, and never by a reason, which is what a person or a handler wrote. For display, `why` puts both
into words.
"""

from __future__ import annotations

import msgspec

from backstay.clock import Moment
from backstay.core.states import Status


class _Details(msgspec.Struct, frozen=True, gc=False, tag_field="kind"):
    pass


class Rerun(_Details, frozen=True, tag="rerun"):
    """The job runs again with all its children: because `job_id` is rerun, or else because of the event of this version
    of its parent `job_id`. Children run again when their parent starts."""

    job_id: str | None
    version: int | None = None


class RerunBelow(_Details, frozen=True, tag="rerun_below"):
    """A parent runs again, after `job_id` below it."""

    job_id: str | None


class Subtree(_Details, frozen=True, tag="subtree"):
    """The job was cancelled with the subtree of `job_id`."""

    job_id: str | None


class Dependency(_Details, frozen=True, tag="dependency"):
    """The job left `waiting` when its dependency `job_id` had ended in this way."""

    job_id: str | None
    outcome: Status


class DueTime(_Details, frozen=True, tag="due_time"):
    """Someone gave the job a new due time."""

    scheduled_for: Moment


class Priority(_Details, frozen=True, tag="priority"):
    """Someone gave the job a new priority."""

    priority: int
    previous: int


class Tick(_Details, frozen=True, tag="tick"):
    """A tick of the job's schedule made no job, because this one was active."""

    schedule: str
    tick_at: Moment


class Slept(_Details, frozen=True, tag="slept"):
    """The job sleeps, under the name of the sleep."""

    name: str


class Awaited(_Details, frozen=True, tag="awaited"):
    """The job waits for the event `event`, sent to it or to a correlation key."""

    event: str
    key: str | None = None


class Received(_Details, frozen=True, tag="received"):
    """The job left `waiting` because the event `event` was sent."""

    event: str
    event_id: str | None = None


AboutJob = Rerun | RerunBelow | Subtree | Dependency  # `job_id` is None for readers who may not see that job
EventDetails = AboutJob | DueTime | Priority | Tick | Slept | Awaited | Received

FORGETTING = "without recorded steps"


def text(details: EventDetails) -> str:
    match details:
        case Rerun(job_id, None):
            return f"run again from {_named(job_id)}"
        case Rerun(job_id, version):
            return f"run again from {_named(job_id)}, version {version}"
        case RerunBelow(job_id):
            return f"after {_named(job_id)}, which is run again"
        case Subtree(job_id):
            return f"subtree of {_named(job_id)} cancelled"
        case Dependency(job_id, outcome):
            return f"{_named(job_id)} {outcome.value}"
        case DueTime(at):
            return f"for {at:%Y-%m-%d %H:%M:%S} UTC"
        case Priority(priority, previous):
            return f"priority {priority}, was {previous}"
        case Tick(schedule, at):
            return f"schedule {schedule} skipped its tick at {at:%Y-%m-%d %H:%M:%S} UTC: this job was active"
        case Slept(name):
            return f"sleep {name}"
        case Awaited(event, key):
            return f"for event {event}" + ("" if key is None else f" of {key}")
        case Received(event):
            return f"event {event} came"


def why(details: EventDetails | None, forget_steps: bool, reason: str | None) -> str | None:
    """Return in words why an event happened: its details, then its reason."""
    said = [*([text(details)] if details is not None else ()), *([FORGETTING] if forget_steps else ())]
    return ": ".join(part for part in (", ".join(said), reason) if part) or None


def _named(job_id: str | None) -> str:
    return job_id or "another job"
