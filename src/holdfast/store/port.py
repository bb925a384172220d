"""The port: what a job queue asks of an engine, in verbs on plain data.

Rules that hold for every verb:

* Every write takes many and answers each, in order. It is bounded by its caller and safe to repeat.
* `now` is an argument. An engine whose server has a better clock for leases may use that instead.
* A verb raises only typed errors of holdfast.errors. An acknowledged write is durable.
* The history event of a change commits with the change.

`holdfast.store.conformance` turns these sentences into tests; an engine is done when it passes them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.clock import Instant
from holdfast.lifecycle import Status, Transition
from holdfast.store.moves import Exported, MoveState
from holdfast.store.tables import ResultTable, RowBatch, RowPage, RowQuery
from holdfast.store.types import (
    ApiKey,
    AuditEntry,
    AuditPage,
    ClaimedJob,
    ClaimRequest,
    Counter,
    DeadGroup,
    Depth,
    ExpiredClaim,
    Finding,
    Firing,
    Hold,
    Inserted,
    JobRecord,
    JobType,
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
    Verdict,
    WorkerRow,
)

Listener = Callable[[Signal], None]


class Store(Protocol):
    # Opening

    async def open(self) -> None:
        """Connect, and make the schema where there is none. Refuse what cannot keep the promises."""
        ...

    async def close(self) -> None: ...

    async def migrate(self) -> list[str]:
        """Bring the schema to this release; the names of what was applied."""
        ...

    def migration_sql(self) -> str | None:
        """The same as a script that may be run at any time, for those who do it by hand; None where nobody would."""
        ...

    @property
    def location(self) -> str:
        """Where this store is, for people: no secrets in it."""
        ...

    @property
    def files_root(self) -> str | None:
        """A folder for logs and artifacts beside this store; None where workers can be on other hosts."""
        ...

    @property
    def poll_seconds(self) -> float:
        """How often a worker looks although nobody woke it, unless it was told: rarely where a look costs money."""
        ...

    @property
    def record_seconds(self) -> float:
        """How often the progress of a running job is worth a write."""
        ...

    async def erase(self) -> list[str]:
        """Delete everything, for good; the names of what there was. Refused, with what to do instead, where one
        command by hand does it."""
        ...

    # The hot path

    async def insert(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        """Store all of them or, on an error, none."""
        ...

    async def insert_in(self, connection: object, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        """Store them inside the caller's own transaction on `connection`: with its commit, or not at all."""
        ...

    async def claim(self, request: ClaimRequest, now: Instant) -> list[ClaimedJob]:
        """Take pending jobs: by priority (highest first), then due time, then id; never more than asked, in total
        and per type; never one whose concurrency key is full. Attempt and version grow by one. A repeat without slots
        takes nothing, and answers with what its earlier try took."""
        ...

    async def apply(self, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
        """Apply each transition whose guards hold. A job that ends releases those that depend on it, and the parent
        that waited for it as the last of its children, in the same commit, or leaves a mark from which `release` goes
        on. Children that a transition brings are stored with it. Where an effect of a transition fails, or a child
        cannot be stored, EffectFailed names its job and nothing of the call is applied."""
        ...

    async def extend(self, holds: Sequence[Hold], lease_expires_at: Instant, now: Instant) -> list[Verdict]:
        """Prolong the leases of claims that still hold. LOCKED where somebody's transaction has the job: it is not
        waited for, so that the others keep their leases; ask again soon."""
        ...

    async def note(self, notes: Sequence[Note], now: Instant) -> list[Verdict]:
        """Keep progress, stage, logs and metrics of running attempts. No version, no history."""
        ...

    # Upkeep: idempotent, leaderless, a bounded batch per call

    async def promote(self, now: Instant, limit: int) -> Promoted:
        """Make due scheduled and retrying jobs pending."""
        ...

    async def expired(self, now: Instant, limit: int, dead_workers: Sequence[str] = ()) -> list[ExpiredClaim]:
        """Claims whose lease ran out, or whose worker is known to be dead. Only reads."""
        ...

    async def fire(self, firings: Sequence[Firing], now: Instant) -> list[Verdict]:
        """Insert the jobs of each schedule's ticks and move it on, in one commit each; STALE when another was faster
        or the schedule changed, so that a tick makes one job however many workers see it."""
        ...

    async def retire(self, policy: RetentionPolicy, now: Instant, limit: int, after: str | None) -> Retired:
        """Look at about `limit` ended jobs from `after` on; move those over their time to the archive, a tree as a
        whole, never one that is active. Rows of the archive, counters and entries of the audit trail over theirs
        go."""
        ...

    async def with_files(self, limit: int) -> list[str]:
        """Archived jobs whose files and rows have not been removed yet."""
        ...

    async def cleaned(self, job_ids: Sequence[str]) -> None:
        """Their files and rows are gone."""
        ...

    async def release(self, now: Instant, limit: int) -> int:
        """Go on releasing dependents of ended jobs and storing staged children of settled ones, unpark jobs whose key
        has room, and remove what was staged by attempts that came to nothing; how many changed."""
        ...

    # Workers and types

    async def beat(self, worker: WorkerRow) -> None:
        """Register a worker, or say that it lives and what it runs."""
        ...

    async def forget(self, worker_ids: Sequence[str]) -> None: ...

    async def workers(self) -> list[WorkerRow]: ...

    async def announce(self, types: Sequence[JobType]) -> None: ...

    async def job_types(self) -> list[JobType]: ...

    # Queues and schedules

    async def change_queue(self, name: str, change: QueueChange, now: Instant) -> QueueRow:
        """A claim that begins once a pause is acknowledged takes nothing from the queue; one under way may."""
        ...

    async def queues(self) -> list[QueueRow]:
        """Those of which something was said."""
        ...

    async def save_schedule(self, schedule: Schedule, expected_version: int | None) -> Verdict:
        """Store a schedule whole if it is still at this version; None: if there is none of its name."""
        ...

    async def drop_schedule(self, name: str) -> Verdict: ...

    async def schedules(self, names: Sequence[str] = ()) -> list[Schedule]:
        """All, by name; where names are given, those of them that there are."""
        ...

    # Keys, and what was changed by whom

    async def save_key(self, key: ApiKey, *, new: bool = False) -> Verdict:
        """Store a key whole, in place of one of its id. `new`: only where there is none; STALE where another has its
        id."""
        ...

    async def keys(self, ids: Sequence[str] = ()) -> list[ApiKey]:
        """All, by id; where ids are given, those of them that there are. Consistent: a revoked key shows as one."""
        ...

    async def drop_keys(self, ids: Sequence[str]) -> None: ...

    async def audit(self, entries: Sequence[AuditEntry]) -> None:
        """Store entries, each in place of one of its id. Those over AUDIT_DAYS go with `retire`."""
        ...

    async def audited(self, after: str | None, limit: int) -> AuditPage:
        """Newest first, before the entry of the id `after`."""
        ...

    # Steps: the recorded answers of ctx.once

    async def step(self, job_id: str, name: str) -> str | None: ...

    async def record_step(self, hold: Hold, name: str, answer: str, now: Instant) -> Verdict:
        """Keep a step's answer while the claim holds; the first answer stays."""
        ...

    # Trees

    async def insert_children(self, hold: Hold, jobs: Sequence[NewJob], now: Instant) -> list[Inserted] | None:
        """As `insert`, while the claim holds: children that do not wait for their parent's completion. None: it holds
        no more, and nothing was stored."""
        ...

    async def stage(self, hold: Hold, part: int, jobs: Sequence[NewJob], now: Instant) -> Verdict:
        """Keep up to CHILDREN_PART_MAX jobs of a running attempt under (job, attempt, part) until its settlement names
        the parts (`Transition.staged`). A repeat replaces the part. Those of an attempt that is over mean nothing, and
        `release` removes them."""
        ...

    async def children(self, job_id: str, after: str | None, limit: int, status: Status | None = None) -> Page:
        """The children of a job by id; consistent: what is committed is in it."""
        ...

    # Result tables

    async def declare(self, tables: Sequence[ResultTable]) -> list[str]:
        """Make each table that is not there, and add columns that a table does not have yet; the names of what was
        changed. SchemaMismatch where a stored one has another key or another kind of column; ConfigurationError where
        the engine lacks something (pgvector). Safe to repeat and to race."""
        ...

    async def result_tables(self) -> list[ResultTable]: ...

    async def put_rows(self, batches: Sequence[RowBatch], now: Instant) -> list[Verdict]:
        """Store rows of running attempts, each batch whole or not at all on SQL. A row replaces one of an older
        attempt, and one of the same attempt and part (a repeat). DuplicateRow where the same attempt has the key in
        another part: it names the job, and on SQL nothing of the call is stored. STALE where the claim does not hold,
        or a newer attempt's row is there. Nobody sees them before the completion."""
        ...

    async def rows(self, table: ResultTable, ask: RowQuery) -> RowPage:
        """Rows of the committed attempt of one job, by key; those of a job that reused another's result are that
        one's. Consistent. RowsWithdrawn where `ask.attempt` is not the committed one."""
        ...

    async def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
        """Over all completed jobs, oldest first; where the table has a subject index. On DynamoDB the index may lag."""
        ...

    async def latest(self, subject: str, job_type: str) -> str | None:
        """The job of this subject and type that completed last, and still is completed."""
        ...

    async def drop_rows(self, job_id: str, limit: int) -> int:
        """Remove up to `limit` rows of a job, of all its tables; how many. For archived jobs."""
        ...

    # Moving house

    async def freeze(self, state: MoveState | None) -> int:
        """From here on no job is taken in and none is claimed: StoreMoved says where to. What runs goes on, with the
        children that it brings. Where `state.kind` is SEALED nothing of the queue changes any more; only if nothing is
        under way: the answer is how much is (running jobs, dependents to be released, children to be stored), and
        where that is not 0 nothing was sealed. None: thaw."""
        ...

    async def moving(self) -> MoveState | None:
        """Of this store: being moved from, being moved into (and how far), or neither."""
        ...

    async def export(self, kind: str, after: str | None, limit: int) -> Exported:
        """Everything of one kind in an order that does not change, a page at a time; order of arrival for jobs."""
        ...

    async def restore(self, kind: str, items: Sequence[bytes], state: MoveState) -> None:
        """Store what `export` gave, as it is: no counter, no event, no signal. Idempotent. `state` (how far the move
        is) goes with it; the first one makes this a store that is being moved into, which serves nobody else until its
        state says done. MoveFailed where it is one of another move."""
        ...

    def fit(self, kind: str, item: bytes) -> bytes:
        """What this engine keeps of an exported item; the item itself where it keeps all. Pure."""
        ...

    # Reading

    async def get(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
        """From the jobs or, where retention has been, from the archive."""
        ...

    async def statuses(self, job_ids: Sequence[str]) -> list[Status | None]:
        """Where each stands: what `get` would say, at a fraction of its cost."""
        ...

    async def find(self, query: Query) -> Page: ...

    async def counts(self) -> dict[str, int]:
        """Jobs per state."""
        ...

    async def depths(self) -> list[Depth]:
        """Active jobs by queue, type and state."""
        ...

    async def counters(self, since: Instant, until: Instant) -> list[Counter]:
        """The minutes that begin in [since, until), oldest first."""
        ...

    async def totals(self) -> list[Total]:
        """Everything that was ever counted, by type, queue and outcome. It does not go down: what `retire` drops of
        the minutes is in here first."""
        ...

    async def rate_due(self, job_id: str, now: Instant) -> Instant | None:
        """When the rate of this job's key allows the next start; None: now, or it has no rate."""
        ...

    async def ahead(self, job_id: str, limit: int) -> int:
        """How many pending jobs of its queue and type a claim would take before this one, up to `limit`; 0 where it is
        not pending. Jobs that a key holds back do not count, nor do those of other fairness keys: they take turns. Of
        one that a key holds back itself: how many of that key come before it."""
        ...

    async def diagnose(self, now: Instant) -> list[Finding]:
        """What the engine can tell about its own health."""
        ...

    async def dead(self, limit: int) -> list[DeadGroup]:
        """Failed jobs, grouped by type and error, largest group first."""
        ...

    # Hints

    def listen(self, signals: frozenset[Signal], listener: Listener) -> Callable[[], None]:
        """Call `listener` on the event loop when something may have changed, in this process or another;
        the answer ends it."""
        ...
