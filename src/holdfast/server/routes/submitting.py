"""POST /jobs/{type} and POST /jobs/batch: submitting one job, or up to a hundred that are answered one by one."""

from __future__ import annotations

from typing import Annotated, Any

import pydantic
from fastapi import APIRouter, Depends, Header, Request, Response

from holdfast import job_json
from holdfast.app import Holdfast
from holdfast.errors import HoldfastError, InvalidSubmission
from holdfast.job import JobHandle
from holdfast.server import admitting, answering, changes, documents, mistakes, problems
from holdfast.server.admitting import Asked
from holdfast.server.guarding import App, Who, link, needs
from holdfast.server.inputs import BATCH_MAX, BatchBody, BatchJob, SubmitBody
from holdfast.server.principals import Principal
from holdfast.server.problems import Problem
from holdfast.server.routing import JobTypeName, answer, answers, routes

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        description="A text of the client's own: a repeat with the same one and the same body returns the same job.",
    ),
]


def router(_: Holdfast) -> APIRouter:
    api = routes("jobs")
    submit = Depends(needs("submit"))

    @api.post(
        "/jobs/batch",
        summary="Submit many jobs",
        dependencies=[submit],
        **answers(documents.BatchAnswers, 400, 413, 415, says="An answer for each, in their order"),
    )
    async def submit_batch(app: App, who: Who, body: BatchBody, idempotency_key: IdempotencyKey = None) -> Response:
        """Up to 100 jobs. Each is answered for itself, in `items`: `status` is what it would have been alone, with the
        record in `job` or what is wrong in `problem`. One can depend on an earlier one of the batch by its `job_id`."""
        return answer({"items": await _batch(app, who, body.jobs, idempotency_key)})

    @api.post(
        "/jobs/{job_type:job_type}",
        summary="Submit a job",
        dependencies=[submit],
        **_answers(),
    )
    async def submit_job(
        app: App,
        who: Who,
        request: Request,
        job_type: JobTypeName,
        body: SubmitBody,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """201 with the record once the job is stored; 200 with `"deduplicated": true` where an earlier one answers for
        it: by `job_id`, `dedup_key` or the header `Idempotency-Key`."""
        asked = admitting.asked(who, job_type, body, idempotency_key)
        handle = await admitting.submit(app, who, asked)
        headers = {"Location": link(request, f"/jobs/{handle.job_id}"), "ETag": f'"{handle.version}"'}
        return answer(await _document(app, who, handle), 200 if handle.deduplicated else 201, headers)

    return api


def _answers() -> dict[str, Any]:
    found = answers(documents.Job, 400, 404, 409, 413, 415, 507, status=201, says="The job is stored")
    found["responses"][200] = {"model": documents.Job, "description": "An earlier job answers for it"}
    return found


# Many


async def _batch(app: Holdfast, who: Principal, jobs: list[dict[str, Any]], key: str | None) -> list[dict[str, Any]]:
    """In one commit where all of them are right; else one by one, so that each gets its own answer."""
    looked_at = [_looked_at(who, each, None if key is None else f"{key}\0{place}") for place, each in enumerate(jobs)]
    asked = [each for each in looked_at if isinstance(each, Asked)]
    if who.sees_all and len(asked) == len(looked_at) <= BATCH_MAX:
        try:
            handles = await app.submit_many([(each.job_type, each.payload, each.options) for each in asked])
        except InvalidSubmission:
            pass  # of one of them: nothing was stored
        else:
            return [await _one(app, who, each, handle) for each, handle in zip(asked, handles, strict=True)]
    return [_refused(each) if isinstance(each, Problem) else await _one(app, who, each) for each in looked_at]


def _looked_at(who: Principal, item: dict[str, Any], key: str | None) -> Asked | Problem:
    try:
        body = BatchJob.model_validate(item)
        return admitting.asked(who, body.job_type, body, key)
    except pydantic.ValidationError as error:
        return answering.invalid(error.errors(include_url=False, include_input=False, include_context=False))
    except Problem as problem:
        return problem


async def _one(app: Holdfast, who: Principal, asked: Asked, stored: JobHandle | None = None) -> dict[str, Any]:
    """The answer for a job that is to be stored, or that is already, with all the others."""
    try:
        if stored is None:
            handle = await admitting.submit(app, who, asked)
        else:
            handle = await admitting.checked(app, who, asked, stored)
        return {"status": 200 if handle.deduplicated else 201, "job": await _document(app, who, handle)}
    except HoldfastError as error:
        return _refused(problems.of_error(error, to=who))
    except Problem as problem:
        return _refused(problem)
    except Exception as error:  # others of the batch are stored: their answers must not be lost with this one's
        mistakes.tell(f"a job of POST /jobs/batch ({asked.job_type})", error)
        return _refused(Problem(500, "internal", "the log of the server says more"))


async def _document(app: Holdfast, who: Principal, handle: JobHandle) -> dict[str, Any]:
    """A new job is the asker's own, who knows what is in it."""
    return await changes.shown_to(app, who, handle) if handle.deduplicated else job_json.document(handle)


def _refused(problem: Problem) -> dict[str, Any]:
    return {"status": problem.status, "problem": problem.document()}
