"""The port on PostgreSQL: which function each verb calls, in which transaction, and which listeners it wakes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

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
from backstay.core.workers import former_since
from backstay.engines import lanes, sql_rows
from backstay.engines.coalescer import Coalescer
from backstay.engines.places import is_fast_completion
from backstay.engines.postgres import (
    access,
    admission,
    claim,
    insert,
    maintenance,
    read,
    results,
    retention,
    settle,
    transfer,
    waits,
)
from backstay.engines.postgres.claim import Part
from backstay.engines.postgres.connection import Session, Tx, guest_error, parse, refuse_unsafe
from backstay.engines.postgres.heads import Heads
from backstay.engines.postgres.wakeup import Waker
from backstay.engines.sql_rows import check_all
from backstay.errors import BackstayError, ConfigurationError, NotOpen, StoreError
from backstay.limits import CLAIM_ROUNDS_MAX, POLL_SECONDS, RECORD_INTERVAL_SECONDS, RELEASE_BATCH_MAX

T = TypeVar("T")


class PostgresStore:
    def __init__(self, url: str) -> None:
        self.address = parse(url)
        self._session = Session(self.address)
        self._waker: Waker | None = None
        self._submits = Coalescer(self._insert_plain, at_once=True)
        self._heads = Heads()
        self._looks: asyncio.TimerHandle | None = None

    # Opening

    async def open(self) -> None:
        await self._session.open()
        try:
            await self._session.run(self._prepare, transaction=False)
        except BaseException:
            await asyncio.shield(self._session.close())
            raise
        self._submits.open()
        self._waker = Waker(self._session)
        self._waker.start()

    async def _prepare(self, tx: Tx, _repeat: bool) -> None:
        await refuse_unsafe(tx.connection, self.location)
        if not await maintenance.check(tx.connection, tx.sql, self.location):
            await maintenance.migrate(tx.connection, tx.sql)
            await maintenance.check(tx.connection, tx.sql, self.location)

    async def close(self) -> None:
        await self._submits.finish()
        waker, self._waker = self._waker, None
        if self._looks is not None:
            self._looks.cancel()
        if waker is not None:
            await waker.stop()
        await self._session.close()

    async def exists(self) -> bool:
        """Return whether the schema exists; creates none."""
        return await self._by_itself(lambda tx, _: maintenance.exists(tx.connection, tx.sql, self.location))

    async def migrate(self) -> list[str]:
        async def missing(tx: Tx, _repeat: bool) -> list[str]:
            if await maintenance.check(tx.connection, tx.sql, self.location):
                return []  # needs no permission to change anything
            return await maintenance.migrate(tx.connection, tx.sql)

        return await self._by_itself(missing)

    async def _by_itself(self, verb: Callable[[Tx, bool], Awaitable[T]]) -> T:
        session = Session(self.address)  # a separate connection: this store may not be open
        await session.open()
        try:
            return (await session.run(verb, transaction=False))[0]
        finally:
            await session.close()

    def migration_sql(self) -> str:
        return maintenance.script(self._session.sql)

    @property
    def location(self) -> str:
        return self.address.shown

    @property
    def files_root(self) -> str | None:
        """Return None: workers may be on other hosts, which do not have this host's folders."""
        return None

    @property
    def poll_seconds(self) -> float:
        return POLL_SECONDS

    @property
    def record_seconds(self) -> float:
        return RECORD_INTERVAL_SECONDS

    async def would_erase(self) -> None:
        """Return None: see `erase`."""

    async def erase(self) -> list[str]:
        await self.exists()  # refuses the schema of another program, which must not be dropped
        raise ConfigurationError(
            "stop all workers, then delete the queue with its schema, and with everything else in it:"
            f' DROP SCHEMA "{self.address.schema}" CASCADE'
        )

    # The hot path

    async def insert(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        self._session.pool()  # refuses here what a closed store, or a forked one, would never flush
        self._submits.refuse_other_loop()
        if any(job.special for job in jobs):
            return await self._write(
                "insert", lambda tx, repeat: insert.insert(tx, jobs, now, self._store_now(now), repeat)
            )
        if len(jobs) >= insert.COPY_JOBS_MIN:
            return await self._write("insert", functools.partial(self._insert_copied, jobs, now))
        return await self._submits.insert(jobs, now)

    async def _insert_copied(self, jobs: Sequence[NewJob], now: Instant, tx: Tx, repeat: bool) -> list[Inserted]:
        return await insert.insert_copied(tx, jobs, now, await self._now(tx, now), repeat)

    def insert_here(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted] | None:
        """Return None: connections belong to the event loop."""

    async def insert_in(self, connection: object, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        encoded = insert.encoded(jobs)
        try:
            answers = await insert.insert_jobs(
                connection,
                self.address.schema,
                encoded,
                now,
                self._store_now(now),
                self.address.wake,
                self.location,
            )
        except BackstayError:
            raise
        except Exception as error:
            raise guest_error(error, self.location) from error
        return [await self._inserted_in(answer) for answer in answers]

    async def _inserted_in(self, answer: dict[str, Any]) -> Inserted:
        existing = None
        if answer["existing"]:
            # None if the same transaction has created it, so that no one else sees it yet.
            existing = (await self.get([answer["job_id"]]))[0]
        return Inserted(answer["job_id"], Status(answer["status"]), existing, answer.get("reused_from"))

    async def _insert_plain(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        waker, store_now = self._waker, self._store_now(now)
        carried = waker.carried(Signal.READY) if waker is not None and insert.is_single(jobs, now) else None
        try:
            inserted, tx = await self._session.run(
                lambda tx, repeat: insert.insert_plain(tx, jobs, now, store_now, repeat, carried),
                transaction=False,
                name="insert",
            )
        except BaseException:
            if waker is not None:
                waker.lost(carried)
            raise
        if waker is not None:
            waker.committed(tx.signals, carried)
        return inserted

    async def claim(self, request: ClaimRequest, now: Instant) -> list[ClaimedJob]:
        if request.lost is Lost.ALONE:
            return await self._claim(request, Part([]), now)
        asked = lanes.asked(request)
        if asked.is_few:
            return await self._claim(request, Part(asked.pairs()), now)
        if request.repeat and (jobs := await self._claim(request, Part([]), now)):
            return jobs
        async for page in lanes.pages(asked, lambda at: self._read(lambda tx: claim.lanes(tx, asked, at))):
            for part in claim.parts(page):
                if jobs := await self._claim(request, part, now):
                    return jobs
        return []

    async def _claim(self, request: ClaimRequest, part: Part, now: Instant) -> list[ClaimedJob]:
        if part.may_be_plain and request.lost is not Lost.ALONE:
            plain = await self._write(
                "claim",
                lambda tx, repeat: claim.claim_plain(tx, request, part, self._store_now(now), repeat, self._heads),
                transaction=False,
            )
            if plain is not None:
                if not plain:
                    self._look_again()
                return plain

        async def keyed(tx: Tx, repeat: bool) -> list[ClaimedJob] | None:
            return await claim.claim_keyed(tx, request, part, self._store_now(now), lambda: self._now(tx, now), repeat)

        for _ in range(CLAIM_ROUNDS_MAX):
            taken = await self._write("claim", keyed)
            if taken is not None:
                return taken
        if self._waker is not None:
            # there are more jobs behind the parked ones: free workers should claim again
            self._waker.committed({Signal.READY})
        return []

    def _look_again(self) -> None:
        """Wake the claimers here, who have found nothing, once the whole line is looked at again."""
        if (seconds := self._heads.seconds_unseen) is None or self._looks is not None:
            return

        def look() -> None:
            self._looks = None
            if self._waker is not None:
                self._waker.wake({Signal.READY})

        self._looks = asyncio.get_running_loop().call_later(seconds, look)

    async def wait_alone(self, request: ClaimRequest) -> dict[str, int]:
        return await self._read(lambda tx: claim.wait_alone(tx, request))

    async def apply(self, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
        verdicts: list[Verdict] = [Verdict.APPLIED] * len(transitions)
        slow = [i for i, transition in enumerate(transitions) if not is_fast_completion(transition)]
        repeated = False
        # What the fast way completes it names by job: a job that is named twice may be so for two attempts.
        if slow or len({transition.job_id for transition in transitions}) < len(transitions):
            check_all(transitions)
            slow = list(range(len(transitions)))  # all or nothing, and then in one transaction
        else:
            done, repeated = await self._complete(transitions, now)
            if len(done) < len(transitions):
                slow = [i for i, transition in enumerate(transitions) if transition.job_id not in done]
        if slow:
            rest = [transitions[i] for i in slow]

            async def each(tx: Tx, repeat: bool) -> list[Verdict]:
                return await settle.apply_each(tx, rest, await self._now(tx, now), repeat or repeated, now)

            found = await self._write("apply", each)
            for i, verdict in zip(slow, found, strict=True):
                verdicts[i] = verdict
            with contextlib.suppress(StoreError):  # committed: maintenance does the rest
                for transition in rest:
                    if transition.staged is not None:
                        await self._unpack(now, RELEASE_BATCH_MAX, transition.job_id)
        return verdicts

    async def _complete(self, plain: Sequence[Transition], now: Instant) -> tuple[set[str], bool]:
        """Complete plain jobs; return their ids, and whether an earlier try may have completed some."""
        children = [t for t in plain if t.parent_job_id is not None]
        others = [t for t in plain if t.parent_job_id is None] if children else plain
        repeated = False

        async def complete(tx: Tx, repeat: bool) -> set[str]:
            nonlocal repeated
            repeated |= repeat
            return await settle.complete(tx, others, self._store_now(now))

        async def complete_children(tx: Tx, repeat: bool) -> set[str]:
            nonlocal repeated
            repeated |= repeat
            return await settle.complete_children(tx, children, self._store_now(now), await self._now(tx, now))

        done = await self._write("apply", complete, transaction=False) if others else set()
        if children:
            done |= await self._write("apply", complete_children)
        return done, repeated

    async def extend(self, holds: Sequence[Hold], lease_expires_at: Instant, now: Instant) -> list[Verdict]:
        span = lease_expires_at - now
        return await self._write(
            "extend", lambda tx, _: settle.extend(tx, holds, span, self._store_now(now)), transaction=False
        )

    async def note(self, notes: Sequence[Note], now: Instant) -> list[Verdict]:
        return await self._write("note", lambda tx, _: settle.note(tx, notes, self._store_now(now)), transaction=False)

    # Maintenance: idempotent, leaderless, a bounded batch per call

    async def promote(self, now: Instant, limit: int) -> Promoted:
        async def due(tx: Tx) -> tuple[Instant, Instant | None]:
            at = await self._now(tx, now)
            return at, await maintenance.next_due(tx, at)

        at, next_due_at = await self._read(due)
        if next_due_at is None or next_due_at > at:
            return Promoted(0, self._here(next_due_at, at, now))
        promoted = await self._at("promote", now, lambda tx, at: maintenance.promote(tx, at, limit))
        return Promoted(promoted.count, self._here(promoted.next_due_at, at, now))

    def _here(self, moment: Instant | None, at: Instant, now: Instant) -> Instant | None:
        """Convert a time of the server's clock to the caller's clock, for a caller that sleeps until then."""
        return None if moment is None else moment - at + now

    async def expired(self, now: Instant, limit: int, dead_workers: Sequence[str] = ()) -> list[ExpiredClaim]:
        return await self._read(lambda tx: read.expired(tx, self._store_now(now), limit, dead_workers))

    async def overdue(self, now: Instant, limit: int) -> list[str]:
        return await self._read(lambda tx: tx.column("overdue", self._store_now(now), limit))

    async def fire(self, firings: Sequence[Firing], now: Instant) -> list[Verdict]:
        async def each(tx: Tx, repeat: bool) -> list[Verdict]:
            return [await maintenance.fire(tx, firing, now, self._store_now(now), repeat) for firing in firings]

        return await self._write("fire", each)

    async def retire(self, policy: RetentionPolicy, now: Instant, limit: int, after: str | None) -> Retired:
        async def look(tx: Tx) -> tuple[Instant, sql_rows.Found]:
            at = await self._now(tx, now)
            return at, await retention.look(tx, policy, at, limit, after)

        at, found = await self._read(look)

        async def move(tx: Tx, _repeat: bool) -> tuple[int, int]:
            return await retention.retire(tx, found.batch, at), await retention.drop(tx, policy, at, limit)

        archived, dropped = await self._write("retire", move)
        return sql_rows.answer(found, archived, dropped, limit)

    async def with_files(self, limit: int) -> list[str]:
        return await self._read(lambda tx: retention.with_files(tx, limit))

    async def cleaned(self, job_ids: Sequence[str]) -> None:
        await self._write("cleaned", lambda tx, _: retention.cleaned(tx, job_ids), transaction=False)

    async def remove(self, job_id: str, version: int, now: Instant) -> Verdict:
        return await self._write("remove", lambda tx, repeat: retention.remove(tx, job_id, version, repeat))

    async def release(self, now: Instant, limit: int) -> int:
        done, more = await self._at("release", now, lambda tx, at: maintenance.release(tx, at, limit))
        return done + await self._unpack(now, limit - done) if more else done

    # Workers and types

    async def beat(self, worker: WorkerRow) -> None:
        async def beat(tx: Tx, _repeat: bool) -> None:
            at = await self._now(tx, worker.heartbeat_at)
            details = msgspec.json.encode(worker).decode()
            await tx.execute("beat", worker.worker_id, at, details)

        await self._write("beat", beat, transaction=False)

    async def forget(self, worker_ids: Sequence[str], now: Instant) -> None:
        async def forget(tx: Tx, _repeat: bool) -> None:
            at = await self._now(tx, now)
            await tx.execute("forget", list(worker_ids), at, former_since(at))

        await self._write("forget", forget, transaction=False)

    async def former_workers(self, now: Instant) -> list[FormerWorker]:
        async def read_former(tx: Tx) -> list[FormerWorker]:
            return await read.former_workers(tx, former_since(await self._now(tx, now)))

        return await self._read(read_former)

    async def workers(
        self, ids: Sequence[str] = (), *, after: str = "", before: str = "", limit: int | None = None
    ) -> list[WorkerRow]:
        return await self._read(lambda tx: read.workers(tx, ids, after, before, limit))

    async def count_workers(self) -> int:
        return await self._read(read.count_workers)

    async def announce(self, types: Sequence[JobType]) -> None:
        await self._write("announce", lambda tx, _: maintenance.announce(tx, types))

    async def unmark(self, job_type: str, marks: Sequence[str]) -> Verdict:
        return await self._write("unmark", lambda tx, _: maintenance.unmark(tx, job_type, marks))

    async def job_types(self) -> list[JobType]:
        return await self._read(read.job_types)

    # Queues and schedules

    async def change_queue(self, name: str, change: QueueChange, now: Instant) -> QueueRow:
        return await self._at("change_queue", now, lambda tx, at: maintenance.change_queue(tx, name, change, at))

    async def queues(self) -> list[QueueRow]:
        return await self._read(read.queues)

    async def change_limit(self, of: LimitOf, name: str, change: LimitChange, now: Instant) -> LimitRow:
        return await self._at("change_limit", now, lambda tx, at: maintenance.change_limit(tx, of, name, change, at))

    async def limits(self) -> list[LimitRow]:
        return await self._read(read.limits)

    async def save_schedule(self, schedule: Schedule, expected_version: int | None) -> Verdict:
        return await self._write(
            "save_schedule", lambda tx, repeat: maintenance.save_schedule(tx, schedule, expected_version, repeat)
        )

    async def drop_schedule(self, name: str, expected_version: int | None = None) -> Verdict:
        return await self._write(
            "drop_schedule", lambda tx, repeat: maintenance.drop_schedule(tx, name, expected_version, repeat)
        )

    async def save_declaration(self, declaration: Declaration, expected_version: int | None) -> Verdict:
        return await self._write(
            "save_declaration",
            lambda tx, repeat: maintenance.save_declaration(tx, declaration, expected_version, repeat),
        )

    async def declarations(self) -> list[Declaration]:
        return await self._read(maintenance.declarations)

    async def schedules(
        self, names: Sequence[str] = (), *, after: str = "", limit: int | None = None
    ) -> list[Schedule]:
        return await self._read(lambda tx: maintenance.schedules(tx, names, after, limit))

    async def upcoming(self, limit: int) -> list[Schedule]:
        return await self._read(lambda tx: maintenance.upcoming(tx, limit))

    # Keys and the audit trail

    async def save_key(self, key: ApiKey, *, new: bool = False) -> Verdict:
        return await self._write("save_key", lambda tx, _: access.save_key(tx, key, new))

    async def keys(self, ids: Sequence[str] = ()) -> list[ApiKey]:
        return await self._read(lambda tx: access.keys(tx, ids))

    async def drop_keys(self, ids: Sequence[str]) -> None:
        await self._write("drop_keys", lambda tx, _: access.drop_keys(tx, ids))

    async def audit(self, entries: Sequence[AuditEntry]) -> None:
        await self._write("audit", lambda tx, _: access.audit(tx, entries))

    async def audited(self, after: str | None, limit: int) -> AuditPage:
        return await self._read(lambda tx: access.audited(tx, after, limit))

    # Steps and events

    async def step(self, job_id: str, name: str, kind: StepKind = StepKind.STEP) -> str | None:
        return await self._read(lambda tx: tx.value("step", job_id, kind.value, name))

    async def record_step(
        self, hold: Hold, name: str, answer: str, now: Instant, kind: StepKind = StepKind.STEP
    ) -> Verdict:
        return await self._write(
            "record_step",
            lambda tx, _: settle.record_step(tx, hold, name, answer, self._store_now(now), kind),
            transaction=False,
        )

    # Output

    async def append_output(self, parts: Sequence[OutputPart], now: Instant) -> list[Verdict]:
        return await self._write("append_output", lambda tx, _: settle.append_output(tx, parts, self._store_now(now)))

    async def output(self, job_id: str, after: OutputPlace, limit: int) -> list[StoredPart]:
        return await self._read(lambda tx: read.output(tx, job_id, after, limit))

    async def output_end(self, job_id: str) -> OutputEnd | None:
        return await self._read(lambda tx: read.output_end(tx, job_id))

    async def steps(self, job_id: str, limit: int) -> list[Step]:
        return await self._read(lambda tx: waits.steps(tx, job_id, limit))

    async def inbox(self, job_id: str) -> Inbox:
        return await self._read(lambda tx: waits.inbox(tx, job_id))

    async def send(self, events: Sequence[NewEvent], now: Instant) -> list[Delivery]:
        return await self._at("send", now, lambda tx, at: waits.send(tx, events, at))

    async def listen_for(self, hold: Hold, wait: EventWait, now: Instant) -> Verdict:
        return await self._at("listen_for", now, lambda tx, at: settle.listen_for(tx, hold, wait, at))

    async def stop_listening(self, hold: Hold, wait: EventWait, now: Instant) -> Verdict:
        return await self._at("stop_listening", now, lambda tx, at: settle.stop_listening(tx, hold, wait, at))

    # Trees

    async def insert_children(self, hold: Hold, jobs: Sequence[NewJob], now: Instant) -> list[Inserted] | None:
        return await self._write(
            "insert_children",
            lambda tx, repeat: settle.insert_children(tx, hold, jobs, now, self._store_now(now), repeat),
        )

    async def stage(self, hold: Hold, part: int, jobs: Sequence[NewJob], now: Instant) -> Verdict:
        return await self._write("stage", lambda tx, _: settle.stage(tx, hold, part, jobs))

    async def _unpack(self, now: Instant, limit: int, job_id: str | None = None) -> int:
        """Store staged children of settled jobs, one part per transaction, so that other calls run in between; return
        how many jobs were stored, about `limit` at most."""
        done = 0
        while done < limit:
            jobs = await self._at("unpack", now, lambda tx, at: settle.unpack(tx, now, at, job_id))
            if not jobs:
                break
            done += jobs
        return done

    async def children(self, job_id: str, after: str | None, limit: int, status: Status | None = None) -> Page:
        return await self._read(lambda tx: settle.children(tx, job_id, after, limit, status))

    # Result tables

    async def declare(self, tables: Sequence[ResultTable]) -> list[str]:
        return await self._write("declare", lambda tx, _: results.declare(tx, tables))

    async def result_tables(self) -> list[ResultTable]:
        return await self._read(results.result_tables)

    async def put_rows(self, batches: Sequence[RowBatch], now: Instant) -> list[Verdict]:
        return await self._at("put_rows", now, lambda tx, at: results.put_rows(tx, batches, at))

    async def rows(self, table: ResultTable, ask: RowQuery) -> RowPage:
        return await self._read(lambda tx: results.rows(tx, table, ask))

    async def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
        return await self._read(lambda tx: results.rows_by_subject(tx, table, subject, after, limit))

    async def latest(self, subject: str, job_type: str) -> str | None:
        return await self._read(lambda tx: results.latest(tx, subject, job_type))

    async def drop_rows(self, job_id: str, limit: int) -> int:
        return await self._write("drop_rows", lambda tx, _: results.drop_rows(tx, job_id, limit))

    # Transfer to another engine

    async def freeze(self, state: MoveState | None) -> int:
        return await self._write("freeze", lambda tx, _: transfer.freeze(tx, state))

    async def moving(self) -> MoveState | None:
        return await self._read(transfer.moving)

    async def export(self, kind: str, after: str | None, limit: int) -> Exported:
        return await self._read(lambda tx: transfer.export(tx, kind, after, limit))

    async def restore(self, kind: str, items: Sequence[bytes], state: MoveState) -> None:
        await self._write("restore", lambda tx, _: transfer.restore(tx, kind, items, state))

    async def adopt(self, jobs: Sequence[Adopted], now: Instant) -> list[Verdict]:
        return await self._at("adopt", now, lambda tx, at: transfer.adopt(tx, jobs, at))

    def fit(self, kind: str, item: bytes) -> bytes:
        return item

    # Reading

    async def get(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
        return await self._read(lambda tx: read.get(tx, job_ids))

    async def statuses(self, job_ids: Sequence[str]) -> list[Status | None]:
        return await self._read(lambda tx: read.statuses(tx, job_ids))

    async def find(self, query: Query) -> Page:
        return await self._read(lambda tx: read.find(tx, query))

    async def counts(self) -> dict[str, int]:
        return await self._read(read.counts)

    async def depths(self) -> list[Depth]:
        return await self._read(read.depths)

    async def counters(
        self, since: Instant, until: Instant, *, width: int | None = None, kinds: bool = True
    ) -> list[Counter]:
        return await self._read(lambda tx: read.counters(tx, since, until, width, kinds))

    async def totals(self) -> list[Total]:
        return await self._read(access.totals)

    async def rate_due(self, job_id: str, now: Instant) -> Instant | None:
        async def due(tx: Tx) -> Instant | None:
            at = await self._now(tx, now)
            return self._here(await admission.rate_due(tx, job_id, at), at, now)

        return await self._read(due)

    async def ahead(self, job_id: str, limit: int) -> int:
        return await self._read(lambda tx: read.ahead(tx, job_id, limit))

    async def ahead_in(self, job_id: str, lanes: Sequence[tuple[str, str]], limit: int) -> list[int]:
        return await self._read(lambda tx: read.ahead_in(tx, job_id, lanes, limit))

    async def diagnose(self, now: Instant) -> list[Finding]:
        return await self._read(lambda tx: maintenance.diagnose(tx, now))

    async def dead(self, limit: int) -> list[DeadGroup]:
        return await self._read(lambda tx: read.dead(tx, limit))

    # Signals

    def listen(self, signals: frozenset[Signal], listener: Listener) -> Callable[[], None]:
        if self._waker is None:
            raise NotOpen("the store is not open: use it inside `async with app:`")
        return self._waker.listen(signals, listener)

    # Transactions: how a verb is run, and by which clock

    def _store_now(self, now: Instant) -> Instant | None:
        """Return the caller's time, or None to use the server's clock."""
        return now if self.address.caller_clock else None

    async def _now(self, tx: Tx, now: Instant) -> Instant:
        return now if self.address.caller_clock else int(await tx.value("now"))

    async def _write(self, name: str, verb: Callable[[Tx, bool], Awaitable[T]], *, transaction: bool = True) -> T:
        answer, tx = await self._session.run(verb, transaction=transaction, name=name)
        if tx.signals and self._waker is not None:
            self._waker.committed(tx.signals)
        return answer

    async def _at(self, name: str, now: Instant, verb: Callable[[Tx, Instant], Awaitable[T]]) -> T:
        """Run a verb that needs the time as a number in a transaction."""

        async def run(tx: Tx, _repeat: bool) -> T:
            return await verb(tx, await self._now(tx, now))

        return await self._write(name, run)

    async def _read(self, verb: Callable[[Tx], Awaitable[T]]) -> T:
        return (await self._session.run(lambda tx, _: verb(tx), transaction=False))[0]
