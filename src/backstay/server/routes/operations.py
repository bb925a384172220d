"""Routes for queues, job types, schedules, statistics and the audit trail."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from backstay import limits
from backstay.app import Backstay
from backstay.clock import Instant, to_datetime
from backstay.core import run_limits, stats
from backstay.core.queues import Queue
from backstay.core.records import Counter, JobType
from backstay.core.schedules import NEXT_TICKS, ScheduleInfo
from backstay.errors import ScheduleNotFound
from backstay.job import JobDocument
from backstay.job import document as job_document
from backstay.server import metrics, problems, response_models, submit, visibility
from backstay.server.auth import App, By, Principal, Who, check_all_queues, check_queue, check_type, needs
from backstay.server.request_models import (
    NO_NUL,
    BackfillBody,
    LimitBody,
    PauseBody,
    RunLimitBody,
    ScheduleBody,
    UnmarkBody,
)
from backstay.server.routing import (
    AfterName,
    JobTypeName,
    ListLimit,
    Name,
    answer,
    answers,
    described,
    for_every_app,
    routes,
)


@for_every_app
def queues_router() -> APIRouter:
    api = routes("queues")
    admin = [Depends(needs("admin"))]

    @api.get(
        "/queues", summary="List the queues", dependencies=[Depends(needs("read"))], **answers(response_models.Queues)
    )
    async def list_queues(app: App, who: Who) -> Response:
        """Every known queue, with its counts."""
        return answer(
            response_models.Queues([_queue_document(each) for each in await app.queues() if who.sees(each.name)])
        )

    @api.post(
        "/queues/{name}/pause",
        summary="Pause a queue",
        dependencies=admin,
        **answers(response_models.Queue, 400, 415),
    )
    async def pause_queue(app: App, who: Who, by: By, name: Name, body: PauseBody | None = None) -> Response:
        """Nothing is claimed from it until it is resumed, or until the given time. Running jobs finish; new jobs
        wait."""
        check_queue(who, name)
        until, reason = (None, None) if body is None else (body.until, body.reason)
        return answer(_queue_document(await app.pause_queue(name, until=until, by=by, reason=reason)))

    @api.post("/queues/{name}/resume", summary="Resume a queue", dependencies=admin, **answers(response_models.Queue))
    async def resume_queue(app: App, who: Who, by: By, name: Name) -> Response:
        check_queue(who, name)
        return answer(_queue_document(await app.resume_queue(name, by=by)))

    @api.post(
        "/queues/{name}/limit",
        summary="Limit a queue",
        dependencies=admin,
        **answers(response_models.Queue, 400, 415),
    )
    async def limit_queue(app: App, who: Who, by: By, name: Name, body: LimitBody) -> Response:
        """Submissions are rejected with 429 while it has this many pending jobs."""
        check_queue(who, name)
        return answer(_queue_document(await app.limit_queue(name, body.max_pending, by=by)))

    return api


@for_every_app
def types_router() -> APIRouter:
    api = routes("types")

    @api.get(
        "/types",
        summary="List the job types",
        dependencies=[Depends(needs("read"))],
        **answers(response_models.JobTypes),
    )
    async def list_types(app: App, who: Who) -> Response:
        """Every announced type, with its sensitive fields."""
        seen = [each for each in await app.job_types() if who.sees(each.queue)]
        return answer(response_models.JobTypes([_type_document(each) for each in seen]))

    @api.post(
        "/types/{job_type}/unmark",
        summary="Show a sensitive field",
        dependencies=[Depends(needs("admin"))],
        **answers(response_models.JobType, 400, 404, 415),
    )
    async def unmark(app: App, who: Who, by: By, job_type: JobTypeName, body: UnmarkBody) -> Response:
        """Remove the mark of a sensitive field. Marks of all announcements add up; nothing else removes one."""
        await check_type(app, who, job_type)
        return answer(_type_document(await app.unmark_sensitive(job_type, body.field, by=by)))

    @api.post(
        "/types/{job_type}/pause",
        summary="Pause a job type",
        dependencies=[Depends(needs("admin"))],
        **answers(response_models.Limit, 400, 404, 415),
    )
    async def pause_type(app: App, who: Who, by: By, job_type: JobTypeName, body: PauseBody | None = None) -> Response:
        """No job of the type is claimed, in any queue, until it is resumed, or until the given time. Running jobs
        finish; new jobs wait."""
        await check_type(app, who, job_type)
        until, reason = (None, None) if body is None else (body.until, body.reason)
        return answer(_limit_document(await app.pause_type(job_type, until=until, by=by, reason=reason)))

    @api.post(
        "/types/{job_type}/resume",
        summary="Resume a job type",
        dependencies=[Depends(needs("admin"))],
        **answers(response_models.Limit, 404),
    )
    async def resume_type(app: App, who: Who, by: By, job_type: JobTypeName) -> Response:
        await check_type(app, who, job_type)
        return answer(_limit_document(await app.resume_type(job_type, by=by)))

    return api


@for_every_app
def limits_router() -> APIRouter:
    api = routes("limits")

    @api.get(
        "/limits",
        summary="List the limits set at run time",
        dependencies=[Depends(needs("read"))],
        **answers(response_models.Limits),
    )
    async def list_limits(app: App, who: Who) -> Response:
        """Job types and keys that are paused or limited at run time."""
        seen = {each.job_type for each in await app.job_types() if who.sees(each.queue)}
        found = [each for each in await app.limits() if who.sees_all or each.job_type in seen]
        return answer(response_models.Limits([_limit_document(each) for each in found]))

    admin = [Depends(needs("admin"))]

    @api.put(
        "/limits/types/{job_type}",
        summary="Limit a job type at run time",
        dependencies=admin,
        **answers(response_models.Limit, 400, 404, 415),
    )
    async def limit_type(app: App, who: Who, by: By, job_type: JobTypeName, body: RunLimitBody) -> Response:
        """It holds at once, over all workers, also for jobs that wait already. Both limits are set."""
        await check_type(app, who, job_type)
        found = await app.limit(job_type=job_type, concurrency=body.concurrency, rate=body.rate, by=by)
        return answer(_limit_document(found))

    @api.delete(
        "/limits/types/{job_type}",
        summary="Remove the limits of a job type",
        dependencies=admin,
        **answers(response_models.Limit, 404),
    )
    async def unlimit_type(app: App, who: Who, by: By, job_type: JobTypeName) -> Response:
        """Those that were set at run time; a pause stays."""
        await check_type(app, who, job_type)
        return answer(_limit_document(await app.limit(job_type=job_type, by=by)))

    @api.put(
        "/limits/keys",
        summary="Limit a key at run time",
        dependencies=admin,
        **answers(response_models.Limit, 400, 415),
    )
    async def limit_key(app: App, who: Who, by: By, key: LimitedKey, body: RunLimitBody) -> Response:
        """It holds instead of what jobs were submitted with: `concurrency` for those with this `concurrency_key`,
        `rate` for those with this `rate_key`. Needs a key that sees all queues."""
        check_all_queues(who)
        return answer(_limit_document(await app.limit(key=key, concurrency=body.concurrency, rate=body.rate, by=by)))

    @api.delete(
        "/limits/keys", summary="Remove the limits of a key", dependencies=admin, **answers(response_models.Limit)
    )
    async def unlimit_key(app: App, who: Who, by: By, key: LimitedKey) -> Response:
        """What jobs were submitted with holds again. Needs a key that sees all queues."""
        check_all_queues(who)
        return answer(_limit_document(await app.limit(key=key, by=by)))

    return api


LimitedKey = Annotated[
    str,
    Query(
        description="The concurrency key or rate key.",
        min_length=1,
        max_length=limits.KEY_LENGTH_MAX,
        json_schema_extra=NO_NUL,
    ),
]


def _limit_document(limit: run_limits.Limit) -> response_models.Limit:
    return response_models.of(response_models.Limit, limit, paused=limit.paused)


def _type_document(job_type: JobType) -> response_models.JobType:
    return response_models.JobType(job_type.job_type, job_type.queue, job_type.version, job_type.sensitive)


def _queue_document(queue: Queue) -> response_models.Queue:
    return response_models.of(response_models.Queue, queue, paused=queue.paused)


@for_every_app
def schedules_router() -> APIRouter:
    api = routes("schedules")
    _reading(api)
    _defining(api)
    _changing(api)
    return api


def _reading(api: APIRouter) -> None:
    read = [Depends(needs("read"))]

    @api.get("/schedules", summary="List the schedules", dependencies=read, **answers(response_models.Schedules))
    async def list_schedules(
        app: App, who: Who, after: AfterName = None, limit: ListLimit = limits.LIST_LIMIT
    ) -> Response:
        """By name. A key that sees few of the queues may get a short page although more follow."""
        known, now = await visibility.marks(app, who), to_datetime(app.clock.now())
        seen, following = await visibility.schedules_page(app, who, after or "", limit)
        return answer(
            response_models.Schedules(
                [_schedule_document(visibility.covered(known, each.job_type, each), now) for each in seen], following
            )
        )

    @api.get(
        "/schedules/{name}", summary="Read a schedule", dependencies=read, **answers(response_models.Schedule, 404)
    )
    async def read_schedule(app: App, who: Who, name: Name) -> Response:
        found = await visibility.schedule_named(app, who, name)
        shown = visibility.covered(await visibility.marks(app, who), found.job_type, found)
        return answer(_schedule_document(shown, to_datetime(app.clock.now())))


def _defining(api: APIRouter) -> None:
    admin = [Depends(needs("admin"))]

    @api.put("/schedules/{name}", summary="Add or change a schedule", dependencies=admin, **_put_answers())
    async def put_schedule(app: App, who: Who, by: By, name: Name, body: ScheduleBody) -> Response:
        """201 if it is new. Sending the same definition again changes nothing."""
        before = await _stored(app, name)
        options = await submit.of_schedule(app, who, body.job_type, body.payload, body.options())
        if before is not None and not who.sees(before.queue):
            raise problems.foreign_queue("the queue of the schedule with this name")
        with problems.raced():
            after = await app.schedule(
                name,
                body.cron,
                body.job_type,
                body.payload,
                timezone=body.timezone,
                missed=body.missed,
                overlap=body.overlap,
                jitter=body.jitter,
                starts_at=body.starts_at,
                ends_at=body.ends_at,
                by=by,
                **options,
            )
        return answer(_schedule_document(after, to_datetime(app.clock.now())), 201 if before is None else 200)

    @api.delete(
        "/schedules/{name}",
        summary="Remove a schedule",
        dependencies=admin,
        **answers(None, 404, status=204, says="Removed; its existing jobs stay"),
    )
    async def delete_schedule(app: App, who: Who, by: By, name: Name) -> Response:
        await visibility.schedule_named(app, who, name)
        await app.unschedule(name, by=by)
        return Response(status_code=204)


def _changing(api: APIRouter) -> None:
    admin = [Depends(needs("admin"))]

    @api.post(
        "/schedules/{name}/pause",
        summary="Pause a schedule",
        dependencies=admin,
        **answers(response_models.Schedule, 404, 409),
    )
    async def pause_schedule(app: App, who: Who, by: By, name: Name) -> Response:
        """It submits no jobs until it is resumed."""
        await visibility.schedule_named(app, who, name)
        with problems.raced():
            return answer(_schedule_document(await app.pause_schedule(name, by=by), to_datetime(app.clock.now())))

    @api.post(
        "/schedules/{name}/resume",
        summary="Resume a schedule",
        dependencies=admin,
        **answers(response_models.Schedule, 404, 409),
    )
    async def resume_schedule(app: App, who: Who, by: By, name: Name) -> Response:
        """It continues with the next tick from now."""
        await visibility.schedule_named(app, who, name)
        with problems.raced():
            return answer(_schedule_document(await app.resume_schedule(name, by=by), to_datetime(app.clock.now())))

    @api.post(
        "/schedules/{name}/run",
        summary="Submit the job of a schedule now",
        dependencies=admin,
        **answers(JobDocument, 404, 409, 507, status=201, says="The job is stored"),
    )
    async def run_schedule(app: App, who: Who, by: By, name: Name) -> Response:
        """In addition to its regular ticks."""
        await visibility.schedule_named(app, who, name)
        return answer(job_document(await app.run_schedule(name, by=by)), 201)

    @api.post(
        "/schedules/{name}/backfill",
        summary="Submit the jobs of past ticks",
        dependencies=admin,
        **answers(response_models.Backfill, 400, 404, 409, 507),
    )
    async def backfill_schedule(app: App, who: Who, by: By, name: Name, body: BackfillBody) -> Response:
        """Each tick from `from` to `to` gets its job, unless it has one. Repeating the request submits none twice."""
        await visibility.schedule_named(app, who, name)
        found = await app.backfill(name, body.from_, body.to, dry_run=body.dry_run, by=by)
        return answer(response_models.Backfill(found.ticks, list(found.submitted), list(found.existing)))


async def _stored(app: Backstay, name: str) -> ScheduleInfo | None:
    try:
        return await app.get_schedule(name)
    except ScheduleNotFound:
        return None


def _put_answers() -> dict[str, Any]:
    found = answers(response_models.Schedule, 400, 404, 409, 413, 415, says="The current schedule")
    found["responses"][201] = described(response_models.Schedule, "The schedule was added")
    return found


def _schedule_document(schedule: ScheduleInfo, now: datetime) -> response_models.Schedule:
    ticks = schedule.ticks(now, NEXT_TICKS)
    return response_models.of(response_models.Schedule, schedule, paused=schedule.paused, next_ticks=ticks)


Minutes = Annotated[int, Query(ge=1, le=limits.COUNTERS_DAYS * 24 * 60, description="How many minutes to look back.")]


@for_every_app
def stats_router() -> APIRouter:
    api = routes("stats")

    @api.get(
        "/stats", summary="Read statistics", dependencies=[Depends(needs("read"))], **answers(response_models.Stats)
    )
    async def read_stats(app: App, who: Who, minutes: Minutes = 60) -> Response:
        """`queue_health`: jobs by status and priority; ended jobs only of the last `minutes`. `workers`: the
        last 24 hours of each, to the hour, of the first 1,000 by id, and of those that have left since; with queue
        patterns, of those that serve no queue but the key's. None of it walks the table of jobs."""
        now = app.clock.now()
        since, until = stats.span(now, minutes)
        by_kind, by_minute = await _counters(app, who, since, until)
        depths = [each for each in await app.depths() if who.sees(each.queue)]
        counts = await app.counts() if who.sees_all else metrics.counts(depths)
        found = stats.summary(by_kind, by_minute, counts, since, until)
        workers, _ = await visibility.workers_page(app, who, limit=limits.LIST_LIMIT_MAX)
        rows = [each.row for each in (*workers, *await visibility.former_seen(app, who)) if each.is_whole]
        return answer(
            response_models.of(
                response_models.Stats,
                found,
                per_minute=found.per_minute,
                queue_health=metrics.health(depths, by_minute, now),
                workers=metrics.performance(rows, now),
            )
        )

    return api


async def _counters(
    app: Backstay, who: Principal, since: Instant, until: Instant
) -> tuple[list[Counter], list[Counter]]:
    """The counters by type and queue, and by minute."""
    if who.sees_all:
        kinds = await app.counters(since, until, width=until - since)
        return kinds, await app.counters(since, until, kinds=False)
    seen = [each for each in await app.counters(since, until) if who.sees(each.queue)]
    return seen, seen


After = Annotated[str | None, Query(description="`next` of the previous page.", json_schema_extra={"format": "uuid"})]
Limit = Annotated[int, Query(ge=1, le=limits.AUDIT_PAGE_MAX)]


@for_every_app
def audit_router() -> APIRouter:
    api = routes("audit")

    @api.get(
        "/audit",
        summary="Read the audit trail",
        dependencies=[Depends(needs("admin"))],
        **answers(response_models.AuditTrail),
    )
    async def read_audit_trail(app: App, who: Who, after: After = None, limit: Limit = 50) -> Response:
        """Newest first. `outcome` is `ok`, the error, or null if the outcome is unknown."""
        if not who.sees_all:  # entries do not say of which queue they are
            raise problems.foreign_queue("all queues, which the trail covers")
        trail = await app.audit_trail(after, limit)
        return answer(response_models.AuditTrail(trail, trail.next))

    return api
