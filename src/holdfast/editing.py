"""Changing jobs that one does not hold: read, decide, apply while nothing changed; again when something did."""

from __future__ import annotations

from collections.abc import Callable

from holdfast import ids, lifecycle, limits
from holdfast.clock import Clock, Instant
from holdfast.errors import DedupConflict, IllegalTransition, JobNotFound, VersionConflict
from holdfast.lifecycle import Status, Transition
from holdfast.store.port import Store
from holdfast.store.types import JobRecord, Query, Verdict

_TRIES = 20  # each lost race means that someone else made progress

Change = Callable[[JobRecord, Instant], Transition]


async def edit(store: Store, clock: Clock, job_id: str, expected_version: int | None, change: Change) -> None:
    job_id = ids.canonical(job_id)
    for _ in range(_TRIES):
        record = (await store.get([job_id]))[0]
        if record is None:
            raise JobNotFound(f"no job {job_id}")
        if expected_version is not None and record.version != expected_version:
            raise VersionConflict(f"job {job_id} is at version {record.version}, not {expected_version}: read it again")
        now = clock.now()
        try:
            transition = change(record, now)
        except IllegalTransition:
            raise IllegalTransition(f"job {job_id} is {record.status.value}: {_instead(record.status)}") from None
        match (await store.apply([transition], now))[0]:
            case Verdict.APPLIED:
                return
            case Verdict.BLOCKED:
                raise IllegalTransition(f"job {job_id} depends on jobs that have not completed: retry those first")
            case Verdict.TAKEN:
                raise DedupConflict(
                    f"job {job_id} cannot run again: its dedup key {record.dedup_key!r} belongs to another job now"
                )
            case _:
                pass  # someone was faster: look again
    raise VersionConflict(f"job {job_id} kept changing: try again")


async def retry_dead(store: Store, clock: Clock, job_type: str | None, error_type: str | None, by: str | None) -> int:
    """All dead letters, or those of a type or an error, page by page; how many run again."""
    retried, after = 0, None
    while True:
        page = await store.find(
            Query(status=Status.FAILED, job_type=job_type, after=after, limit=limits.FIND_LIMIT_MAX)
        )
        now = clock.now()
        chosen = [each for each in page.items if error_type is None or _died_of(each) == error_type]
        if chosen:
            edits = [lifecycle.manual_retry(each, now=now, by=by, reason=None) for each in chosen]
            retried += (await store.apply(edits, now)).count(Verdict.APPLIED)
        after = page.next
        if after is None:
            return retried


def _died_of(record: JobRecord) -> str:
    return record.errors[-1].type if record.errors else "DependencyFailed"


def _instead(status: Status) -> str:
    if status in lifecycle.TERMINAL:
        return "it has ended; it can be retried, not changed"
    return "it has not ended; it can be cancelled, not retried"
