"""Workers: registering, saying that they live, and taking jobs, over HTTP and in any language."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from holdfast import ids, job_json, worker_json
from holdfast.app import Holdfast
from holdfast.clock import MICROS, to_datetime
from holdfast.errors import HoldfastError
from holdfast.job import Job
from holdfast.server import crew
from holdfast.server import remote_documents as documents
from holdfast.server.announcing import announce, announced
from holdfast.server.claiming import Ask
from holdfast.server.desk import Desk
from holdfast.server.guarding import App, Who, check_queue, needs
from holdfast.server.principals import Principal
from holdfast.server.remote_bodies import ClaimBody, HeartbeatBody, HeldClaim, RegisterBody
from holdfast.server.roster import FAR
from holdfast.server.routes import claims
from holdfast.server.routing import Name, answer, answers, routes
from holdfast.statuses import Status
from holdfast.store.types import ClaimedJob, Hold, WorkerRow

READ = [Depends(needs("read"))]
WORK = [Depends(needs("work"))]


class Beat(msgspec.Struct, frozen=True):
    """What became of the claims that a heartbeat named."""

    lease_expires_at: datetime
    held: list[str]
    lost: list[str]
    cancelled: list[str]


def router(app: Holdfast) -> APIRouter:
    api = routes("workers")
    desk = Desk(app)
    _registering(api, desk)
    _claiming(api, desk)
    api.include_router(claims.router(desk))
    return api


def _registering(api: APIRouter, desk: Desk) -> None:
    @api.post(
        "/workers/register",
        summary="Register a worker, or say what it does from now on",
        dependencies=WORK,
        **answers(documents.Registered, 400, 409, 413, 415, 507),
    )
    async def register(app: App, who: Who, request: Request, body: RegisterBody) -> Response:
        for queue in body.queues:
            check_queue(who, queue)
        types = await announced(app, who, body)
        row = await desk.roster.enter(who, _row(app, who, request, body))
        await announce(app, who, request, types)
        lease = app.lease_seconds
        found = worker_json.document(row, to_datetime(app.clock.now()))
        return answer({**found, "heartbeat_seconds": lease / 3})

    @api.get("/workers", summary="List the workers", dependencies=READ, **answers(documents.Workers))
    async def list_workers(app: App, who: Who) -> Response:
        """With queue patterns: those that serve one of the key's queues, and of each what belongs to these."""
        now = to_datetime(app.clock.now())
        return answer({"items": [_document(each, now) for each in await crew.seen(app, who)]})

    @api.post(
        "/workers/{worker_id}/heartbeat",
        summary="Say that a worker lives, and extend the leases of what it holds",
        dependencies=WORK,
        **answers(documents.Heartbeat, 400, 404, 409, 413, 415, 507),
    )
    async def heartbeat(app: App, who: Who, worker_id: Name, body: HeartbeatBody | None = None) -> Response:
        body = body or HeartbeatBody()
        row = await desk.roster.named(who, worker_id)
        found = await _extended(desk, who, body.jobs)
        if body.state == "stopped":
            await desk.roster.leave(worker_id)
        else:
            await desk.roster.beat(row, tuple(found.held), body.state == "stopping")
        return answer({"worker_id": worker_id, **msgspec.structs.asdict(found)})


def _claiming(api: APIRouter, desk: Desk) -> None:
    @api.post(
        "/workers/{worker_id}/claim",
        summary="Take jobs, and wait for them where there are none",
        dependencies=WORK,
        **answers(list[documents.Claimed], 400, 404, 409, 413, 415, 507),
    )
    async def claim(app: App, who: Who, request: Request, worker_id: Name, body: ClaimBody | None = None) -> Response:
        body = body or ClaimBody()
        row = await desk.roster.named(who, worker_id)
        for queue in row.queues:
            check_queue(who, queue)
        await desk.roster.seen(row)
        tokens = await desk.tokens()
        taken = tokens.claim(who.key_id, worker_id, body.request_id)
        repeats = body.request_id is not None
        ask = Ask(row, body.limit, body.wait_seconds, tokens.stored(taken), repeats, who.key_id)
        async with _hung_up(request) as gone:
            jobs = await desk.claims.take(ask, gone, request.app.state.stopping)
        found = await _records(app, jobs)
        return answer(
            [{"job": job_json.document(job), "token": tokens.text(job.job_id, job.attempt, taken)} for job in found]
        )


def _document(seen: crew.Seen, now: datetime) -> dict[str, object]:
    found = worker_json.document(seen.row, now)
    return found if seen.is_whole else found | {"ended": None, "failed": None}


def _row(app: Holdfast, who: Principal, request: Request, body: RegisterBody) -> WorkerRow:
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


async def _records(app: Holdfast, jobs: list[ClaimedJob]) -> list[Job]:
    """As they stand in the store, in the order of the claim; one that has ended meanwhile is not handed out."""
    found = await app.store.get([job.job_id for job in jobs]) if jobs else []
    return [
        Job(record)
        for job, record in zip(jobs, found, strict=True)
        if record is not None and record.status is Status.PROCESSING and record.attempt == job.attempt
    ]


async def _extended(desk: Desk, who: Principal, claimed: list[HeldClaim]) -> Beat:
    """Which claims hold, for another lease; which do not, and which of these because someone cancelled the job."""
    holds = await _holds(desk, who, claimed)
    kept, until = await desk.settling.extend(list(holds.values()))
    held = [job_id for job_id, holding in zip(holds, kept, strict=True) if holding]
    gone = [each.job_id for each in claimed if each.job_id not in held]
    known = [job_id for job_id in gone if job_id in holds]
    statuses = dict(zip(known, await desk.app.store.statuses(known) if known else [], strict=True))
    cancelled = [job_id for job_id in gone if statuses.get(job_id) is Status.CANCELLED]
    lost = [job_id for job_id in gone if job_id not in cancelled]
    return Beat(to_datetime(until), held, lost, cancelled)


async def _holds(desk: Desk, who: Principal, claimed: list[HeldClaim]) -> dict[str, Hold]:
    """The claims whose token is good and whose queue the key sees, by job as the worker named it."""
    tokens = await desk.tokens()
    holds: dict[str, Hold] = {}
    for each in claimed:
        try:
            holds[each.job_id] = tokens.hold(ids.canonical(each.job_id), each.token)
        except HoldfastError:
            continue
    if not holds or who.sees_all:
        return holds
    records = await desk.app.store.get([hold.job_id for hold in holds.values()])
    seen = {record.job_id for record in records if record is not None and who.sees(record.queue)}
    return {name: hold for name, hold in holds.items() if hold.job_id in seen}


@asynccontextmanager
async def _hung_up(request: Request) -> AsyncIterator[asyncio.Future[None]]:
    """Done when the client has closed the connection."""

    async def listen() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task = asyncio.get_running_loop().create_task(listen())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
