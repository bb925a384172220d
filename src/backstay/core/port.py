"""The store port: the verbs that every engine implements, on plain data.

    insert ─▶ [waiting | scheduled | pending] ─ promote, release ─▶ pending ─ claim ─▶ processing ─ apply ─▶ ended

Rules that hold for every verb:

* Every write takes many items and answers for each, in order. The caller bounds it, and it is safe to repeat.
* `now` is an argument. An engine whose server has a better clock for leases may use that clock instead.
* A verb raises only typed errors of backstay.errors. An acknowledged write is durable.
* The history event of a change commits with the change.
* `claim` hands out a fence (attempt) and a credential (token). Every write of a worker carries both, and an engine
  checks them inside the write, never before it: a stalled worker cannot overwrite its successor.
* `apply` takes transitions that core/lifecycle.py decided. An engine adds no policy of its own.
* `claim`, `get` and `statuses`, which are called for each job, return an awaitable that need not be a coroutine: an
  engine may answer with a future. It may begin when it is called.
* Waking is a hint (`listen`); nothing depends on it.

`backstay.testing.conformance` turns these sentences into tests; an engine is done when it passes them all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from backstay.clock import Instant
from backstay.core.dumps import Adopted, Exported, MoveState
from backstay.core.output import OutputEnd, OutputPart, OutputPlace, StoredPart
from backstay.core.records import (
    ApiKey,
    AuditEntry,
    AuditPage,
    ClaimedJob,
    ClaimRequest,
    Counter,
    DeadGroup,
    Declaration,
    Depth,
    ExpiredClaim,
    Finding,
    Firing,
    FormerWorker,
    Hold,
    Inserted,
    JobRecord,
    JobType,
    LimitChange,
    LimitOf,
    LimitRow,
    NewJob,
    Note,
    Page,
    Promoted,
    Query,
    QueueChange,
    QueueRow,
    RetentionPolicy,
    Retired,
    Schedule,
    Signal,
    Total,
    Transition,
    Verdict,
    WorkerRow,
)
from backstay.core.result_tables import ResultTable, RowBatch, RowPage, RowQuery
from backstay.core.states import Status
from backstay.core.waits import Delivery, EventWait, Inbox, NewEvent, Step, StepKind

Listener = Callable[[Signal], None]


class Store(Protocol):
    """What every engine implements."""

    # Opening

    async def open(self) -> None:
        """Connect, and create the schema if there is none. Refuse a store that cannot keep the promises."""
        ...

    async def close(self) -> None:
        """Release every connection and thread."""
        ...

    async def exists(self) -> bool:
        """Return whether there is a queue at this place. Needs no open store, and creates nothing."""
        ...

    async def migrate(self) -> list[str]:
        """Bring the schema to this release; return the names of the migrations applied."""
        ...

    def migration_sql(self) -> str | None:
        """Return the same migration as a script that may be run at any time, for users who apply it themselves; None if
        the engine has no such script."""
        ...

    @property
    def location(self) -> str:
        """Where this store is, for display: contains no secrets."""
        ...

    @property
    def files_root(self) -> str | None:
        """A folder for logs and artifacts next to this store; None if workers can be on other hosts."""
        ...

    @property
    def poll_seconds(self) -> float:
        """Default interval between a worker's polls when nothing wakes it: long if a poll costs money."""
        ...

    @property
    def record_seconds(self) -> float:
        """Interval between writes of a running job's progress."""
        ...

    async def would_erase(self) -> dict[str, int] | None:
        """Return the names of what `erase` would delete, with about how many items each holds; None if it would
        refuse."""
        ...

    async def erase(self) -> list[str]:
        """Delete everything permanently; return the names of what was deleted. Refuse, and say what to do instead,
        where a single manual command does it."""
        ...

    # The hot path

    async def insert(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        """Store all of the jobs or, on an error, none."""
        ...

    def insert_here(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted] | None:
        """As `insert`, in the calling thread, which may be any but that of the event loop; it waits for the disk. None,
        with nothing stored, if this engine cannot, or others are writing whose commit the jobs can share."""
        ...

    async def insert_in(self, connection: object, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        """Store the jobs inside the caller's own transaction on `connection`: when it commits, or not at all."""
        ...

    def claim(self, request: ClaimRequest, now: Instant) -> Awaitable[list[ClaimedJob]]:
        """Claim pending jobs: by priority (highest first), then due time, then id; never more than requested, in total
        and per type; never one whose concurrency key is full. Attempt and version increase by one. A repeat with no
        free slots claims nothing new, and returns what its earlier try claimed. `request.lost` says which jobs that
        lost a worker it may bring: those that must run alone are claimed by themselves, without fairness turns."""
        ...

    async def wait_alone(self, request: ClaimRequest) -> dict[str, int]:
        """Count the jobs that wait to run alone (`Lost.ALONE`) and which this request could claim, by type, among the
        first ALONE_COUNTED_MAX. Changes nothing; on DynamoDB the index may lag."""
        ...

    async def apply(self, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
        """Apply each transition whose guards hold. A job that ends releases its dependents, and its parent if it is the
        last child that the parent waited for, in the same commit, or leaves a mark from which `release` continues.
        Children that a transition carries are stored with it. If an effect of a transition fails, or a child cannot be
        stored, EffectFailed names its job and nothing of the call is applied."""
        ...

    async def extend(self, holds: Sequence[Hold], lease_expires_at: Instant, now: Instant) -> list[Verdict]:
        """Extend the leases of claims that still hold. LOCKED if another transaction has locked the job: the call does
        not wait for it, so that the others keep their leases; try again soon."""
        ...

    async def note(self, notes: Sequence[Note], now: Instant) -> list[Verdict]:
        """Store progress, stage, logs and metrics of running attempts. Changes neither version nor history."""
        ...

    # Maintenance: idempotent, leaderless, a bounded batch per call

    async def promote(self, now: Instant, limit: int) -> Promoted:
        """Make due scheduled and retrying jobs pending, and jobs whose wait for an event has timed out; end pauses
        whose time is over."""
        ...

    async def expired(self, now: Instant, limit: int, dead_workers: Sequence[str] = ()) -> list[ExpiredClaim]:
        """Return claims whose lease has expired, or whose worker is known to be dead. Read-only."""
        ...

    async def overdue(self, now: Instant, limit: int) -> list[str]:
        """Return jobs that wait and were to start by now: `expires_at` is over. Read-only; on DynamoDB the index may
        lag."""
        ...

    async def fire(self, firings: Sequence[Firing], now: Instant) -> list[Verdict]:
        """Insert the jobs of each schedule's ticks and advance the schedule, in one commit each; STALE if another
        worker was faster or the schedule changed, so that a tick creates one job however many workers see it."""
        ...

    async def retire(self, policy: RetentionPolicy, now: Instant, limit: int, after: str | None) -> Retired:
        """Examine about `limit` ended jobs starting at `after`; archive those whose retention has expired, a tree as a
        whole, never an active job. Also delete expired archive rows, counters and audit entries."""
        ...

    async def with_files(self, limit: int) -> list[str]:
        """Return archived jobs whose files and rows have not been removed yet."""
        ...

    async def cleaned(self, job_ids: Sequence[str]) -> None:
        """Record that the files and rows of these jobs have been removed."""
        ...

    async def remove(self, job_id: str, version: int, now: Instant) -> Verdict:
        """Delete a job that has ended, or what the archive has of it: with its history, steps, edges and dedup keys,
        and without an archive row. STALE if it has not ended or is not at this version; BLOCKED if it has children, or
        jobs still wait on it, or what its end releases is under way. Its files and rows are the caller's to remove."""
        ...

    async def release(self, now: Instant, limit: int) -> int:
        """Continue to release dependents of ended jobs and to store staged children of settled ones, unpark jobs whose
        key has room, and remove what abandoned attempts staged; return how many changed."""
        ...

    # Workers and types

    async def beat(self, worker: WorkerRow) -> None:
        """Register a worker, or record its heartbeat and the jobs it runs."""
        ...

    async def forget(self, worker_ids: Sequence[str], now: Instant) -> None:
        """Remove workers. Their last rows are kept for FORMER_WORKER_SECONDS, and deleted after that."""
        ...

    async def former_workers(self, now: Instant) -> list[FormerWorker]:
        """List the workers that were removed less than FORMER_WORKER_SECONDS ago, the last one first, up to
        FORMER_WORKERS_MAX. One that has come back since is not among them."""
        ...

    async def workers(
        self, ids: Sequence[str] = (), *, after: str = "", before: str = "", limit: int | None = None
    ) -> list[WorkerRow]:
        """List all workers by id; if ids are given, only those that exist among them. `after` and `before` are bounds,
        exclusive, and `limit` is the length of a page, whose last id is the `after` of the next."""
        ...

    async def count_workers(self) -> int:
        """Count all workers."""
        ...

    async def announce(self, types: Sequence[JobType]) -> None:
        """Store job types with their defaults and payload schemas, each replacing the one with its name. Marks of
        sensitive fields are added to those already stored (`sensitive.announced`), and none is
        lost if several announce at the same time."""
        ...

    async def unmark(self, job_type: str, marks: Sequence[str]) -> Verdict:
        """Remove marks of sensitive fields from a job type; the only verb that does. GONE if no type has this name."""
        ...

    async def job_types(self) -> list[JobType]:
        """List all announced job types."""
        ...

    # Queues and schedules

    async def change_queue(self, name: str, change: QueueChange, now: Instant) -> QueueRow:
        """Pause, resume or limit a queue. A claim that begins after a pause is acknowledged takes nothing from the
        queue; one already under way may. `promote` ends a pause at its `until`."""
        ...

    async def queues(self) -> list[QueueRow]:
        """List the queues that have been changed."""
        ...

    async def change_limit(self, of: LimitOf, name: str, change: LimitChange, now: Instant) -> LimitRow:
        """Change what holds at run time for a type or a key; for claims as with `change_queue`."""
        ...

    async def limits(self) -> list[LimitRow]:
        """List what was set at run time, keys first, by name."""
        ...

    async def save_schedule(self, schedule: Schedule, expected_version: int | None) -> Verdict:
        """Store a whole schedule if it is still at this version; None means only if no schedule has its name."""
        ...

    async def drop_schedule(self, name: str, expected_version: int | None = None) -> Verdict:
        """Delete a schedule; with `expected_version`, only if it is still at this version."""
        ...

    async def save_declaration(self, declaration: Declaration, expected_version: int | None) -> Verdict:
        """Store which code of an app declares its schedules, if what is stored is still at this version; None means
        only if nothing is stored of the app. STALE otherwise."""
        ...

    async def declarations(self) -> list[Declaration]:
        """List what is stored of each app whose code declares schedules, by origin."""
        ...

    async def schedules(
        self, names: Sequence[str] = (), *, after: str = "", limit: int | None = None
    ) -> list[Schedule]:
        """List all schedules by name; if names are given, only those that exist among them; or a page of them, the
        first `limit` that come after `after`."""
        ...

    async def upcoming(self, limit: int) -> list[Schedule]:
        """List the first schedules by when they tick next, without those that are paused."""
        ...

    # Keys and the audit trail

    async def save_key(self, key: ApiKey, *, new: bool = False) -> Verdict:
        """Store a whole key, replacing any key with its id. With `new`, only if there is none; STALE if another key has
        its id."""
        ...

    async def keys(self, ids: Sequence[str] = ()) -> list[ApiKey]:
        """List all keys by id; if ids are given, only those that exist among them. Consistent: a revoked key is seen as
        revoked."""
        ...

    async def drop_keys(self, ids: Sequence[str]) -> None:
        """Delete keys."""
        ...

    async def audit(self, entries: Sequence[AuditEntry]) -> None:
        """Store entries, each replacing any entry with its id. `retire` deletes entries older than AUDIT_DAYS."""
        ...

    async def audited(self, after: str | None, limit: int) -> AuditPage:
        """List entries, newest first, starting before the entry with the id `after`."""
        ...

    # Steps and events: what a handler got past, and what was sent to it; see core/waits.py

    async def step(self, job_id: str, name: str, kind: StepKind = StepKind.STEP) -> str | None:
        """Return a step's recorded answer, or None."""
        ...

    async def record_step(
        self, hold: Hold, name: str, answer: str, now: Instant, kind: StepKind = StepKind.STEP
    ) -> Verdict:
        """Store a step's answer if the claim still holds; the first answer of a name and kind is kept."""
        ...

    async def steps(self, job_id: str, limit: int) -> list[Step]:
        """Return up to `limit` recorded steps of a job, of all kinds, in any order. Consistent."""
        ...

    async def inbox(self, job_id: str) -> Inbox:
        """Return the events that were sent to a job, and the endings of its waits. Consistent: a wait that is applied
        with `seen` as it is here waits only if nothing was sent in between."""
        ...

    async def send(self, events: Sequence[NewEvent], now: Instant) -> list[Delivery]:
        """Record each event with its job, or with the job whose wait has listened longest to its key, and make that
        job pending in the same commit if it waits for the event; or keep it with the key. An event with an id that
        its job or key has seen changes nothing."""
        ...

    async def listen_for(self, hold: Hold, wait: EventWait, now: Instant) -> Verdict:
        """Let a wait listen to its key, if the claim still holds. If the key has kept an event for it, that is recorded
        with the job in the same commit. A wait that has got an event, and has not ended, does not listen again: the
        next one is for others. BLOCKED if too many waits listen to the key."""
        ...

    async def stop_listening(self, hold: Hold, wait: EventWait, now: Instant) -> Verdict:
        """Remove a wait from those that listen to its key, if the claim still holds: what is sent from then on goes to
        others."""
        ...

    # Output: what running jobs append with ctx.stream

    async def append_output(self, parts: Sequence[OutputPart], now: Instant) -> list[Verdict]:
        """Append a part to the output of each job whose claim holds. A repeat of a part changes nothing. The first part
        of a take deletes what older attempts and takes have written."""
        ...

    async def output(self, job_id: str, after: OutputPlace, limit: int) -> list[StoredPart]:
        """Return up to `limit` parts of the latest take, in order: those with entries after this place, or all if it is
        in an older take. Consistent: includes everything acknowledged."""
        ...

    async def output_end(self, job_id: str) -> OutputEnd | None:
        """Return how far the output of a job has come; None if it has none."""
        ...

    # Trees

    async def insert_children(self, hold: Hold, jobs: Sequence[NewJob], now: Instant) -> list[Inserted] | None:
        """As `insert`, if the claim still holds: children that do not wait for their parent's completion. None means
        that the claim was lost and nothing was stored."""
        ...

    async def stage(self, hold: Hold, part: int, jobs: Sequence[NewJob], now: Instant) -> Verdict:
        """Store up to CHILDREN_PART_MAX jobs of a running attempt under (job, attempt, part) until its settlement names
        the parts (`Transition.staged`). A repeat replaces the part. Parts of an attempt that is over have no effect,
        and `release` removes them."""
        ...

    async def children(self, job_id: str, after: str | None, limit: int, status: Status | None = None) -> Page:
        """List the children of a job by id. Consistent: includes everything committed."""
        ...

    # Result tables

    async def declare(self, tables: Sequence[ResultTable]) -> list[str]:
        """Create missing tables, and add missing columns; return the names of what was changed. SchemaMismatch if a
        stored table has another key or another kind of column; ConfigurationError if the engine lacks something
        (pgvector). Safe to repeat and to run concurrently."""
        ...

    async def result_tables(self) -> list[ResultTable]:
        """List all declared result tables."""
        ...

    async def put_rows(self, batches: Sequence[RowBatch], now: Instant) -> list[Verdict]:
        """Store rows of running attempts; on SQL each batch is stored whole or not at all. A row replaces one of an
        older attempt, and one of the same attempt and part (a repeat). DuplicateRow if the same attempt has the key in
        another part: it names the job, and on SQL nothing of the call is stored. STALE if the claim does not hold, or a
        newer attempt's row exists. Rows are not visible before the completion."""
        ...

    async def rows(self, table: ResultTable, ask: RowQuery) -> RowPage:
        """Return rows of one job's committed attempt, by key; for a job that reused another's result, the rows of that
        job. Consistent. RowsWithdrawn if `ask.attempt` is not the committed one."""
        ...

    async def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
        """Return rows of all completed jobs, oldest first, if the table has a subject index. On DynamoDB the index may
        lag."""
        ...

    async def latest(self, subject: str, job_type: str) -> str | None:
        """Return the job of this subject and type that completed last and is still completed."""
        ...

    async def drop_rows(self, job_id: str, limit: int) -> int:
        """Delete up to `limit` rows of a job, from all its tables; return how many. For archived jobs."""
        ...

    # Transfer to another engine

    async def freeze(self, state: MoveState | None) -> int:
        """Stop accepting and claiming jobs: StoreMoved names the new location. Running jobs continue, including the
        children they submit. If `state.kind` is SEALED, nothing in the queue can change any more, but only if nothing
        is under way: the return value is how much is (running jobs, dependents to release, children to store), and
        unless it is 0 nothing was sealed. None means thaw."""
        ...

    async def moving(self) -> MoveState | None:
        """Return the transfer state of this store: being transferred from, being transferred into (and how far), or
        None."""
        ...

    async def export(self, kind: str, after: str | None, limit: int) -> Exported:
        """Return everything of one kind in a stable order, a page at a time; jobs in order of arrival."""
        ...

    async def restore(self, kind: str, items: Sequence[bytes], state: MoveState) -> None:
        """Store exported items unchanged: no counter, no event, no signal. Idempotent. `state` (the transfer's
        progress) is stored with them; the first one marks this store as being transferred into, and it serves no one
        else until its state is done. MoveFailed if it belongs to another transfer."""
        ...

    async def adopt(self, jobs: Sequence[Adopted], now: Instant) -> list[Verdict]:
        """Store whole jobs in a queue that is in use: no counter, no event. STALE if a job with its id is here already,
        in the job table or the archive; it stays as it is. TAKEN, with nothing stored, for an active job whose dedup
        key belongs to another job; an ended one is stored without the key. Each job is stored whole or not at all, and
        a call that failed may be repeated."""
        ...

    def fit(self, kind: str, item: bytes) -> bytes:
        """Return what this engine can keep of an exported item; the item itself if it can keep all of it. Pure."""
        ...

    # Reading

    def get(self, job_ids: Sequence[str]) -> Awaitable[list[JobRecord | None]]:
        """Read jobs from the job table or, if retention has archived them, from the archive."""
        ...

    def statuses(self, job_ids: Sequence[str]) -> Awaitable[list[Status | None]]:
        """Return each job's status: the same as `get`, at a fraction of its cost."""
        ...

    async def find(self, query: Query) -> Page:
        """Return a page of the jobs that match the query."""
        ...

    async def counts(self) -> dict[str, int]:
        """Count jobs per state."""
        ...

    async def depths(self) -> list[Depth]:
        """Count active jobs by queue, type and state."""
        ...

    async def counters(
        self, since: Instant, until: Instant, *, width: int | None = None, kinds: bool = True
    ) -> list[Counter]:
        """Return the counters of minutes that begin in [since, until), oldest first. With `width`, in microseconds:
        their sums over spans of this length, the first of which begins at `since`. Without `kinds`: the sums over all
        types and queues, whose names are empty."""
        ...

    async def totals(self) -> list[Total]:
        """Return all-time totals by type, queue and outcome. They never decrease: minute counters are added here before
        `retire` deletes them."""
        ...

    async def rate_due(self, job_id: str, now: Instant) -> Instant | None:
        """Return when the rate of this job's key allows the next start; None means now, or that it has no rate."""
        ...

    async def ahead(self, job_id: str, limit: int) -> int:
        """Count the pending jobs of the same queue and type that would be claimed before this one, up to `limit`; 0 if
        it is not pending. Jobs parked by a key do not count, nor do those of other fairness keys, which take turns. For
        a parked job, count the jobs of its key that come first."""
        ...

    async def ahead_in(self, job_id: str, lanes: Sequence[tuple[str, str]], limit: int) -> list[int]:
        """Count, for each of these queues and types, the pending jobs without a fairness key that a worker would claim
        before this job: by priority, due time and id, up to `limit` each. Jobs parked by a key do not count; zeros if
        the job is not pending. On DynamoDB the index may lag."""
        ...

    async def diagnose(self, now: Instant) -> list[Finding]:
        """Report what the engine knows about its own health."""
        ...

    async def dead(self, limit: int) -> list[DeadGroup]:
        """Group failed jobs by type and error, largest group first."""
        ...

    # Signals

    def listen(self, signals: frozenset[Signal], listener: Listener) -> Callable[[], None]:
        """Call `listener` on the event loop when something may have changed, in this process or another; call the
        returned function to stop."""
        ...
