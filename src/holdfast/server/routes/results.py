"""Rows that a job has put into result tables: by page, by subject, one by its key."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Response

from holdfast import limits
from holdfast.app import Holdfast
from holdfast.server import documents
from holdfast.server.fields import NO_NUL
from holdfast.server.guarding import App, Who, needs, visible
from holdfast.server.problems import Problem
from holdfast.server.routing import JobId, answer, answers, routes

READ = [Depends(needs("read"))]
Table = Annotated[str, Path(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,47}$")]
Limit = Annotated[int, Query(ge=1, le=limits.FIND_LIMIT_MAX)]
Subject = Annotated[str | None, Query(min_length=1, max_length=limits.RESULT_KEY_BYTES_MAX, json_schema_extra=NO_NUL)]
# The attempt and the key of the last row; each byte of a key can be six characters of JSON, within JSON.
After = Annotated[
    str | None,
    Query(
        description="`next` of the page before.",
        max_length=12 * limits.RESULT_KEY_BYTES_MAX + 200,
        json_schema_extra={"pattern": r"^\[[0-9]{1,9},.+\]$"},
    ),
]


def router(_: Holdfast) -> APIRouter:
    api = routes("results")
    _tables(api)
    _rows(api)
    return api


def _tables(api: APIRouter) -> None:
    @api.get(
        "/jobs/{job_id:uuid}/results",
        summary="List the tables in which a job has rows",
        dependencies=READ,
        **answers(documents.Tables, 404),
    )
    async def list_tables(app: App, who: Who, job_id: JobId) -> Response:
        job = await visible(app, who, str(job_id))
        return answer({"job_id": job.job_id, "items": job.result_tables})


def _rows(api: APIRouter) -> None:
    @api.get(
        "/jobs/{job_id:uuid}/results/{table}",
        summary="Read the rows of a job",
        dependencies=READ,
        **answers(documents.Rows, 404, 409, 410),
    )
    async def read_rows(
        app: App,
        who: Who,
        job_id: JobId,
        table: Table,
        subject: Subject = None,
        after: After = None,
        limit: Limit = 100,
    ) -> Response:
        """By key; those of a `subject` where the table has one. Rows are there once the job has completed."""
        job = await visible(app, who, str(job_id))
        page = await app.result_rows(job.job_id, table, after, limit, subject=subject)
        return answer({"job_id": job.job_id, "table": table, "items": page, "next": page.next})

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
