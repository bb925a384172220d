"""Jobs: finding, reading and changing them. An id is a UUID, so that no path can mean both an id and a type."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from holdfast import job_json, limits
from holdfast.app import Holdfast
from holdfast.errors import JobNotFound
from holdfast.family_tree import record_of
from holdfast.job import Job, JobView
from holdfast.reading import Page
from holdfast.server import changes, covering, documents, searching
from holdfast.server.fields import NAME, NO_NUL
from holdfast.server.guarding import App, Who, needs, visible
from holdfast.server.inputs import PatchBody, ReasonBody
from holdfast.server.principals import Principal
from holdfast.server.routing import (
    After,
    IfMatch,
    JobId,
    JobTypeName,
    Subtree,
    answer,
    answers,
    expected_version,
    routes,
)
from holdfast.statuses import Status

Limit = Annotated[int, Query(ge=1, le=limits.FIND_LIMIT_MAX, description="How many at most.")]
Order = Annotated[
    Literal["created", "priority"], Query(description="created: newest first; priority: as they would be claimed.")
]
TypeFilter = Annotated[str | None, Query(pattern=NAME)]
Text = Annotated[str | None, Query(min_length=1, max_length=limits.KEY_LENGTH_MAX, json_schema_extra=NO_NUL)]
Cancelled = Annotated[
    str | None,
    Query(min_length=1, max_length=limits.REASON_LENGTH_MAX, description="Why.", json_schema_extra=NO_NUL),
]

READ = [Depends(needs("read"))]
CHANGE = [Depends(needs("submit", "admin"))]  # whoever may submit a job may take it back, or have it run again
EDIT = [Depends(needs("admin"))]


def router(_: Holdfast) -> APIRouter:
    api = routes("jobs")
    _finding(api)
    _one(api)
    _of_a_type(api)
    _one_of_a_type(api)
    _retrying(api)
    _running_again(api)
    return api


def _finding(api: APIRouter) -> None:
    @api.get("/jobs", summary="Find jobs", dependencies=READ, **answers(documents.JobPage))
    async def find_jobs(
        app: App,
        who: Who,
        status: Annotated[Status | None, Query()] = None,
        job_type: TypeFilter = None,
        queue: TypeFilter = None,
        subject: Text = None,
        worker: Text = None,
        tag: Text = None,
        created_by: Text = None,
        root: Annotated[
            str | None, Query(description="Jobs below this one.", json_schema_extra={"format": "uuid"})
        ] = None,
        content_hash: Text = None,
        order: Order = "created",
        after: After = None,
        limit: Limit = 50,
    ) -> Response:
        """All conditions hold together. A page may be shorter than `limit` although more follow: `next` tells."""
        page = await searching.page_of(
            app,
            who,
            status=status,
            job_type=job_type,
            queue=queue,
            subject=subject,
            worker=worker,
            tag=tag,
            created_by=created_by,
            root=root,
            content_hash=content_hash,
            order=order,
            after=after,
            limit=limit,
        )
        return await _page(app, who, page)


def _one(api: APIRouter) -> None:
    @api.get("/jobs/{job_id:uuid}", summary="Read a job", dependencies=READ, **answers(documents.Job, 404))
    async def read_job(app: App, who: Who, job_id: JobId) -> Response:
        """The record as it is now, with its result. Its ETag is its version, for `If-Match` of a change."""
        return await _whole(app, who, await visible(app, who, str(job_id)))

    @api.delete(
        "/jobs/{job_id:uuid}",
        summary="Cancel a job",
        dependencies=CHANGE,
        **answers(documents.Job, 404, 409, 412, says="The job, cancelled"),
    )
    async def cancel_job(
        app: App,
        who: Who,
        request: Request,
        job_id: JobId,
        subtree: Subtree = False,
        reason: Cancelled = None,
        if_match: IfMatch = None,
    ) -> Response:
        """A job in any active state; a running handler is stopped."""
        job = await visible(app, who, str(job_id))
        return await _cancelled(app, who, request, job, subtree, reason, if_match)

    @api.patch(
        "/jobs/{job_id:uuid}",
        summary="Move a job in line or in time",
        dependencies=EDIT,
        **answers(documents.Job, 400, 404, 409, 412, 415),
    )
    async def patch_job(
        app: App, who: Who, request: Request, job_id: JobId, body: PatchBody, if_match: IfMatch = None
    ) -> Response:
        """Another `priority` for a job that has not ended; another `run_at` for one that is pending or scheduled."""
        job = await visible(app, who, str(job_id))
        expected = expected_version(if_match)
        async with changes.audited(app, who, request, "job.patch", job.job_id, changes.said_of(job)) as entry:
            with changes.raced(expected):
                job = await _patched(app, who, job, body, expected)
            entry.after = changes.said_of(job)
        return await _changed(app, who, job)


def _of_a_type(api: APIRouter) -> None:
    @api.get(
        "/jobs/{job_type:job_type}",
        summary="Find jobs of a type",
        dependencies=READ,
        **answers(documents.JobPage, 404),
    )
    async def find_jobs_of_type(
        app: App,
        who: Who,
        job_type: JobTypeName,
        status: Annotated[Status | None, Query()] = None,
        queue: TypeFilter = None,
        subject: Text = None,
        order: Order = "created",
        after: After = None,
        limit: Limit = 50,
    ) -> Response:
        """As GET /jobs?job_type=…"""
        page = await searching.page_of(
            app,
            who,
            job_type=job_type,
            status=status,
            queue=queue,
            subject=subject,
            order=order,
            after=after,
            limit=limit,
        )
        return await _page(app, who, page)


def _one_of_a_type(api: APIRouter) -> None:
    @api.get(
        "/jobs/{job_type:job_type}/{job_id:uuid}",
        summary="Read a job of a type",
        dependencies=READ,
        **answers(documents.Job, 404),
    )
    async def read_job_of_type(app: App, who: Who, job_type: JobTypeName, job_id: JobId) -> Response:
        """As GET /jobs/{job_id}; 404 where it is of another type."""
        return await _whole(app, who, await _typed(app, who, job_type, str(job_id)))

    @api.delete(
        "/jobs/{job_type:job_type}/{job_id:uuid}",
        summary="Cancel a job of a type",
        dependencies=CHANGE,
        **answers(documents.Job, 404, 409, 412),
    )
    async def cancel_job_of_type(
        app: App,
        who: Who,
        request: Request,
        job_type: JobTypeName,
        job_id: JobId,
        subtree: Subtree = False,
        reason: Cancelled = None,
        if_match: IfMatch = None,
    ) -> Response:
        """As DELETE /jobs/{job_id}; 404 where it is of another type."""
        job = await _typed(app, who, job_type, str(job_id))
        return await _cancelled(app, who, request, job, subtree, reason, if_match)


def _retrying(api: APIRouter) -> None:
    @api.post(
        "/jobs/{job_id:uuid}/retry",
        summary="Run an ended job again",
        dependencies=CHANGE,
        **answers(documents.Job, 400, 404, 409, 412, 415),
    )
    async def retry_job(
        app: App,
        who: Who,
        request: Request,
        job_id: JobId,
        body: ReasonBody | None = None,
        subtree: Subtree = False,
        if_match: IfMatch = None,
    ) -> Response:
        """With a fresh budget of attempts. `subtree`: of the whole tree what failed or was cancelled."""
        job = await visible(app, who, str(job_id))
        if subtree:
            await changes.check_tree(app, who, job.record)
        expected = expected_version(if_match)
        reason = None if body is None else body.reason
        async with changes.audited(app, who, request, "job.retry", job.job_id, changes.said_of(job)) as entry:
            with changes.raced(expected):
                job = await app.retry(
                    job.job_id, subtree=subtree, reason=reason, by=who.name, expected_version=expected
                )
            entry.after = changes.said_of(job) | {"subtree": subtree}
        return await _changed(app, who, job)


def _running_again(api: APIRouter) -> None:
    @api.post(
        "/jobs/{job_id:uuid}/rerun",
        summary="Run again from a job on",
        dependencies=EDIT,
        **answers(documents.Job, 400, 404, 409, 415),
    )
    async def rerun_job(
        app: App, who: Who, request: Request, job_id: JobId, body: ReasonBody | None = None
    ) -> Response:
        """The job, all below it, what in its tree depends on one of these, and then its parents. What comes before it
        is kept."""
        job = await visible(app, who, str(job_id))
        await changes.check_tree(app, who, await record_of(app.store, job.root_job_id or job.job_id))
        reason = None if body is None else body.reason
        async with changes.audited(app, who, request, "job.rerun", job.job_id, changes.said_of(job)) as entry:
            job = await app.rerun(job.job_id, reason=reason, by=who.name)
            entry.after = changes.said_of(job)
        return await _changed(app, who, job)


async def _typed(app: Holdfast, who: Principal, job_type: str, job_id: str) -> Job:
    job = await visible(app, who, job_id)
    if job.job_type != job_type:
        raise JobNotFound(f"no job {job_id} of type {job_type}")
    return job


async def _cancelled(
    app: Holdfast, who: Principal, request: Request, job: Job, subtree: bool, reason: str | None, if_match: str | None
) -> Response:
    if subtree:
        await changes.check_tree(app, who, job.record)
    expected = expected_version(if_match)
    async with changes.audited(app, who, request, "job.cancel", job.job_id, changes.said_of(job)) as entry:
        with changes.raced(expected):
            job = await app.cancel(job.job_id, subtree=subtree, reason=reason, by=who.name, expected_version=expected)
        entry.after = changes.said_of(job) | {"subtree": subtree}
    return await _changed(app, who, job)


async def _patched(app: Holdfast, who: Principal, job: Job, body: PatchBody, expected: int | None) -> Job:
    """The time first: what it asks of a job's state is more, so that nothing is changed where it is refused."""
    if body.run_at is not None or body.delay is not None:
        job = await app.reschedule(
            job.job_id,
            run_at=body.run_at,
            delay=body.delay,
            reason=body.reason,
            by=who.name,
            expected_version=expected,
        )
        expected = None if expected is None else job.version
    if body.priority is not None:
        job = await app.reprioritise(
            job.job_id, body.priority, reason=body.reason, by=who.name, expected_version=expected
        )
    return job


# Answers


def etag(job: JobView) -> dict[str, str]:
    return {"ETag": f'"{job.version}"'}


async def _changed(app: Holdfast, who: Principal, job: Job) -> Response:
    return answer(await changes.shown_to(app, who, job), headers=etag(job))


async def _whole(app: Holdfast, who: Principal, job: Job) -> Response:
    found = await covering.document(app, who, job)
    if job.record.result_artifact is not None:
        found["result"] = job_json.raw(await asyncio.to_thread(job.result_text))
    return answer(found, headers=etag(job))


async def _page(app: Holdfast, who: Principal, page: Page) -> Response:
    document: dict[str, Any] = {"items": await covering.documents(app, who, page), "next": page.next}
    return answer(document)
