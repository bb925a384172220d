"""The plain data that crosses the port: NewJob, ClaimedJob, JobRecord, Transition, Query and the others.

Instants are microseconds (see clock.py); JSON is text.
"""

from __future__ import annotations

import functools
import operator
from enum import Enum, StrEnum
from typing import Any, Self

import msgspec

from backstay.backoff import StoredBackoff
from backstay.clock import Instant, to_datetime
from backstay.core import event_details
from backstay.core.dependencies import Awaits
from backstay.core.derivation import Derivation
from backstay.core.event_details import EventDetails
from backstay.core.states import Counted, Event, Status
from backstay.core.waits import EventWait

FOREVER: Instant = 2**62


class Rate(msgspec.Struct, frozen=True, gc=False):
    """At most `count` starts in any span of `micros`, roughly, or starts that cost this much together: a bucket of
    `count` that refills evenly."""

    count: int
    micros: int


class AnyJob(msgspec.Struct, frozen=True, gc=False):
    """The fields of every shape of a job: NewJob, ClaimedJob, JobRecord and Node. A field that is added to a shape is
    added to the table in core/job_fields.py."""

    job_id: str
    job_type: str
    queue: str
    priority: int


class NewJob(AnyJob, frozen=True):
    """A job to insert: validated, with its id."""

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
    payload_version: int = 1
    fairness_key: str | None = None  # fairness: jobs of different keys take turns
    fairness_weight: int = 1
    traceparent: str | None = None  # W3C trace context of the submit, for observers
    # Options that make an insert more than a row. `special` tells a store that one of these is set.
    special: bool = False
    own_id: bool = False  # the caller chose the id: a repeat returns the job that has it
    dedup_key: str | None = None
    dedup_until: Instant | None = None  # None: while the job is active; FOREVER; or the end of the window
    dedup_conflict_is_error: bool = False
    dedup_replaces: bool = False  # the job that the key belongs to takes this payload, while it waits
    debounce_micros: int | None = None  # how long after the first submit its job is due at the latest
    expires_at: Instant | None = None  # cancelled if it has not started by then
    depends_on: tuple[str, ...] = ()
    trigger_rule: str = "all_success"  # see dependencies.TriggerRule; other than the default needs depends_on
    reuse_since: Instant | None = None  # reuse an identical job completed at or after this
    rate_key: str | None = None
    rate: Rate | None = None
    rate_cost: int = 1  # how much of its rate a start takes
    schedule: str | None = None  # the schedule that created it, and the tick
    tick_at: Instant | None = None


class JobTemplate(NewJob, frozen=True, omit_defaults=True):
    """The job of a schedule. What depends on the moment is completed at each tick: `dedup_until` is counted from it."""

    dedup_per: str | None = None  # see core/derivation.py
    reuse_micros: int | None = None  # how old a reused result may be; None: what reuse_since says

    def job(self, now: Instant, day_of: Instant) -> NewJob:
        """Return the job to submit now; a dedup key per day is for the day of another instant."""
        values = {name: getattr(self, name) for name in NewJob.__struct_fields__}
        if self.dedup_key is not None:
            values["dedup_key"] = dedup_key_of(self.dedup_key, self.dedup_per, day_of)
            if self.dedup_until is not None and self.dedup_until != FOREVER:
                values["dedup_until"] = now + self.dedup_until
        if self.reuse_micros is not None:
            values["reuse_since"] = max(0, now - self.reuse_micros)
        return NewJob(**values)


def dedup_key_of(key: str, per: str | None, due: Instant) -> str:
    """Return a dedup key as it is stored: with `per` "day", that of the day on which the job is due, in UTC."""
    return key if per is None else f"{key}:{to_datetime(due).date()}"


# The types of errors that no handler raised.
LEASE_LOST = "LeaseLost"  # of an attempt whose worker died or stalled
DEPENDENCY_FAILED = "DependencyFailed"  # of jobs that failed while they waited: because of a dependency …
CHILD_FAILED = "ChildFailed"  # … or because of their children


class ErrorEntry(msgspec.Struct, frozen=True):
    """One failure as stored with the job. Strings only: an error is never rebuilt from storage."""

    attempt: int
    at: Instant
    type: str
    message: str
    traceback: str = ""


Kind = tuple[str, str, int]  # job type, queue, priority: what counters are kept by
Effect = tuple[str, tuple[object, ...]]  # a statement and its parameters


class Staged(msgspec.Struct, frozen=True, gc=False):
    """Children that `stage` has stored under this job and attempt: in how many parts, and how many there are."""

    parts: int
    jobs: int


class Revision(msgspec.Struct, frozen=True, gc=False):
    """What a job that waits is given in place of what was submitted."""

    payload: str
    payload_version: int
    expires_at: Instant | None


class Transition(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A decided change: guards, then what to write. A field left at None keeps what is stored."""

    job_id: str
    event: Event
    source: Status
    target: Status
    attempt: int
    version: int | None = None  # guard of editors
    token: str | None = None  # guard of the claim's holder
    lease: Instant | None = None  # guard of a rescue: the expiry it saw; an extension in between defeats it

    kind: Kind  # with the two durations, what the counters add when this is applied
    ran_micros: int = 0
    waited_micros: int = 0
    parent_job_id: str | None = None  # of the job itself, so that its end is counted without reading its record

    by: str | None = None
    reason: str | None = None
    details: EventDetails | None = None
    failures: int | None = None
    snoozes: int | None = None
    give_backs: int | None = None
    waits: int | None = None  # how many times it has waited for its children
    suspicion: int | None = None  # see core/suspicion.py
    scheduled_for: Instant | None = None
    priority: int | None = None
    revision: Revision | None = None  # only of a job that neither runs nor has ended
    progress: float | None = None
    stage: str | None = None
    error: ErrorEntry | None = None
    result: str | None = None  # JSON text
    result_artifact: str | None = None  # JSON text: the location of a large result, its hash and size
    clear_result: bool = False
    logs: str | None = None  # JSON text
    log_location: str | None = None
    metrics: str | None = None  # JSON text
    artifacts: str | None = None  # JSON text
    effects: tuple[Effect, ...] = ()  # the handler's SQL statements, for the same commit; SQL engines only

    # Children submitted with it: up to CHILDREN_INLINE_MAX inline, or else what `stage` stored. Only one of the two.
    children: tuple[NewJob, ...] = ()
    staged: Staged | None = None
    # For WAIT_FOR_CHILDREN and WAIT_FOR_EVENT: what it waits for, and the function that runs next; None means the
    # handler itself.
    awaits: Awaits | EventWait | None = None
    join: str | None = None
    seen: int | None = None  # for WAIT_FOR_EVENT: if more events than these were sent to it, it does not wait
    forget_steps: bool = False  # a manual retry that starts without the recorded steps, except those of the worker
    rewait: bool = False  # a manual retry after which the job may wait again, for a dependency that also runs again


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it is stored: enough to recognise its text, and not enough to recreate it."""

    key_id: str
    name: str
    secret_hash: str  # SHA-256 of the secret, in hex
    scopes: tuple[str, ...]
    queues: tuple[str, ...] = ()  # patterns with * in them; empty: all
    created_at: Instant
    created_by: str | None = None
    expires_at: Instant | None = None
    revoked_at: Instant | None = None
    revoked_by: str | None = None
    of: str | None = None  # a dashboard session: the key that opened it; it ends with that key

    def __repr__(self) -> str:
        return f"ApiKey({self.key_id!r}, {self.name!r}, scopes={self.scopes!r}, queues={self.queues!r})"


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One requested change. It is stored before the change, without an outcome, and again after it."""

    entry_id: str  # UUIDv7: entries are in the order of their ids
    at: Instant
    by: str
    via: str  # http, dashboard, cli, mcp, python
    action: str  # job.cancel, queue.pause, …
    target: str  # an id or a name
    before: str | None = None  # JSON
    after: str | None = None  # JSON
    outcome: str | None = None  # "ok", or what went wrong; None: the outcome was never recorded
    remote: str | None = None


class AuditPage(msgspec.Struct, frozen=True):
    items: tuple[AuditEntry, ...]
    next: str | None = None


Buckets = tuple[tuple[int, int], ...]  # bucket (see states.py) and count, by bucket


class Counter(msgspec.Struct, frozen=True, array_like=True):
    """What happened within one minute to jobs of one kind."""

    minute: Instant  # its start
    job_type: str
    queue: str
    priority: int
    outcome: Counted
    count: int
    ran_micros: int  # sums
    waited_micros: int
    buckets: Buckets = ()  # of attempts with this outcome


class Total(msgspec.Struct, frozen=True, array_like=True):
    """All-time totals for one type and queue."""

    job_type: str
    queue: str
    outcome: Counted
    count: int
    ran_micros: int  # sums
    waited_micros: int
    buckets: Buckets = ()


class Verdict(Enum):
    """The answer to each write, in order."""

    APPLIED = "applied"  # stored, now or by an earlier try of the same write
    STALE = "stale"  # its guards no longer hold; nothing was changed
    GONE = "gone"  # no such job
    BLOCKED = "blocked"  # a manual retry of a job with a dependency that has not completed, or a removal of a job that
    # others need; nothing was changed
    LOCKED = "locked"  # an extension of a valid claim whose row another transaction has locked; nothing was changed
    TAKEN = "taken"  # a manual retry whose dedup key now belongs to another active job; nothing was changed


class Signal(StrEnum):
    """Hints that something may have changed. A lost signal costs a poll interval, never a job."""

    READY = "ready"  # jobs became claimable
    DUE = "due"  # a job was scheduled; the next due time may be earlier
    PLANNED = "planned"  # a schedule was saved; its next tick may be earlier, or never come
    STOPPED = "stopped"  # a running job was cancelled: holders should check their claims
    ENDED = "ended"  # jobs reached a terminal state
    OUTPUT = "output"  # entries were appended to the output of a job
    UNFINISHED = "unfinished"  # a commit left a mark: `release` has work to continue


class Keep(msgspec.Struct, frozen=True):
    """How long ended jobs are kept before they are archived; None means forever."""

    completed_micros: int | None
    failed_micros: int | None
    cancelled_micros: int | None


class Inserted(msgspec.Struct, frozen=True, gc=False):
    """The answer to one NewJob. `existing` is set if an earlier job is returned instead."""

    job_id: str
    status: Status
    existing: JobRecord | None = None
    reused_from: str | None = None


class Lost(StrEnum):
    """Which jobs a claim may bring, by their suspicion: a store never hands out one that the worker must not start."""

    NONE = "none", 0  # only jobs that are not suspected
    SHARED = "shared", 1  # also those that were lost once and may run next to others
    ALONE = "alone", 1  # only those that must run alone

    suspicion_max: int  # the highest of a claim that is not for jobs that run alone

    def __new__(cls, name: str, suspicion_max: int) -> Self:
        self = str.__new__(cls, name)
        self._value_, self.suspicion_max = name, suspicion_max
        return self

    def may_bring(self, suspicion: int) -> bool:
        return suspicion == 2 if self is Lost.ALONE else suspicion <= self.suspicion_max


class ClaimRequest(msgspec.Struct, frozen=True):
    """`slots` is how many jobs of each type fit; other types are not claimed."""

    worker_id: str
    worker_version: str
    queues: tuple[str, ...]
    slots: dict[str, int]
    limit: int
    lease_micros: int
    token: str  # random per request: proves the claim
    # the newest payload version that this worker reads, by type; a missing type means any
    versions: dict[str, int] = {}
    repeat: bool = False  # an earlier try with this token may have been applied: return what it claimed
    lost: Lost = Lost.SHARED  # which of the jobs that lost a worker it may bring


class JobFields(AnyJob, frozen=True):
    """What a claimed job and a stored record have in common."""

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
    lease_expires_at: Instant | None
    subject: str | None = None
    parent_job_id: str | None = None
    root_job_id: str | None = None
    logs: str | None = None
    artifacts: str | None = None
    tags: str | None = None  # JSON array
    created_by: str | None = None
    job_stage: str | None = None
    dedup_key: str | None = None
    content_hash: str | None = None
    worker_id: str | None = None
    started_at: Instant | None = None
    payload_version: int = 1
    schedule: str | None = None  # the schedule that created it, and the tick
    tick_at: Instant | None = None
    waits: int = 0  # how often it has waited for its children
    join: str | None = None  # which function is entered once its children have ended; None: the handler itself
    children: int = 0  # how many it has
    traceparent: str | None = None  # the trace that it was submitted in
    suspicion: int = 0  # whether it may have killed its worker: see core/suspicion.py
    lost_at: Instant | None = None  # its last failure was that its worker died or stalled, and when


class ClaimedJob(JobFields, frozen=True, array_like=True):
    """What a worker needs to run a job."""

    lease_expires_at: Instant
    worker_id: str = ""
    started_at: Instant = 0


class Hold(msgspec.Struct, frozen=True, gc=False):
    """A claim as its holder identifies it: the fence (attempt) and the credential (token)."""

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
    suspicion: int = 0


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
    """One committed transition. Versions count 1, 2, 3 … without a gap, except where events in the middle were
    dropped."""

    version: int
    at: Instant
    event: Event
    source: Status | None
    target: Status
    attempt: int
    by: str | None = None
    reason: str | None = None  # what a person or a handler said: nothing is decided by it
    forget_steps: bool = False  # it started again without its recorded steps
    details: EventDetails | None = None

    @property
    def why(self) -> str | None:
        return event_details.why(self.details, self.forget_steps, self.reason)


class JobRecord(JobFields, frozen=True, kw_only=True):
    """A job as it is stored."""

    status: Status
    updated_at: Instant
    completed_at: Instant | None = None
    attempt: int = 0
    failures: int = 0
    snoozes: int = 0
    give_backs: int = 0
    version: int = 1
    worker_version: str | None = None
    lease_expires_at: Instant | None = None
    progress: float = 0.0
    stage: str = ""
    result: str | None = None
    result_artifact: str | None = None
    last_error: str | None = None
    error_type: str | None = None  # of the last error, by which dead letters are grouped
    errors: tuple[ErrorEntry, ...] = ()
    log_location: str | None = None
    metrics: str | None = None
    reused_from: str | None = None
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    parked: bool = False
    on_dependency_failure: str = "cancel"
    trigger_rule: str = "all_success"
    open_children: int = 0  # how many of its children have not ended, and how many ended badly
    failed_children: int = 0
    cancelled_children: int = 0
    awaits: str | None = None  # JSON text: set while it waits for its children or an event; see waits.awaits_of
    result_tables: tuple[str, ...] = ()  # result tables in which it may have rows
    rows_of: str | None = None  # a reused job: the job and attempt whose rows it returns
    rows_attempt: int | None = None
    dependencies: tuple[str, ...] = ()
    dependent_jobs: tuple[str, ...] = ()
    dependent_count: int = 0
    processing_micros: int | None = None
    fairness_key: str | None = None
    fairness_weight: int = 1
    rate_key: str | None = None
    rate_cost: int = 1
    expires_at: Instant | None = None  # None once it has started
    archived_at: Instant | None = None  # set: retention has been here; payload, result, logs and history are gone
    history: tuple[HistoryEvent, ...] = ()


NEW_DEFAULTS = {each.name: each.default for each in msgspec.structs.fields(NewJob) if not each.required}


class Node(AnyJob, frozen=True):
    """A job of a tree that is to be changed, without its payload: trees have thousands of jobs."""

    status: Status
    attempt: int
    version: int
    parent_job_id: str | None
    job_stage: str | None
    children: int
    open_children: int
    dependencies: tuple[str, ...]
    dependent_jobs: tuple[str, ...]
    depth: int = 0

    @classmethod
    def of(cls, record: JobRecord, depth: int = 0) -> Node:
        node = msgspec.convert(record, cls, from_attributes=True)
        return msgspec.structs.replace(node, depth=depth) if depth else node

    @property
    def name(self) -> str:
        return f"{self.job_stage or self.job_type} ({self.job_id})"


def shared(job: AnyJob, shape: type[AnyJob]) -> dict[str, Any]:
    """Return the fields that a job shares with another shape, by name, so that a conversion cannot drop one."""
    names, read = _in_both(type(job), shape)
    return dict(zip(names, read(job), strict=True))


@functools.cache
def _in_both(one: type[AnyJob], other: type[AnyJob]) -> tuple[tuple[str, ...], operator.attrgetter[Any]]:
    names = tuple(name for name in other.__struct_fields__ if hasattr(one, name))
    return names, operator.attrgetter(*names)


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A search. Every field narrows it; `after` is the cursor of the previous page."""

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
    """Dead letters with the same type and error."""

    job_type: str
    error_type: str
    count: int
    newest_job_id: str
    newest_error: str
    newest_at: Instant


class BlockedLoop(msgspec.Struct, frozen=True):
    """A handler keeps a worker's event loop from running. Without a job it is not known which, or whether it is one."""

    since: Instant
    job_type: str | None = None
    job_id: str | None = None
    where: str | None = None  # the line of code that the loop's thread is at


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    worker_id: str
    host: str
    pid: int
    process_key: str  # tells a process from a later one with the same pid; see core/workers.py
    version: str
    queues: tuple[str, ...]
    job_types: tuple[str, ...]
    concurrency: int
    started_at: Instant
    heartbeat_at: Instant
    stopping: bool = False
    running: tuple[str, ...] = ()  # job ids
    limits: dict[str, int] = {}  # concurrency by type, for types with a limit of their own
    busy: dict[str, int] = {}  # running jobs by type
    batches: dict[str, int] = {}  # batch types and their maximum batch size; their limits and busy count calls
    versions: dict[str, int] = {}  # the newest payload version it reads, by type
    ended: int = 0  # since its start: attempts, failed attempts, and their run time
    failed: int = 0
    busy_micros: int = 0
    stuck: tuple[str, ...] = ()  # threads that outlived their claim and still hold a slot
    lease_micros: int = 0  # it sends three heartbeats per lease; 0: unknown
    # earlier values of ended, failed and busy_micros; see workers.Pace
    marks: tuple[tuple[Instant, int, int, int], ...] = ()
    blocked: BlockedLoop | None = None  # its event loop does not run
    key_id: str | None = None  # the key that registered it over HTTP; None: a local worker, or no keys exist
    origin: str | None = None  # its app, and the digest of the schedules that its code declares
    declares: str | None = None
    unread: bool = False  # its row could not be read: only its name and when it was last seen are known


class FormerWorker(msgspec.Struct, frozen=True):
    """A worker that has left or died, as it last was."""

    row: WorkerRow
    left_at: Instant


class JobType(msgspec.Struct, frozen=True, kw_only=True):
    """What a store knows about a handler, so that apps without its code can submit to it."""

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
    reuse_by: tuple[str, ...] = ()  # payload fields that, with the code version, make two jobs identical
    code_version: str = ""
    result_tables: tuple[str, ...] = ()
    backoff: StoredBackoff | None = None  # None: the default
    sensitive: tuple[str, ...] = ()  # marks of sensitive fields, of all announcements; see core/sensitive.py
    derivation: Derivation | None = None  # what its jobs derive from their payloads


class Promoted(msgspec.Struct, frozen=True):
    """What a promotion did, and when the next one is due."""

    count: int
    next_due_at: Instant | None


# Operating


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a queue. A queue that was never changed has no row, and accepts and releases jobs."""

    name: str
    paused_at: Instant | None = None
    paused_by: str | None = None
    pause_reason: str | None = None
    paused_until: Instant | None = None  # `promote` ends the pause then; None: until someone resumes the queue
    max_pending: int | None = None


class QueueChange(msgspec.Struct, frozen=True, kw_only=True):
    """What to change about a queue; None leaves a setting unchanged."""

    paused: bool | None = None
    by: str | None = None
    reason: str | None = None
    until: Instant | None = None  # of a pause; a repeated pause replaces it
    max_pending: int | None = None  # 0: no limit


class LimitOf(StrEnum):
    """What a run-time limit is of."""

    TYPE = "type"
    KEY = "key"


class LimitRow(msgspec.Struct, frozen=True, kw_only=True):
    """What was set at run time for a job type or for a key. Without a setting there is no row."""

    of: LimitOf
    name: str
    concurrency: int | None = None  # how many of its jobs may run at once, over all workers
    rate_count: int | None = None  # how many may start, or what they may cost, …
    rate_micros: int | None = None  # … in this span
    set_at: Instant | None = None  # of these limits
    set_by: str | None = None
    paused_at: Instant | None = None  # of a type only
    paused_by: str | None = None
    pause_reason: str | None = None
    paused_until: Instant | None = None  # `promote` ends the pause then

    @property
    def rate(self) -> Rate | None:
        return None if self.rate_count is None or self.rate_micros is None else Rate(self.rate_count, self.rate_micros)


class LimitChange(msgspec.Struct, frozen=True, kw_only=True):
    """What to change about a type or a key; None leaves a setting unchanged."""

    paused: bool | None = None
    by: str | None = None
    reason: str | None = None
    until: Instant | None = None
    limits: bool = False  # whether both limits are set; None removes one
    concurrency: int | None = None
    rate: Rate | None = None


class Depth(msgspec.Struct, frozen=True):
    """How many jobs of a queue and type are in an active state, and when the oldest became due."""

    queue: str
    job_type: str
    status: Status
    count: int
    oldest_at: Instant
    by_priority: tuple[Place, ...] = ()  # the same by priority, highest first


class Place(msgspec.Struct, frozen=True, array_like=True):
    """The jobs of one priority within a depth; for running jobs, when they started."""

    priority: int
    count: int
    oldest_at: Instant
    newest_at: Instant


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A recurring job. `template` is the NewJob to submit, as JSON; id and times are the tick's."""

    name: str
    cron: str
    timezone: str
    missed: str  # what to do with ticks that no worker was running for: skip, one, all
    job_type: str
    template: str
    created_at: Instant
    updated_at: Instant
    next_at: Instant  # the first tick that has not been processed; never decreases by itself
    version: int = 1  # of the definition; ticks do not change it
    paused_at: Instant | None = None
    paused_by: str | None = None
    last_at: Instant | None = None  # the last tick that created a job, and that job
    last_job_id: str | None = None
    overlap: str = "queue"  # what a tick does while the last job is active: queue, skip, replace
    jitter_micros: int = 0  # a tick's job is due up to this much later
    starts_at: Instant | None = None  # no tick before this …
    ends_at: Instant | None = None  # … or after this
    declared_by: str | None = None  # the app whose code declares it; None: it was made by a call
    skipped: int = 0  # ticks without a job of their own, because of `overlap`, and the last of them
    skipped_at: Instant | None = None


class Firing(msgspec.Struct, frozen=True):
    """Ticks to process: insert `jobs` and advance to `next_at`, if the schedule is unchanged since it was read."""

    name: str
    version: int
    due_at: Instant  # the next_at that was read
    next_at: Instant
    jobs: tuple[NewJob, ...]
    skipped: int = 0  # ticks without a job, because of `overlap`, and the last of them
    skipped_at: Instant | None = None


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """Which schedules the code of an app declares, and which code that is. See core/declarations.py."""

    origin: str  # the app
    digest: str  # of what the code declares that holds now
    since: Instant
    names: tuple[str, ...]  # schedules that it has declared and may still have to remove
    job_types: tuple[str, ...]  # that the app handles
    superseded: tuple[str, ...] = ()  # digests of code that newer code has replaced, the last one first
    version: int = 1


class RetentionPolicy(msgspec.Struct, frozen=True):
    """What may be archived or deleted, for all types: by default, by type, and for archive rows."""

    keep: Keep
    by_type: dict[str, Keep]
    archive_micros: int | None
    job_types: tuple[str, ...] = ()  # only these; empty: all


class Retired(msgspec.Struct, frozen=True):
    """What a step of retention did; `next` is where the following one starts, None when all jobs were examined."""

    archived: int
    dropped: int  # expired archive rows
    next: str | None


class Finding(msgspec.Struct, frozen=True):
    """One line of a check-up: what was checked, whether it passed, and what to do if not."""

    check: str
    level: str  # ok, warn, bad
    says: str
    advice: str = ""
