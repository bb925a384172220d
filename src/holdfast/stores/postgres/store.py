"""The port on PostgreSQL: each verb is a function over a transaction; this class says over which kind."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.clock import Instant
from holdfast.errors import HoldfastError, QueueFull, StoreError
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
    Signal,
    Verdict,
    WorkerRow,
)
from holdfast.stores import retiring
from holdfast.stores.postgres import (
    claiming,
    diagnosing,
    guests,
    inserting,
    rating,
    reading,
    settling,
    upkeep,
)
from holdfast.stores.postgres.access_verbs import AccessVerbs
from holdfast.stores.postgres.errors import guest_error
from holdfast.stores.postgres.move_verbs import MoveVerbs
from holdfast.stores.postgres.row_verbs import RowVerbs
from holdfast.stores.postgres.tree_verbs import TreeVerbs
from holdfast.stores.postgres.tx import Tx
from holdfast.stores.transitions import check_all, is_plain_completion

_Submit = tuple[Sequence[NewJob], asyncio.Future[list[Inserted]]]


class PostgresStore(TreeVerbs, RowVerbs, MoveVerbs, AccessVerbs):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._submits: list[_Submit] = []
        self._submitted_at: Instant = 0
        self._inserting = 0  # statements under way
        self._no_insert = asyncio.Event()
        self._no_insert.set()
        self._inserts: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        if self._inserts:
            await asyncio.gather(*self._inserts, return_exceptions=True)
        await self._no_insert.wait()
        await super().close()

    # The hot path

    async def insert(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        if any(job.special for job in jobs):
            return await self._write(
                "insert", lambda tx, repeat: inserting.insert(tx, jobs, now, self._store_now(now), repeat)
            )
        if len(jobs) >= inserting.COPY_JOBS_MIN:
            return await self._write("insert", functools.partial(self._insert_copied, jobs, now))
        if self._inserting or self._submits:
            return await self._insert_together(jobs, now)
        self._inserting += 1  # alone, so far: at once, in the caller's own task
        self._no_insert.clear()
        try:
            return await self._write("insert", functools.partial(self._insert_plain, jobs, now), transaction=False)
        finally:
            self._inserting -= 1
            self._no_insert.set()

    async def _insert_copied(self, jobs: Sequence[NewJob], now: Instant, tx: Tx, repeat: bool) -> list[Inserted]:
        return await inserting.insert_copied(tx, jobs, now, await self._now(tx, now), repeat)

    async def insert_in(self, connection: object, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        encoded = msgspec.json.encode(list(jobs)).decode()
        try:
            answers = await guests.insert_jobs(
                connection,
                self.address.schema,
                encoded,
                now,
                self._store_now(now),
                self.address.wake,
                self.location,
            )
        except HoldfastError:
            raise
        except Exception as error:
            raise guest_error(error, self.location) from error
        return [await self._inserted_in(answer) for answer in answers]

    async def _inserted_in(self, answer: dict[str, Any]) -> Inserted:
        existing = None
        if answer["existing"]:
            # None where the same transaction has made it, which nobody else sees yet.
            existing = (await self.get([answer["job_id"]]))[0]
        return Inserted(answer["job_id"], Status(answer["status"]), existing, answer.get("reused_from"))

    def _insert_together(self, jobs: Sequence[NewJob], now: Instant) -> asyncio.Future[list[Inserted]]:
        """Plain inserts of one turn of the loop are one statement; should it be refused, each is tried alone."""
        self._session.pool()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Inserted]] = loop.create_future()
        if not self._submits:
            loop.call_soon(self._flush_inserts)
            self._submitted_at = now
        self._submitted_at = max(self._submitted_at, now)
        self._submits.append((jobs, future))
        return future

    def _flush_inserts(self) -> None:
        submits, self._submits = self._submits, []
        task = asyncio.get_running_loop().create_task(self._insert_all(submits, self._submitted_at))
        self._inserts.add(task)
        task.add_done_callback(self._inserts.discard)

    async def _insert_all(self, submits: list[_Submit], now: Instant) -> None:
        self._inserting += 1
        try:
            await self._insert_each(submits, now)
        finally:
            self._inserting -= 1

    async def _insert_each(self, submits: list[_Submit], now: Instant) -> None:
        everything = [job for jobs, _ in submits for job in jobs]
        plain = functools.partial(self._insert_plain, everything, now)
        try:
            inserted = await self._write("insert", plain, transaction=False)
        except Exception as error:
            if len(submits) > 1 and type(error) in (StoreError, QueueFull):
                for submit in submits:  # let what was refused harm only its own caller
                    await self._insert_each([submit], now)
                return
            for _, future in submits:
                if not future.done():
                    future.set_exception(error)
            return
        start = 0
        for jobs, future in submits:
            if not future.done():
                future.set_result(inserted[start : start + len(jobs)])
            start += len(jobs)

    async def _insert_plain(self, jobs: Sequence[NewJob], now: Instant, tx: Tx, repeat: bool) -> list[Inserted]:
        return await inserting.insert_plain(tx, jobs, now, self._store_now(now), repeat)

    async def claim(self, request: ClaimRequest, now: Instant) -> list[ClaimedJob]:
        plain = await self._write(
            "claim",
            lambda tx, repeat: claiming.claim_plain(tx, request, self._store_now(now), repeat),
            transaction=False,
        )
        if plain is not None:
            return plain

        async def keyed(tx: Tx, repeat: bool) -> list[ClaimedJob] | None:
            return await claiming.claim_keyed(tx, request, await self._now(tx, now), repeat)

        for _ in range(claiming.PARK_ROUNDS):
            taken = await self._write("claim", keyed)
            if taken is not None:
                return taken
        if self._waker is not None:
            self._waker.committed({Signal.READY})  # there is more behind what was parked: whoever is free comes again
        return []

    async def apply(self, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
        check_all(transitions)
        verdicts: list[Verdict] = [Verdict.APPLIED] * len(transitions)
        plain = [i for i, transition in enumerate(transitions) if is_plain_completion(transition)]
        slow = [i for i in range(len(transitions)) if i not in set(plain)] if len(plain) < len(transitions) else []
        repeated = False
        if plain and not slow:
            done, repeated = await self._complete([transitions[i] for i in plain], now)
            slow = [i for i in plain if transitions[i].job_id not in done]
        else:
            slow = list(range(len(transitions)))  # all or nothing, and then in one transaction
        if slow:
            rest = [transitions[i] for i in slow]

            async def each(tx: Tx, repeat: bool) -> list[Verdict]:
                return await settling.apply_each(tx, rest, await self._now(tx, now), repeat or repeated, now)

            found = await self._write("apply", each)
            for i, verdict in zip(slow, found, strict=True):
                verdicts[i] = verdict
            with contextlib.suppress(StoreError):  # it is committed: what is left to do, upkeep does
                for transition in rest:
                    if transition.staged is not None:
                        await self._unpack(now, RELEASE_BATCH_MAX, transition.job_id)
        return verdicts

    async def _complete(self, plain: list[Transition], now: Instant) -> tuple[set[str], bool]:
        """The ids of those that were completed at once, and whether some may have been by an earlier try."""
        children = [t for t in plain if t.parent_job_id is not None]
        others = [t for t in plain if t.parent_job_id is None] if children else plain
        repeated = False

        async def complete(tx: Tx, repeat: bool) -> set[str]:
            nonlocal repeated
            repeated |= repeat
            return await settling.complete(tx, others, self._store_now(now))

        async def complete_children(tx: Tx, repeat: bool) -> set[str]:
            nonlocal repeated
            repeated |= repeat
            return await settling.complete_children(tx, children, self._store_now(now), await self._now(tx, now))

        done = await self._write("apply", complete, transaction=False) if others else set()
        if children:
            done |= await self._write("apply", complete_children)
        return done, repeated

    async def extend(self, holds: Sequence[Hold], lease_expires_at: Instant, now: Instant) -> list[Verdict]:
        span = lease_expires_at - now
        return await self._write(
            "extend", lambda tx, _: settling.extend(tx, holds, span, self._store_now(now)), transaction=False
        )

    async def note(self, notes: Sequence[Note], now: Instant) -> list[Verdict]:
        return await self._write(
            "note", lambda tx, _: settling.note(tx, notes, self._store_now(now)), transaction=False
        )

    # Upkeep

    async def promote(self, now: Instant, limit: int) -> Promoted:
        async def due(tx: Tx) -> tuple[Instant, Instant | None]:
            at = await self._now(tx, now)
            return at, await upkeep.next_due(tx, at)

        at, next_due_at = await self._read(due)
        if next_due_at is None or next_due_at > at:
            return Promoted(0, self._here(next_due_at, at, now))
        promoted = await self._at("promote", now, lambda tx, at: upkeep.promote(tx, at, limit))
        return Promoted(promoted.count, self._here(promoted.next_due_at, at, now))

    def _here(self, moment: Instant | None, at: Instant, now: Instant) -> Instant | None:
        """A moment of the server's clock on the caller's, who is going to sleep until it."""
        return None if moment is None else moment - at + now

    async def expired(self, now: Instant, limit: int, dead_workers: Sequence[str] = ()) -> list[ExpiredClaim]:
        return await self._read(lambda tx: reading.expired(tx, self._store_now(now), limit, dead_workers))

    async def fire(self, firings: Sequence[Firing], now: Instant) -> list[Verdict]:
        async def each(tx: Tx, repeat: bool) -> list[Verdict]:
            return [await upkeep.fire(tx, firing, now, self._store_now(now), repeat) for firing in firings]

        return await self._write("fire", each)

    async def retire(self, policy: RetentionPolicy, now: Instant, limit: int, after: str | None) -> Retired:
        async def look(tx: Tx) -> tuple[Instant, retiring.Found]:
            at = await self._now(tx, now)
            return at, await upkeep.look(tx, policy, at, limit, after)

        at, found = await self._read(look)

        async def move(tx: Tx, _repeat: bool) -> tuple[int, int]:
            return await upkeep.retire(tx, found.batch, at), await upkeep.drop(tx, policy, at, limit)

        archived, dropped = await self._write("retire", move)
        return retiring.answer(found, archived, dropped, limit)

    async def with_files(self, limit: int) -> list[str]:
        return [row[0] for row in await self._read(lambda tx: tx.rows("with_files", limit))]

    async def cleaned(self, job_ids: Sequence[str]) -> None:
        await self._write("cleaned", lambda tx, _: tx.execute("cleaned", list(job_ids)), transaction=False)

    async def release(self, now: Instant, limit: int) -> int:
        done, more = await self._at("release", now, lambda tx, at: upkeep.release(tx, at, limit))
        return done + await self._unpack(now, limit - done) if more else done

    # Workers and types

    async def beat(self, worker: WorkerRow) -> None:
        async def beat(tx: Tx, _repeat: bool) -> None:
            at = await self._now(tx, worker.heartbeat_at)
            details = msgspec.json.encode(worker).decode()
            await tx.execute("beat", worker.worker_id, at, details)

        await self._write("beat", beat, transaction=False)

    async def forget(self, worker_ids: Sequence[str]) -> None:
        await self._write("forget", lambda tx, _: tx.execute("forget", list(worker_ids)), transaction=False)

    async def workers(self) -> list[WorkerRow]:
        return await self._read(reading.workers)

    async def announce(self, types: Sequence[JobType]) -> None:
        details = [msgspec.json.encode(each).decode() for each in types]
        names = [each.job_type for each in types]
        await self._write("announce", lambda tx, _: tx.execute("announce", names, details), transaction=False)

    async def job_types(self) -> list[JobType]:
        return await self._read(reading.job_types)

    # Queues and schedules

    async def change_queue(self, name: str, change: QueueChange, now: Instant) -> QueueRow:
        return await self._at("change_queue", now, lambda tx, at: upkeep.change_queue(tx, name, change, at))

    async def queues(self) -> list[QueueRow]:
        return await self._read(upkeep.queues)

    async def save_schedule(self, schedule: Schedule, expected_version: int | None) -> Verdict:
        return await self._write(
            "save_schedule", lambda tx, repeat: upkeep.save_schedule(tx, schedule, expected_version, repeat)
        )

    async def drop_schedule(self, name: str) -> Verdict:
        return await self._write("drop_schedule", lambda tx, repeat: upkeep.drop_schedule(tx, name, repeat))

    async def schedules(self, names: Sequence[str] = ()) -> list[Schedule]:
        return await self._read(lambda tx: upkeep.schedules(tx, names))

    # Steps

    async def step(self, job_id: str, name: str) -> str | None:
        return await self._read(lambda tx: tx.value("step", job_id, name))

    async def record_step(self, hold: Hold, name: str, answer: str, now: Instant) -> Verdict:
        return await self._write(
            "record_step",
            lambda tx, _: settling.record_step(tx, hold, name, answer, self._store_now(now)),
            transaction=False,
        )

    # Reading

    async def get(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
        return await self._read(lambda tx: reading.get(tx, job_ids))

    async def statuses(self, job_ids: Sequence[str]) -> list[Status | None]:
        return await self._read(lambda tx: reading.statuses(tx, job_ids))

    async def find(self, query: Query) -> Page:
        return await self._read(lambda tx: reading.find(tx, query))

    async def counts(self) -> dict[str, int]:
        return await self._read(reading.counts)

    async def depths(self) -> list[Depth]:
        return await self._read(reading.depths)

    async def counters(self, since: Instant, until: Instant) -> list[Counter]:
        return await self._read(lambda tx: reading.counters(tx, since, until))

    async def rate_due(self, job_id: str, now: Instant) -> Instant | None:
        async def due(tx: Tx) -> Instant | None:
            at = await self._now(tx, now)
            return self._here(await rating.rate_due(tx, job_id, at), at, now)

        return await self._read(due)

    async def ahead(self, job_id: str, limit: int) -> int:
        return await self._read(lambda tx: reading.ahead(tx, job_id, limit))

    async def diagnose(self, now: Instant) -> list[Finding]:
        return await self._read(lambda tx: diagnosing.diagnose(tx, now))

    async def dead(self, limit: int) -> list[DeadGroup]:
        return await self._read(lambda tx: reading.dead(tx, limit))
