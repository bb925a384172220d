"""What the holder of a claim says of its job: how it goes, that it needs more time, and how it ended."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Response

from holdfast import codec
from holdfast.app import Holdfast
from holdfast.clock import MICROS, to_datetime
from holdfast.errors import InvalidPayload, InvalidResult
from holdfast.lifecycle import (
    Cancelled,
    Completed,
    Discarded,
    ErrorEntry,
    GivenBack,
    Outcome,
    Raised,
    RetryAsked,
    Snoozed,
)
from holdfast.server import remote_documents as documents
from holdfast.server.desk import Desk
from holdfast.server.guarding import App, Who, needs, visible
from holdfast.server.principals import Principal
from holdfast.server.remote_bodies import (
    CompleteBody,
    ExtendBody,
    FailBody,
    LogLine,
    OutcomeBody,
    ProgressBody,
)
from holdfast.server.routing import JobId, answer, answers, routes
from holdfast.server.settling import claimed, held, lost
from holdfast.store.types import Hold, JobRecord
from holdfast.worker.completing import completion
from holdfast.worker.mistakes import clean
from holdfast.worker.report import Report

WORK = [Depends(needs("work"))]
_GIVEN_BACK = "given back by its worker"


def router(desk: Desk) -> APIRouter:
    api = routes("workers")
    _ending(api, desk)
    _going_on(api, desk)
    return api


def _ending(api: APIRouter, desk: Desk) -> None:
    said: dict[str, Any] = {"dependencies": WORK, **answers(documents.Settled, 400, 404, 409, 413, 415, 507)}

    @api.post("/jobs/{job_id:uuid}/complete", summary="The job is done", **said)
    async def complete(app: App, who: Who, job_id: JobId, body: CompleteBody) -> Response:
        record, hold = await _claim(desk, who, str(job_id), body.token)
        outcome = await _completion(app, record, hold, body.result)
        return await _end(desk, record, hold, outcome, body.logs, body.metrics)

    @api.post("/jobs/{job_id:uuid}/fail", summary="The attempt failed", **said)
    async def fail(app: App, who: Who, job_id: JobId, body: FailBody) -> Response:
        record, hold = await _claim(desk, who, str(job_id), body.token)
        outcome = _failure(body, hold.attempt, app.clock.now())
        return await _end(desk, record, hold, outcome, body.logs, body.metrics)

    @api.post(
        "/jobs/{job_id:uuid}/outcome", summary="The attempt ended otherwise: snoozed, given back, cancelled", **said
    )
    async def outcome(app: App, who: Who, job_id: JobId, body: OutcomeBody) -> Response:
        record, hold = await _claim(desk, who, str(job_id), body.token)
        return await _end(desk, record, hold, _other(body), body.logs, body.metrics)


def _going_on(api: APIRouter, desk: Desk) -> None:
    @api.post(
        "/jobs/{job_id:uuid}/extend",
        summary="Hold the claim for longer",
        dependencies=WORK,
        **answers(documents.Extended, 400, 404, 409, 413, 415, 507),
    )
    async def extend(who: Who, job_id: JobId, body: ExtendBody) -> Response:
        _, hold = await _claim(desk, who, str(job_id), body.token)
        [holds], until = await desk.settling.extend([hold], body.seconds)
        if not holds:
            raise lost(hold)
        return answer({"job_id": hold.job_id, "attempt": hold.attempt, "lease_expires_at": to_datetime(until)})

    @api.post(
        "/jobs/{job_id:uuid}/progress",
        summary="Say how far the job is",
        dependencies=WORK,
        **answers(documents.Noted, 400, 404, 409, 413, 415, 507),
    )
    async def progress(who: Who, job_id: JobId, body: ProgressBody) -> Response:
        record, hold = await _claim(desk, who, str(job_id), body.token)
        if not held(record, hold):
            raise lost(hold)
        report = _report(record, hold, body.logs, body.metrics)
        if body.progress is not None:
            report.say_progress(body.progress, body.stage)
        elif body.stage is not None:
            report.say_progress(record.progress, body.stage)
        await desk.settling.note(report)
        until = record.lease_expires_at
        return answer(
            {
                "job_id": hold.job_id,
                "attempt": hold.attempt,
                "lease_expires_at": None if until is None else to_datetime(until),
            }
        )


async def _claim(desk: Desk, who: Principal, job_id: str, token: str) -> tuple[JobRecord, Hold]:
    """The job as it stands, and the claim that the token is for."""
    job = await visible(desk.app, who, job_id)
    return job.record, (await desk.tokens()).hold(job.job_id, token)


async def _end(
    desk: Desk, record: JobRecord, hold: Hold, outcome: Outcome, logs: list[LogLine], metrics: dict[str, float]
) -> Response:
    report = _report(record, hold, logs, metrics)
    settled, transition = await desk.settling.end(record, hold, outcome, report)
    if transition is not None:
        desk.roster.settled(record.worker_id, transition.ran_micros, transition.error is not None)
    return answer(settled)


def _report(record: JobRecord, hold: Hold, logs: list[LogLine], metrics: dict[str, float]) -> Report:
    report = Report(claimed(record), hold.token)
    for line in logs:
        report.say_log(None, line.level, line.message)
    for name, value in metrics.items():
        report.say_metric(name, value)
    return report


async def _completion(app: Holdfast, record: JobRecord, hold: Hold, result: Any) -> Outcome:
    """With the result as it is stored; of a claim that is over nothing is, it is only compared."""
    try:
        text = codec.to_json(result, "result")
    except InvalidPayload as error:
        raise InvalidResult(str(error)) from None
    if not held(record, hold):
        return Completed(text)
    return await completion(hold.job_id, hold.attempt, text, app.files, app.clock.now())


def _failure(body: FailBody, attempt: int, now: int) -> Outcome:
    said = body.error
    error = ErrorEntry(attempt, now, clean(said.type), clean(said.message), clean(said.traceback, keep_end=True))
    if not body.retry:
        return Discarded(error)
    return Raised(error) if body.retry_after is None else RetryAsked(error, round(body.retry_after * MICROS))


def _other(body: OutcomeBody) -> Outcome:
    reason = None if body.reason is None else clean(body.reason)
    match body.outcome:
        case "snooze":
            return Snoozed(round(body.seconds * MICROS), reason)
        case "give_back":
            return GivenBack(reason or _GIVEN_BACK)
        case "cancel":
            return Cancelled(reason)
