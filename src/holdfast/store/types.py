"""The plain data that crosses the port. Instants are microseconds (see clock.py); JSON travels as text."""

from __future__ import annotations

from enum import Enum, StrEnum

import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import ErrorEntry, Event, Status
from holdfast.newjob import FOREVER as FOREVER
from holdfast.newjob import NewJob as NewJob
from holdfast.newjob import Rate as Rate
from holdfast.store.access import ApiKey as ApiKey
from holdfast.store.access import AuditEntry as AuditEntry
from holdfast.store.access import AuditPage as AuditPage
from holdfast.store.counters import Counter as Counter
from holdfast.store.counters import Total as Total


class Verdict(Enum):
    """The answer to each write, in order."""

    APPLIED = "applied"  # it is stored, now or by an earlier try of the same write
    STALE = "stale"  # its guards no longer hold; nothing was changed
    GONE = "gone"  # no such job
    BLOCKED = "blocked"  # a manual retry of a job that depends on one which has not completed; nothing was changed
    LOCKED = "locked"  # an extension of a claim that holds, whose row someone's transaction has; nothing was changed
    TAKEN = "taken"  # a manual retry whose dedup key guards another living job by now; nothing was changed


class Signal(StrEnum):
    """Hints that something may have changed. A lost signal costs a poll interval, never a job."""

    READY = "ready"  # jobs became claimable
    DUE = "due"  # a job was scheduled; the next due time may be earlier
    PLANNED = "planned"  # a schedule was saved; its next tick may be earlier, or never come
    STOPPED = "stopped"  # a running job was cancelled: holders should check their claims
    ENDED = "ended"  # jobs reached a terminal state
    UNFINISHED = "unfinished"  # a commit left a mark: `release` has something to go on with


class Keep(msgspec.Struct, frozen=True):
    """How long ended jobs are kept before they are archived, from their end; None: for ever."""

    completed_micros: int | None
    failed_micros: int | None
    cancelled_micros: int | None


class Inserted(msgspec.Struct, frozen=True, gc=False):
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
    versions: dict[str, int] = {}  # the newest payload version that this worker reads of a type; unnamed: any
    repeat: bool = False  # an earlier try with this token may have been applied: answer with what it took


class ClaimedJob(msgspec.Struct, frozen=True, gc=False, array_like=True):
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
    payload_version: int = 1
    schedule: str | None = None
    tick_at: Instant | None = None
    waits: int = 0  # how often it has waited for its children, which function is entered after that …
    join: str | None = None
    children: int = 0  # … and how many it has
    traceparent: str | None = None  # the trace that it was submitted in
    lost_at: Instant | None = None  # its last failure was that its worker died or stalled, and when


class Hold(msgspec.Struct, frozen=True, gc=False):
    """A claim as its holder names it: the fence (attempt) and the credential (token)."""

    job_id: str
    attempt: int
    token: str


class ExpiredClaim(msgspec.Struct, frozen=True, gc=False):
    job_id: str
    attempt: int
    failures: int
    max_attempts: int
    snoozes: int
    give_backs: int
    worker_id: str
    lease_expires_at: Instant
    job_type: str
    queue: str
    priority: int
    scheduled_for: Instant
    started_at: Instant
    parent_job_id: str | None = None


class Note(msgspec.Struct, frozen=True):
    """Bookkeeping of a running attempt: written while its claim holds. None keeps what is stored."""

    hold: Hold
    progress: float | None = None
    stage: str | None = None
    logs: str | None = None
    log_location: str | None = None
    metrics: str | None = None
    artifacts: str | None = None


class HistoryEvent(msgspec.Struct, frozen=True, gc=False, array_like=True):
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
    trigger_rule: str = "all_success"
    children: int = 0  # how many it has, how many of them have not ended, and how many ended badly
    open_children: int = 0
    failed_children: int = 0
    cancelled_children: int = 0
    awaits: str | None = None  # set: it waits for its children, and for what of them; see trees.Awaits
    waits: int = 0
    result_tables: tuple[str, ...] = ()  # in which it may have rows
    rows_of: str | None = None  # a reused job: whose rows it answers with, and of which attempt of that one
    rows_attempt: int | None = None
    dependencies: tuple[str, ...] = ()
    dependent_jobs: tuple[str, ...] = ()
    dependent_count: int = 0
    processing_micros: int | None = None
    payload_version: int = 1
    fairness_key: str | None = None
    fairness_weight: int = 1
    rate_key: str | None = None
    schedule: str | None = None
    tick_at: Instant | None = None
    traceparent: str | None = None
    archived_at: Instant | None = None  # set: retention has been here; payload, result, logs and history are gone
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
    parent: str | None = None
    content_hash: str | None = None
    concurrency_key: str | None = None
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
    limits: dict[str, int] = {}  # how many jobs of a type it runs at once, where the type has a limit of its own
    busy: dict[str, int] = {}  # how many it runs of each type
    batches: dict[str, int] = {}  # types of which one call takes many jobs, and how many at most; limits, busy: calls
    versions: dict[str, int] = {}  # the newest payload version it reads of each type
    ended: int = 0  # attempts since it started, how many of them failed, and the time they took
    failed: int = 0
    busy_micros: int = 0
    stuck: tuple[str, ...] = ()  # threads that outlived their claim and still hold a slot
    lease_micros: int = 0  # it is heard three times in each; 0: unknown
    marks: tuple[tuple[Instant, int, int, int], ...] = ()  # ended, failed and busy_micros as they were; see pace.py
    key_id: str | None = None  # of whoever registered it over HTTP; None: a worker of our own, or nobody has keys
    unread: bool = False  # its row could not be read: nothing is known but its name and when it was last heard of


class JobType(msgspec.Struct, frozen=True, kw_only=True):
    """What a store remembers of a handler, so that those without its code can submit to it."""

    job_type: str
    queue: str
    priority: int
    max_attempts: int
    timeout_micros: int
    payload_schema: str | None
    version: int  # of the payload
    last_seen: Instant
    concurrency_limit: int | None = None
    rate: Rate | None = None
    keep: Keep | None = None
    reuse_by: tuple[str, ...] = ()  # fields of the payload that make two jobs identical, with the version of the code
    code_version: str = ""
    result_tables: tuple[str, ...] = ()
    backoff: tuple[float, float, float, float] | None = None  # base, factor, max, jitter; None: the default


class Promoted(msgspec.Struct, frozen=True):
    """What a promotion did, and when the next one is worth it."""

    count: int
    next_due_at: Instant | None


# Operating


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """What was said about a queue. One of which nothing was said has no row, and takes and gives jobs."""

    name: str
    paused_at: Instant | None = None
    paused_by: str | None = None
    pause_reason: str | None = None
    max_pending: int | None = None


class QueueChange(msgspec.Struct, frozen=True, kw_only=True):
    """What to change of a queue; None leaves a thing as it is."""

    paused: bool | None = None
    by: str | None = None
    reason: str | None = None
    max_pending: int | None = None  # 0: no limit


class Depth(msgspec.Struct, frozen=True):
    """How many jobs of a queue and type are in an active state, and since when the oldest is due."""

    queue: str
    job_type: str
    status: Status
    count: int
    oldest_at: Instant
    by_priority: tuple[Place, ...] = ()  # the same by place in line, highest first


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Of a depth, the jobs of one priority; of running ones, since when they run."""

    priority: int
    count: int
    oldest_at: Instant
    newest_at: Instant


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A job that comes again and again. `template` is the NewJob to submit, as JSON; id and times are the tick's."""

    name: str
    cron: str
    timezone: str
    missed: str  # what becomes of ticks at which no worker ran: skip, one, all
    job_type: str
    template: str
    created_at: Instant
    updated_at: Instant
    next_at: Instant  # the first tick that has not been decided; never goes back by itself
    version: int = 1  # of the definition; ticks do not change it
    paused_at: Instant | None = None
    paused_by: str | None = None
    last_at: Instant | None = None  # the last tick that made a job, and that job
    last_job_id: str | None = None


class Firing(msgspec.Struct, frozen=True):
    """Ticks to decide: insert `jobs` and move on to `next_at`, if the schedule is still as it was read."""

    name: str
    version: int
    due_at: Instant  # the next_at that was read
    next_at: Instant
    jobs: tuple[NewJob, ...]


class RetentionPolicy(msgspec.Struct, frozen=True):
    """What may go, decided for everyone: by default, by type, and for rows of the archive."""

    keep: Keep
    by_type: dict[str, Keep]
    archive_micros: int | None
    job_types: tuple[str, ...] = ()  # only these; empty: all


class Retired(msgspec.Struct, frozen=True):
    """What a step of retention did; `next` is where the following one starts, None when all was looked at."""

    archived: int
    dropped: int  # rows of the archive that were over their own time
    next: str | None


class Finding(msgspec.Struct, frozen=True):
    """One line of a check-up: what was looked at, whether it is well, and what to do where it is not."""

    check: str
    level: str  # ok, warn, bad
    says: str
    advice: str = ""
