"""How a handler's context reaches its run: progress, rows, children; from the event loop or from a thread.

Rows are written while the handler runs, under its attempt, and become visible with its completion. Children are stored
at once, or with the settlement.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import islice
from typing import Any, ParamSpec, TypeVar

import msgspec

from backstay.clock import Clock, Instant
from backstay.core import dependencies
from backstay.core.checks import check_text
from backstay.core.dependencies import Awaits, Brood
from backstay.core.port import Store
from backstay.core.records import ClaimedJob, Effect, Inserted, JobRecord, JobType, NewJob, Page, Verdict
from backstay.core.result_tables import ResultTable, RowBatch, RowOrigin, RowPage, RowQuery, Value
from backstay.core.states import TERMINAL, Status
from backstay.core.waits import StepKind
from backstay.errors import (
    ArtifactNotFound,
    ChildMismatch,
    ClaimLost,
    ConfigurationError,
    DuplicateRow,
    InvalidOption,
    InvalidRow,
    JobNotFound,
    StoreMoved,
    UnknownDependency,
    UnknownTable,
)
from backstay.files.local import (
    AsyncSource,
    Content,
    Files,
    Source,
    content_of,
    kept_in_thread,
    read_result,
    until,
    watched,
)
from backstay.files.references import ArtifactRef, may_read, stored_files
from backstay.handlers import Handler
from backstay.job import Ended, Submitted, Waited
from backstay.lifespan import Resources
from backstay.limits import (
    BATCH_ITEM_ROWS_BYTES_MAX,
    CHILDREN_INLINE_MAX,
    CHILDREN_LOADED_MAX,
    CHILDREN_PART_MAX,
    KEY_LENGTH_MAX,
    ROWS_PART_MAX,
    STAGED_PART_BYTES_MAX,
)
from backstay.observers import Observers
from backstay.ops.tree import children_again, rerun_version, said_of_blocked, said_of_overtaken
from backstay.ops.wait import HOPELESS, OF_THE_STORE
from backstay.options import SubmitOptions, build, new_record
from backstay.results.reader import read
from backstay.worker.outputs import Outputs
from backstay.worker.run import Execution, Family, Item, Run, digest, in_parts
from backstay.worker.waits import Waits

Row = tuple[Value, ...]


class Rows:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def put(self, run: Run, table: ResultTable, rows: Sequence[Row]) -> None:
        """Write one part. The rows of a job in a batch are kept until its call has answered, so that a failed call
        leaves none."""
        try:
            batch = _batch(run, table, rows)
            if isinstance(run, Item):
                _keep(run, batch)
            elif (await self._put([batch]))[0] is not Verdict.APPLIED:
                raise _lost(run)
        except Exception as error:
            # How much of it is stored depends on the engine: it must not be published, even if the handler continues.
            run.rows_refused = run.rows_refused or error
            raise

    async def publish(self, items: Sequence[Item]) -> dict[Item, Exception]:
        """Write the rows that the jobs of a call have put, many in one commit. Return the jobs that must fail for it,
        and why."""
        failed = {item: item.rows_refused for item in items if item.rows_refused is not None}
        waiting = [(i, batch) for i in items if not i.is_over and i not in failed for batch in i.kept_rows]
        while waiting:
            size = _fitting(waiting)
            now, waiting = waiting[:size], waiting[size:]
            try:
                verdicts = await self._put([batch for _, batch in now])
            except (*OF_THE_STORE, *HOPELESS, StoreMoved):
                raise
            except Exception as error:
                guilty = _guilty(now, error)
                if guilty is None:  # whose row it is shows when they are put one by one
                    failed |= await self._publish_each(now)
                else:
                    failed[guilty] = error
                    waiting = [*now, *waiting]
                waiting = [each for each in waiting if each[0] not in failed]
                continue
            for (item, _), verdict in zip(now, verdicts, strict=True):
                if verdict is not Verdict.APPLIED:
                    failed.setdefault(item, _lost(item))
        return failed

    async def _publish_each(self, waiting: Sequence[tuple[Item, RowBatch]]) -> dict[Item, Exception]:
        failed: dict[Item, Exception] = {}
        for item, batch in waiting:
            if item in failed:
                continue
            try:
                [verdict] = await self._put([batch])
                if verdict is not Verdict.APPLIED:
                    failed[item] = _lost(item)
            except (*OF_THE_STORE, *HOPELESS, StoreMoved):
                raise
            except Exception as error:
                failed[item] = error
        return failed

    async def _put(self, batches: Sequence[RowBatch]) -> list[Verdict]:
        try:
            return await self._store.put_rows(batches, self._clock.now())
        except UnknownTable:  # no handler names it in results=[…], so it was not made when the app opened
            await self._store.declare(list({batch.table.name: batch.table for batch in batches}.values()))
            return await self._store.put_rows(batches, self._clock.now())


def _guilty(waiting: Sequence[tuple[Item, RowBatch]], error: Exception) -> Item | None:
    """Return the job whose rows caused the error, if that is known."""
    if len({item.job.job_id for item, _ in waiting}) == 1:
        return waiting[0][0]
    named = error.job_id if isinstance(error, DuplicateRow) else None
    return next((item for item, _ in waiting if item.job.job_id == named), None)


def _batch(run: Run, table: ResultTable, rows: Sequence[Row]) -> RowBatch:
    _refuse_repeated(run, table, rows)
    run.row_parts = run.row_parts or {}
    part = run.row_parts.get(table.name, 0)
    run.row_parts[table.name] = part + 1
    job = run.job
    return RowBatch(run.hold, table, part, tuple(rows), RowOrigin(job.parent_job_id, job.root_job_id, job.job_stage))


def _refuse_repeated(run: Run, table: ResultTable, rows: Sequence[Row]) -> None:
    """Refuse duplicates within a part. The store finds those across parts."""
    at = next(i for i, column in enumerate(table.columns) if column.name == table.key)
    seen: set[Value] = set()
    for row in rows:
        if row[at] in seen:
            job_id = run.job.job_id
            raise DuplicateRow(
                f"{table.name}: {table.key} {row[at]!r:.100} twice in one run of job {job_id}", job_id=job_id
            )
        seen.add(row[at])


def _keep(item: Item, batch: RowBatch) -> None:
    item.kept_bytes += sum(_size(row) for row in batch.rows)
    if item.kept_bytes > BATCH_ITEM_ROWS_BYTES_MAX:
        raise InvalidRow(
            f"job {item.job.job_id} of a batch has put more than {BATCH_ITEM_ROWS_BYTES_MAX:,} bytes of rows"
            " (BATCH_ITEM_ROWS_BYTES_MAX): use @app.job for such jobs"
        )
    item.kept_rows.append(batch)


def _fitting(waiting: Sequence[tuple[Item, RowBatch]]) -> int:
    """Return how many batches go into one commit: at least one."""
    rows = 0
    for count, (_, batch) in enumerate(waiting):
        rows += len(batch.rows)
        if rows > ROWS_PART_MAX and count:
            return count
    return len(waiting)


def _size(row: Row) -> int:
    return sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)


def _lost(run: Run) -> ClaimLost:
    return ClaimLost(f"rows were not stored: this run no longer holds job {run.job.job_id}")


Targets = Callable[[str | Handler], Awaitable[Handler | JobType]]
_REFUSED = {
    "job_id": "a child's id follows from its key: give key=",
    "parent": "it is a child of this job: leave parent out, or use app.submit",
    "connection": "it is stored with this job's completion: leave connection out, or use app.submit",
}


class Children:
    def __init__(self, store: Store, clock: Clock, targets: Targets, observers: Observers | None = None) -> None:
        self._store = store
        self._observers = observers
        self._clock = clock
        self._targets = targets

    async def load(self, run: Run) -> None:
        """Load the stored children before their parent's handler is called."""
        if not run.job.waits:  # entered from the top, for the first time since it was asked to run
            await self._again(run)
        page = await self._store.children(run.job.job_id, None, CHILDREN_LOADED_MAX)
        self._family(run).stored = {record.job_id: record for record in page.items}

    async def _again(self, run: Run) -> None:
        """Rerun the children of a job that was retried together with them. This happens before its first attempt only:
        children that it has submitted since then are new."""
        [record] = await self._store.get([run.job.job_id])
        version = None if record is None else rerun_version(record)
        if record is None or version is None:
            return
        step = f"children of version {version}"
        if await self._store.step(run.job.job_id, step, StepKind.OWN) is not None:
            return
        found, left = await children_again(self._store, self._clock, record, version, run.job.worker_id)
        if left.blocked:
            run.say_log(None, "WARNING", f"not rerun: {said_of_blocked(found, left.blocked)}")
        if left.overtaken:
            run.say_log(None, "WARNING", said_of_overtaken(left.overtaken))
        await self._store.record_step(run.hold, step, "true", self._clock.now(), StepKind.OWN)

    async def page(self, run: Run, after: str | None, named: int) -> Page:
        """Return a page of all stored children, by id, or of the first `named` that this run has submitted, in that
        order."""
        if named == Ended.NONE:
            return Page(())
        if not named:
            return await self._store.children(run.job.job_id, after, CHILDREN_LOADED_MAX)
        start = int(after or 0)
        end = min(start + CHILDREN_LOADED_MAX, named)
        found: list[JobRecord | None] = []
        for first in range(start, end, CHILDREN_PART_MAX):
            ids = islice(self._family(run).named, first, min(first + CHILDREN_PART_MAX, end))
            found += await self._store.get(list(ids))
        records = tuple(record for record in found if record is not None)
        return Page(records, str(end) if end < named else None)

    async def upstream(self, run: Run) -> list[JobRecord]:
        """Return the dependencies of the job, up to as many as a record lists."""
        [record] = await self._store.get([run.job.job_id])
        if record is None:
            raise JobNotFound(f"no job {run.job.job_id}")
        found = await self._store.get(record.dependencies) if record.dependencies else []
        return [each for each in found if each is not None]

    # Submitting

    async def submit(
        self,
        run: Run,
        check: Callable[[], None],
        job_type: str | Handler,
        payload: Any,
        key: str | None,
        at_once: bool,
        options: SubmitOptions,
    ) -> Submitted:
        """Submit a child. `check` raises if the call of the handler that submits it has already returned."""
        target = await self._targets(job_type)
        check()
        if run.is_over:  # nothing would store it
            raise ClaimLost(f"a child was not stored: this run of job {run.job.job_id} has ended")
        job = build(target, payload, "", self._clock.now(), _checked(run, target, key, at_once, options))
        family = self._family(run)
        job_id = family.id_of(job.job_type, job.payload, key)
        job = msgspec.structs.replace(job, job_id=job_id, own_id=True, special=True)
        asked = "" if key is None else digest(job.payload)
        if family.named.get(job_id, asked) != asked:
            raise ChildMismatch(
                f'this run has already submitted the child "{key}" with a different payload: give it another key'
            )
        submitted = await self._submit(run, family, job, key, at_once)
        if submitted.record.job_id == job_id:  # not another's that its dedup key names
            family.named[job_id] = asked
        return submitted

    async def _submit(self, run: Run, family: Family, job: NewJob, key: str | None, at_once: bool) -> Submitted:
        if (known := self._already(run, family, job, key)) is not None:
            return known
        if self._observers is None:
            return await self._take(run, family, job, key, at_once)
        with self._observers.submitting([job]) as [job]:
            return await self._take(run, family, job, key, at_once)

    async def _take(self, run: Run, family: Family, job: NewJob, key: str | None, at_once: bool) -> Submitted:
        if at_once:
            return await self._store_now(run, family, job, key)
        family.add(job)
        if family.is_full:
            await self._stage_full(run, family)
        return Submitted(_unstored(job, self._clock.now()), deduplicated=False)

    def _already(self, run: Run, family: Family, job: NewJob, key: str | None) -> Submitted | None:
        """Return the child that already has this id: stored by an earlier run, or submitted by this one with the same
        key."""
        stored = family.stored.get(job.job_id) or family.at_once.get(job.job_id)
        known = family.known.get(job.job_id)
        if stored is not None:
            self._compare(run, job, key, stored.job_type, stored.payload == job.payload)
            return Submitted(stored, deduplicated=True)
        if known is not None:
            self._compare(run, job, key, known.job_type, known.payload == digest(job.payload))
            return Submitted(_unstored(job, self._clock.now()), deduplicated=True)
        return None

    def _compare(self, run: Run, job: NewJob, key: str | None, job_type: str, same_payload: bool) -> None:
        if job_type != job.job_type:
            raise ChildMismatch(
                f'the child "{key}" of this job is of type {job_type!r} and is now submitted as {job.job_type!r}:'
                " give it"
                " another key"
            )
        if not same_payload:
            run.say_log(
                None, "WARNING", f'the child "{key}" was stored with a different payload; the stored one is used'
            )

    async def _store_now(self, run: Run, family: Family, job: NewJob, key: str | None) -> Submitted:
        now = self._clock.now()
        inserted = await self._store.insert_children(run.hold, [job], now)
        if inserted is None:
            raise ClaimLost(f"a child was not stored: this run no longer holds job {run.job.job_id}")
        existing = inserted[0].existing
        record = new_record(job, inserted[0], now) if existing is None else existing
        if record.job_id == job.job_id:  # not another's that its dedup key names
            self._compare(run, job, key, record.job_type, record.payload == job.payload)
            family.at_once[record.job_id] = record
        return Submitted(record, deduplicated=existing is not None)

    # Before the settlement

    async def flush(self, run: Run) -> None:
        """Stage children until those left in memory fit into the commit of the settlement."""
        family = run.family
        if family is None or not family.pending:
            return
        async with family.staging:
            family.put_back(await self._not_stored(run, family, family.take()))
            few = len(family.pending) <= CHILDREN_INLINE_MAX and family.pending_bytes <= STAGED_PART_BYTES_MAX
            if family.parts or not few:
                await self._stage(run, family, family.take())

    async def _stage_full(self, run: Run, family: Family) -> None:
        async with family.staging:
            if not family.is_full:  # another task of the handler was faster
                return
            family.put_back(await self._not_stored(run, family, family.take()))
            if family.is_full:
                await self._stage(run, family, family.take())

    async def _stage(self, run: Run, family: Family, jobs: list[NewJob]) -> None:
        await self._check_dependencies(family, jobs)
        for part in in_parts(jobs):
            if not part:
                continue
            verdict = await self._store.stage(run.hold, family.parts, part, self._clock.now())
            if verdict is not Verdict.APPLIED:
                raise ClaimLost(f"children were not stored: this run no longer holds job {run.job.job_id}")
            family.staged(part)

    async def _check_dependencies(self, family: Family, jobs: Sequence[NewJob]) -> None:
        """Check dependencies before staging: a settlement that names staged children can no longer refuse any of
        them."""
        named = {each for job in jobs for each in job.depends_on if each not in family.known}
        unknown = [job_id for job_id, status in await self._statuses(sorted(named)) if status is None]
        if unknown:
            raise UnknownDependency(f"a child depends on {unknown[0]}, which is not there: nothing was stored")

    async def _not_stored(self, run: Run, family: Family, jobs: list[NewJob]) -> list[NewJob]:
        """Return those that no earlier run has stored: a parent that waited only for stored ones would wait for
        nothing."""
        if not run.job.children and not family.at_once:
            return jobs
        unsure = [job.job_id for job in jobs if job.job_id not in family.stored]
        there = {job_id for job_id, status in await self._statuses(unsure) if status is not None}
        return [job for job in jobs if job.job_id not in family.stored and job.job_id not in there]

    async def _statuses(self, job_ids: Sequence[str]) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        for start in range(0, len(job_ids), CHILDREN_PART_MAX):
            part = job_ids[start : start + CHILDREN_PART_MAX]
            found += zip(part, await self._store.statuses(part), strict=True)
        return found

    # Waiting

    async def ended(self, run: Run, awaits: Awaits) -> Ended | None:
        """Return the children that have ended, or None if the parent has to wait: for new children, for open ones, or
        because the rule does not accept how they ended, which is judged when the wait ends.

        Counted are the children that this run has submitted so far, so that a handler with several waits takes the same
        path in every run. A run that has submitted none means all children."""
        if run.effects or run.row_parts:
            raise InvalidOption(
                "rows and statements are published with the completion of the run that put them: put them after"
                " ctx.wait_for_children()"
            )
        await self.flush(run)
        family = self._family(run)
        wait, family.waits = family.waits, family.waits + 1
        named = list(family.named)
        if not family:
            brood = await self._brood_of(named) if named else await self._whole_brood(run)
            if not named and await self._was_for_none(run, wait, brood):
                return Ended(Ended.NONE, 0)
            if dependencies.joined(awaits, brood) is Status.PENDING:
                return Ended(len(named), brood.children)
        if named:
            await self._is_for_some(run, wait)
        return None

    async def _was_for_none(self, run: Run, wait: int, brood: Brood) -> bool:
        """Return whether there were no children when the handler first reached this wait. This is recorded, because a
        later run would otherwise mistake children of the next phase for those of this one."""
        none, some = _wait_steps(run, wait)
        if not brood.children:
            verdict = await self._store.record_step(run.hold, none, "true", self._clock.now(), StepKind.OWN)
            if verdict is not Verdict.APPLIED:
                raise ClaimLost(f"this run no longer holds job {run.job.job_id}")
            return True
        if await self._store.step(run.job.job_id, none, StepKind.OWN) is None:
            return False
        return await self._store.step(run.job.job_id, some, StepKind.OWN) is None

    async def _is_for_some(self, run: Run, wait: int) -> None:
        """Record that this wait has children after all, in case an earlier attempt recorded that it had none."""
        none, some = _wait_steps(run, wait)
        if run.job.attempt > 1 and await self._store.step(run.job.job_id, none, StepKind.OWN) is not None:
            await self._store.record_step(run.hold, some, "true", self._clock.now(), StepKind.OWN)

    async def _brood_of(self, named: Sequence[str]) -> Brood:
        standing = Counter(status for _, status in await self._statuses(named))
        ended = sum(standing[status] for status in (*TERMINAL, None))  # None: retention has dropped it
        return Brood(
            len(named),
            len(named) - ended,
            failed=standing[Status.FAILED],
            cancelled=standing[Status.CANCELLED],
        )

    async def _whole_brood(self, run: Run) -> Brood:
        [record] = await self._store.get([run.job.job_id])
        if record is None:
            raise JobNotFound(f"no job {run.job.job_id}")
        return Brood(
            record.children, record.open_children, failed=record.failed_children, cancelled=record.cancelled_children
        )

    @staticmethod
    def _family(run: Run) -> Family:
        if run.family is None:
            run.family = Family(run.job.job_id)
        return run.family


def _checked(
    run: Run, target: Handler | JobType, key: str | None, at_once: bool, options: SubmitOptions
) -> SubmitOptions:
    for name, instead in _REFUSED.items():
        if options.get(name) is not None:
            raise InvalidOption(f"ctx.submit has no option {name}: {instead}")
    derivation = target.derivation
    has_key = options.get("dedup_key") is not None or (derivation is not None and derivation.derives("dedup_key"))
    if has_key and not at_once:
        raise InvalidOption("dedup_key: duplicates are known only once it is stored: add at_once=True")
    check_text("key", key, KEY_LENGTH_MAX)
    asked = SubmitOptions(**options)
    asked["parent"] = run.job.job_id
    if run.job.subject is not None and (derivation is None or not derivation.derives("subject")):
        asked.setdefault("subject", run.job.subject)
    if run.job.created_by is not None:
        asked.setdefault("created_by", run.job.created_by)
    return asked


def _wait_steps(run: Run, wait: int) -> tuple[str, str]:
    """Return the names of two steps: one records that a wait had no children, the other that it has had some since."""
    name = f"wait {wait + 1}" + (f" of {run.job.join}" if run.job.join else "")
    return f"{name}, for none", f"{name}, for some"


def _unstored(job: NewJob, now: Instant) -> JobRecord:
    """Return the record of a child that is stored only when its parent is settled, and waits for that."""
    return new_record(job, Inserted(job.job_id, Status.WAITING), now)


P = ParamSpec("P")
T = TypeVar("T")


class Services(msgspec.Struct, frozen=True):
    """What the contexts of a worker's handlers use: one object, shared by all runs."""

    store: Store
    clock: Clock
    files: Files | None
    children: Children
    rows: Rows
    waits: Waits
    resources: Resources
    outputs: Outputs


class LoopChannel:
    """The channel of an `async def` handler, which calls the store directly. It is closed once the handler has
    returned: a task or thread that the handler left behind is refused."""

    __slots__ = ("_call", "_run", "_services", "job")

    def __init__(self, run: Run, services: Services, call: Execution) -> None:
        self.job: ClaimedJob = run.job
        self._run = run
        self._services = services
        self._call = call  # the run itself, or the call that it shares with others

    @property
    def state(self) -> Any:
        return self._services.resources.state

    def check(self) -> None:
        if self._call.ended:
            raise ClaimLost(
                f"this run of job {self.job.job_id} has ended: its context cannot be used any more (by a task or thread"
                " that its handler left behind)"
            )

    def progress(self, fraction: float, stage: str | None) -> None:
        self.check()
        self._run.say_progress(fraction, stage)

    def metric(self, name: str, value: float) -> None:
        self.check()
        self._run.say_metric(name, value)

    def cancelled(self) -> bool:
        return self._run.is_stopped or self._call.ended

    def effects(self, statements: list[Effect]) -> None:
        self.check()
        self._run.say_effects(statements)
        self.check()  # from a thread: the call may have returned meanwhile, without these

    def refuse_rows(self, reason: str) -> None:
        self.check()
        self._run.rows_refused = self._run.rows_refused or InvalidRow(reason)

    async def step(self, name: str) -> str | None:
        self.check()
        return await self._services.store.step(self.job.job_id, name)

    async def record_step(self, name: str, answer: str) -> bool:
        self.check()
        verdict = await self._services.store.record_step(self._run.hold, name, answer, self._services.clock.now())
        return verdict is Verdict.APPLIED

    async def stream(self, entry: str) -> None:
        self.check()
        await self._services.outputs.append(self._run, entry)

    async def sleep(self, name: str, micros: int) -> tuple[str, Instant] | None:
        self.check()
        until = await self._services.waits.sleep(self._run, name, micros)
        if until is not None:
            await self._services.children.flush(self._run)  # they are stored with the wait
        return until

    async def wait_for_event(
        self, name: str, key: str | None, timeout_micros: int | None, schema: str | None
    ) -> Waited:
        self.check()
        waited = await self._services.waits.wait_for_event(self._run, name, key, timeout_micros, schema)
        if waited.ending is None:
            await self._services.children.flush(self._run)
        return waited

    async def artifact(self, name: str, source: AsyncSource) -> str:
        return await kept_in_thread(self.keep, name, source)

    async def artifact_ref(self, name: str) -> dict[str, Any]:
        self.check()
        own = (self._run.artifacts or {}).get(name)
        if own is None and self.job.artifacts is not None:
            own = next((each for each in stored_files(self.job.artifacts) if each.name == name), None)
        if own is None:
            raise ArtifactNotFound(f"this job has stored no file {name!r}: await ctx.artifact({name!r}, …) first")
        return ArtifactRef.of(self.job.job_id, own).model_dump()

    async def read_artifact(self, reference: dict[str, Any]) -> bytes:
        self.check()
        files, ref, job = self._services.files, ArtifactRef(**reference), self.job
        if files is None:
            raise ConfigurationError("this store cannot hold artifacts: pass Backstay(..., artifacts=...)")
        own = (self._run.artifacts or {}).get(ref.name) if ref.job_id == job.job_id else None
        if own is not None:
            return await asyncio.to_thread(files.read, ref.checked(own))
        [other, mine] = await self._services.store.get([ref.job_id, job.job_id])
        upstream = () if mine is None else mine.dependencies
        if other is not None and not may_read(job, job.root_job_id, upstream, other):
            other = None  # as if it were not there: its queue is another one's
        return await asyncio.to_thread(files.read, ref.found_in(other))

    def keep(self, name: str, content: Content) -> str:
        """Write a file in the calling thread."""
        self.check()
        if self._services.files is None:
            raise ConfigurationError("this store cannot hold artifacts: pass Backstay(..., artifacts=...)")
        run, call = self._run, self._call
        # A task or a thread that outlives its run would write over what was recorded of it.
        wanted = until(content, lambda: run.is_over or call.ended)
        stored = self._services.files.write(self.job.job_id, self.job.attempt, name, wanted)
        self.check()
        run.say_artifact(stored)
        return stored.uri

    # Children

    def loaded_children(self) -> list[JobRecord]:
        self.check()
        return [] if self._run.family is None else list(self._run.family.stored.values())

    def large_result(self, record: JobRecord) -> str | None:
        self.check()
        return None if self._services.files is None else read_result(self._services.files, record.result_artifact)

    async def record(self, job_id: str) -> JobRecord | None:
        return (await self._services.store.get([job_id]))[0]

    async def submit(
        self, job_type: str | Handler, payload: Any, key: str | None, at_once: bool, options: SubmitOptions
    ) -> Submitted:
        self.check()
        return await self._services.children.submit(self._run, self.check, job_type, payload, key, at_once, options)

    async def children(self, after: str | None, named: int = 0) -> Page:
        self.check()
        return await self._services.children.page(self._run, after, named)

    async def ended(self, awaits: Awaits) -> Ended | None:
        self.check()
        return await self._services.children.ended(self._run, awaits)

    async def upstream(self) -> list[JobRecord]:
        self.check()
        return await self._services.children.upstream(self._run)

    def join_of(self, asked: str | None) -> str | None:
        return self._run.handler.join_of(asked)

    # Result tables

    async def put_rows(self, table: ResultTable, rows: Sequence[tuple[Value, ...]]) -> None:
        self.check()
        await self._services.rows.put(self._run, table, rows)

    async def rows(self, table: ResultTable, ask: RowQuery) -> RowPage:
        self.check()
        return await read(self._services.store, table, ask)

    async def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
        self.check()
        return await self._services.store.rows_by_subject(table, subject, after, limit)

    async def latest(self, subject: str, job_type: str) -> str | None:
        self.check()
        return await self._services.store.latest(subject, job_type)


class ThreadChannel:
    """The channel of a `def` handler in a thread: store calls run on the event loop, and the thread waits for them."""

    __slots__ = ("_inner", "_loop", "job")

    def __init__(self, run: Run, services: Services, call: Execution) -> None:
        run.cancelled = threading.Event()
        self.job: ClaimedJob = run.job
        self._inner = LoopChannel(run, services, call)
        self._loop = asyncio.get_running_loop()

    @property
    def state(self) -> Any:
        return self._inner.state

    def _hop(self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        self._inner.check()  # here, too: after the end the loop may be closed
        return asyncio.run_coroutine_threadsafe(call(*args, **kwargs), self._loop).result()

    def progress(self, fraction: float, stage: str | None) -> None:
        self._inner.progress(fraction, stage)

    def metric(self, name: str, value: float) -> None:
        self._inner.metric(name, value)

    def cancelled(self) -> bool:
        return self._inner.cancelled()

    def effects(self, statements: list[Effect]) -> None:
        self._inner.effects(statements)

    def refuse_rows(self, reason: str) -> None:
        self._inner.refuse_rows(reason)

    def artifact(self, name: str, source: Source) -> str:
        return self._inner.keep(name, watched(content_of(name, source), self.cancelled))

    def stream(self, entry: str) -> None:
        self._hop(self._inner.stream, entry)

    def artifact_ref(self, name: str) -> dict[str, Any]:
        return self._hop(self._inner.artifact_ref, name)

    def read_artifact(self, reference: dict[str, Any]) -> bytes:
        return self._hop(self._inner.read_artifact, reference)

    def step(self, name: str) -> str | None:
        return self._hop(self._inner.step, name)

    def record_step(self, name: str, answer: str) -> bool:
        return self._hop(self._inner.record_step, name, answer)

    def sleep(self, name: str, micros: int) -> tuple[str, Instant] | None:
        return self._hop(self._inner.sleep, name, micros)

    def wait_for_event(self, name: str, key: str | None, timeout_micros: int | None, schema: str | None) -> Waited:
        return self._hop(self._inner.wait_for_event, name, key, timeout_micros, schema)

    def loaded_children(self) -> list[JobRecord]:
        return self._inner.loaded_children()

    def large_result(self, record: JobRecord) -> str | None:
        return self._inner.large_result(record)

    def submit(
        self, job_type: str | Handler, payload: Any, key: str | None, at_once: bool, options: SubmitOptions
    ) -> Submitted:
        return self._hop(self._inner.submit, job_type, payload, key, at_once, options)

    def children(self, after: str | None, named: int = 0) -> Page:
        return self._hop(self._inner.children, after, named)

    def ended(self, awaits: Awaits) -> Ended | None:
        return self._hop(self._inner.ended, awaits)

    def upstream(self) -> list[JobRecord]:
        return self._hop(self._inner.upstream)

    def join_of(self, asked: str | None) -> str | None:
        return self._inner.join_of(asked)

    def put_rows(self, table: ResultTable, rows: Sequence[tuple[Value, ...]]) -> None:
        self._hop(self._inner.put_rows, table, rows)

    def rows(self, table: ResultTable, ask: RowQuery) -> RowPage:
        return self._hop(self._inner.rows, table, ask)

    def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
        return self._hop(self._inner.rows_by_subject, table, subject, after, limit)

    def latest(self, subject: str, job_type: str) -> str | None:
        return self._hop(self._inner.latest, subject, job_type)
