"""Changes to jobs that the caller does not hold: read, decide, apply if unchanged, else read again.

`apply_edits` is the only such loop for jobs; `edit` is its form for one job, with an error for each refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from backstay import ids
from backstay.clock import Clock, Instant
from backstay.core import dedup, lifecycle
from backstay.core.port import Store
from backstay.core.records import JobRecord, Node, Transition, Verdict
from backstay.core.states import Status
from backstay.errors import DedupConflict, IllegalTransition, JobNotFound, VersionConflict

_NAMED_MAX = 3  # jobs that a message names; the rest is a number
TRIES = 20  # each lost race means that someone else made progress
_FINAL = frozenset({Verdict.APPLIED, Verdict.BLOCKED, Verdict.TAKEN})  # on any other, reading it again tells more

AnyRecord = JobRecord | Node
Change = Callable[[JobRecord, Instant], Transition]


class Edited(msgspec.Struct, frozen=True):
    """The outcome for one job. `job` is the job on which the decision was based."""

    job: AnyRecord
    verdict: Verdict | None  # None: left as it is; STALE: it kept changing


async def apply_edits(
    store: Store,
    clock: Clock,
    jobs: Sequence[AnyRecord],
    decide: Callable[[AnyRecord, Instant], Transition | None],
) -> list[Edited]:
    """Apply what `decide` returns for each job, in one commit per try. A job that has changed since it was read is read
    and decided again, up to TRIES times. `decide` returns None to leave a job as it is."""
    done: list[Edited] = []
    left = list(jobs)
    for _ in range(TRIES):
        now = clock.now()
        decided = [(job, decide(job, now)) for job in left]
        done += [Edited(job, None) for job, transition in decided if transition is None]
        edits = [(job, transition) for job, transition in decided if transition is not None]
        verdicts = await store.apply([transition for _, transition in edits], now) if edits else []
        lost = []
        for (job, _), verdict in zip(edits, verdicts, strict=True):
            if verdict in _FINAL:
                done.append(Edited(job, verdict))
            else:
                lost.append(job)
        if not lost:
            return done
        left = []
        for old, new in zip(lost, await store.get([job.job_id for job in lost]), strict=True):
            if new is None:
                done.append(Edited(old, Verdict.GONE))
            else:
                left.append(new)
    return [*done, *(Edited(job, Verdict.STALE) for job in left)]


async def edit(store: Store, clock: Clock, record: JobRecord, expected_version: int | None, change: Change) -> None:
    """Change one job; raise an error if that is not possible."""
    job_id = record.job_id

    def decide(job: AnyRecord, now: Instant) -> Transition:
        assert isinstance(job, JobRecord)  # noqa: S101 - it was one, and is read again as one
        check_version(job, expected_version)
        try:
            transition = change(job, now)
        except IllegalTransition:
            raise IllegalTransition(f"job {job_id} is {job.status.value}: {_instead(job)}") from None
        if job.archived_at is not None:
            raise IllegalTransition(f"job {job_id} was archived and its payload deleted: submit it again")
        return transition

    [edited] = await apply_edits(store, clock, [record], decide)
    match edited.verdict:
        case Verdict.APPLIED:
            return
        case Verdict.GONE:
            raise JobNotFound(f"no job {job_id}")
        case Verdict.BLOCKED:
            raise IllegalTransition(f"job {job_id} depends on {await _unmet(store, edited.job)}")
        case Verdict.TAKEN:
            key = dedup.plain(record.dedup_key, record.queue)
            raise DedupConflict(f"job {job_id} cannot run again: its dedup key {key!r} belongs to another job now")
        case _:
            raise VersionConflict(f"job {job_id} kept changing: try again")


async def record_of(store: Store, job_id: str) -> JobRecord:
    [record] = await store.get([job_id := ids.canonical(job_id)])
    if record is None:
        raise JobNotFound(f"no job {job_id}")
    return record


def check_version(record: JobRecord, expected: int | None) -> None:
    if expected is not None and record.version != expected:
        raise VersionConflict(f"job {record.job_id} is at version {record.version}, not {expected}: read it again")


async def _unmet(store: Store, record: AnyRecord) -> str:
    """Name what keeps a job from running again."""
    statuses = zip(record.dependencies, await store.statuses(record.dependencies), strict=True)
    unmet = [(job_id, status) for job_id, status in statuses if status not in (Status.COMPLETED, None)]
    if not unmet:  # beyond those that a record lists
        return "jobs that have not completed: retry those first"
    named = [f"{job_id} ({status})" for job_id, status in unmet[:_NAMED_MAX]]
    more = [f"{len(unmet) - _NAMED_MAX} more"] if len(unmet) > _NAMED_MAX else []
    ended = any(status in lifecycle.TERMINAL for _, status in unmet)
    todo = (
        "retry those that have ended first, and this one when all have completed" if ended else "wait until they have"
    )
    return f"{' and '.join([*named, *more])}, which {'has' if len(unmet) == 1 else 'have'} not completed: {todo}"


def _instead(record: JobRecord) -> str:
    status = record.status
    if record.archived_at is not None:
        return "it has ended and was archived; it can no longer be changed"
    if status in lifecycle.TERMINAL:
        return "it has already ended: there is nothing to cancel or change, but it can be retried"
    if status is Status.PROCESSING:
        return "it is running; it can be cancelled"
    return "it has not ended; it can be cancelled or reprioritised, and rescheduled while it is pending or scheduled"
