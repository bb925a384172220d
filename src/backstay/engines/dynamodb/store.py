"""The port on two DynamoDB tables: opens them, and says which function each verb calls."""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from backstay.clock import Instant
from backstay.core.dumps import Adopted, Exported, MoveState
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
from backstay.engines.coalescer import Coalescer
from backstay.engines.dynamodb import (
    access,
    address,
    children,
    holder,
    insert,
    maintenance,
    migrate,
    output,
    parking,
    read,
    results,
    retention,
    settle,
    table,
    transfer,
    waits,
)
from backstay.engines.dynamodb.board import Board
from backstay.engines.dynamodb.claim import Claims, wait_alone
from backstay.engines.dynamodb.session import Remembered, Session
from backstay.engines.dynamodb.table import Tables
from backstay.engines.dynamodb.transport import Meter, Wire
from backstay.errors import ForkedStore, InvalidOption, NotOpen

T = TypeVar("T")
POLL_SECONDS = 30.0  # every read costs money; the board wakes a worker much sooner
RECORD_SECONDS = 5.0  # every progress write costs money, too


class DynamoStore:
    def __init__(self, url: str) -> None:
        self.address = address.parse(url)
        self._session: Session | None = None
        self._pid = os.getpid()

    @property
    def location(self) -> str:
        return self.address.shown

    @property
    def files_root(self) -> None:
        """Return None: workers are on other hosts."""

    @property
    def poll_seconds(self) -> float:
        return POLL_SECONDS

    @property
    def record_seconds(self) -> float:
        return RECORD_SECONDS

    @property
    def meter(self) -> Meter:
        """Return what this store has used since it was opened; units only if the URL has `meter=true`."""
        return self._open().tables.wire.meter

    # Opening

    async def open(self) -> None:
        self._pid = os.getpid()
        tables = self._tables()
        try:
            if not await migrate.check(tables):
                await migrate.migrate(tables, provisioned=self.address.provisioned)
            board = Board(tables, wake=self.address.wake, ceiling_seconds=self.address.wake_ceiling)
            await board.begin()
        except BaseException:
            await tables.wire.close()
            raise
        session = Session(
            tables=tables,
            board=board,
            counters=tables.counters,
            remembered=Remembered(),
            writer=secrets.token_hex(4),
        )
        self._claims = Claims(session)
        self._submits = Coalescer(functools.partial(insert.insert, session), jobs_max=insert.TOGETHER_MAX)
        self._submits.open()
        self._session = session

    def _tables(self) -> Tables:
        where = self.address
        return Tables(Wire(where), where.tables, form=where.form, shown=where.shown)

    async def migrate(self) -> list[str]:
        return await self._by_itself(lambda tables: migrate.migrate(tables, provisioned=self.address.provisioned))

    async def exists(self) -> bool:
        """Return whether the tables exist; creates none."""
        return await self._by_itself(migrate.exists)

    async def would_erase(self) -> dict[str, int]:
        """Return the existing tables, and about how many items each has."""
        return await self._by_itself(migrate.would_erase)

    async def erase(self) -> list[str]:
        return await self._by_itself(migrate.erase)

    async def _by_itself(self, work: Callable[[Tables], Awaitable[T]]) -> T:
        tables = self._tables()  # a separate client: this store may not be open
        try:
            return await work(tables)
        finally:
            await tables.wire.close()

    def migration_sql(self) -> None:
        """Return None: DynamoDB has no SQL, and a role that may write the tables may create them."""

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is None or os.getpid() != self._pid:
            return
        try:
            await self._submits.finish()
            await session.board.close()
        finally:
            await session.tables.wire.close()

    def _open(self) -> Session:
        if os.getpid() != self._pid:
            raise ForkedStore("this store was opened before fork(): open the app again in the child process")
        if self._session is None:
            raise NotOpen("the store is not open: use it inside `async with app:`")
        return self._session

    def _changing(self) -> Session:
        """Return the session for a call that changes the queue; raises if the queue is frozen for a transfer."""
        session = self._open()
        session.board.refuse_closed()
        return session

    async def _everywhere(self) -> Session:
        """Return the session for a call that reads all shards; a process that never claims learns of new ones here."""
        session = self._open()
        await session.board.read(fresh=False)
        return session

    def listen(self, signals: frozenset[Signal], listener: Listener) -> Callable[[], None]:
        return self._open().board.listen(signals, listener)

    # The hot path

    async def insert(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        session = self._open()
        if not jobs:
            return []
        self._submits.refuse_other_loop()
        if len(jobs) > insert.TOGETHER_MAX or any(job.special for job in jobs):
            return await insert.insert(session, jobs, now)
        return await self._submits.insert(jobs, now)

    def insert_here(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted] | None:
        """Return None: connections belong to the event loop."""

    async def insert_in(self, connection: object, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        raise InvalidOption(
            "connection= is for SQL engines: on DynamoDB submit with job_id= or dedup_key=, and submit again if in"
            " doubt"
        )

    async def claim(self, request: ClaimRequest, now: Instant) -> list[ClaimedJob]:
        self._open()
        return await self._claims.claim(request, now)

    async def wait_alone(self, request: ClaimRequest) -> dict[str, int]:
        return await wait_alone(self._open(), request)

    async def apply(self, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
        return await settle.apply(self._changing(), transitions, now)

    async def extend(self, holds: Sequence[Hold], lease_expires_at: Instant, now: Instant) -> list[Verdict]:
        return await holder.extend(self._open(), holds, lease_expires_at, now)

    async def note(self, notes: Sequence[Note], now: Instant) -> list[Verdict]:
        return await holder.note(self._open(), notes, now)

    # Maintenance: idempotent, leaderless, a bounded batch per call

    async def promote(self, now: Instant, limit: int) -> Promoted:
        return await maintenance.promote(self._changing(), now, limit)

    async def expired(self, now: Instant, limit: int, dead_workers: Sequence[str] = ()) -> list[ExpiredClaim]:
        return await maintenance.expired(self._open(), now, limit, dead_workers)

    async def overdue(self, now: Instant, limit: int) -> list[str]:
        return await maintenance.overdue(self._open(), now, limit)

    async def fire(self, firings: Sequence[Firing], now: Instant) -> list[Verdict]:
        return await maintenance.fire(self._changing(), firings, now)

    async def retire(self, policy: RetentionPolicy, now: Instant, limit: int, after: str | None) -> Retired:
        return await retention.retire(self._changing(), policy, now, limit, after)

    async def with_files(self, limit: int) -> list[str]:
        return await retention.with_files(self._open(), limit)

    async def cleaned(self, job_ids: Sequence[str]) -> None:
        await retention.cleaned(self._changing(), job_ids)

    async def remove(self, job_id: str, version: int, now: Instant) -> Verdict:
        return await retention.remove_job(self._changing(), job_id, version, now)

    async def release(self, now: Instant, limit: int) -> int:
        return await maintenance.release(self._changing(), now, limit)

    # Workers and types

    async def beat(self, worker: WorkerRow) -> None:
        await read.beat(self._open(), worker)

    async def forget(self, worker_ids: Sequence[str], now: Instant) -> None:
        await read.forget(self._open(), worker_ids, now)

    async def former_workers(self, now: Instant) -> list[FormerWorker]:
        return await read.former_workers(self._open(), now)

    async def workers(
        self, ids: Sequence[str] = (), *, after: str = "", before: str = "", limit: int | None = None
    ) -> list[WorkerRow]:
        return await read.workers(self._open(), ids, after, before, limit)

    async def count_workers(self) -> int:
        return await read.count_workers(self._open())

    async def announce(self, types: Sequence[JobType]) -> None:
        await read.announce(self._changing(), types)

    async def unmark(self, job_type: str, marks: Sequence[str]) -> Verdict:
        return await read.unmark(self._changing(), job_type, marks)

    async def job_types(self) -> list[JobType]:
        return await read.job_types(self._open())

    # Queues and schedules

    async def change_queue(self, name: str, change: QueueChange, now: Instant) -> QueueRow:
        return await self._changing().board.change_queue(name, change, now)

    async def queues(self) -> list[QueueRow]:
        return await self._open().board.queues()

    async def change_limit(self, of: LimitOf, name: str, change: LimitChange, now: Instant) -> LimitRow:
        session = self._changing()
        row = await session.board.change_limit(of, name, change, now)
        if change.limits:  # for jobs that wait already, too
            await parking.look_again(session, name, now)
        return row

    async def limits(self) -> list[LimitRow]:
        return await self._open().board.limits()

    async def save_schedule(self, schedule: Schedule, expected_version: int | None) -> Verdict:
        return await maintenance.save_schedule(self._changing(), schedule, expected_version)

    async def drop_schedule(self, name: str, expected_version: int | None = None) -> Verdict:
        return await maintenance.drop_schedule(self._changing(), name, expected_version)

    async def save_declaration(self, declaration: Declaration, expected_version: int | None) -> Verdict:
        return await maintenance.save_declaration(self._changing(), declaration, expected_version)

    async def declarations(self) -> list[Declaration]:
        return await maintenance.declarations(self._open())

    async def schedules(
        self, names: Sequence[str] = (), *, after: str = "", limit: int | None = None
    ) -> list[Schedule]:
        return await maintenance.schedules(self._open(), names, after, limit)

    async def upcoming(self, limit: int) -> list[Schedule]:
        return await maintenance.upcoming(self._open(), limit)

    # Keys and the audit trail

    async def save_key(self, key: ApiKey, *, new: bool = False) -> Verdict:
        return await access.save_key(self._changing(), key, new)

    async def keys(self, ids: Sequence[str] = ()) -> list[ApiKey]:
        return await access.keys(self._open(), ids)

    async def drop_keys(self, ids: Sequence[str]) -> None:
        await access.drop_keys(self._changing(), ids)

    async def audit(self, entries: Sequence[AuditEntry]) -> None:
        await access.audit(self._changing(), entries)

    async def audited(self, after: str | None, limit: int) -> AuditPage:
        return await access.audited(self._open(), after, limit)

    # Steps and events

    async def step(self, job_id: str, name: str, kind: StepKind = StepKind.STEP) -> str | None:
        return await holder.step(self._open(), job_id, name, kind)

    async def record_step(
        self, hold: Hold, name: str, answer: str, now: Instant, kind: StepKind = StepKind.STEP
    ) -> Verdict:
        return await holder.record_step(self._open(), hold, name, answer, now, kind)

    async def steps(self, job_id: str, limit: int) -> list[Step]:
        return await waits.steps(self._open(), job_id, limit)

    async def inbox(self, job_id: str) -> Inbox:
        return await waits.inbox(self._open(), job_id)

    async def send(self, events: Sequence[NewEvent], now: Instant) -> list[Delivery]:
        return await waits.send(self._changing(), events, now)

    async def listen_for(self, hold: Hold, wait: EventWait, now: Instant) -> Verdict:
        return await waits.listen_for(self._open(), hold, wait, now)

    async def stop_listening(self, hold: Hold, wait: EventWait, now: Instant) -> Verdict:
        return await waits.stop_listening(self._open(), hold, wait, now)

    # Output

    async def append_output(self, parts: Sequence[OutputPart], now: Instant) -> list[Verdict]:
        return await output.append(self._open(), parts, now)

    async def output(self, job_id: str, after: OutputPlace, limit: int) -> list[StoredPart]:
        return await output.read(self._open(), job_id, after, limit)

    async def output_end(self, job_id: str) -> OutputEnd | None:
        return await output.end(self._open(), job_id)

    # Trees

    async def insert_children(self, hold: Hold, jobs: Sequence[NewJob], now: Instant) -> list[Inserted] | None:
        return await children.insert_children(self._open(), hold, jobs, now)

    async def stage(self, hold: Hold, part: int, jobs: Sequence[NewJob], now: Instant) -> Verdict:
        return await children.stage(self._open(), hold, part, jobs, now)

    async def children(self, job_id: str, after: str | None, limit: int, status: Status | None = None) -> Page:
        return await children.children(self._open(), job_id, after, limit, status)

    # Result tables

    async def declare(self, tables: Sequence[ResultTable]) -> list[str]:
        return await results.declare(self._changing(), tables)

    async def result_tables(self) -> list[ResultTable]:
        return await results.result_tables(self._open())

    async def put_rows(self, batches: Sequence[RowBatch], now: Instant) -> list[Verdict]:
        return await results.put_rows(self._open(), batches, now)

    async def rows(self, table: ResultTable, ask: RowQuery) -> RowPage:
        return await results.rows(self._open(), table, ask)

    async def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
        return await results.rows_by_subject(self._open(), table, subject, after, limit)

    async def latest(self, subject: str, job_type: str) -> str | None:
        return await results.latest(self._open(), subject, job_type)

    async def drop_rows(self, job_id: str, limit: int) -> int:
        return await results.drop_rows(self._changing(), job_id, limit)

    # Transfer to another engine

    async def freeze(self, state: MoveState | None) -> int:
        return await transfer.freeze(self._open(), state)

    async def moving(self) -> MoveState | None:
        return await transfer.moving(self._open())

    async def export(self, kind: str, after: str | None, limit: int) -> Exported:
        return await transfer.export(self._open(), kind, after, limit)

    async def restore(self, kind: str, items: Sequence[bytes], state: MoveState) -> None:
        await transfer.restore(self._open(), kind, items, state)

    async def adopt(self, jobs: Sequence[Adopted], now: Instant) -> list[Verdict]:
        return await transfer.adopt(self._changing(), jobs, now)

    def fit(self, kind: str, item: bytes) -> bytes:
        return transfer.fit(kind, item)

    # Reading

    async def get(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
        return await read.get(self._open(), job_ids)

    async def statuses(self, job_ids: Sequence[str]) -> list[Status | None]:
        return await read.statuses(self._open(), job_ids)

    async def find(self, query: Query) -> Page:
        return await read.find(await self._everywhere(), query)

    async def counts(self) -> dict[str, int]:
        return await read.counts(await self._everywhere())

    async def depths(self) -> list[Depth]:
        return await read.depths(await self._everywhere())

    async def counters(
        self, since: Instant, until: Instant, *, width: int | None = None, kinds: bool = True
    ) -> list[Counter]:
        return await table.counters(self._open().tables, since, until, width, kinds)

    async def totals(self) -> list[Total]:
        return await access.totals(self._open().tables)

    async def rate_due(self, job_id: str, now: Instant) -> Instant | None:
        return await parking.rate_due(self._open(), job_id, now)

    async def ahead(self, job_id: str, limit: int) -> int:
        return await read.ahead(await self._everywhere(), job_id, limit)

    async def ahead_in(self, job_id: str, lanes: Sequence[tuple[str, str]], limit: int) -> list[int]:
        return await read.ahead_in(await self._everywhere(), job_id, lanes, limit)

    async def diagnose(self, now: Instant) -> list[Finding]:
        return await maintenance.diagnose(self._open(), now)

    async def dead(self, limit: int) -> list[DeadGroup]:
        return await read.dead(await self._everywhere(), limit)
