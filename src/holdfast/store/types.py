"""The plain data that crosses the port. Instants are microseconds (see clock.py); JSON travels as text."""

from __future__ import annotations

from enum import Enum, StrEnum

import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import ErrorEntry, Event, Status


class Verdict(Enum):
    """The answer to each write, in order."""

    APPLIED = "applied"  # it is stored, now or by an earlier try of the same write
    STALE = "stale"  # its guards no longer hold; nothing was changed
    GONE = "gone"  # no such job
    BLOCKED = "blocked"  # a manual retry of a job that depends on one which has not completed; nothing was changed
    TAKEN = "taken"  # a manual retry whose dedup key guards another living job by now; nothing was changed


class Signal(StrEnum):
    """Hints that something may have changed. A lost signal costs a poll interval, never a job."""

    READY = "ready"  # jobs became claimable
    DUE = "due"  # a job was scheduled; the next due time may be earlier
    STOPPED = "stopped"  # a running job was cancelled: holders should check their claims
    ENDED = "ended"  # jobs reached a terminal state


class NewJob(msgspec.Struct, frozen=True):
    """A job to insert: validated, with its id."""

    job_id: str
    job_type: str
    queue: str
    priority: int
    payload: str
    scheduled_for: Instant
    max_attempts: int
    timeout_micros: int
    subject: str | None = None
    tags: str | None = None  # JSON array
    created_by: str | None = None
    job_stage: str | None = None
    parent_job_id: str | None = None
    root_job_id: str | None = None
    content_hash: str | None = None
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    on_dependency_failure: str = "cancel"
    # What makes an insert more than a row. `special` tells a store at a glance that one of these is set.
    special: bool = False
    own_id: bool = False  # the caller chose the id: a repeat answers with the job that has it
    dedup_key: str | None = None
    dedup_until: Instant | None = None  # None: while the job is active; FOREVER; or the end of the window
    dedup_conflict_is_error: bool = False
    depends_on: tuple[str, ...] = ()
    reuse_since: Instant | None = None  # reuse an identical job completed at or after this


FOREVER: Instant = 2**62


class Inserted(msgspec.Struct, frozen=True):
    """The answer to one NewJob. `existing` is set where an earlier job answers for it."""

    job_id: str
    status: Status
    existing: JobRecord | None = None
    reused_from: str | None = None


class ClaimRequest(msgspec.Struct, frozen=True):
    """`slots` says how many jobs of each type fit; a type that is not named is not touched."""

    worker_id: str
    worker_version: str
    queues: tuple[str, ...]
    slots: dict[str, int]
    limit: int
    lease_micros: int
    token: str  # random per request: proves the claim
    repeat: bool = False  # an earlier try with this token may have been applied: answer with what it took


class ClaimedJob(msgspec.Struct, frozen=True, array_like=True):
    """What a worker needs to run a job. Engines may fill it by position."""

    job_id: str
    job_type: str
    queue: str
    priority: int
    payload: str
    attempt: int
    version: int
    failures: int
    max_attempts: int
    snoozes: int
    give_backs: int
    timeout_micros: int
    created_at: Instant
    scheduled_for: Instant
    lease_expires_at: Instant
    subject: str | None
    parent_job_id: str | None
    root_job_id: str | None
    logs: str | None
    artifacts: str | None
    tags: str | None
    created_by: str | None
    job_stage: str | None
    dedup_key: str | None
    content_hash: str | None
    worker_id: str
    started_at: Instant


class Hold(msgspec.Struct, frozen=True):
    """A claim as its holder names it: the fence (attempt) and the credential (token)."""

    job_id: str
    attempt: int
    token: str


class ExpiredClaim(msgspec.Struct, frozen=True):
    job_id: str
    attempt: int
    failures: int
    max_attempts: int
    snoozes: int
    give_backs: int
    worker_id: str
    lease_expires_at: Instant


class Note(msgspec.Struct, frozen=True):
    """Bookkeeping of a running attempt: written while its claim holds. None keeps what is stored."""

    hold: Hold
    progress: float | None = None
    stage: str | None = None
    logs: str | None = None
    log_location: str | None = None
    metrics: str | None = None
    artifacts: str | None = None


class HistoryEvent(msgspec.Struct, frozen=True, array_like=True):
    """One committed transition. Versions count 1, 2, 3 … without a gap, except where the middle was dropped."""

    version: int
    at: Instant
    event: Event
    source: Status | None
    target: Status
    attempt: int
    by: str | None = None
    reason: str | None = None


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is stored."""

    job_id: str
    job_type: str
    queue: str
    status: Status
    priority: int
    payload: str
    created_at: Instant
    updated_at: Instant
    scheduled_for: Instant
    started_at: Instant | None = None
    completed_at: Instant | None = None
    attempt: int = 0
    failures: int = 0
    snoozes: int = 0
    give_backs: int = 0
    max_attempts: int
    timeout_micros: int
    version: int = 1
    worker_id: str | None = None
    worker_version: str | None = None
    lease_expires_at: Instant | None = None
    progress: float = 0.0
    stage: str = ""
    result: str | None = None
    result_artifact: str | None = None
    last_error: str | None = None
    errors: tuple[ErrorEntry, ...] = ()
    logs: str | None = None
    log_location: str | None = None
    metrics: str | None = None
    artifacts: str | None = None
    subject: str | None = None
    tags: str | None = None
    created_by: str | None = None
    dedup_key: str | None = None
    content_hash: str | None = None
    reused_from: str | None = None
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    parked: bool = False
    parent_job_id: str | None = None
    root_job_id: str | None = None
    job_stage: str | None = None
    on_dependency_failure: str = "cancel"
    dependencies: tuple[str, ...] = ()
    dependent_jobs: tuple[str, ...] = ()
    dependent_count: int = 0
    processing_micros: int | None = None
    history: tuple[HistoryEvent, ...] = ()


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A search. Every field narrows it; `after` is the cursor that the page before gave."""

    status: Status | None = None
    job_type: str | None = None
    queue: str | None = None
    subject: str | None = None
    worker: str | None = None
    tag: str | None = None
    created_by: str | None = None
    root: str | None = None
    content_hash: str | None = None
    order: str = "created"  # newest first; or "priority": the order in which they would be claimed
    after: str | None = None
    limit: int = 50


class Page(msgspec.Struct, frozen=True):
    items: tuple[JobRecord, ...]
    next: str | None = None


class DeadGroup(msgspec.Struct, frozen=True):
    """Dead letters that died of the same thing."""

    job_type: str
    error_type: str
    count: int
    newest_job_id: str
    newest_error: str
    newest_at: Instant


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    worker_id: str
    host: str
    pid: int
    process_key: str  # tells a process from a later one with the same pid; see worker/process_key.py
    version: str
    queues: tuple[str, ...]
    job_types: tuple[str, ...]
    concurrency: int
    started_at: Instant
    heartbeat_at: Instant
    stopping: bool = False
    running: tuple[str, ...] = ()  # job ids
    stuck: tuple[str, ...] = ()  # threads that outlived their claim and still hold a slot


class JobType(msgspec.Struct, frozen=True, kw_only=True):
    """What a store remembers of a handler, so that those without its code can submit to it."""

    job_type: str
    queue: str
    priority: int
    max_attempts: int
    timeout_micros: int
    payload_schema: str | None
    version: str
    last_seen: Instant
    concurrency_limit: int | None = None


class Promoted(msgspec.Struct, frozen=True):
    """What a promotion did, and when the next one is worth it."""

    count: int
    next_due_at: Instant | None
