"""Routes for result tables: rows of a job, of a subject, and of the latest job about a subject."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Response

from backstay import limits
from backstay.app import Backstay
from backstay.core.states import Status
from backstay.errors import InvalidOption, JobNotFound
from backstay.job import Job
from backstay.options import FindOptions
from backstay.server import response_models, visibility
from backstay.server.auth import App, Principal, Who, needs, visible
from backstay.server.problems import Problem
from backstay.server.request_models import NO_NUL
from backstay.server.routing import FindLimit, JobId, NameFilter, answer, answers, for_every_app, routes

READ = [Depends(needs("read"))]
Table = Annotated[str, Path(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,47}$")]
Subject = Annotated[str | None, Query(min_length=1, max_length=limits.RESULT_KEY_BYTES_MAX, json_schema_extra=NO_NUL)]
About = Annotated[str, Query(min_length=1, max_length=limits.RESULT_KEY_BYTES_MAX, json_schema_extra=NO_NUL)]
# The attempt and the key of the last row; each byte of a key can be six characters of JSON, within JSON.
After = Annotated[
    str | None,
    Query(
        description="`next` of the previous page.",
        max_length=12 * limits.RESULT_KEY_BYTES_MAX + 200,
        json_schema_extra={"pattern": r"^\[[0-9]{1,9},.+\]$"},
    ),
]


@for_every_app
def results_router() -> APIRouter:
    api = routes("results")
    _tables(api)
    _rows(api)
    _of_subjects(api)
    return api


def _tables(api: APIRouter) -> None:
    @api.get(
        "/jobs/{job_id:uuid}/results",
        summary="List the result tables of a job",
        dependencies=READ,
        **answers(response_models.Tables, 404),
    )
    async def list_tables(app: App, who: Who, job_id: JobId) -> Response:
        job = await visible(app, who, str(job_id))
        return answer(response_models.Tables(job.job_id, job.result_tables))


def _rows(api: APIRouter) -> None:
    @api.get(
        "/jobs/{job_id:uuid}/results/{table}",
        summary="Read the rows of a job",
        dependencies=READ,
        **answers(response_models.Rows, 404, 409, 410),
    )
    async def read_rows(
        app: App,
        who: Who,
        job_id: JobId,
        table: Table,
        subject: Subject = None,
        after: After = None,
        limit: FindLimit = 100,
    ) -> Response:
        """Ordered by key; optionally only those of a `subject`. Rows appear once the job has completed."""
        job = await visible(app, who, str(job_id))
        page = await app.result_rows(job.job_id, table, after, limit, subject=subject)
        return answer(response_models.Rows(job.job_id, table, page, page.next))

    @api.get(
        "/jobs/{job_id:uuid}/results/{table}/{key:path}",
        summary="Read one row of a job",
        dependencies=READ,
        **answers(dict[str, Any], 404, 409, 410),
    )
    async def read_row(app: App, who: Who, job_id: JobId, table: Table, key: str) -> Response:
        job = await visible(app, who, str(job_id))
        row = await app.result_row(job.job_id, table, key)
        if row is None:
            raise Problem(
                404, "row-not-found", f"job {job.job_id} has no row {key!r:.80} in {table}", title="No such row"
            )
        return answer(row)


Cursor = Annotated[
    str | None,
    Query(
        description="`next` of the previous page.",
        max_length=24 * limits.RESULT_KEY_BYTES_MAX + 500,
        min_length=1,
        json_schema_extra=NO_NUL,
    ),
]


def _of_subjects(api: APIRouter) -> None:
    @api.get(
        "/results/{table}",
        summary="Read the rows of a subject",
        dependencies=READ,
        **answers(response_models.SubjectRows, 404),
    )
    async def read_rows_of_subject(
        app: App, who: Who, table: Table, subject: About, after: Cursor = None, limit: FindLimit = 100
    ) -> Response:
        """From all completed jobs, oldest first; each row has its `job_id`. The table needs `subject_index`."""
        page = await visibility.rows_of_subject(app, who, table, subject, after, limit)
        return answer(response_models.SubjectRows(subject, table, page, page.next))

    @api.get(
        "/results/{table}/latest",
        summary="Read the rows of the latest job about a subject",
        dependencies=READ,
        **answers(response_models.LatestRows, 404, 409, 410),
    )
    async def read_latest_rows(
        app: App,
        who: Who,
        table: Table,
        subject: About,
        job_type: NameFilter = None,
        after: Cursor = None,
        limit: FindLimit = 100,
    ) -> Response:
        """Of the job, optionally of a type, that completed last and has rows in the table. All pages are of the job of
        the first; `job_id` is null if there is none."""
        await app.stored_rows.table(table)  # an unknown table is an error, not one without rows
        if after is None:
            job, place = await _latest(app, who, table, subject, job_type), None
        else:
            job_id, place = _place(after)
            job = await visible(app, who, job_id)
            if job.subject != subject:
                raise JobNotFound(f"job {job.job_id} has a different subject")
        if job is None:
            return answer(response_models.LatestRows(subject, table, None, [], None))
        page = await app.result_rows(job.job_id, table, place, limit)
        following = None if page.next is None else msgspec.json.encode((job.job_id, page.next)).decode()
        return answer(response_models.LatestRows(subject, table, job.job_id, page, following))


def _place(after: str) -> tuple[str, str]:
    try:
        return msgspec.json.decode(after, type=tuple[str, str])
    except msgspec.DecodeError:
        raise InvalidOption(f"after={after!r:.60} is not a cursor: pass `next` of a page") from None


async def _latest(app: Backstay, who: Principal, table: str, subject: str, job_type: str | None) -> Job | None:
    """Return the job that completed last of those that the key sees: the recorded one of its type, or else one of the
    most recent jobs about the subject."""
    if job_type is not None and (named := await app.stored_rows.latest(subject, job_type)) is not None:
        [job] = await app.get_many([named])
        if job is not None and who.sees(job.queue) and _has_rows(job, table):
            return job
    wanted: FindOptions = {"subject": subject, "status": Status.COMPLETED, "limit": limits.LATEST_LOOKED_MAX}
    if job_type is not None:
        wanted["job_type"] = job_type
    found = [job for job in await visibility.found(app, who, **wanted) if _has_rows(job, table)]
    return max(found, key=lambda job: (job.completed_at or job.created_at, job.job_id), default=None)


def _has_rows(job: Job, table: str) -> bool:
    return job.status is Status.COMPLETED and table.lower() in (each.lower() for each in job.result_tables)
