"""Schedules: the jobs that come again and again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from holdfast import audit_json, job_json
from holdfast.app import Holdfast
from holdfast.errors import ScheduleNotFound
from holdfast.schedules import ScheduleInfo
from holdfast.server import admitting, changes, covering, documents, problems
from holdfast.server.guarding import App, Who, check_queue, needs
from holdfast.server.inputs import ScheduleBody
from holdfast.server.principals import Principal
from holdfast.server.routing import Name, answer, answers, routes


def router(_: Holdfast) -> APIRouter:
    api = routes("schedules")
    _reading(api)
    _defining(api)
    _changing(api)
    return api


def _reading(api: APIRouter) -> None:
    read = [Depends(needs("read"))]

    @api.get("/schedules", summary="List the schedules", dependencies=read, **answers(documents.Schedules))
    async def list_schedules(app: App, who: Who) -> Response:
        known = await covering.schemas(app, who)
        seen = [each for each in await app.schedules() if who.sees(each.queue)]
        return answer({"items": [covering.covered(known, each.job_type, document(each)) for each in seen]})

    @api.get("/schedules/{name}", summary="Read a schedule", dependencies=read, **answers(documents.Schedule, 404))
    async def read_schedule(app: App, who: Who, name: Name) -> Response:
        found = await _visible(app, who, name)
        return answer(covering.covered(await covering.schemas(app, who), found.job_type, document(found)))


def _defining(api: APIRouter) -> None:
    admin = [Depends(needs("admin"))]

    @api.put("/schedules/{name}", summary="Add or change a schedule", dependencies=admin, **_put_answers())
    async def put_schedule(app: App, who: Who, request: Request, name: Name, body: ScheduleBody) -> Response:
        """201 where there was none of this name. Saying the same again changes nothing."""
        before = await _stored(app, name)
        options = body.options()
        check_queue(who, options.get("queue") or (await admitting.target_of(app, who, body.job_type)).queue)
        if before is not None and not who.sees(before.queue):
            raise problems.foreign_queue("the queue of the schedule that has this name")
        async with changes.audited(app, who, request, "schedule.put", name, audit_json.schedule(before)) as entry:
            with changes.raced():
                after = await app.schedule(
                    name,
                    body.cron,
                    body.job_type,
                    body.payload,
                    timezone=body.timezone,
                    missed=body.missed,
                    **options,
                )
            entry.after = audit_json.schedule(after)
        return answer(document(after), 201 if before is None else 200)

    @api.delete(
        "/schedules/{name}",
        summary="Remove a schedule",
        dependencies=admin,
        **answers(None, 404, status=204, says="It is removed; the jobs that it has made stay"),
    )
    async def delete_schedule(app: App, who: Who, request: Request, name: Name) -> Response:
        before = await _visible(app, who, name)
        async with changes.audited(app, who, request, "schedule.delete", name, audit_json.schedule(before)):
            await app.unschedule(name)
        return Response(status_code=204)


def _changing(api: APIRouter) -> None:
    admin = [Depends(needs("admin"))]

    @api.post(
        "/schedules/{name}/pause",
        summary="Pause a schedule",
        dependencies=admin,
        **answers(documents.Schedule, 404, 409),
    )
    async def pause_schedule(app: App, who: Who, request: Request, name: Name) -> Response:
        """It makes no more jobs until it is resumed."""
        before = await _visible(app, who, name)
        return await _changed(
            app, who, request, "schedule.pause", before, lambda: app.pause_schedule(name, by=who.name)
        )

    @api.post(
        "/schedules/{name}/resume",
        summary="Resume a schedule",
        dependencies=admin,
        **answers(documents.Schedule, 404, 409),
    )
    async def resume_schedule(app: App, who: Who, request: Request, name: Name) -> Response:
        """It goes on with the next tick from now."""
        before = await _visible(app, who, name)
        return await _changed(app, who, request, "schedule.resume", before, lambda: app.resume_schedule(name))

    @api.post(
        "/schedules/{name}/run",
        summary="Submit the job of a schedule now",
        dependencies=admin,
        **answers(documents.Job, 404, 409, 507, status=201, says="The job is stored"),
    )
    async def run_schedule(app: App, who: Who, request: Request, name: Name) -> Response:
        """Beside its ticks."""
        await _visible(app, who, name)
        async with changes.audited(app, who, request, "schedule.run", name) as entry:
            job = await app.run_schedule(name, by=who.name)
            entry.after = {"job_id": job.job_id}
        return answer(job_json.document(job), 201)


async def _changed(
    app: Holdfast,
    who: Principal,
    request: Request,
    action: str,
    before: ScheduleInfo,
    change: Callable[[], Awaitable[ScheduleInfo]],
) -> Response:
    async with changes.audited(app, who, request, action, before.name, audit_json.schedule(before)) as entry:
        with changes.raced():
            after = await change()
        entry.after = audit_json.schedule(after)
    return answer(document(after))


async def _stored(app: Holdfast, name: str) -> ScheduleInfo | None:
    return next((each for each in await app.schedules() if each.name == name), None)


async def _visible(app: Holdfast, who: Principal, name: str) -> ScheduleInfo:
    found = await _stored(app, name)
    if found is None or not who.sees(found.queue):
        raise ScheduleNotFound(f"no schedule {name!r:.80}")
    return found


def _put_answers() -> dict[str, Any]:
    found = answers(documents.Schedule, 400, 404, 409, 413, 415, says="The schedule, as it is now")
    found["responses"][201] = {"model": documents.Schedule, "description": "There was none of this name"}
    return found


def document(schedule: ScheduleInfo) -> dict[str, Any]:
    return {**msgspec.structs.asdict(schedule), "paused": schedule.paused}
