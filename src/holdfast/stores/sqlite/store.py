"""The port on one SQLite file. Each verb is a function over a connection; this class says on which thread it runs."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import apsw

from holdfast.clock import Instant
from holdfast.errors import ConfigurationError, ForkedStore, NotOpen, QueueFull, StoreError
from holdfast.lifecycle import Status, Transition
from holdfast.limits import POLL_SECONDS, RECORD_INTERVAL_SECONDS
from holdfast.store.port import Listener
from holdfast.store.types import (
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
    Verdict,
    WorkerRow,
)
from holdfast.stores import retiring
from holdfast.stores.sqlite import (
    archiving,
    claiming,
    connection,
    diagnosing,
    guests,
    inserting,
    queueing,
    rating,
    reading,
    releasing,
    scheduling,
    settling,
    upkeep,
)
from holdfast.stores.sqlite.bell import Bell
from holdfast.stores.sqlite.errors import translate
from holdfast.stores.sqlite.forking import inside
from holdfast.stores.sqlite.tx import Tx
from holdfast.stores.sqlite.writer import Writer

T = TypeVar("T")
_Submit = tuple[Sequence[NewJob], asyncio.Future[list[Inserted]]]
READERS = 2  # threads; reads are short, and more would only contend for the GIL


class SQLiteStore:
    def __init__(self, url: str) -> None:
        self.path = connection.path_of(url)
        self._writer: Writer | None = None
        self._bell = Bell(self.path)
        self._listeners: list[tuple[frozenset[Signal], Listener]] = []
        self._readers: ThreadPoolExecutor | None = None
        self._reader_state = threading.local()
        self._reader_connections: list[apsw.Connection] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._submits: list[_Submit] = []
        self._submitted_at: Instant = 0
        self._lone = True  # whether submits come one at a time, as far as the last turn tells
        self._ahead: asyncio.Future[list[Inserted]] | None = None  # the last one that went straight to the writer
        self._pid = os.getpid()

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

    # Opening

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        opened = await self._loop.run_in_executor(None, self._prepare)
        self._bell.open()
        self._writer = Writer(opened, self.path, self._loop, self._committed)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="holdfast-sqlite-reader")

    def _prepare(self) -> apsw.Connection:
        with inside():
            connection.create(self.path)
            opened = connection.connect(self.path)
            try:
                connection.migrate(opened, self.path)
            except BaseException:
                opened.close()
                raise
            return opened

    async def exists(self) -> bool:
        """Whether the file is there; makes none."""
        return self.path.exists()

    async def migrate(self) -> list[str]:
        def run() -> list[str]:
            with inside():
                connection.create(self.path)
                opened = connection.connect(self.path)
                try:
                    return connection.migrate(opened, self.path)
                finally:
                    opened.close()

        return await asyncio.get_running_loop().run_in_executor(None, run)

    def migration_sql(self) -> None:
        """None: whoever may write the file may migrate it."""

    async def erase(self) -> list[str]:
        raise ConfigurationError(f"a queue in a file is deleted with it: stop all workers, then remove {self.path}*")

    async def close(self) -> None:
        writer, readers, self._writer, self._readers = self._writer, self._readers, None, None
        if writer is None or readers is None or os.getpid() != self._pid:
            return

        def run() -> None:
            writer.stop()
            readers.shutdown()
            with inside():
                for each in self._reader_connections:
                    each.close()
                self._reader_connections.clear()
                writer.connection.close()
            self._bell.close()

        await asyncio.get_running_loop().run_in_executor(None, run)

    # Threads

    def _refuse_fork(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedStore("this store was opened before fork(): open the app anew in the child process")

    def _write(self, name: str, run: Callable[[Tx], T], *, essential: bool) -> asyncio.Future[T]:
        writer, loop = self._opened()
        future: asyncio.Future[T] = loop.create_future()
        writer.put(name, run, functools.partial(_answer, future), essential)
        return future

    def _opened(self) -> tuple[Writer, asyncio.AbstractEventLoop]:
        if self._writer is None or self._loop is None:
            raise NotOpen("the store is not open: use it inside `async with app:`")
        return self._writer, self._loop

    async def _read(self, run: Callable[[apsw.Connection], T]) -> T:
        self._refuse_fork()
        if self._readers is None or self._loop is None:
            raise NotOpen("the store is not open: use it inside `async with app:`")
        return await self._loop.run_in_executor(self._readers, self._run_read, run)

    def _run_read(self, run: Callable[[apsw.Connection], T]) -> T:
        own: apsw.Connection | None = getattr(self._reader_state, "connection", None)
        if self._writer is not None:
            self._writer.identity.check()
        try:
            with inside():
                if own is None:
                    own = self._reader_state.connection = connection.connect(self.path)
                    self._reader_connections.append(own)
                own.execute("BEGIN")  # one snapshot for all statements of a read
                try:
                    return run(own)
                finally:
                    own.execute("ROLLBACK")
        except apsw.Error as error:
            raise translate(error, str(self.path)) from None

    def _committed(self, signals: set[Signal]) -> None:
        """On the writer thread, after COMMIT."""
        self._bell.ring(signals)
        if self._listeners and self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake, signals)

    def _wake(self, signals: set[Signal]) -> None:
        for wanted, listener in tuple(self._listeners):
            for signal in wanted & signals:
                listener(signal)

    def listen(self, signals: frozenset[Signal], listener: Listener) -> Callable[[], None]:
        if self._loop is None:
            raise NotOpen("the store is not open: use it inside `async with app:`")
        entry = (signals, listener)
        self._listeners.append(entry)
        stop_bell = self._bell.listen(signals, listener, self._loop)

        def stop() -> None:
            self._listeners.remove(entry)
            stop_bell()

        return stop

    # The hot path

    async def insert(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        if jobs[0].special if len(jobs) == 1 else any(job.special for job in jobs):
            return await self._write("insert", lambda tx: inserting.insert(tx, jobs, now), essential=False)
        return await self._insert_together(jobs, now)

    async def insert_in(self, connection: object, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        self._opened()
        return guests.insert(connection, self.path, jobs, now, self._committed)

    def _insert_together(self, jobs: Sequence[NewJob], now: Instant) -> asyncio.Future[list[Inserted]]:
        """Plain inserts of one turn of the loop become one verb; one that is likely to come alone goes straight to the
        writer. Should one of several be refused, each is tried alone."""
        self._refuse_fork()
        writer, loop = self._opened()
        future: asyncio.Future[list[Inserted]] = loop.create_future()
        if self._lone and writer.idle and not self._submits:
            self._ahead = future
            self._insert_all([(jobs, future)], now)
            return future
        if not self._submits:
            loop.call_soon(self._flush_inserts)
            self._submitted_at = now
        self._submitted_at = max(self._submitted_at, now)  # with the first one's, the others would be due later
        self._submits.append((jobs, future))
        return future

    def _flush_inserts(self) -> None:
        submits, self._submits = self._submits, []
        self._lone = len(submits) == 1 and (self._ahead is None or self._ahead.done())
        self._insert_all(submits, self._submitted_at)

    def _insert_all(self, submits: list[_Submit], now: Instant) -> None:
        everything = [job for jobs, _ in submits for job in jobs]
        share = functools.partial(self._share, submits, now)
        try:
            writer, _ = self._opened()
            writer.put("insert", lambda tx: inserting.insert_plain(tx, everything, now), share, essential=False)
        except Exception as error:
            share(None, error)

    def _share(
        self, submits: list[_Submit], now: Instant, inserted: list[Inserted] | None, error: BaseException | None
    ) -> None:
        """Hand each caller its part of the answer to a common insert."""
        if len(submits) > 1 and type(error) in (StoreError, QueueFull):  # let what was refused harm only its own caller
            for submit in submits:
                self._insert_all([submit], now)
            return
        start = 0
        for jobs, future in submits:
            end = start + len(jobs)
            _answer(future, None if inserted is None else inserted[start:end], error)
            start = end

    async def claim(self, request: ClaimRequest, now: Instant) -> list[ClaimedJob]:
        return await self._write("claim", lambda tx: claiming.claim(tx, request, now), essential=False)

    async def apply(self, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
        return await self._write("apply", lambda tx: settling.apply(tx, transitions, now), essential=True)

    async def extend(self, holds: Sequence[Hold], lease_expires_at: Instant, now: Instant) -> list[Verdict]:
        return await self._write("extend", lambda tx: settling.extend(tx, holds, lease_expires_at), essential=True)

    async def note(self, notes: Sequence[Note], now: Instant) -> list[Verdict]:
        return await self._write("note", lambda tx: settling.note(tx, notes, now), essential=False)

    # Upkeep

    async def promote(self, now: Instant, limit: int) -> Promoted:
        next_due_at = await self._read(lambda c: upkeep.next_due(c, now))
        if next_due_at is None or next_due_at > now:
            return Promoted(0, next_due_at)
        return await self._write("promote", lambda tx: upkeep.promote(tx, now, limit), essential=False)

    async def expired(self, now: Instant, limit: int, dead_workers: Sequence[str] = ()) -> list[ExpiredClaim]:
        return await self._read(lambda c: reading.expired(c, now, limit, dead_workers))

    async def fire(self, firings: Sequence[Firing], now: Instant) -> list[Verdict]:
        return await self._write("fire", lambda tx: scheduling.fire(tx, firings, now), essential=False)

    async def retire(self, policy: RetentionPolicy, now: Instant, limit: int, after: str | None) -> Retired:
        found = await self._read(lambda c: archiving.look(c, policy, now, limit, after))
        if not found.batch and not await self._read(lambda c: archiving.anything_to_drop(c, policy, now)):
            return Retired(0, 0, found.next)
        archived, dropped = await self._write(
            "retire", lambda tx: archiving.retire(tx, found.batch, policy, now, limit), essential=True
        )
        return retiring.answer(found, archived, dropped, limit)

    async def with_files(self, limit: int) -> list[str]:
        return await self._read(lambda c: archiving.with_files(c, limit))

    async def cleaned(self, job_ids: Sequence[str]) -> None:
        await self._write("cleaned", lambda tx: archiving.cleaned(tx, job_ids), essential=True)

    async def release(self, now: Instant, limit: int) -> int:
        if not await self._read(upkeep.release_needed):
            return 0
        return await self._write("release", lambda tx: releasing.release(tx, now, limit), essential=True)

    # Workers and types

    async def beat(self, worker: WorkerRow) -> None:
        await self._write("beat", lambda tx: upkeep.beat(tx, worker), essential=True)

    async def forget(self, worker_ids: Sequence[str]) -> None:
        await self._write("forget", lambda tx: upkeep.forget(tx, worker_ids), essential=True)

    async def workers(self) -> list[WorkerRow]:
        return await self._read(reading.workers)

    async def announce(self, types: Sequence[JobType]) -> None:
        await self._write("announce", lambda tx: upkeep.announce(tx, types), essential=False)

    async def job_types(self) -> list[JobType]:
        return await self._read(reading.job_types)

    # Queues and schedules

    async def change_queue(self, name: str, change: QueueChange, now: Instant) -> QueueRow:
        return await self._write(
            "change_queue", lambda tx: queueing.change_queue(tx, name, change, now), essential=True
        )

    async def queues(self) -> list[QueueRow]:
        return await self._read(queueing.queues)

    async def save_schedule(self, schedule: Schedule, expected_version: int | None) -> Verdict:
        return await self._write(
            "save_schedule", lambda tx: scheduling.save_schedule(tx, schedule, expected_version), essential=False
        )

    async def drop_schedule(self, name: str) -> Verdict:
        return await self._write("drop_schedule", lambda tx: scheduling.drop_schedule(tx, name), essential=True)

    async def schedules(self, names: Sequence[str] = ()) -> list[Schedule]:
        return await self._read(lambda c: scheduling.schedules(c, names))

    # Steps

    async def step(self, job_id: str, name: str) -> str | None:
        return await self._read(lambda c: reading.step(c, job_id, name))

    async def record_step(self, hold: Hold, name: str, answer: str, now: Instant) -> Verdict:
        return await self._write(
            "record_step", lambda tx: settling.record_step(tx, hold, name, answer, now), essential=True
        )

    # Reading

    async def get(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
        return await self._read(lambda c: reading.get(c, job_ids))

    async def statuses(self, job_ids: Sequence[str]) -> list[Status | None]:
        return await self._read(lambda c: reading.statuses(c, job_ids))

    async def find(self, query: Query) -> Page:
        return await self._read(lambda c: reading.find(c, query))

    async def counts(self) -> dict[str, int]:
        return await self._read(reading.counts)

    async def depths(self) -> list[Depth]:
        return await self._read(reading.depths)

    async def counters(self, since: Instant, until: Instant) -> list[Counter]:
        return await self._read(lambda c: reading.counters(c, since, until))

    async def rate_due(self, job_id: str, now: Instant) -> Instant | None:
        return await self._read(lambda c: rating.rate_due(c, job_id, now))

    async def ahead(self, job_id: str, limit: int) -> int:
        return await self._read(lambda c: reading.ahead(c, job_id, limit))

    async def diagnose(self, now: Instant) -> list[Finding]:
        return await self._read(lambda c: diagnosing.diagnose(c, self.path))

    async def dead(self, limit: int) -> list[DeadGroup]:
        return await self._read(lambda c: reading.dead(c, limit))


def _answer(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """On the event loop. Whoever was cancelled meanwhile no longer waits."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
