"""What the holder of a claim says over HTTP: how its attempt goes, and how it ended.

As with workers that have the code here: an outcome goes in, lifecycle.decide makes a transition of it, and the store
applies that while the claim holds. Every call may be repeated: history tells what the first one did.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections.abc import Sequence

import msgspec

from holdfast import codec
from holdfast.app import Holdfast
from holdfast.clock import MICROS, Instant
from holdfast.errors import ClaimLost, StoreBusy
from holdfast.files import StoredFile
from holdfast.lifecycle import (
    Cancelled,
    Completed,
    Discarded,
    Event,
    GivenBack,
    Outcome,
    Raised,
    RetryAsked,
    Snoozed,
    Transition,
    WaitingForChildren,
    decide,
)
from holdfast.retry import Backoff
from holdfast.server.problems import Problem
from holdfast.statuses import Status
from holdfast.store.types import ClaimedJob, HistoryEvent, Hold, JobRecord, JobType, Verdict
from holdfast.trouble import Trouble
from holdfast.worker.recorder import Recorder
from holdfast.worker.report import Report

log = logging.getLogger("holdfast.server")
_FAILURES = frozenset({Event.RETRY, Event.EXHAUST, Event.DISCARD})
_LOCKED_PAUSES = (0.02, 0.1, 0.5)  # seconds; most transactions that hold a job last milliseconds


class Settled(msgspec.Struct, frozen=True):
    """What became of an attempt: the same for a call and for its repeats."""

    job_id: str
    attempt: int
    status: Status  # what the job was from then on
    reason: str | None


class Settling:
    def __init__(self, app: Holdfast) -> None:
        self._app = app
        self._trouble = Trouble(log, app.clock)

    async def end(
        self, record: JobRecord, hold: Hold, outcome: Outcome, report: Report
    ) -> tuple[Settled, Transition | None]:
        """Settle an attempt. None: that had been done before."""
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
        [verdict] = await self._app.store.apply([transition], now)
        if verdict is not Verdict.APPLIED:
            again = (await self._app.store.get([hold.job_id]))[0]  # a repeat may have been faster
            if again is None or (before := _settled(again, hold, outcome)) is None:
                raise lost(hold)
            return before, None
        await self._observe(report.job, transition)
        return Settled(hold.job_id, hold.attempt, transition.target, transition.reason), transition

    async def note(self, report: Report) -> None:
        await self._write_log(report)
        [verdict] = await self._app.store.note([report.note()], self._app.clock.now())
        if verdict is not Verdict.APPLIED:
            raise lost(report.hold)

    async def extend(self, holds: Sequence[Hold], seconds: float | None = None) -> tuple[list[bool], Instant]:
        """Which of the claims still hold, and until when. StoreBusy: of one that holds nobody can say until when."""
        for pause in (*_LOCKED_PAUSES, None):
            now = self._app.clock.now()
            until = now + round((seconds or self._app.lease_seconds) * MICROS)
            verdicts = await self._app.store.extend(holds, until, now) if holds else []
            if Verdict.LOCKED not in verdicts:
                break
            if pause is None:
                raise StoreBusy("somebody's transaction holds the job, and its lease was not extended: try again")
            await asyncio.sleep(pause)
        return [verdict is Verdict.APPLIED for verdict in verdicts], until

    async def _write_log(self, report: Report) -> None:
        if report.dirty:
            recorder = Recorder(self._app.store, self._app.clock, self._app.files, list, self._trouble)
            await recorder.write_log(report)
            await recorder.close(0.0)

    async def _observe(self, job: ClaimedJob, transition: Transition) -> None:
        if self._app.observers is not None:
            known = await self._known(job.job_type) if transition.error is not None else None
            self._app.observers.ended(job, transition, None if known is None else known.payload_schema)

    async def _backoff(self, outcome: Outcome, job_type: str) -> Backoff:
        """That of the code, where it is here; else the one that was announced."""
        if isinstance(outcome, Completed):
            return Backoff()  # which it does not need
        known = await self._known(job_type)
        return Backoff() if known is None or known.backoff is None else Backoff(*known.backoff)

    async def _known(self, job_type: str) -> JobType | None:
        if (handler := self._app.handlers.get(job_type)) is not None:
            return handler.describe(self._app.clock.now())
        return next((each for each in await self._app.store.job_types() if each.job_type == job_type), None)


def held(record: JobRecord, hold: Hold) -> bool:
    """Whether the record is one that the holder of this claim may still write to, as far as it shows."""
    return record.status is Status.PROCESSING and record.attempt == hold.attempt


def lost(hold: Hold) -> ClaimLost:
    return ClaimLost(
        f"attempt {hold.attempt} of job {hold.job_id} is over: it was cancelled, its lease ran out, or it has ended;"
        " stop working on it"
    )


def claimed(record: JobRecord) -> ClaimedJob:
    """A running job as its worker got it."""
    return ClaimedJob(
        job_id=record.job_id,
        job_type=record.job_type,
        queue=record.queue,
        priority=record.priority,
        payload=record.payload,
        attempt=record.attempt,
        version=record.version,
        failures=record.failures,
        max_attempts=record.max_attempts,
        snoozes=record.snoozes,
        give_backs=record.give_backs,
        timeout_micros=record.timeout_micros,
        created_at=record.created_at,
        scheduled_for=record.scheduled_for,
        lease_expires_at=record.lease_expires_at or 0,
        subject=record.subject,
        parent_job_id=record.parent_job_id,
        root_job_id=record.root_job_id,
        logs=record.logs,
        artifacts=record.artifacts,
        tags=record.tags,
        created_by=record.created_by,
        job_stage=record.job_stage,
        dedup_key=record.dedup_key,
        content_hash=record.content_hash,
        worker_id=record.worker_id or "",
        started_at=record.started_at or record.updated_at,
        payload_version=record.payload_version,
        waits=record.waits,
        children=record.children,
        traceparent=record.traceparent,
    )


def _settled(record: JobRecord, hold: Hold, outcome: Outcome) -> Settled | None:
    """What an earlier call of the holder has made of the attempt; None: it runs. ClaimLost where this is another
    outcome, or where someone else ended it."""
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
    """A completion counts once: one with another result is no repeat of it. What has run again since, or was archived,
    leaves nothing to compare with."""
    is_kept = record.status is Status.COMPLETED and record.attempt == hold.attempt and record.archived_at is None
    if is_kept and not _is_result(record, outcome):
        raise Problem(
            409,
            "already-completed",
            f"attempt {hold.attempt} of job {hold.job_id} has completed with another result, which stands:"
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
    """How an outcome can stand in history: what was asked for too often is a failure."""
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
        case Cancelled():
            return frozenset({Event.CANCEL})
