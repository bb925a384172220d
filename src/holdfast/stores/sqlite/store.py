"""The port on one SQLite file. Each verb is a function over a connection; this class says whether it writes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Sequence

from holdfast.clock import Instant
from holdfast.errors import QueueFull, StoreError
from holdfast.lifecycle import Status, Transition
from holdfast.limits import RELEASE_BATCH_MAX
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
    Verdict,
    WorkerRow,
)
from holdfast.stores import retiring
from holdfast.stores.sqlite import (
    archiving,
    claiming,
    diagnosing,
    guests,
    inserting,
    queueing,
    rating,
    reading,
    scheduling,
    settling,
    upkeep,
)
from holdfast.stores.sqlite.access_verbs import AccessVerbs
from holdfast.stores.sqlite.move_verbs import MoveVerbs
from holdfast.stores.sqlite.row_verbs import RowVerbs
from holdfast.stores.sqlite.running import answer
from holdfast.stores.sqlite.tree_verbs import TreeVerbs

_Submit = tuple[Sequence[NewJob], asyncio.Future[list[Inserted]]]


class SQLiteStore(TreeVerbs, RowVerbs, MoveVerbs, AccessVerbs):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._submits: list[_Submit] = []
        self._submitted_at: Instant = 0
        self._lone = True  # whether submits come one at a time, as far as the last turn tells
        self._ahead: asyncio.Future[list[Inserted]] | None = None  # the last one that went straight to the writer

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
            answer(future, None if inserted is None else inserted[start:end], error)
            start = end

    async def claim(self, request: ClaimRequest, now: Instant) -> list[ClaimedJob]:
        return await self._write("claim", lambda tx: claiming.claim(tx, request, now), essential=False)

    async def apply(self, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
        verdicts = await self._write("apply", lambda tx: settling.apply(tx, transitions, now), essential=True)
        with contextlib.suppress(StoreError):  # it is committed: what is left to do, upkeep does
            for transition in transitions:
                if transition.staged is not None:
                    await self._unpack(now, RELEASE_BATCH_MAX, transition.job_id)
        return verdicts

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
        done = await self._write("release", lambda tx: upkeep.release(tx, now, limit), essential=True)
        return done + await self._unpack(now, limit - done)

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
