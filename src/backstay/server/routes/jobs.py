"""Routes for jobs: submit, batch, find, read, change, and dead letters.

An id is a UUID, so that no path can mean both an id and a type.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import msgspec
import pydantic
from fastapi import APIRouter, Depends, Header, Query, Response

from backstay import limits
from backstay.app import Backstay, Page
from backstay.clock import to_datetime
from backstay.core.states import Status
from backstay.errors import BackstayError, InvalidSubmission, JobNotFound
from backstay.job import Job, JobDocument, JobHandle, JobView
from backstay.job import document as job_document
from backstay.job import raw as job_raw
from backstay.ops.audit import Actor
from backstay.ops.jobs import BulkResult, died_of
from backstay.server import gate, problems, response_models, visibility
from backstay.server import submit as server_submit
from backstay.server.auth import App, By, Principal, Root, Who, is_operator, needs, visible
from backstay.server.problems import Problem
from backstay.server.request_models import (
    BATCH_MAX,
    NO_NUL,
    BatchBody,
    BatchJob,
    BulkBody,
    BulkRetryBody,
    DeadRetryBody,
    PatchBody,
    ReasonBody,
    RetryBody,
    SubmitBody,
)
from backstay.server.response_models import BatchAnswer
from backstay.server.routing import (
    After,
    FindLimit,
    IfMatch,
    JobId,
    JobTypeName,
    NameFilter,
    Subtree,
    answer,
    answers,
    described,
    expected_version,
    for_every_app,
    routes,
)
from backstay.server.submit import Asked

Order = Annotated[
    Literal["created", "priority"], Query(description="created (newest first) or priority (next to be claimed first).")
]
Text = Annotated[str | None, Query(min_length=1, max_length=limits.KEY_LENGTH_MAX, json_schema_extra=NO_NUL)]
Cancelled = Annotated[
    str | None,
    Query(min_length=1, max_length=limits.REASON_LENGTH_MAX, description="Why.", json_schema_extra=NO_NUL),
]

READ = [Depends(needs("read"))]
CHANGE = [Depends(needs("submit", "admin"))]  # a client that may submit a job may also cancel or retry it
EDIT = [Depends(needs("admin"))]


@for_every_app
def jobs_router() -> APIRouter:
    api = routes("jobs")
    _finding(api)
    _job_routes(api)
    _of_a_type(api)
    _one_of_a_type(api)
    _retrying(api)
    _running_again(api)
    _many(api)
    return api


def _many(api: APIRouter) -> None:
    changed: dict[str, Any] = {"dependencies": CHANGE, **answers(BulkResult, 400, 415)}

    @api.post("/jobs/cancel", summary="Cancel many jobs", **changed)
    async def cancel_jobs(app: App, who: Who, by: By, body: BulkBody) -> Response:
        """Up to 1,000 jobs, by id or by the conditions of GET /jobs; `dry_run` only counts. `changed` lists the
        cancelled jobs, `refused` those that could not be cancelled, and `more` says that other jobs match."""
        return answer(await app.cancel_many(body.job_ids, by=by, **_asked(who, body)))

    @api.post("/jobs/retry", summary="Retry many ended jobs", **changed)
    async def retry_jobs(app: App, who: Who, by: By, body: BulkRetryBody) -> Response:
        """As POST /jobs/cancel. Without a status, the filter finds failed and cancelled jobs."""
        asked = _asked(who, body)
        return answer(await app.retry_many(body.job_ids, by=by, forget_steps=body.forget_steps, **asked))


def _asked(who: Principal, body: BulkBody) -> dict[str, Any]:
    if body.filter is not None and not who.may("read"):  # the answer lists what it finds
        raise problems.out_of_scope(("read",))
    return {"dry_run": body.dry_run, "reason": body.reason, **body.conditions()}


def _finding(api: APIRouter) -> None:
    @api.get("/jobs", summary="Find jobs", dependencies=READ, **answers(response_models.JobPage))
    async def find_jobs(
        app: App,
        who: Who,
        status: Annotated[Status | None, Query()] = None,
        job_type: NameFilter = None,
        queue: NameFilter = None,
        subject: Text = None,
        worker: Text = None,
        tag: Text = None,
        created_by: Text = None,
        root: Annotated[
            str | None, Query(description="Only jobs below this one in its tree.", json_schema_extra={"format": "uuid"})
        ] = None,
        content_hash: Text = None,
        order: Order = "created",
        after: After = None,
        limit: FindLimit = 50,
    ) -> Response:
        """All conditions apply together. A page can be shorter than `limit` even if more follow: check `next`."""
        page = await visibility.page_of(
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


def _job_routes(api: APIRouter) -> None:
    @api.get("/jobs/{job_id:uuid}", summary="Read a job", dependencies=READ, **answers(JobDocument, 404))
    async def read_job(app: App, who: Who, job_id: JobId) -> Response:
        """The current record, with its result. The ETag is its version, for `If-Match` in a change."""
        return await _whole(app, who, await visible(app, who, str(job_id)))

    @api.delete(
        "/jobs/{job_id:uuid}",
        summary="Cancel a job",
        dependencies=CHANGE,
        **answers(JobDocument, 404, 409, 412, says="The job, cancelled"),
    )
    async def cancel_job(
        app: App,
        who: Who,
        by: By,
        job_id: JobId,
        subtree: Subtree = False,
        reason: Cancelled = None,
        if_match: IfMatch = None,
    ) -> Response:
        """Works in any active status; a running handler is stopped."""
        job = await visible(app, who, str(job_id))
        return await _cancelled(app, who, by, job, subtree, reason, if_match)

    @api.patch(
        "/jobs/{job_id:uuid}",
        summary="Change the priority, time or payload of a job",
        dependencies=EDIT,
        **answers(JobDocument, 400, 404, 409, 412, 415),
    )
    async def patch_job(
        app: App, who: Who, by: By, job_id: JobId, body: PatchBody, if_match: IfMatch = None
    ) -> Response:
        """Change `priority` of a job that has not ended, `run_at` of one that is pending or scheduled, or `payload` of
        one that has not ended and is not running."""
        job = await visible(app, who, str(job_id))
        expected = expected_version(if_match)
        with problems.raced(expected):
            job = await _patched(app, by, job, body, expected)
        return await _changed(app, who, job)

    @api.post(
        "/jobs/{job_id:uuid}/remove",
        summary="Remove a job for good",
        dependencies=EDIT,
        **answers(None, 400, 404, 409, 412, 415, status=204, says="It is gone"),
    )
    async def remove_job(
        app: App, who: Who, by: By, job_id: JobId, body: ReasonBody | None = None, if_match: IfMatch = None
    ) -> Response:
        """Erase a job with its payload, result, files, rows, steps and history, also from the archive. One that waits
        is cancelled first; one that is running, or has children, is refused."""
        job = await visible(app, who, str(job_id))
        expected = expected_version(if_match)
        with problems.raced(expected):
            await app.remove(job.job_id, reason=None if body is None else body.reason, by=by, expected_version=expected)
        return Response(status_code=204)


def _of_a_type(api: APIRouter) -> None:
    @api.get(
        "/jobs/{job_type:job_type}",
        summary="Find jobs of a type",
        dependencies=READ,
        **answers(response_models.JobPage, 404),
    )
    async def find_jobs_of_type(
        app: App,
        who: Who,
        job_type: JobTypeName,
        status: Annotated[Status | None, Query()] = None,
        queue: NameFilter = None,
        subject: Text = None,
        order: Order = "created",
        after: After = None,
        limit: FindLimit = 50,
    ) -> Response:
        """Same as GET /jobs?job_type=…"""
        page = await visibility.page_of(
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
        **answers(JobDocument, 404),
    )
    async def read_job_of_type(app: App, who: Who, job_type: JobTypeName, job_id: JobId) -> Response:
        """Same as GET /jobs/{job_id}; 404 if it has another type."""
        return await _whole(app, who, await _typed(app, who, job_type, str(job_id)))

    @api.delete(
        "/jobs/{job_type:job_type}/{job_id:uuid}",
        summary="Cancel a job of a type",
        dependencies=CHANGE,
        **answers(JobDocument, 404, 409, 412),
    )
    async def cancel_job_of_type(
        app: App,
        who: Who,
        by: By,
        job_type: JobTypeName,
        job_id: JobId,
        subtree: Subtree = False,
        reason: Cancelled = None,
        if_match: IfMatch = None,
    ) -> Response:
        """Same as DELETE /jobs/{job_id}; 404 if it has another type."""
        job = await _typed(app, who, job_type, str(job_id))
        return await _cancelled(app, who, by, job, subtree, reason, if_match)


def _retrying(api: APIRouter) -> None:
    @api.post(
        "/jobs/{job_id:uuid}/retry",
        summary="Retry an ended job",
        dependencies=CHANGE,
        **answers(JobDocument, 400, 404, 409, 412, 415),
    )
    async def retry_job(
        app: App,
        who: Who,
        by: By,
        job_id: JobId,
        body: RetryBody | None = None,
        subtree: Subtree = False,
        if_match: IfMatch = None,
    ) -> Response:
        """It gets fresh attempts. `subtree`: retry every failed or cancelled job in its tree."""
        job = await visible(app, who, str(job_id))
        if subtree:
            await visibility.check_tree(app, who, job.job_id)
        expected = expected_version(if_match)
        asked = body or RetryBody()
        with problems.raced(expected):
            job = await app.retry(
                job.job_id,
                subtree=subtree,
                forget_steps=asked.forget_steps,
                reason=asked.reason,
                by=by,
                expected_version=expected,
            )
        return await _changed(app, who, job)


def _running_again(api: APIRouter) -> None:
    @api.post(
        "/jobs/{job_id:uuid}/rerun",
        summary="Rerun a job and everything after it",
        dependencies=EDIT,
        **answers(JobDocument, 400, 404, 409, 415),
    )
    async def rerun_job(app: App, who: Who, by: By, job_id: JobId, body: RetryBody | None = None) -> Response:
        """Reruns the job, its descendants, every job in its tree that depends on one of these, and then its parents.
        What comes before it is kept."""
        job = await visible(app, who, str(job_id))
        await visibility.check_tree(app, who, job.root_job_id or job.job_id)
        asked = body or RetryBody()
        with problems.raced():
            job = await app.rerun(job.job_id, forget_steps=asked.forget_steps, reason=asked.reason, by=by)
        return await _changed(app, who, job)


async def _typed(app: Backstay, who: Principal, job_type: str, job_id: str) -> Job:
    job = await visible(app, who, job_id)
    if job.job_type != job_type:
        raise JobNotFound(f"no job {job_id} of type {job_type}")
    return job


async def _cancelled(
    app: Backstay, who: Principal, by: Actor, job: Job, subtree: bool, reason: str | None, if_match: str | None
) -> Response:
    if subtree:
        await visibility.check_tree(app, who, job.job_id)
    expected = expected_version(if_match)
    with problems.raced(expected):
        job = await app.cancel(job.job_id, subtree=subtree, reason=reason, by=by, expected_version=expected)
    return await _changed(app, who, job)


async def _patched(app: Backstay, by: Actor, job: Job, body: PatchBody, expected: int | None) -> Job:
    """Change the payload and the time first: fewer states allow that, so that a refusal comes before any change."""
    if body.has_payload:
        job = await app.update(job.job_id, body.payload, reason=body.reason, by=by, expected_version=expected)
        expected = None if expected is None else job.version
    if body.run_at is not None or body.delay is not None:
        job = await app.reschedule(
            job.job_id,
            run_at=body.run_at,
            delay=body.delay,
            reason=body.reason,
            by=by,
            expected_version=expected,
        )
        expected = None if expected is None else job.version
    if body.priority is not None:
        job = await app.reprioritise(job.job_id, body.priority, reason=body.reason, by=by, expected_version=expected)
    return job


# Answers


def etag(job: JobView) -> dict[str, str]:
    return {"ETag": f'"{job.version}"'}


async def _changed(app: Backstay, who: Principal, job: Job) -> Response:
    return answer(await visibility.changed(app, who, job), headers=etag(job))


async def _whole(app: Backstay, who: Principal, job: Job) -> Response:
    found = await visibility.document(app, who, job)
    if job.row.result_artifact is not None:
        result = job_raw(await asyncio.to_thread(job.result_text))
        found = msgspec.structs.replace(found, result=result)
    return answer(found, headers=etag(job))


async def _page(app: Backstay, who: Principal, page: Page) -> Response:
    return answer(response_models.JobPage(await visibility.documents(app, who, page), page.next))


IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        description="Your own key: a retry with the same key and body returns the same job.",
    ),
]


@for_every_app
def submit_router() -> APIRouter:
    api = routes("jobs")
    submit = Depends(needs("submit"))

    @api.post(
        "/jobs/batch",
        summary="Submit many jobs",
        dependencies=[submit],
        **answers(response_models.BatchAnswers, 400, 413, 415, says="One answer per job, in the same order"),
    )
    async def submit_batch(app: App, who: Who, body: BatchBody, idempotency_key: IdempotencyKey = None) -> Response:
        """Up to 100 jobs. Each has its own answer in `items`: `status` is the status it would have got alone, with the
        record in `job` or the error in `problem`. A job can depend on an earlier one of the batch by its `job_id`."""
        return answer(response_models.BatchAnswers(await _batch(app, who, body.jobs, idempotency_key)))

    @api.post(
        "/jobs/{job_type:job_type}",
        summary="Submit a job",
        dependencies=[submit],
        **_answers(),
    )
    async def submit_job(
        app: App,
        who: Who,
        root: Root,
        job_type: JobTypeName,
        body: SubmitBody,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """201 with the record once the job is stored; 200 with `"deduplicated": true` if the job already
        exists, by `job_id`, `dedup_key` or the header `Idempotency-Key`."""
        asked = server_submit.asked(who, job_type, body, idempotency_key)
        handle = await server_submit.submit(app, who, asked)
        headers = {"Location": f"{root}/jobs/{handle.job_id}", "ETag": f'"{handle.version}"'}
        return answer(await _submitted_document(app, who, handle), 200 if handle.deduplicated else 201, headers)

    return api


def _answers() -> dict[str, Any]:
    found = answers(JobDocument, 400, 404, 409, 413, 415, 507, status=201, says="The job was stored")
    found["responses"][200] = described(JobDocument, "The job already exists")
    return found


# Many


async def _batch(app: Backstay, who: Principal, jobs: list[dict[str, Any]], key: str | None) -> list[BatchAnswer]:
    """Submit all jobs in one commit if all of them are valid, else one by one, so that each gets its own answer."""
    looked_at = [_looked_at(who, each, None if key is None else f"{key}\0{place}") for place, each in enumerate(jobs)]
    asked = [each for each in looked_at if isinstance(each, Asked)]
    if who.sees_all and len(asked) == len(looked_at) <= BATCH_MAX:
        try:
            handles = await app.submit_many([(each.job_type, each.payload, each.options) for each in asked])
        except InvalidSubmission:
            pass  # one of them is invalid, and nothing was stored
        else:
            return [await _answer_one(app, who, each, handle) for each, handle in zip(asked, handles, strict=True)]
    return [_refused(each) if isinstance(each, Problem) else await _answer_one(app, who, each) for each in looked_at]


def _looked_at(who: Principal, item: dict[str, Any], key: str | None) -> Asked | Problem:
    try:
        body = BatchJob.model_validate(item)
        return server_submit.asked(who, body.job_type, body, key)
    except pydantic.ValidationError as error:
        return problems.invalid(error.errors(include_url=False, include_input=False, include_context=False))
    except Problem as problem:
        return problem


async def _answer_one(app: Backstay, who: Principal, asked: Asked, stored: JobHandle | None = None) -> BatchAnswer:
    """Return the answer for a job that is to be stored, or that is stored already, together with all the others."""
    try:
        if stored is None:
            handle = await server_submit.submit(app, who, asked)
        else:
            handle = await server_submit.checked(app, who, asked, stored)
        return BatchAnswer(200 if handle.deduplicated else 201, job=await _submitted_document(app, who, handle))
    except BackstayError as error:
        return _refused(problems.of_error(error, to_operator=is_operator(who)))
    except Problem as problem:
        return _refused(problem)
    except Exception as error:  # others of the batch are stored: their answers must not be lost with this one's
        gate.tell(f"a job of POST /jobs/batch ({asked.job_type})", error)
        return _refused(Problem(500, "internal", "see the server log for details"))


async def _submitted_document(app: Backstay, who: Principal, handle: JobHandle) -> JobDocument:
    """Return the document of a submitted job. The client that submitted a new job may see all of it."""
    return await visibility.changed(app, who, handle) if handle.deduplicated else job_document(handle)


def _refused(problem: Problem) -> BatchAnswer:
    return BatchAnswer(problem.status, problem=problem.document())


GROUPS_MAX = 1_000
LOOKED_AT = 10  # pages of dead letters that are read for a key which sees a part of the queues
GroupLimit = Annotated[int, Query(ge=1, le=GROUPS_MAX, description="Maximum number of groups.")]


@for_every_app
def dead_router() -> APIRouter:
    api = routes("dead letters")

    @api.get(
        "/dead",
        summary="List dead letters by type and error",
        dependencies=[Depends(needs("read"))],
        **answers(response_models.DeadGroups),
    )
    async def list_dead(app: App, who: Who, limit: GroupLimit = 100) -> Response:
        """Largest group first. For a key with queue patterns, only the newest 1,000 that it sees are counted."""
        if who.sees_all:
            groups = [
                response_models.of(response_models.DeadGroup, group, newest_at=to_datetime(group.newest_at))
                for group in await app.dead(limit)
            ]
        else:
            groups = _grouped(await visibility.without_foreign(app, who, await _newest(app, who)))[:limit]
        return answer(response_models.DeadGroups(groups))

    @api.post(
        "/dead/retry",
        summary="Retry dead letters",
        dependencies=[Depends(needs("admin"))],
        **answers(response_models.Retried, 400, 409, 415),
    )
    async def retry_dead_letters(app: App, by: By, body: DeadRetryBody | None = None) -> Response:
        """All of them, or those of a type, an error or both; each gets fresh attempts."""
        asked = body or DeadRetryBody()
        number = await app.retry_dead(
            job_type=asked.job_type, error_type=asked.error_type, forget_steps=asked.forget_steps, by=by
        )
        return answer(response_models.Retried(number))

    return api


async def _newest(app: Backstay, who: Principal) -> list[Job]:
    found: list[Job] = []
    after: str | None = None
    for _ in range(LOOKED_AT):
        page = await visibility.found(
            app, who, status=Status.FAILED, after=after, limit=limits.FIND_LIMIT_MAX // LOOKED_AT
        )
        found += page
        if (after := page.next) is None:
            break
    return found


def _grouped(jobs: list[Job]) -> list[response_models.DeadGroup]:
    alike: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        alike.setdefault((job.job_type, died_of(job.row)), []).append(job)
    return [
        response_models.DeadGroup(
            job_type=job_type,
            error_type=error_type,
            count=len(members),
            newest_job_id=(newest := max(members, key=_ended)).job_id,
            newest_error=newest.last_error or "",
            newest_at=to_datetime(_ended(newest)),
        )
        for (job_type, error_type), members in sorted(alike.items(), key=lambda each: (-len(each[1]), each[0]))
    ]


def _ended(job: Job) -> int:
    return job.row.completed_at or job.row.updated_at
