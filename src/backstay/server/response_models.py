"""Response bodies: structs that are encoded as they are, and from which OpenAPI gets its schemas.

Structs of the rest of Backstay are used as they are, or with what HTTP adds to them. What a schema alone does not say
about a field is in its annotation.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from backstay.clock import Moment, to_instant
from backstay.core import queues, records, run_limits, schedules, stats, workers
from backstay.core.access_keys import AuditRecord
from backstay.core.forecast import Estimate, Unforeseen
from backstay.core.states import Status
from backstay.files.local import StoredFile
from backstay.job import ClaimedDocument, HistoryEntry, Job, JobDocument
from backstay.job import document as job_document
from backstay.ops.events import StepEntry
from backstay.ops.explanation import Params, Reason
from backstay.ops.output import OutputEntry
from backstay.server.metrics import Performance, Standing

T = TypeVar("T", bound=msgspec.Struct)
Next = Annotated[str | None, Meta(description="Send it as `after` for the next page; null on the last page.")]
LeaseUntil = Annotated[Moment, Meta(description="When the claims end that are still held.")]
# Of each job in a tree. A thousand payloads would be too much.
_IN_TREES = (
    *("job_id", "job_type", "queue", "status", "priority", "subject", "created_at", "updated_at", "scheduled_for"),
    *("started_at", "completed_at", "attempt", "failures", "max_attempts", "version", "worker_id", "progress", "stage"),
    *("last_error", "parent_job_id", "root_job_id", "job_stage", "child_count", "open_child_count", "waits_for"),
    *("dependencies", "dependent_jobs", "processing_time_ms"),
)


def of(model: type[T], found: msgspec.Struct, **more: Any) -> T:
    """The fields of a struct, with what the answer has besides them or instead."""
    return model(**(msgspec.structs.asdict(found) | more))


# Jobs

JobSummary = msgspec.defstruct(
    "JobSummary", [(each.name, each.type) for each in msgspec.structs.fields(JobDocument) if each.name in _IN_TREES]
)


class JobPage(msgspec.Struct):
    items: list[JobDocument]
    next: Next


class BatchAnswer(msgspec.Struct):
    """For one job: its record, or the problem."""

    status: Annotated[int, Meta(description="What it would have been for this job alone.", examples=[201])]
    job: JobDocument | UnsetType = UNSET
    problem: dict[str, Any] | UnsetType = UNSET


class BatchAnswers(msgspec.Struct):
    items: list[BatchAnswer]


class History(msgspec.Struct):
    job_id: str
    items: list[HistoryEntry]
    dropped: Annotated[int, Meta(description="Events between the first and the last hundred, which are not kept.")]


class Steps(msgspec.Struct):
    job_id: str
    items: list[StepEntry]


class Logs(msgspec.Struct):
    job_id: str
    entries: list[dict[str, Any]]
    log_location: str | None


class Output(msgspec.Struct):
    job_id: str
    items: list[OutputEntry]
    next: Annotated[str | None, Meta(description="Send it as `after` to continue; null if there is no output yet.")]
    more: Annotated[bool, Meta(description="Whether there are more entries already.")]


class Appended(msgspec.Struct):
    job_id: str
    attempt: int
    last: Annotated[int, Meta(description="The number of the last entry that is stored.")]


class Tree(msgspec.Struct):
    job_id: str
    items: Annotated[
        list[JobSummary],  # type: ignore[valid-type]  # made above, of the fields of a job
        Meta(description="The job and all jobs below it, each before its children."),
    ]
    complete: Annotated[bool, Meta(description="Whether the tree is complete.")]


class Explanation(msgspec.Struct):
    job_id: str
    job_type: str
    status: Status
    reason: Reason
    explanation: Annotated[str, Meta(description="The sentence.")]
    params: Annotated[Params, Meta(description="The values behind the sentence, by name. Each reason has its own.")]
    until: Moment | None
    job_ids: Annotated[tuple[str, ...], Meta(description="The related jobs that the key may see.")]
    estimate: Annotated[Estimate | None, Meta(description="When it starts, in seconds from now.")]
    unforeseen: Annotated[Unforeseen | None, Meta(description="Why there is no estimate, unless it has started.")]


class Tables(msgspec.Struct):
    job_id: str
    items: list[str]


class Rows(msgspec.Struct):
    job_id: str
    table: str
    items: list[dict[str, Any]]
    next: Next


class SubjectRows(msgspec.Struct):
    subject: str
    table: str
    items: list[dict[str, Any]]
    next: Next


class LatestRows(msgspec.Struct):
    subject: str
    table: str
    job_id: Annotated[str | None, Meta(description="The job that the rows are of; null if there is none.")]
    items: list[dict[str, Any]]
    next: Next


class Artifacts(msgspec.Struct):
    job_id: str
    items: list[StoredFile]


# Operations


class Queue(queues.Queue, frozen=True, kw_only=True):
    paused: bool


class Limit(run_limits.Limit, frozen=True, kw_only=True):
    paused: bool


class Limits(msgspec.Struct):
    items: list[Limit]


class Queues(msgspec.Struct):
    items: list[Queue]


class JobType(msgspec.Struct):
    job_type: str
    queue: str
    version: int
    sensitive: Annotated[
        tuple[str, ...], msgspec.Meta(description="Paths of its sensitive payload fields, which readers see as dots.")
    ]


class JobTypes(msgspec.Struct):
    items: list[JobType]


class Schedule(schedules.ScheduleInfo, frozen=True, kw_only=True):
    paused: bool
    next_ticks: Annotated[list[Moment], Meta(description="The next ticks; while it is paused, those if resumed now.")]


class Backfill(msgspec.Struct):
    ticks: Annotated[int, Meta(description="How many ticks the span has.")]
    submitted: list[str]
    existing: Annotated[list[str], Meta(description="Jobs that these ticks had before, or that have their dedup key.")]


class Schedules(msgspec.Struct):
    items: list[Schedule]
    next: Next


class DeadGroup(records.DeadGroup, frozen=True):
    newest_at: Moment  # type: ignore[assignment]  # an instant in the store


class DeadGroups(msgspec.Struct):
    items: list[DeadGroup]


class Retried(msgspec.Struct):
    retried: int


class Stats(stats.Stats, kw_only=True):
    per_minute: float
    queue_health: list[Standing]
    workers: list[Performance]


class AuditTrail(msgspec.Struct):
    items: list[AuditRecord]
    next: Next


# Workers


class Workers(msgspec.Struct):
    items: list[workers.Worker]  # type: ignore[valid-type]  # made of the fields of a row
    next: Next


Registered = msgspec.defstruct(
    "Registered",
    [
        ("lease_seconds", Annotated[float, Meta(description="How long a claim is held without a heartbeat.")]),
        ("heartbeat_seconds", Annotated[float, Meta(description="How often to send a heartbeat.")]),
    ],
    bases=(workers.Worker,),
)


class Heartbeat(msgspec.Struct):
    worker_id: str
    lease_expires_at: LeaseUntil
    held: list[str]
    lost: Annotated[list[str], Meta(description="Stop working on these: others hold them, or they have ended.")]
    cancelled: Annotated[list[str], Meta(description="Stop working on these, too: they were cancelled.")]


class Claimed(msgspec.Struct):
    job: ClaimedDocument
    token: Annotated[str, Meta(description="Send it with every call about this claim, and keep it secret.")]


class Extended(msgspec.Struct):
    job_id: str
    attempt: int
    lease_expires_at: Moment


class StepAnswer(msgspec.Struct):
    job_id: str
    name: str
    recorded: bool
    answer: msgspec.Raw


class WaitAnswer(msgspec.Struct):
    """`over`: continue, with the event if it was one; otherwise end the attempt with the outcome `sleep` or
    `wait_for_event`."""

    job_id: str
    name: str
    over: bool
    event_id: str | None
    payload: msgspec.Raw
    timed_out: bool
    seen: int


class Noted(msgspec.Struct):
    job_id: str
    attempt: int
    lease_expires_at: Moment | None


# An example


def example() -> JobDocument:
    """A record as every job has it."""
    at = to_instant(datetime.fromisoformat("2026-11-15T09:30:00+00:00"))
    return job_document(
        Job(
            records.JobRecord(
                job_id="019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c",
                job_type="daily_summary",
                queue="default",
                status=Status.COMPLETED,
                priority=50,
                payload='{"user_id":7,"day":"2026-11-15"}',
                subject="user:7",
                created_by="web",
                created_at=at,
                updated_at=at + 1_250_000,
                scheduled_for=at,
                started_at=at + 20_000,
                completed_at=at + 1_250_000,
                attempt=1,
                max_attempts=5,
                timeout_micros=60_000_000,
                version=3,
                worker_id="host-1:4711",
                worker_version="0.1.0",
                progress=1.0,
                stage="complete",
                result='{"sent":true}',
                logs='[{"timestamp":"2026-11-15T09:30:00.000000Z","level":"INFO","message":"half way"}]',
                processing_micros=1_230_000,
            )
        )
    )
