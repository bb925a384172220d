"""Changing jobs that one does not hold: read, decide, apply while nothing changed; again when something did."""

from __future__ import annotations

from collections.abc import Callable

from holdfast import ids, lifecycle, limits
from holdfast.clock import Clock, Instant
from holdfast.errors import DedupConflict, IllegalTransition, JobNotFound, VersionConflict
from holdfast.lifecycle import Status, Transition
from holdfast.store.port import Store
from holdfast.store.types import JobRecord, Query, Verdict

_NAMED_MAX = 3  # jobs that a message names; the rest is a number
_TRIES = 20  # each lost race means that someone else made progress

Change = Callable[[JobRecord, Instant], Transition]


async def edit(store: Store, clock: Clock, job_id: str, expected_version: int | None, change: Change) -> None:
    job_id = ids.canonical(job_id)
    for _ in range(_TRIES):
        record = (await store.get([job_id]))[0]
        if record is None:
            raise JobNotFound(f"no job {job_id}")
        check_version(record, expected_version)
        now = clock.now()
        try:
            transition = change(record, now)
        except IllegalTransition:
            raise IllegalTransition(f"job {job_id} is {record.status.value}: {_instead(record)}") from None
        if record.archived_at is not None:
            raise IllegalTransition(f"job {job_id} was archived, and its payload is gone: submit it anew")
        match (await store.apply([transition], now))[0]:
            case Verdict.APPLIED:
                return
            case Verdict.BLOCKED:
                raise IllegalTransition(f"job {job_id} depends on {await _unmet(store, record)}")
            case Verdict.TAKEN:
                raise DedupConflict(
                    f"job {job_id} cannot run again: its dedup key {record.dedup_key!r} belongs to another job now"
                )
            case _:
                pass  # someone was faster: look again
    raise VersionConflict(f"job {job_id} kept changing: try again")


def check_version(record: JobRecord, expected: int | None) -> None:
    if expected is not None and record.version != expected:
        raise VersionConflict(f"job {record.job_id} is at version {record.version}, not {expected}: read it again")


async def retry_dead(
    store: Store,
    clock: Clock,
    job_type: str | None,
    error_type: str | None,
    by: str | None,
    sees: Callable[[str], bool] | None = None,
) -> int:
    """All dead letters, or those of a type or an error, page by page; how many run again. `sees`: of which queues."""
    retried, after = 0, None
    while True:
        page = await store.find(
            Query(status=Status.FAILED, job_type=job_type, after=after, limit=limits.FIND_LIMIT_MAX)
        )
        now = clock.now()
        chosen = [
            each
            for each in page.items
            if (error_type is None or died_of(each) == error_type) and (sees is None or sees(each.queue))
        ]
        if chosen:
            edits = [lifecycle.manual_retry(each, now=now, by=by, reason=None) for each in chosen]
            retried += (await store.apply(edits, now)).count(Verdict.APPLIED)
        after = page.next
        if after is None:
            return retried


def died_of(record: JobRecord) -> str:
    """The error by which a dead letter is grouped, as `Store.dead` does it."""
    if (record.last_error or "").startswith("ChildFailed: "):
        return "ChildFailed"
    return record.errors[-1].type if record.errors else "DependencyFailed"


async def _unmet(store: Store, record: JobRecord) -> str:
    """What keeps a job from running again, by name."""
    statuses = zip(record.dependencies, await store.statuses(record.dependencies), strict=True)
    unmet = [(job_id, status) for job_id, status in statuses if status not in (Status.COMPLETED, None)]
    if not unmet:  # beyond those that a record lists
        return "jobs that have not completed: retry those first"
    named = [f"{job_id} ({status})" for job_id, status in unmet[:_NAMED_MAX]]
    more = [f"{len(unmet) - _NAMED_MAX} more"] if len(unmet) > _NAMED_MAX else []
    ended = any(status in lifecycle.TERMINAL for _, status in unmet)
    todo = "retry first what has ended, and this when all have completed" if ended else "wait until they have"
    return f"{' and '.join([*named, *more])}, which {'has' if len(unmet) == 1 else 'have'} not completed: {todo}"


def _instead(record: JobRecord) -> str:
    status = record.status
    if record.archived_at is not None:
        return "it has ended and was archived; nothing of it can be changed"
    if status in lifecycle.TERMINAL:
        return "it has ended; it can be retried, not changed"
    if status is Status.PROCESSING:
        return "it is running; it can be cancelled"
    return "it has not ended; it can be cancelled or reprioritised, and rescheduled while it is pending or scheduled"
