"""Settles attempts of remote workers: completion, failure, other outcomes, progress and lease extensions.

As with local workers, lifecycle.decide turns an outcome into a transition, and the store applies it while the claim
holds. Every call may be repeated: history tells what the first one did.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections.abc import Sequence

import msgspec

from backstay import codec
from backstay.app import Backstay
from backstay.backoff import Backoff
from backstay.clock import MICROS, Instant
from backstay.core.lifecycle import (
    Cancelled,
    Completed,
    Discarded,
    GivenBack,
    Outcome,
    Raised,
    RetryAsked,
    Sleeping,
    Snoozed,
    WaitingForChildren,
    WaitingForEvent,
    decide,
)
from backstay.core.output import OutputPart, check_entry, full
from backstay.core.records import ClaimedJob, HistoryEvent, Hold, JobRecord, JobType, Transition, Verdict, shared
from backstay.core.states import Event, Status
from backstay.errors import ClaimLost, OutputTooLarge, StoreBusy
from backstay.files.local import StoredFile
from backstay.limits import OUTPUT_BYTES_MAX, OUTPUT_ENTRIES_MAX
from backstay.ops.wait import Trouble
from backstay.server.problems import Problem
from backstay.worker.run import Report

log = logging.getLogger("backstay.server")
_FAILURES = frozenset({Event.RETRY, Event.EXHAUST, Event.DISCARD})
_LOCKED_PAUSES = (0.02, 0.1, 0.5)  # seconds; most transactions that hold a job last milliseconds


class Settled(msgspec.Struct, frozen=True):
    """How an attempt ended: the same for a call and for its repeats."""

    job_id: str
    attempt: int
    status: Status  # of the job, from then on
    reason: str | None


class Settling:
    def __init__(self, app: Backstay) -> None:
        self._app = app
        self._trouble = Trouble(log, app.clock)

    async def end(
        self, record: JobRecord, hold: Hold, outcome: Outcome, report: Report
    ) -> tuple[Settled, Transition | None]:
        """Settle an attempt. The transition is None if an earlier call did that."""
        if (before := _settled(record, hold, outcome)) is not None:
            return before, None
        now = self._app.clock.now()
        await self._write_log(report)
        transition = decide(
            report.job,
            outcome,
            now=now,
            backoff=await self._backoff(outcome, record.job_type),
            draw=random.random(),
            token=hold.token,
            by=record.worker_id,
            **report.said(),
        )
        [verdict] = await self._app.remote_work.settle([transition], now)
        if verdict is not Verdict.APPLIED:
            [again] = await self._app.get_many([hold.job_id])  # a repeat may have been faster
            if again is None or (before := _settled(again.row, hold, outcome)) is None:
                raise lost(hold)
            return before, None
        await self._observe(report.job, transition)
        return Settled(hold.job_id, hold.attempt, transition.target, transition.reason), transition

    async def note(self, report: Report) -> None:
        await self._write_log(report)
        if await self._app.remote_work.note(report.note()) is not Verdict.APPLIED:
            raise lost(report.hold)

    async def append_output(self, hold: Hold, first: int, entries: Sequence[str]) -> int:
        """Append entries that continue the output; return the number of the last one that is stored. A repeat changes
        nothing."""
        end = await self._app.output_end(hold.job_id)
        is_own = end is not None and end.place.attempt == hold.attempt
        last, size = (end.place.number, end.size) if end is not None and is_own else (0, 0)
        if first + len(entries) - 1 <= last:
            return last
        if first != last + 1:
            raise Problem(
                409, "output-gap", f"the next entry of attempt {hold.attempt} of job {hold.job_id} is number {last + 1}"
            )
        added = sum(map(check_entry, entries))
        if last + len(entries) > OUTPUT_ENTRIES_MAX or size + added > OUTPUT_BYTES_MAX:
            raise OutputTooLarge(full(last, size))
        part = OutputPart(hold, 0, first, tuple(entries), size + added)
        if await self._app.remote_work.append_output(part) is not Verdict.APPLIED:
            raise lost(hold)
        return part.last

    async def extend(self, holds: Sequence[Hold], seconds: float | None = None) -> tuple[list[bool], Instant]:
        """Return which claims still hold, and until when. Raise StoreBusy if one holds, but until when is unknown."""
        for pause in (*_LOCKED_PAUSES, None):
            now = self._app.clock.now()
            until = now + round((seconds or self._app.lease_seconds) * MICROS)
            verdicts = await self._app.remote_work.extend(holds, until, now)
            if Verdict.LOCKED not in verdicts:
                break
            if pause is None:
                raise StoreBusy("another transaction holds the job, so its lease was not extended: try again")
            await asyncio.sleep(pause)
        return [verdict is Verdict.APPLIED for verdict in verdicts], until

    async def _write_log(self, report: Report) -> None:
        if report.dirty:
            await self._app.remote_work.write_log(report, self._trouble)

    async def _observe(self, job: ClaimedJob, transition: Transition) -> None:
        if self._app.observers is not None:
            known = await self._known(job.job_type) if transition.error is not None else None
            self._app.observers.ended(job, transition, () if known is None else known.sensitive)

    async def _backoff(self, outcome: Outcome, job_type: str) -> Backoff:
        """Return the backoff of the handler, if its code is here; otherwise the announced one."""
        if isinstance(outcome, Completed):
            return Backoff()  # not needed for this outcome
        known = await self._known(job_type)
        return Backoff.of(None if known is None else known.backoff)

    async def _known(self, job_type: str) -> JobType | None:
        if (handler := self._app.handlers.get(job_type)) is not None:
            known = handler.describe(self._app.clock.now())
            return msgspec.structs.replace(known, sensitive=(*known.sensitive, *handler.marked))
        return next((each for each in await self._app.job_types() if each.job_type == job_type), None)


def held(record: JobRecord, hold: Hold) -> bool:
    """Return whether the holder of this claim may still write to the job, as far as the record shows."""
    return record.status is Status.PROCESSING and record.attempt == hold.attempt


def lost(hold: Hold) -> ClaimLost:
    return ClaimLost(
        f"attempt {hold.attempt} of job {hold.job_id} is over: it was cancelled, its lease ran out, or it has ended;"
        " stop working on it"
    )


def claimed(record: JobRecord) -> ClaimedJob:
    """Return a running job as its worker received it. The record of an ended job has no claim."""
    claim = {
        "lease_expires_at": record.lease_expires_at or 0,
        "worker_id": record.worker_id or "",
        "started_at": record.started_at or record.updated_at,
    }
    return ClaimedJob(**shared(record, ClaimedJob) | claim)


def _settled(record: JobRecord, hold: Hold, outcome: Outcome) -> Settled | None:
    """Return how an earlier call of the holder ended the attempt; None if it is running. Raise ClaimLost if it ended
    otherwise, or someone else ended it."""
    if held(record, hold):
        return None
    for event in reversed(record.history):
        if event.attempt == hold.attempt and event.source is Status.PROCESSING:
            if event.event in _events(outcome) and event.by == _claimer(record.history, hold.attempt):
                if isinstance(outcome, Completed):
                    _check_result(record, hold, outcome)
                return Settled(hold.job_id, hold.attempt, event.target, event.reason)
            break
    raise lost(hold)


def _check_result(record: JobRecord, hold: Hold, outcome: Completed) -> None:
    """Refuse a completion with a different result: it counts once, and this is not a repeat. If the job has run again
    since, or was archived, there is nothing to compare with."""
    is_kept = record.status is Status.COMPLETED and record.attempt == hold.attempt and record.archived_at is None
    if is_kept and not _is_result(record, outcome):
        raise Problem(
            409,
            "already-completed",
            f"attempt {hold.attempt} of job {hold.job_id} has completed with another result, which is final:"
            " submit a new job for a new result",
        )


def _is_result(record: JobRecord, outcome: Completed) -> bool:
    if record.result_artifact is not None:
        said = outcome.result_artifact
        again = hashlib.sha256((outcome.result or "null").encode()).hexdigest() if said is None else _sha256(said)
        return again == _sha256(record.result_artifact)
    stored, said = record.result or "null", outcome.result or "null"
    return outcome.result_artifact is None and (stored == said or codec.decode(stored) == codec.decode(said))


def _sha256(artifact: str) -> str:
    return codec.decode(artifact, type=StoredFile).sha256


def _claimer(history: Sequence[HistoryEvent], attempt: int) -> str | None:
    return next((each.by for each in history if each.event is Event.CLAIM and each.attempt == attempt), None)


def _events(outcome: Outcome) -> frozenset[Event]:
    """Return the events by which history records an outcome. One that was requested too often is recorded as a
    failure."""
    match outcome:
        case Completed():
            return frozenset({Event.COMPLETE})
        case Raised() | RetryAsked() | Discarded():
            return _FAILURES
        case Snoozed():
            return _FAILURES | {Event.SNOOZE}
        case GivenBack():
            return _FAILURES | {Event.GIVE_BACK}
        case WaitingForChildren():
            return _FAILURES | {Event.WAIT_FOR_CHILDREN}
        case Sleeping():
            return frozenset({Event.SLEEP})
        case WaitingForEvent():
            return frozenset({Event.WAIT_FOR_EVENT})
        case Cancelled():
            return frozenset({Event.CANCEL})
