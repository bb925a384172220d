"""The port on one SQLite file: which function each verb calls, and on which thread."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

import apsw

from backstay.clock import Instant
from backstay.core.dumps import COUNTERS, Adopted, Exported, MoveState
from backstay.core.output import OutputEnd, OutputPart, OutputPlace, StoredPart
from backstay.core.port import Listener
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
    Lost,
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
from backstay.engines import lanes, sql_rows
from backstay.engines.coalescer import Coalescer
from backstay.engines.sqlite import (
    access,
    admission,
    claim,
    connection,
    insert,
    maintenance,
    read,
    results,
    retention,
    settle,
    transfer,
    waits,
)
from backstay.engines.sqlite.connection import gate, translate
from backstay.engines.sqlite.wakeup import Bell
from backstay.engines.sqlite.writer import Tx, Writer, answer
from backstay.errors import ConfigurationError, ForkedStore, NotOpen, StoreError
from backstay.limits import POLL_SECONDS, RECORD_INTERVAL_SECONDS, RELEASE_BATCH_MAX

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
READERS = 2  # threads; reads are short, and more would only contend for the GIL


class SQLiteStore:
    def __init__(self, url: str) -> None:
        self.path = connection.path_of(url)
        self._writer: Writer | None = None
        self._bell = Bell(self.path)
        self._readers: ThreadPoolExecutor | None = None
        self._reader_state = threading.local()
        self._reader_connections: list[apsw.Connection] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()
        self._submits = Coalescer(self._insert_plain, at_once=True)

    # Opening

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        opened = await self._loop.run_in_executor(None, self._prepare)
        self._bell.open(self._loop)
        self._submits.open()
        self._writer = Writer(opened, self.path, self._loop, self._bell.ring)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="backstay-sqlite-reader")

    def _prepare(self) -> apsw.Connection:
        with gate.lock:
            connection.create(self.path)
            opened = connection.connect(self.path)
            try:
                connection.migrate(opened, self.path)
            except BaseException:
                opened.close()
                raise
            return opened

    async def close(self) -> None:
        if os.getpid() == self._pid:
            await self._submits.finish()
        writer, readers, self._writer, self._readers = self._writer, self._readers, None, None
        if writer is None or readers is None or os.getpid() != self._pid:
            return
        self._bell.fall_silent()

        def run() -> None:
            writer.stop()
            readers.shutdown()
            with gate.lock:
                for each in self._reader_connections:
                    each.close()
                self._reader_connections.clear()
                writer.connection.close()
            self._bell.close()

        await asyncio.get_running_loop().run_in_executor(None, run)

    def _refuse_foreign(self) -> None:
        with gate.lock:
            connection.connect(self.path).close()

    async def exists(self) -> bool:
        """Return whether the file exists; creates none."""
        return self.path.exists()

    async def migrate(self) -> list[str]:
        def run() -> list[str]:
            with gate.lock:
                connection.create(self.path)
                opened = connection.connect(self.path)
                try:
                    return connection.migrate(opened, self.path)
                finally:
                    opened.close()

        return await asyncio.get_running_loop().run_in_executor(None, run)

    def migration_sql(self) -> None:
        """Return None: a process that may write the file may migrate it."""

    @property
    def location(self) -> str:
        return f"sqlite:///{self.path}"

    @property
    def files_root(self) -> str | None:
        return f"{self.path}.files"

    @property
    def poll_seconds(self) -> float:
        return POLL_SECONDS

    @property
    def record_seconds(self) -> float:
        return RECORD_INTERVAL_SECONDS

    async def would_erase(self) -> None:
        """Return None: see `erase`."""

    async def erase(self) -> list[str]:
        if await self.exists():
            await asyncio.get_running_loop().run_in_executor(None, self._refuse_foreign)
        raise ConfigurationError(f"a queue in a file is deleted with it: stop all workers, then remove {self.path}*")

    # The hot path

    async def insert(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        self._refuse_fork()  # what the parent process left waiting would never be flushed here
        if jobs[0].special if len(jobs) == 1 else any(job.special for job in jobs):
            self._submits.refuse_other_loop()
            return await self._write("insert", insert.insert, jobs, now, essential=False)
        return await self._submits.insert(jobs, now)

    def insert_here(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted] | None:
        writer, _ = self._opened()
        return writer.run_here("insert", insert.insert, jobs, now)

    async def insert_in(self, connection: object, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        self._opened()
        return insert.insert_as_guest(connection, self.path, jobs, now, self._bell.ring)

    def _insert_plain(self, jobs: Sequence[NewJob], now: Instant) -> asyncio.Future[list[Inserted]]:
        return self._write("insert", insert.insert_plain, jobs, now, essential=False)

    def claim(self, request: ClaimRequest, now: Instant) -> Awaitable[list[ClaimedJob]]:
        if request.lost is Lost.ALONE:
            return self._write("claim", claim.claim, request, now, [], essential=False)
        asked = lanes.asked(request)
        if asked.is_few:
            return self._write("claim", claim.claim, request, now, asked.pairs(), essential=False)
        return self._claim_of_many(asked, request, now)

    async def _claim_of_many(self, asked: lanes.Asked, request: ClaimRequest, now: Instant) -> list[ClaimedJob]:
        if request.repeat and (jobs := await self._write("claim", claim.claim, request, now, [], essential=False)):
            return jobs
        async for page in lanes.pages(asked, lambda at: self._read(claim.lanes, asked, at)):
            if page and (jobs := await self._write("claim", claim.claim, request, now, page, essential=False)):
                return jobs
        return []

    async def wait_alone(self, request: ClaimRequest) -> dict[str, int]:
        return await self._read(claim.wait_alone, request)

    async def apply(self, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
        verdicts = await self._write("apply", settle.apply, transitions, now, essential=True)
        with contextlib.suppress(StoreError):  # it is committed: what is left to do, upkeep does
            for transition in transitions:
                if transition.staged is not None:
                    await self._unpack(now, RELEASE_BATCH_MAX, transition.job_id)
        return verdicts

    async def extend(self, holds: Sequence[Hold], lease_expires_at: Instant, now: Instant) -> list[Verdict]:
        return await self._write("extend", settle.extend, holds, lease_expires_at, essential=True)

    async def note(self, notes: Sequence[Note], now: Instant) -> list[Verdict]:
        return await self._write("note", settle.note, notes, now, essential=False)

    # Maintenance: idempotent, leaderless, a bounded batch per call

    async def promote(self, now: Instant, limit: int) -> Promoted:
        next_due_at = await self._read(maintenance.next_due, now)
        if next_due_at is None or next_due_at > now:
            return Promoted(0, next_due_at)
        return await self._write("promote", maintenance.promote, now, limit, essential=False)

    async def expired(self, now: Instant, limit: int, dead_workers: Sequence[str] = ()) -> list[ExpiredClaim]:
        return await self._read(read.expired, now, limit, dead_workers)

    async def overdue(self, now: Instant, limit: int) -> list[str]:
        return await self._read(read.overdue, now, limit)

    async def fire(self, firings: Sequence[Firing], now: Instant) -> list[Verdict]:
        return await self._write("fire", maintenance.fire, firings, now, essential=False)

    async def retire(self, policy: RetentionPolicy, now: Instant, limit: int, after: str | None) -> Retired:
        found = await self._read(retention.look, policy, now, limit, after)
        if not found.batch and not await self._read(retention.anything_to_drop, policy, now):
            return Retired(0, 0, found.next)
        archived, dropped = await self._write(
            "retire", retention.retire, found.batch, policy, now, limit, essential=True
        )
        return sql_rows.answer(found, archived, dropped, limit)

    async def with_files(self, limit: int) -> list[str]:
        return await self._read(retention.with_files, limit)

    async def cleaned(self, job_ids: Sequence[str]) -> None:
        await self._write("cleaned", retention.cleaned, job_ids, essential=True)

    async def remove(self, job_id: str, version: int, now: Instant) -> Verdict:
        return await self._write("remove", retention.remove, job_id, version, essential=True)

    async def release(self, now: Instant, limit: int) -> int:
        if not await self._read(maintenance.release_needed):
            return 0
        done = await self._write("release", maintenance.release, now, limit, essential=True)
        return done + await self._unpack(now, limit - done)

    # Workers and types

    async def beat(self, worker: WorkerRow) -> None:
        await self._write("beat", maintenance.beat, worker, essential=True)

    async def forget(self, worker_ids: Sequence[str], now: Instant) -> None:
        await self._write("forget", maintenance.forget, worker_ids, now, essential=True)

    async def former_workers(self, now: Instant) -> list[FormerWorker]:
        return await self._read(read.former_workers, now)

    async def workers(
        self, ids: Sequence[str] = (), *, after: str = "", before: str = "", limit: int | None = None
    ) -> list[WorkerRow]:
        return await self._read(read.workers, ids, after, before, limit)

    async def count_workers(self) -> int:
        return await self._read(read.count_workers)

    async def announce(self, types: Sequence[JobType]) -> None:
        await self._write("announce", maintenance.announce, types, essential=False)

    async def unmark(self, job_type: str, marks: Sequence[str]) -> Verdict:
        return await self._write("unmark", maintenance.unmark, job_type, marks, essential=False)

    async def job_types(self) -> list[JobType]:
        return await self._read(read.job_types)

    # Queues and schedules

    async def change_queue(self, name: str, change: QueueChange, now: Instant) -> QueueRow:
        return await self._write("change_queue", maintenance.change_queue, name, change, now, essential=True)

    async def queues(self) -> list[QueueRow]:
        return await self._read(read.queues)

    async def change_limit(self, of: LimitOf, name: str, change: LimitChange, now: Instant) -> LimitRow:
        return await self._write("change_limit", maintenance.change_limit, of, name, change, now, essential=True)

    async def limits(self) -> list[LimitRow]:
        return await self._read(read.limits)

    async def save_schedule(self, schedule: Schedule, expected_version: int | None) -> Verdict:
        return await self._write(
            "save_schedule", maintenance.save_schedule, schedule, expected_version, essential=False
        )

    async def drop_schedule(self, name: str, expected_version: int | None = None) -> Verdict:
        return await self._write("drop_schedule", maintenance.drop_schedule, name, expected_version, essential=True)

    async def save_declaration(self, declaration: Declaration, expected_version: int | None) -> Verdict:
        return await self._write(
            "save_declaration", maintenance.save_declaration, declaration, expected_version, essential=False
        )

    async def declarations(self) -> list[Declaration]:
        return await self._read(maintenance.declarations)

    async def schedules(
        self, names: Sequence[str] = (), *, after: str = "", limit: int | None = None
    ) -> list[Schedule]:
        return await self._read(maintenance.schedules, names, after, limit)

    async def upcoming(self, limit: int) -> list[Schedule]:
        return await self._read(maintenance.upcoming, limit)

    # Keys and the audit trail

    async def save_key(self, key: ApiKey, *, new: bool = False) -> Verdict:
        return await self._write("save_key", access.save_key, key, new, essential=not new)

    async def keys(self, ids: Sequence[str] = ()) -> list[ApiKey]:
        return await self._read(access.keys, ids)

    async def drop_keys(self, ids: Sequence[str]) -> None:
        await self._write("drop_keys", access.drop_keys, ids, essential=True)

    async def audit(self, entries: Sequence[AuditEntry]) -> None:
        await self._write("audit", access.audit, entries, essential=True)

    async def audited(self, after: str | None, limit: int) -> AuditPage:
        return await self._read(access.audited, after, limit)

    # Steps and events

    async def step(self, job_id: str, name: str, kind: StepKind = StepKind.STEP) -> str | None:
        return await self._read(read.step, job_id, name, kind)

    async def record_step(
        self, hold: Hold, name: str, answer: str, now: Instant, kind: StepKind = StepKind.STEP
    ) -> Verdict:
        return await self._write("record_step", settle.record_step, hold, name, answer, now, kind, essential=True)

    async def steps(self, job_id: str, limit: int) -> list[Step]:
        return await self._read(waits.steps, job_id, limit)

    async def inbox(self, job_id: str) -> Inbox:
        return await self._read(waits.inbox, job_id)

    async def send(self, events: Sequence[NewEvent], now: Instant) -> list[Delivery]:
        return await self._write("send", waits.send, events, now, essential=False)

    async def listen_for(self, hold: Hold, wait: EventWait, now: Instant) -> Verdict:
        return await self._write("listen_for", settle.listen_for, hold, wait, now, essential=True)

    async def stop_listening(self, hold: Hold, wait: EventWait, now: Instant) -> Verdict:
        return await self._write("stop_listening", settle.stop_listening, hold, wait, now, essential=True)

    # Output

    async def append_output(self, parts: Sequence[OutputPart], now: Instant) -> list[Verdict]:
        return await self._write("append_output", settle.append_output, parts, now, essential=True)

    async def output(self, job_id: str, after: OutputPlace, limit: int) -> list[StoredPart]:
        return await self._read(read.output, job_id, after, limit)

    async def output_end(self, job_id: str) -> OutputEnd | None:
        return await self._read(read.output_end, job_id)

    # Trees

    async def insert_children(self, hold: Hold, jobs: Sequence[NewJob], now: Instant) -> list[Inserted] | None:
        return await self._write("insert_children", settle.insert_children, hold, jobs, now, essential=False)

    async def stage(self, hold: Hold, part: int, jobs: Sequence[NewJob], now: Instant) -> Verdict:
        return await self._write("stage", settle.stage, hold, part, jobs, now, essential=False)

    async def _unpack(self, now: Instant, limit: int, job_id: str | None = None) -> int:
        """Store staged children of settled jobs, one part per transaction, so that other calls run in between; return
        how many jobs were stored, about `limit` at most."""
        done = 0
        while done < limit:
            jobs = await self._write("unpack", settle.unpack, now, job_id, essential=False)
            if not jobs:
                break
            done += jobs
        return done

    async def children(self, job_id: str, after: str | None, limit: int, status: Status | None = None) -> Page:
        return await self._read(settle.children, job_id, after, limit, status)

    # Result tables

    async def declare(self, tables: Sequence[ResultTable]) -> list[str]:
        return await self._write("declare", results.declare, tables, essential=False)

    async def result_tables(self) -> list[ResultTable]:
        return await self._read(results.result_tables)

    async def put_rows(self, batches: Sequence[RowBatch], now: Instant) -> list[Verdict]:
        return await self._write("put_rows", results.put_rows, batches, now, essential=False)

    async def rows(self, table: ResultTable, ask: RowQuery) -> RowPage:
        return await self._read(results.rows, table, ask)

    async def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
        return await self._read(results.rows_by_subject, table, subject, after, limit)

    async def latest(self, subject: str, job_type: str) -> str | None:
        return await self._read(results.latest, subject, job_type)

    async def drop_rows(self, job_id: str, limit: int) -> int:
        return await self._write("drop_rows", results.drop_rows, job_id, limit, essential=True)

    # Transfer to another engine

    async def freeze(self, state: MoveState | None) -> int:
        return await self._write("freeze", transfer.freeze, state, essential=True)

    async def moving(self) -> MoveState | None:
        return await self._read(transfer.moving)

    async def export(self, kind: str, after: str | None, limit: int) -> Exported:
        if kind == COUNTERS and after is None:
            await self._write("count_submits", lambda tx: tx.arrivals.count(), essential=True)
        return await self._read(transfer.export, kind, after, limit)

    async def restore(self, kind: str, items: Sequence[bytes], state: MoveState) -> None:
        await self._write("restore", transfer.restore, kind, items, state, essential=False)

    async def adopt(self, jobs: Sequence[Adopted], now: Instant) -> list[Verdict]:
        return await self._write("adopt", transfer.adopt, jobs, now, essential=False)

    def fit(self, kind: str, item: bytes) -> bytes:
        return item

    # Reading

    def get(self, job_ids: Sequence[str]) -> asyncio.Future[list[JobRecord | None]]:
        return self._read(read.get, job_ids)

    def statuses(self, job_ids: Sequence[str]) -> asyncio.Future[list[Status | None]]:
        return self._read(read.statuses, job_ids)

    async def find(self, query: Query) -> Page:
        return await self._read(read.find, query)

    async def counts(self) -> dict[str, int]:
        return await self._read(read.counts)

    async def depths(self) -> list[Depth]:
        return await self._read(read.depths)

    async def counters(
        self, since: Instant, until: Instant, *, width: int | None = None, kinds: bool = True
    ) -> list[Counter]:
        return await self._read(read.counters, since, until, width, kinds)

    async def totals(self) -> list[Total]:
        return await self._read(access.totals)

    async def rate_due(self, job_id: str, now: Instant) -> Instant | None:
        return await self._read(admission.rate_due, job_id, now)

    async def ahead(self, job_id: str, limit: int) -> int:
        return await self._read(read.ahead, job_id, limit)

    async def ahead_in(self, job_id: str, lanes: Sequence[tuple[str, str]], limit: int) -> list[int]:
        return await self._read(read.ahead_in, job_id, lanes, limit)

    async def diagnose(self, now: Instant) -> list[Finding]:
        return await self._read(maintenance.diagnose, self.path)

    async def dead(self, limit: int) -> list[DeadGroup]:
        return await self._read(read.dead, limit)

    # Signals

    def listen(self, signals: frozenset[Signal], listener: Listener) -> Callable[[], None]:
        return self._bell.listen(signals, listener)

    # Threads: who runs a verb

    def _refuse_fork(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedStore("this store was opened before fork(): open the app again in the child process")

    def _write(self, name: str, run: Callable[[Tx, *Ts], T], *arguments: *Ts, essential: bool) -> asyncio.Future[T]:
        """Run `run(tx, *arguments)` on the writer's thread."""
        writer, loop = self._opened()
        future: asyncio.Future[T] = loop.create_future()
        writer.put(name, run, functools.partial(answer, future), essential, *arguments)
        return future

    def _opened(self) -> tuple[Writer, asyncio.AbstractEventLoop]:
        if self._writer is None or self._loop is None:
            raise NotOpen("the store is not open: use it inside `async with app:`")
        return self._writer, self._loop

    def _read(self, run: Callable[[apsw.Connection, *Ts], T], *arguments: *Ts) -> asyncio.Future[T]:
        """Run `run(connection, *arguments)` on a reader's thread, in one snapshot."""
        self._refuse_fork()
        if self._readers is None or self._loop is None:
            raise NotOpen("the store is not open: use it inside `async with app:`")
        return self._loop.run_in_executor(self._readers, self._run_read, run, arguments)

    def _run_read(self, run: Callable[[apsw.Connection, *Ts], T], arguments: tuple[*Ts]) -> T:
        own: apsw.Connection | None = getattr(self._reader_state, "connection", None)
        if self._writer is not None:
            self._writer.identity.check()
        try:
            with gate.lock:
                if own is None:
                    own = self._reader_state.connection = connection.connect(self.path)
                    self._reader_connections.append(own)
                own.execute("BEGIN")  # one snapshot for all statements of a read
                try:
                    return run(own, *arguments)
                finally:
                    own.execute("ROLLBACK")
        except apsw.Error as error:
            raise translate(error, str(self.path)) from None
