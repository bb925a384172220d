"""A store wrapper that logs every operation and its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import msgspec

from backstay.clock import Instant
from backstay.core.port import Store
from backstay.core.records import (
    ClaimedJob,
    ClaimRequest,
    Firing,
    Hold,
    Inserted,
    LimitChange,
    LimitOf,
    LimitRow,
    NewJob,
    Note,
    QueueChange,
    QueueRow,
    RetentionPolicy,
    Retired,
    Schedule,
    Transition,
    Verdict,
)
from backstay.core.result_tables import RowBatch
from backstay.core.waits import StepKind
from backstay.errors import BackstayError, InvalidSubmission, StoreBusy, StoreError, StoreFull
from backstay.testing.history.evidence import Answer, Item, OperationLog, Outcome, digest, row_digest

T = TypeVar("T")
_OUTCOMES = {
    Verdict.APPLIED: Outcome.OK,
    Verdict.STALE: Outcome.STALE,
    Verdict.GONE: Outcome.GONE,
    Verdict.TAKEN: Outcome.STALE,
    Verdict.BLOCKED: Outcome.STALE,
    Verdict.LOCKED: Outcome.STALE,
}


def recorded(store: Store, log: OperationLog) -> Store:
    """Return a wrapper of the store that logs all writes to jobs, queues and schedules in `log`."""
    return cast(Store, _Recorded(store, log))


class _Recorded:
    def __init__(self, store: Store, log: OperationLog) -> None:
        self._store = store
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def insert(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        return await self._call(
            "insert",
            map(_inserting, jobs),
            now,
            partial(self._store.insert, jobs, now),
            _inserted,
        )

    async def insert_children(self, hold: Hold, jobs: Sequence[NewJob], now: Instant) -> list[Inserted] | None:
        return await self._call(
            "insert_children",
            [_bringing(hold, jobs)],
            now,
            partial(self._store.insert_children, hold, jobs, now),
            lambda found: [Answer(outcome=Outcome.STALE) if found is None else Answer(jobs=tuple(_inserted(found)))],
        )

    async def stage(self, hold: Hold, part: int, jobs: Sequence[NewJob], now: Instant) -> Verdict:
        staging = partial(self._store.stage, hold, part, jobs, now)
        items = [_bringing(hold, jobs, part)]
        return await self._call("stage", items, now, staging, lambda verdict: _verdicts([verdict]))

    async def put_rows(self, batches: Sequence[RowBatch], now: Instant) -> list[Verdict]:
        return await self._call(
            "put_rows", map(_putting, batches), now, partial(self._store.put_rows, batches, now), _verdicts
        )

    async def claim(self, request: ClaimRequest, now: Instant) -> list[ClaimedJob]:
        return await self._call(
            "claim",
            [Item(token=digest(request.token), worker=request.worker_id, repeat=request.repeat)],
            now,
            partial(self._store.claim, request, now),
            lambda jobs: [Answer(job_id=j.job_id, attempt=j.attempt, lease=j.lease_expires_at) for j in jobs],
        )

    async def apply(self, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
        return await self._call(
            "apply", map(_applying, transitions), now, partial(self._store.apply, transitions, now), _verdicts
        )

    async def extend(self, holds: Sequence[Hold], lease_expires_at: Instant, now: Instant) -> list[Verdict]:
        items = [_holding(hold, lease_expires_at) for hold in holds]
        extending = partial(self._store.extend, holds, lease_expires_at, now)
        return await self._call("extend", items, now, extending, _verdicts)

    async def note(self, notes: Sequence[Note], now: Instant) -> list[Verdict]:
        items = [_holding(note.hold) for note in notes]
        return await self._call("note", items, now, partial(self._store.note, notes, now), _verdicts)

    async def record_step(
        self, hold: Hold, name: str, answer: str, now: Instant, kind: StepKind = StepKind.STEP
    ) -> Verdict:
        recording = partial(self._store.record_step, hold, name, answer, now, kind)
        return await self._call("record_step", [_holding(hold)], now, recording, lambda verdict: _verdicts([verdict]))

    async def fire(self, firings: Sequence[Firing], now: Instant) -> list[Verdict]:
        return await self._call("fire", map(_firing, firings), now, partial(self._store.fire, firings, now), _verdicts)

    async def retire(self, policy: RetentionPolicy, now: Instant, limit: int, after: str | None) -> Retired:
        return await self._call(
            "retire",
            [Item(policy=policy)],
            now,
            partial(self._store.retire, policy, now, limit, after),
            lambda done: [Answer(archived=done.archived, dropped=done.dropped)],
        )

    async def change_queue(self, name: str, change: QueueChange, now: Instant) -> QueueRow:
        item = Item(queue=name, paused=change.paused)
        changing = partial(self._store.change_queue, name, change, now)
        return await self._call("change_queue", [item], now, changing, lambda row: [Answer()])

    async def change_limit(self, of: LimitOf, name: str, change: LimitChange, now: Instant) -> LimitRow:
        job_type = name if of is LimitOf.TYPE else None
        item = Item(job_type=job_type, paused=change.paused, most=(change.concurrency or 0) if change.limits else None)
        changing = partial(self._store.change_limit, of, name, change, now)
        return await self._call("change_limit", [item], now, changing, lambda row: [Answer()])

    async def save_schedule(self, schedule: Schedule, expected_version: int | None) -> Verdict:
        definition = msgspec.structs.replace(schedule, template=str(digest(schedule.template)))
        item = Item(schedule=schedule.name, version=expected_version, definition=definition)
        saving = partial(self._store.save_schedule, schedule, expected_version)
        return await self._call("save_schedule", [item], 0, saving, lambda verdict: _verdicts([verdict]))

    async def drop_schedule(self, name: str, expected_version: int | None = None) -> Verdict:
        dropping = partial(self._store.drop_schedule, name, expected_version)
        return await self._call(
            "drop_schedule", [Item(schedule=name)], 0, dropping, lambda verdict: _verdicts([verdict])
        )

    async def _call(
        self,
        verb: str,
        items: Iterable[Item],
        now: Instant,
        call: Callable[[], Awaitable[T]],  # which may begin when it is called: not before it is noted
        answers: Callable[[T], Iterable[Answer]],
    ) -> T:
        number = self._log.invoke(verb, items, now)
        try:
            answer = await call()
        except BaseException as error:
            self._log.returned(number, _outcome(error), why=repr(error)[:300])
            raise
        self._log.returned(number, Outcome.OK, answers(answer))
        return answer


def _outcome(error: BaseException) -> Outcome:
    match error:
        case InvalidSubmission() | StoreFull() | StoreBusy():
            return Outcome.ERROR
        case StoreError():
            return Outcome.INFO  # a disk error at the commit leaves open what reached the disk
        case BackstayError():
            return Outcome.ERROR
        case _:
            return Outcome.INFO


def _inserting(job: NewJob) -> Item:
    return Item(
        job_id=job.job_id,
        job_type=job.job_type,
        payload=digest(job.payload),
        scheduled_for=job.scheduled_for,
        dedup_key=job.dedup_key,
        dedup_until=job.dedup_until,
        depends_on=job.depends_on,
        trigger_rule=job.trigger_rule if job.depends_on else None,
        parent=job.parent_job_id,
        own_id=job.own_id,
        schedule=job.schedule,
        tick_at=job.tick_at,
    )


def _firing(firing: Firing) -> Item:
    return Item(
        schedule=firing.name,
        version=firing.version,
        due_at=firing.due_at,
        next_at=firing.next_at,
        jobs=tuple(map(_inserting, firing.jobs)),
    )


def _applying(transition: Transition) -> Item:
    return Item(
        job_id=transition.job_id,
        event=transition.event,
        source=transition.source,
        target=transition.target,
        attempt=transition.attempt,
        version=transition.version,
        token=digest(transition.token),
        lease=transition.lease,
        result=digest(transition.result),
        scheduled_for=transition.scheduled_for,
        jobs=tuple(map(_inserting, transition.children)),
        staged=None if transition.staged is None else transition.staged.parts,
    )


def _bringing(hold: Hold, jobs: Iterable[NewJob], part: int | None = None) -> Item:
    return msgspec.structs.replace(_holding(hold), jobs=tuple(map(_inserting, jobs)), part=part)


def _putting(batch: RowBatch) -> Item:
    rows = tuple(row_digest(values) for values in batch.rows)
    return msgspec.structs.replace(_holding(batch.hold), table=batch.table.name, part=batch.part, rows=rows)


def _holding(hold: Hold, lease: Instant | None = None) -> Item:
    return Item(job_id=hold.job_id, attempt=hold.attempt, token=digest(hold.token), lease=lease)


def _inserted(answers: Iterable[Inserted]) -> list[Answer]:
    return [Answer(job_id=each.job_id, existing=each.existing is not None) for each in answers]


def _verdicts(verdicts: Iterable[Verdict]) -> list[Answer]:
    return [Answer(outcome=_OUTCOMES[verdict]) for verdict in verdicts]
