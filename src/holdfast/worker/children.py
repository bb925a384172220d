"""Children of a running job: submitted from its handler, stored with its settlement or at once, and waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Any

import msgspec

from holdfast import trees
from holdfast.checks import check_text
from holdfast.clock import Clock, Instant
from holdfast.errors import ChildMismatch, ClaimLost, InvalidOption, JobNotFound, UnknownDependency
from holdfast.handlers import Handler
from holdfast.limits import (
    CHILDREN_INLINE_MAX,
    CHILDREN_LOADED_MAX,
    CHILDREN_PART_MAX,
    KEY_LENGTH_MAX,
    STAGED_PART_BYTES_MAX,
)
from holdfast.newjob import NewJob
from holdfast.observing import Observers
from holdfast.offspring import Ended, Submitted
from holdfast.running_again import children_again, marked_version, said_of_blocked, said_of_overtaken
from holdfast.statuses import TERMINAL, Status
from holdfast.store.port import Store
from holdfast.store.types import Inserted, JobRecord, JobType, Page, Verdict
from holdfast.submission import SubmitOptions, build, new_record
from holdfast.trees import Awaits, Brood
from holdfast.worker.family import Family, digest, in_parts
from holdfast.worker.run import Run

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
        """Those that are stored, before a handler is entered that has some."""
        if not run.job.waits:  # entered from the top, for the first time since it was asked to run
            await self._again(run)
        page = await self._store.children(run.job.job_id, None, CHILDREN_LOADED_MAX)
        self._family(run).stored = {record.job_id: record for record in page.items}

    async def _again(self, run: Run) -> None:
        """Before the handler of a job that runs again with its children, and not before a later attempt of it: those
        that it has made since are new."""
        [record] = await self._store.get([run.job.job_id])
        version = None if record is None else marked_version(record)
        if record is None or version is None:
            return
        step = f"holdfast: children of version {version}"
        if await self._store.step(run.job.job_id, step) is not None:
            return
        found, left = await children_again(self._store, self._clock, record, version, run.job.worker_id)
        if left.blocked:
            run.say_log(None, "WARNING", f"left as they ended: {said_of_blocked(found, left.blocked)}")
        if left.overtaken:
            run.say_log(None, "WARNING", said_of_overtaken(left.overtaken))
        await self._store.record_step(run.hold, step, "true", self._clock.now())

    async def page(self, run: Run, after: str | None, named: int) -> Page:
        """All that are stored, by id; or of the first `named` that this run has submitted, in that order."""
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
        """What the job depends on: up to as many as a record lists."""
        [record] = await self._store.get([run.job.job_id])
        if record is None:
            raise JobNotFound(f"no job {run.job.job_id}")
        found = await self._store.get(record.dependencies) if record.dependencies else []
        return [each for each in found if each is not None]

    # Submitting

    async def submit(
        self,
        run: Run,
        job_type: str | Handler,
        payload: Any,
        key: str | None,
        at_once: bool,
        options: SubmitOptions,
    ) -> Submitted:
        target = await self._targets(job_type)
        if run.is_over:  # nothing would store it
            raise ClaimLost(f"a child was not stored: this run of job {run.job.job_id} has ended")
        job = build(target, payload, "", self._clock.now(), _checked(run, key, at_once, options))
        family = self._family(run)
        job_id = family.id_of(job.job_type, job.payload, key)
        job = msgspec.structs.replace(job, job_id=job_id, own_id=True, special=True)
        asked = "" if key is None else digest(job.payload)
        if family.named.get(job_id, asked) != asked:
            raise ChildMismatch(f'this run has submitted the child "{key}" with another payload: give it another key')
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
        """The child that has this id: stored by an earlier run, or submitted by this one under the same key."""
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
                f'the child "{key}" of this job is an {job_type!r} and was submitted as a {job.job_type!r} now: give it'
                " another key"
            )
        if not same_payload:
            run.say_log(None, "WARNING", f'the child "{key}" has another payload than it was stored with; that stands')

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
        """Leave no more in memory than goes into the commit itself; the rest is staged for it."""
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
        """Before it is too late: once the settlement has named them, nothing of what is staged can be refused."""
        named = {each for job in jobs for each in job.depends_on if each not in family.known}
        unknown = [job_id for job_id, status in await self._statuses(sorted(named)) if status is None]
        if unknown:
            raise UnknownDependency(f"a child depends on {unknown[0]}, which is not there: nothing was stored")

    async def _not_stored(self, run: Run, family: Family, jobs: list[NewJob]) -> list[NewJob]:
        """Without those that an earlier run has stored: a parent that waits for them alone would wait for nothing."""
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
        """The children that have ended; None where there is something to wait for: new ones, open ones, or ended ones
        that the rule does not take, for the wait is judged then.

        They are those that this run has submitted so far, so that a handler with several waits takes the same way each
        time; a run that has submitted none means all."""
        if run.effects or run.row_parts:
            raise InvalidOption(
                "rows and statements are published with the completion of the run that put them: put them after"
                " ctx.wait_for_children()"
            )
        await self.flush(run)
        if run.family:
            return None
        named = list(run.family.named) if run.family is not None else []
        brood = await self._brood_of(named) if named else await self._whole_brood(run)
        if trees.joined(awaits, brood) is not Status.PENDING:
            return None
        return Ended(len(named), brood.children)

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


def _checked(run: Run, key: str | None, at_once: bool, options: SubmitOptions) -> SubmitOptions:
    for name, instead in _REFUSED.items():
        if options.get(name) is not None:
            raise InvalidOption(f"ctx.submit has no option {name}: {instead}")
    if options.get("dedup_key") is not None and not at_once:
        raise InvalidOption(
            "dedup_key: whether another job answers for it is known only once it is stored: add at_once=True"
        )
    check_text("key", key, KEY_LENGTH_MAX)
    asked = SubmitOptions(**options)
    asked["parent"] = run.job.job_id
    if run.job.subject is not None:
        asked.setdefault("subject", run.job.subject)
    if run.job.created_by is not None:
        asked.setdefault("created_by", run.job.created_by)
    return asked


def _unstored(job: NewJob, now: Instant) -> JobRecord:
    """A child as it is until its parent is settled: it waits for that."""
    return new_record(job, Inserted(job.job_id, Status.WAITING), now)
