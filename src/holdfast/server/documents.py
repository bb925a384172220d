"""What clients get, as OpenAPI describes it. Nothing is validated against these: answers are encoded as they are."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from holdfast.statuses import Status

_ID = "019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c"
_AT = "2026-11-15T09:30:00.000000Z"
_EXAMPLE: dict[str, Any] = {
    "job_id": _ID,
    "job_type": "daily_summary",
    "queue": "default",
    "status": "completed",
    "priority": 50,
    "payload": {"user_id": 7, "day": "2026-11-15"},
    "subject": "user:7",
    "tags": [],
    "created_by": "web",
    "created_at": _AT,
    "updated_at": "2026-11-15T09:30:01.250000Z",
    "scheduled_for": _AT,
    "started_at": "2026-11-15T09:30:00.020000Z",
    "completed_at": "2026-11-15T09:30:01.250000Z",
    "attempt": 1,
    "failures": 0,
    "max_attempts": 5,
    "timeout_seconds": 60.0,
    "version": 3,
    "worker_id": "host-1:4711",
    "worker_version": "0.1.0",
    "lease_expires_at": None,
    "progress": 1.0,
    "stage": "complete",
    "result": {"sent": True},
    "last_error": None,
    "errors": [],
    "logs": {"entries": [{"timestamp": _AT, "level": "INFO", "message": "half way"}], "log_location": None},
    "metrics": {},
    "artifacts": [],
    "result_tables": [],
    "dedup_key": None,
    "deduplicated": False,
    "content_hash": None,
    "reused_from": None,
    "parent_job_id": None,
    "root_job_id": None,
    "job_stage": None,
    "child_count": 0,
    "open_child_count": 0,
    "waits_for": None,
    "trigger_rule": "all_success",
    "on_dependency_failure": "cancel",
    "dependencies": [],
    "dependent_jobs": [],
    "dependent_count": 0,
    "processing_time_ms": 1230,
    "payload_version": 1,
    "concurrency_key": None,
    "rate_key": None,
    "fairness_key": None,
    "schedule": None,
    "tick_at": None,
    "archived_at": None,
}


class JobError(BaseModel):
    attempt: int
    at: datetime
    type: str
    message: str
    traceback: str | None


class JobLogs(BaseModel):
    entries: list[dict[str, Any]]
    log_location: str | None


class JobSummary(BaseModel):
    """What a tree shows of each of its jobs."""

    job_id: str
    job_type: str
    queue: str
    status: Status
    priority: int
    subject: str | None
    created_at: datetime
    updated_at: datetime
    scheduled_for: datetime
    started_at: datetime | None
    completed_at: datetime | None
    attempt: int
    failures: int
    max_attempts: int
    version: int
    worker_id: str | None
    progress: float
    stage: str
    last_error: str | None
    parent_job_id: str | None
    root_job_id: str | None
    job_stage: str | None
    child_count: int
    open_child_count: int
    waits_for: str | None
    dependencies: list[str]
    dependent_jobs: list[str]
    processing_time_ms: int | None


class Job(JobSummary):
    """A job's record."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    payload: Any
    tags: list[str]
    created_by: str | None
    timeout_seconds: float
    worker_version: str | None
    lease_expires_at: datetime | None
    result: Any = Field(description="What the handler returned. In lists, one that is kept in a file is null.")
    errors: list[JobError]
    logs: JobLogs
    metrics: dict[str, float]
    artifacts: list[str]
    result_tables: list[str]
    dedup_key: str | None
    deduplicated: bool
    content_hash: str | None
    reused_from: str | None
    trigger_rule: str
    on_dependency_failure: str
    dependent_count: int
    payload_version: int
    concurrency_key: str | None
    rate_key: str | None
    fairness_key: str | None
    schedule: str | None
    tick_at: datetime | None
    archived_at: datetime | None


class JobPage(BaseModel):
    items: list[Job]
    next: str | None = Field(description="Send it as `after` for the next page; null: there is none.")


class BatchAnswer(BaseModel):
    """Of one job: the record, or the problem."""

    status: int = Field(description="What it would have been for this job alone.", examples=[201])
    job: Job | None = None
    problem: dict[str, Any] | None = None


class BatchAnswers(BaseModel):
    items: list[BatchAnswer]


class HistoryEvent(BaseModel):
    version: int
    at: datetime
    event: str
    source: Status | None
    target: Status
    attempt: int
    by: str | None
    reason: str | None


class History(BaseModel):
    job_id: str
    items: list[HistoryEvent]
    dropped: int = Field(description="Events between the first and the last hundred that are not kept.")


class Logs(JobLogs):
    job_id: str


class Tree(BaseModel):
    job_id: str
    items: list[JobSummary] = Field(description="The job and all below it, each before its children.")
    complete: bool = Field(description="Whether that is all of it.")


class Explanation(BaseModel):
    job_id: str
    job_type: str
    status: Status
    reason: str
    explanation: str
    until: datetime | None
    job_ids: list[str]


class Tables(BaseModel):
    job_id: str
    items: list[str]


class Rows(BaseModel):
    job_id: str
    table: str
    items: list[dict[str, Any]]
    next: str | None


class Artifact(BaseModel):
    name: str
    size: int
    sha256: str
    uri: str


class Artifacts(BaseModel):
    job_id: str
    items: list[Artifact]


class Queue(BaseModel):
    name: str
    paused: bool
    pending: int
    processing: int
    scheduled: int
    retrying: int
    waiting: int
    oldest_pending_at: datetime | None
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    max_pending: int | None
    workers: int


class Queues(BaseModel):
    items: list[Queue]


class Schedule(BaseModel):
    name: str
    cron: str
    timezone: str
    missed: str
    job_type: str
    payload: Any
    queue: str
    priority: int
    paused: bool
    next_at: datetime | None
    last_at: datetime | None
    last_job_id: str | None
    paused_at: datetime | None
    paused_by: str | None
    created_at: datetime
    updated_at: datetime
    version: int


class Schedules(BaseModel):
    items: list[Schedule]


class DeadGroup(BaseModel):
    job_type: str
    error_type: str
    count: int
    newest_job_id: str
    newest_error: str
    newest_at: datetime


class DeadGroups(BaseModel):
    items: list[DeadGroup]


class Retried(BaseModel):
    retried: int


class Figures(BaseModel):
    submitted: int
    completed: int
    failed: int
    cancelled: int
    retried: int
    snoozed: int
    given_back: int
    retried_by_hand: int
    rescued: int
    reused: int
    saved_ms: float
    average_time_ms: float | None
    average_wait_ms: float | None


class TypeFigures(Figures):
    job_type: str
    queue: str


class MinuteFigures(Figures):
    minute: datetime


class Standing(BaseModel):
    """Jobs of one state and priority."""

    status: Status
    priority: int
    count: int
    average_time_ms: float | None
    oldest_at: datetime
    newest_at: datetime


class Performance(BaseModel):
    """What a worker did in the last 24 hours, or since it started."""

    worker_id: str
    since: datetime
    completed: int
    average_time_ms: float | None
    failures: int


class Stats(BaseModel):
    since: datetime
    until: datetime
    counts: dict[str, int] = Field(description="Jobs by state, now. With queue patterns: the active ones.")
    total: Figures
    by_type: list[TypeFigures]
    by_minute: list[MinuteFigures]
    per_minute: float
    queue_health: list[Standing]
    workers: list[Performance]


class AuditRecord(BaseModel):
    entry_id: str
    at: datetime
    by: str
    via: Literal["http", "dashboard", "cli"]
    action: str
    target: str
    before: Any
    after: Any
    outcome: str | None
    remote: str | None


class AuditTrail(BaseModel):
    items: list[AuditRecord]
    next: str | None
