"""Routes for remote workers: register, heartbeat, claim, report progress, extend, and settle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from backstay import codec, ids, limits
from backstay.app import Backstay
from backstay.clock import MICROS, Instant, to_datetime
from backstay.core import workers
from backstay.core.lifecycle import Cancelled, Completed, Discarded, GivenBack, Outcome, Raised, RetryAsked, Snoozed
from backstay.core.records import BlockedLoop, ClaimedJob, ErrorEntry, Hold, JobRecord, WorkerRow
from backstay.core.states import Status
from backstay.core.waits import Ending
from backstay.errors import BackstayError, InvalidPayload, InvalidResult
from backstay.job import ClaimedDocument, Job, Waited
from backstay.job import document as job_document
from backstay.server import response_models, visibility
from backstay.server.auth import App, By, Principal, Who, check_queue, needs, visible
from backstay.server.long_poll import Ask
from backstay.server.problems import Problem
from backstay.server.remote_settle import Settled, claimed, held, lost
from backstay.server.remote_workers import FAR, RemoteWorkers, announced
from backstay.server.request_models import (
    ClaimBody,
    CompleteBody,
    ExtendBody,
    FailBody,
    HeartbeatBody,
    HeldClaim,
    LogLine,
    OutcomeBody,
    OutputBody,
    ProgressBody,
    RegisterBody,
    StepBody,
    WaitBody,
)
from backstay.server.routing import AfterName, JobId, ListLimit, Name, answer, answers, routes
from backstay.worker.executor import completion
from backstay.worker.run import Report

WORK = [Depends(needs("work"))]
_GIVEN_BACK = "given back by its worker"


def claims_router(remote: RemoteWorkers) -> APIRouter:
    api = routes("workers")
    _settle_routes(api, remote)
    _progress_routes(api, remote)
    _output_routes(api, remote)
    _wait_routes(api, remote)
    return api


def _settle_routes(api: APIRouter, remote: RemoteWorkers) -> None:
    said: dict[str, Any] = {"dependencies": WORK, **answers(Settled, 400, 404, 409, 413, 415, 507)}

    @api.post("/jobs/{job_id:uuid}/complete", summary="Complete the job", **said)
    async def complete(app: App, who: Who, job_id: JobId, body: CompleteBody) -> Response:
        record, hold = await _claim(remote, who, str(job_id), body.token)
        outcome = await _completion(app, record, hold, body.result)
        return await _end(remote, record, hold, outcome, body.logs, body.metrics)

    @api.post("/jobs/{job_id:uuid}/fail", summary="Report a failed attempt", **said)
    async def fail(app: App, who: Who, job_id: JobId, body: FailBody) -> Response:
        record, hold = await _claim(remote, who, str(job_id), body.token)
        outcome = _failure(body, hold.attempt, app.clock.now())
        return await _end(remote, record, hold, outcome, body.logs, body.metrics)

    @api.post("/jobs/{job_id:uuid}/outcome", summary="End the attempt otherwise: snooze, give back, cancel", **said)
    async def outcome(app: App, who: Who, job_id: JobId, body: OutcomeBody) -> Response:
        record, hold = await _claim(remote, who, str(job_id), body.token)
        return await _end(remote, record, hold, await _other(remote, hold, body), body.logs, body.metrics)


def _progress_routes(api: APIRouter, remote: RemoteWorkers) -> None:
    @api.post(
        "/jobs/{job_id:uuid}/extend",
        summary="Extend the lease of the claim",
        dependencies=WORK,
        **answers(response_models.Extended, 400, 404, 409, 413, 415, 507),
    )
    async def extend(who: Who, job_id: JobId, body: ExtendBody) -> Response:
        _, hold = await _claim(remote, who, str(job_id), body.token)
        [holds], until = await remote.settling.extend([hold], body.seconds)
        if not holds:
            raise lost(hold)
        return answer(response_models.Extended(hold.job_id, hold.attempt, to_datetime(until)))

    @api.post(
        "/jobs/{job_id:uuid}/progress",
        summary="Report progress",
        dependencies=WORK,
        **answers(response_models.Noted, 400, 404, 409, 413, 415, 507),
    )
    async def progress(who: Who, job_id: JobId, body: ProgressBody) -> Response:
        record, hold = await _claim(remote, who, str(job_id), body.token)
        if not held(record, hold):
            raise lost(hold)
        report = _report(record, hold, body.logs, body.metrics)
        if body.progress is not None:
            report.say_progress(body.progress, body.stage)
        elif body.stage is not None:
            report.say_progress(record.progress, body.stage)
        await remote.settling.note(report)
        until = record.lease_expires_at
        return answer(response_models.Noted(hold.job_id, hold.attempt, None if until is None else to_datetime(until)))


def _wait_routes(api: APIRouter, remote: RemoteWorkers) -> None:
    @api.post(
        "/jobs/{job_id:uuid}/step",
        summary="Read or record a step of the job",
        dependencies=WORK,
        **answers(response_models.StepAnswer, 400, 404, 409, 413, 415, 507),
    )
    async def step(who: Who, job_id: JobId, body: StepBody) -> Response:
        """With `record`, the answer counts unless the step has one; the answer that counts is returned."""
        report = await _running(remote, who, str(job_id), body.token)
        text = codec.to_json(body.answer, "answer") if body.record else None
        found = await remote.app.remote_work.step(report, body.name, text)
        raw = msgspec.Raw((found or "null").encode())
        return answer(response_models.StepAnswer(report.job.job_id, body.name, found is not None, raw))

    @api.post(
        "/jobs/{job_id:uuid}/wait",
        summary="Sleep, or wait for an event",
        dependencies=WORK,
        **answers(response_models.WaitAnswer, 400, 404, 409, 413, 415, 429, 507),
    )
    async def wait(who: Who, job_id: JobId, body: WaitBody) -> Response:
        report = await _running(remote, who, str(job_id), body.token)
        work, span = remote.app.remote_work, None if body.seconds is None else round(body.seconds * MICROS)
        if body.event is None:
            left = await work.sleep(report, body.name, span or 0)
            return _waited(report, Waited(body.name, Ending(body.name) if left is None else None))
        found = await work.wait_for_event(report, body.name, body.event, body.key, span, body.json_schema)
        return _waited(report, found)


async def _running(remote: RemoteWorkers, who: Principal, job_id: str, token: str) -> Report:
    record, hold = await _claim(remote, who, job_id, token)
    if not held(record, hold):
        raise lost(hold)
    return Report(claimed(record), hold.token)


def _waited(report: Report, found: Waited) -> Response:
    ending = found.ending or Ending()
    return answer(
        response_models.WaitAnswer(
            report.job.job_id,
            found.name,
            found.ending is not None,
            ending.event_id,
            msgspec.Raw(ending.payload.encode()),
            found.ending is not None and ending.event_id is None,
            found.seen,
        )
    )


def _output_routes(api: APIRouter, remote: RemoteWorkers) -> None:
    @api.post(
        "/jobs/{job_id:uuid}/output",
        summary="Append to the output of the job",
        dependencies=WORK,
        **answers(response_models.Appended, 400, 404, 409, 413, 415, 507),
    )
    async def append_output(who: Who, job_id: JobId, body: OutputBody) -> Response:
        """Entries that the handler streams, in order. Readers of the job get them at once."""
        record, hold = await _claim(remote, who, str(job_id), body.token)
        if not held(record, hold):
            raise lost(hold)
        entries = [codec.to_json(each, "entry of the output") for each in body.entries]
        last = await remote.settling.append_output(hold, body.first, entries)
        return answer(response_models.Appended(hold.job_id, hold.attempt, last))


async def _claim(remote: RemoteWorkers, who: Principal, job_id: str, token: str) -> tuple[JobRecord, Hold]:
    """Return the job as it is stored, and the claim that the token is for."""
    job = await visible(remote.app, who, job_id)
    return job.row, (await remote.tokens()).hold(job.job_id, token)


async def _end(
    remote: RemoteWorkers,
    record: JobRecord,
    hold: Hold,
    outcome: Outcome,
    logs: list[LogLine],
    metrics: dict[str, float],
) -> Response:
    report = _report(record, hold, logs, metrics)
    settled, transition = await remote.settling.end(record, hold, outcome, report)
    if transition is not None:
        remote.roster.settled(record.worker_id, transition.ran_micros, transition.error is not None)
    return answer(settled)


def _report(record: JobRecord, hold: Hold, logs: list[LogLine], metrics: dict[str, float]) -> Report:
    report = Report(claimed(record), hold.token)
    for line in logs:
        report.say_log(None, line.level, line.message)
    for name, value in metrics.items():
        report.say_metric(name, value)
    return report


async def _completion(app: Backstay, record: JobRecord, hold: Hold, result: Any) -> Outcome:
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
    error = ErrorEntry(
        attempt, now, codec.clean(said.type), codec.clean(said.message), codec.clean(said.traceback, keep_end=True)
    )
    if not body.retry:
        return Discarded(error)
    return Raised(error) if body.retry_after is None else RetryAsked(error, round(body.retry_after * MICROS))


async def _other(remote: RemoteWorkers, hold: Hold, body: OutcomeBody) -> Outcome:
    reason = None if body.reason is None else codec.clean(body.reason)
    match body.outcome:
        case "snooze":
            return Snoozed(round(body.seconds * MICROS), reason)
        case "give_back":
            return GivenBack(reason or _GIVEN_BACK)
        case "cancel":
            return Cancelled(reason)
        case "sleep" | "wait_for_event":
            seen = None if body.outcome == "sleep" else body.seen or 0
            found = await remote.app.remote_work.suspended(hold.job_id, body.name or "", seen)
            if found is None:
                raise Problem(422, "invalid-request", f"the job has recorded no such wait: {body.name!r}")
            return found


READ = [Depends(needs("read"))]
Former = Annotated[bool, Query(description="List those that left, died or were lost in the last 24 hours instead.")]


def workers_router(app: Backstay) -> APIRouter:
    api = routes("workers")
    remote = RemoteWorkers(app)
    _registering(api, remote)
    _claiming(api, remote)
    api.include_router(claims_router(remote))
    return api


def _registering(api: APIRouter, remote: RemoteWorkers) -> None:
    @api.post(
        "/workers/register",
        summary="Register a worker, or update its registration",
        dependencies=WORK,
        **answers(response_models.Registered, 400, 409, 413, 415, 507),
    )
    async def register(app: App, who: Who, by: By, request: Request, body: RegisterBody) -> Response:
        for queue in body.queues:
            check_queue(who, queue)
        types = await announced(app, who, body)
        row = await remote.roster.enter(who, _row(app, who, request, body))
        await app.remote_work.announce(types, by)
        found = workers.document(row, to_datetime(app.clock.now()))
        every = workers.renewal_seconds(app.lease_seconds)
        return answer(response_models.of(response_models.Registered, found, heartbeat_seconds=every))

    @api.get("/workers", summary="List the workers", dependencies=READ, **answers(response_models.Workers))
    async def list_workers(
        app: App, who: Who, former: Former = False, after: AfterName = None, limit: ListLimit = limits.LIST_LIMIT
    ) -> Response:
        """By id. For a key with queue patterns: the workers that serve one of its queues, limited to those queues; a
        page may be short although more follow."""
        now = to_datetime(app.clock.now())
        if former:
            seen, following = await visibility.former_seen(app, who), None
        else:
            seen, following = await visibility.workers_page(app, who, after or "", limit)
        return answer(response_models.Workers([_document(each, now) for each in seen], following))

    @api.post(
        "/workers/{worker_id}/heartbeat",
        summary="Send a heartbeat, and extend the leases of the claims it holds",
        dependencies=WORK,
        **answers(response_models.Heartbeat, 400, 404, 409, 413, 415, 507),
    )
    async def heartbeat(app: App, who: Who, worker_id: Name, body: HeartbeatBody | None = None) -> Response:
        body = body or HeartbeatBody()
        row = await remote.roster.named(who, worker_id)
        found = await _extended(remote, who, worker_id, body.jobs)
        if body.state == "stopped":
            await remote.roster.leave(worker_id)
        else:
            await remote.roster.beat(_reported(row, body, tuple(found.held), app.clock.now()))
        return answer(found)


def _claiming(api: APIRouter, remote: RemoteWorkers) -> None:
    @api.post(
        "/workers/{worker_id}/claim",
        summary="Claim jobs, waiting for some if there are none",
        dependencies=WORK,
        **answers(list[response_models.Claimed], 400, 404, 409, 413, 415, 507),
    )
    async def claim(app: App, who: Who, request: Request, worker_id: Name, body: ClaimBody | None = None) -> Response:
        body = body or ClaimBody()
        row = await remote.roster.named(who, worker_id)
        for queue in row.queues:
            check_queue(who, queue)
        await remote.roster.seen(row)
        tokens = await remote.tokens()
        taken = tokens.claim(who.key_id, worker_id, body.request_id)
        repeats = body.request_id is not None
        ask = Ask(row, body.limit, body.wait_seconds, tokens.stored(taken), repeats, who.key_id)
        async with _hung_up(request) as gone:
            jobs = await remote.claims.take(ask, gone, request.app.state.stopping)
        return answer(
            [
                response_models.Claimed(document, tokens.text(document.job_id, document.attempt, taken))
                for document in await _documents(app, jobs)
            ]
        )


def _document(seen: visibility.Seen, now: datetime) -> msgspec.Struct:
    found = workers.document(seen.row, now, seen.left_at)
    return found if seen.is_whole else msgspec.structs.replace(found, ended=None, failed=None)


def _row(app: Backstay, who: Principal, request: Request, body: RegisterBody) -> WorkerRow:
    now = app.clock.now()
    types = tuple(dict.fromkeys(body.job_types))
    own = {name: app.handlers[name].concurrency for name in types if name in app.handlers}
    return WorkerRow(
        worker_id=body.worker_id,
        host=request.client.host if request.client is not None else "",
        pid=0,
        process_key=FAR,
        version=body.version,
        queues=tuple(dict.fromkeys(body.queues)),
        job_types=types,
        concurrency=body.concurrency,
        started_at=now,
        heartbeat_at=now,
        limits={**{name: limit for name, limit in own.items() if limit is not None}, **body.limits},
        versions=body.versions,
        lease_micros=round(app.lease_seconds * MICROS),
        key_id=who.key_id,
    )


def _reported(row: WorkerRow, body: HeartbeatBody, running: tuple[str, ...], now: Instant) -> WorkerRow:
    """Return the worker as it describes itself. Its clock does not count: it reports for how long, not since when."""
    said, before = body.blocked, row.blocked
    blocked = None
    if said is not None:
        is_same = before is not None and before.job_id == said.job_id
        since = before.since if before is not None and is_same else now - round(said.seconds * MICROS)
        blocked = BlockedLoop(
            since, said.job_type, said.job_id, None if said.where is None else codec.clean(said.where)
        )
    return msgspec.structs.replace(
        row, running=running, stopping=body.state == "stopping", blocked=blocked, stuck=tuple(body.stuck)
    )


async def _documents(app: Backstay, jobs: list[ClaimedJob]) -> list[ClaimedDocument]:
    """Return claimed jobs as they are stored, in the order of the claim, without those that have ended since."""
    found = await app.get_many([job.job_id for job in jobs])
    return [
        _claimed_document(job, stored)
        for job, stored in zip(jobs, found, strict=True)
        if stored is not None and stored.status is Status.PROCESSING and stored.attempt == job.attempt
    ]


def _claimed_document(job: ClaimedJob, stored: Job) -> ClaimedDocument:
    return response_models.of(
        ClaimedDocument,
        job_document(stored),
        snoozes=job.snoozes,
        give_backs=job.give_backs,
        waits=job.waits,
        join=job.join,
        lost_at=None if job.lost_at is None else to_datetime(job.lost_at),
        traceparent=job.traceparent,
        suspicion=job.suspicion,
    )


async def _extended(
    remote: RemoteWorkers, who: Principal, worker_id: str, claimed: list[HeldClaim]
) -> response_models.Heartbeat:
    """Return which claims are extended, which no longer hold, and which of the latter because the job was cancelled."""
    holds = await _holds(remote, who, claimed)
    kept, until = await remote.settling.extend(list(holds.values()))
    held = [job_id for job_id, holding in zip(holds, kept, strict=True) if holding]
    gone = [each.job_id for each in claimed if each.job_id not in held]
    known = [job_id for job_id in gone if job_id in holds]
    statuses = dict(zip(known, await remote.app.remote_work.statuses(known), strict=True))
    cancelled = [job_id for job_id in gone if statuses.get(job_id) is Status.CANCELLED]
    lost = [job_id for job_id in gone if job_id not in cancelled]
    return response_models.Heartbeat(worker_id, to_datetime(until), held, lost, cancelled)


async def _holds(remote: RemoteWorkers, who: Principal, claimed: list[HeldClaim]) -> dict[str, Hold]:
    """Return the claims with valid tokens and visible queues, by job as the worker named it."""
    tokens = await remote.tokens()
    holds: dict[str, Hold] = {}
    for each in claimed:
        try:
            holds[each.job_id] = tokens.hold(ids.canonical(each.job_id), each.token)
        except BackstayError:
            continue
    if not holds or who.sees_all:
        return holds
    jobs = await remote.app.get_many([hold.job_id for hold in holds.values()])
    seen = {job.job_id for job in jobs if job is not None and who.sees(job.queue)}
    return {name: hold for name, hold in holds.items() if hold.job_id in seen}


@asynccontextmanager
async def _hung_up(request: Request) -> AsyncIterator[asyncio.Future[None]]:
    """Return a future that is done when the client has closed the connection."""

    async def listen() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task = asyncio.get_running_loop().create_task(listen())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
