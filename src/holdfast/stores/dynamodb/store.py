"""The port on two tables of DynamoDB. Each verb is a function over the ground; this class opens it and says which."""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from holdfast.clock import Instant
from holdfast.errors import ForkedStore, InvalidOption, NotOpen
from holdfast.lifecycle import Status, Transition
from holdfast.store.moves import Exported, MoveState
from holdfast.store.port import Listener
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
from holdfast.stores.dynamodb import (
    access,
    address,
    counting,
    diagnosing,
    exporting,
    finding,
    holding,
    migrating,
    rating,
    reading,
    retiring,
    rows,
    scheduling,
    settling,
    totalling,
    trailing,
    trees,
    upkeep,
)
from holdfast.stores.dynamodb import tables as definitions
from holdfast.stores.dynamodb.board import Board
from holdfast.stores.dynamodb.claiming import Claims
from holdfast.stores.dynamodb.ground import Ground, Remembered
from holdfast.stores.dynamodb.inserting import Submits
from holdfast.stores.dynamodb.table import Tables
from holdfast.stores.dynamodb.wire import Meter, Wire

T = TypeVar("T")
POLL_SECONDS = 30.0  # every look is paid for; the board wakes a worker long before
RECORD_SECONDS = 5.0  # and so is every note of progress


class DynamoStore:
    def __init__(self, url: str) -> None:
        self.address = address.parse(url)
        self._ground: Ground | None = None
        self._pid = os.getpid()

    @property
    def location(self) -> str:
        return self.address.shown

    @property
    def files_root(self) -> None:
        """None: workers are on other hosts."""

    @property
    def poll_seconds(self) -> float:
        return POLL_SECONDS

    @property
    def record_seconds(self) -> float:
        return RECORD_SECONDS

    @property
    def meter(self) -> Meter:
        """What this store has used since it was opened; units only where the URL says `meter=true`."""
        return self._open().tables.wire.meter

    # Opening

    async def open(self) -> None:
        self._pid = os.getpid()
        tables = self._tables()
        try:
            if not await migrating.check(tables):
                await migrating.migrate(tables, provisioned=self.address.provisioned)
            board = Board(tables, wake=self.address.wake, ceiling_seconds=self.address.wake_ceiling)
            await board.begin()
        except BaseException:
            await tables.wire.close()
            raise
        ground = Ground(
            tables=tables,
            board=board,
            counters=tables.counters,
            remembered=Remembered(),
            writer=secrets.token_hex(4),
        )
        self._claims = Claims(ground)
        self._submits = Submits(ground)
        self._ground = ground

    def _tables(self) -> Tables:
        where = self.address
        return Tables(Wire(where), where.tables, shards=where.shards, shown=where.shown)

    async def migrate(self) -> list[str]:
        return await self._by_itself(lambda tables: migrating.migrate(tables, provisioned=self.address.provisioned))

    async def exists(self) -> bool:
        """Whether the tables are there; makes none."""
        return await self._by_itself(migrating.exists)

    async def would_erase(self) -> dict[str, int]:
        """The tables that there are, and about how many items each has."""
        return await self._by_itself(migrating.would_erase)

    async def erase(self) -> list[str]:
        return await self._by_itself(migrating.erase)

    async def _by_itself(self, work: Callable[[Tables], Awaitable[T]]) -> T:
        tables = self._tables()  # of its own: this store may be open, or not yet
        try:
            return await work(tables)
        finally:
            await tables.wire.close()

    def migration_sql(self) -> None:
        """None: there is no SQL here, and whoever may write the tables may make them."""

    async def close(self) -> None:
        ground, self._ground = self._ground, None
        if ground is None or os.getpid() != self._pid:
            return
        try:
            await self._submits.finish()
            await ground.board.close()
        finally:
            await ground.tables.wire.close()

    def _open(self) -> Ground:
        if os.getpid() != self._pid:
            raise ForkedStore("this store was opened before fork(): open the app anew in the child process")
        if self._ground is None:
            raise NotOpen("the store is not open: use it inside `async with app:`")
        return self._ground

    def _changing(self) -> Ground:
        """For what changes the queue: it may stand still because it moves."""
        ground = self._open()
        ground.board.refuse_closed()
        return ground

    async def _everywhere(self) -> Ground:
        """For what looks into all shards: a process that never claims hears of new ones here."""
        ground = self._open()
        await ground.board.read(fresh=False)
        return ground

    def listen(self, signals: frozenset[Signal], listener: Listener) -> Callable[[], None]:
        return self._open().board.listen(signals, listener)

    # The hot path

    async def insert(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        self._open()
        return await self._submits.insert(jobs, now)

    async def insert_in(self, connection: object, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        raise InvalidOption(
            "connection= is for SQL engines: on DynamoDB submit with job_id= or dedup_key=, and repeat it if in doubt"
        )

    async def claim(self, request: ClaimRequest, now: Instant) -> list[ClaimedJob]:
        self._open()
        return await self._claims.claim(request, now)

    async def apply(self, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
        return await settling.apply(self._changing(), transitions, now)

    async def extend(self, holds: Sequence[Hold], lease_expires_at: Instant, now: Instant) -> list[Verdict]:
        return await holding.extend(self._open(), holds, lease_expires_at, now)

    async def note(self, notes: Sequence[Note], now: Instant) -> list[Verdict]:
        return await holding.note(self._open(), notes, now)

    # Upkeep

    async def promote(self, now: Instant, limit: int) -> Promoted:
        return await upkeep.promote(self._changing(), now, limit)

    async def expired(self, now: Instant, limit: int, dead_workers: Sequence[str] = ()) -> list[ExpiredClaim]:
        return await upkeep.expired(self._open(), now, limit, dead_workers)

    async def fire(self, firings: Sequence[Firing], now: Instant) -> list[Verdict]:
        return await scheduling.fire(self._changing(), firings, now)

    async def retire(self, policy: RetentionPolicy, now: Instant, limit: int, after: str | None) -> Retired:
        return await retiring.retire(self._changing(), policy, now, limit, after)

    async def with_files(self, limit: int) -> list[str]:
        return await retiring.with_files(self._open(), limit)

    async def cleaned(self, job_ids: Sequence[str]) -> None:
        await retiring.cleaned(self._changing(), job_ids)

    async def release(self, now: Instant, limit: int) -> int:
        return await upkeep.release(self._changing(), now, limit)

    # Workers and types

    async def beat(self, worker: WorkerRow) -> None:
        await reading.beat(self._open(), worker)

    async def forget(self, worker_ids: Sequence[str]) -> None:
        await reading.forget(self._open(), worker_ids)

    async def workers(self) -> list[WorkerRow]:
        return await reading.workers(self._open())

    async def announce(self, types: Sequence[JobType]) -> None:
        await reading.announce(self._changing(), types)

    async def job_types(self) -> list[JobType]:
        return await reading.job_types(self._open())

    # Queues and schedules

    async def change_queue(self, name: str, change: QueueChange, now: Instant) -> QueueRow:
        return await self._changing().board.change_queue(name, change, now)

    async def queues(self) -> list[QueueRow]:
        return await self._open().board.queues()

    async def save_schedule(self, schedule: Schedule, expected_version: int | None) -> Verdict:
        return await scheduling.save_schedule(self._changing(), schedule, expected_version)

    async def drop_schedule(self, name: str) -> Verdict:
        return await scheduling.drop_schedule(self._changing(), name)

    async def schedules(self, names: Sequence[str] = ()) -> list[Schedule]:
        return await scheduling.schedules(self._open(), names)

    # Keys, and what was changed by whom

    async def save_key(self, key: ApiKey, *, new: bool = False) -> Verdict:
        return await access.save_key(self._changing(), key, new)

    async def keys(self, ids: Sequence[str] = ()) -> list[ApiKey]:
        return await access.keys(self._open(), ids)

    async def drop_keys(self, ids: Sequence[str]) -> None:
        await access.drop_keys(self._changing(), ids)

    async def audit(self, entries: Sequence[AuditEntry]) -> None:
        await trailing.audit(self._changing(), entries)

    async def audited(self, after: str | None, limit: int) -> AuditPage:
        return await trailing.audited(self._open(), after, limit)

    # Steps

    async def step(self, job_id: str, name: str) -> str | None:
        return await holding.step(self._open(), job_id, name)

    async def record_step(self, hold: Hold, name: str, answer: str, now: Instant) -> Verdict:
        return await holding.record_step(self._open(), hold, name, answer, now)

    # Trees

    async def insert_children(self, hold: Hold, jobs: Sequence[NewJob], now: Instant) -> list[Inserted] | None:
        return await trees.insert_children(self._open(), hold, jobs, now)

    async def stage(self, hold: Hold, part: int, jobs: Sequence[NewJob], now: Instant) -> Verdict:
        return await trees.stage(self._open(), hold, part, jobs, now)

    async def children(self, job_id: str, after: str | None, limit: int, status: Status | None = None) -> Page:
        return await trees.children(self._open(), job_id, after, limit, status)

    # Result tables

    async def declare(self, tables: Sequence[ResultTable]) -> list[str]:
        return await definitions.declare(self._changing(), tables)

    async def result_tables(self) -> list[ResultTable]:
        return await definitions.result_tables(self._open())

    async def put_rows(self, batches: Sequence[RowBatch], now: Instant) -> list[Verdict]:
        return await rows.put_rows(self._open(), batches, now)

    async def rows(self, table: ResultTable, ask: RowQuery) -> RowPage:
        return await rows.rows(self._open(), table, ask)

    async def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
        return await rows.rows_by_subject(self._open(), table, subject, after, limit)

    async def latest(self, subject: str, job_type: str) -> str | None:
        return await rows.latest(self._open(), subject, job_type)

    async def drop_rows(self, job_id: str, limit: int) -> int:
        return await rows.drop_rows(self._changing(), job_id, limit)

    # Moving house

    async def freeze(self, state: MoveState | None) -> int:
        return await exporting.freeze(self._open(), state)

    async def moving(self) -> MoveState | None:
        return await exporting.moving(self._open())

    async def export(self, kind: str, after: str | None, limit: int) -> Exported:
        return await exporting.export(self._open(), kind, after, limit)

    async def restore(self, kind: str, items: Sequence[bytes], state: MoveState) -> None:
        await exporting.restore(self._open(), kind, items, state)

    def fit(self, kind: str, item: bytes) -> bytes:
        return exporting.fit(kind, item)

    # Reading

    async def get(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
        return await reading.get(self._open(), job_ids)

    async def statuses(self, job_ids: Sequence[str]) -> list[Status | None]:
        return await reading.statuses(self._open(), job_ids)

    async def find(self, query: Query) -> Page:
        return await finding.find(await self._everywhere(), query)

    async def counts(self) -> dict[str, int]:
        return await reading.counts(await self._everywhere())

    async def depths(self) -> list[Depth]:
        return await reading.depths(await self._everywhere())

    async def counters(self, since: Instant, until: Instant) -> list[Counter]:
        return await counting.counters(self._open().tables, since, until)

    async def totals(self) -> list[Total]:
        return await totalling.totals(self._open().tables)

    async def rate_due(self, job_id: str, now: Instant) -> Instant | None:
        return await rating.rate_due(self._open(), job_id, now)

    async def ahead(self, job_id: str, limit: int) -> int:
        return await finding.ahead(await self._everywhere(), job_id, limit)

    async def diagnose(self, now: Instant) -> list[Finding]:
        return await diagnosing.diagnose(self._open(), now)

    async def dead(self, limit: int) -> list[DeadGroup]:
        return await reading.dead(await self._everywhere(), limit)
