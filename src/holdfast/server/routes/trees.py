"""What is known around a job: its history, its log, its tree, and why it stands where it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import StreamingResponse

from holdfast.app import Holdfast
from holdfast.job import HistoryEntry, Job
from holdfast.server import documents
from holdfast.server.guarding import App, Who, needs, visible
from holdfast.server.reasons import explained
from holdfast.server.routing import JobId, answer, answers, routes

SHOWN = tuple(documents.JobSummary.model_fields)  # of each job of a tree: a thousand payloads would be too much
READ = [Depends(needs("read"))]
Full = Annotated[bool, Query(description="All of it, as text, instead of the last lines.")]


def router(_: Holdfast) -> APIRouter:
    api = routes("jobs")
    _recorded(api)
    _found_out(api)
    return api


def _recorded(api: APIRouter) -> None:
    @api.get(
        "/jobs/{job_id:uuid}/history",
        summary="Read what happened to a job",
        dependencies=READ,
        **answers(documents.History, 404),
    )
    async def read_history(app: App, who: Who, job_id: JobId) -> Response:
        """Every transition: who, when, in which attempt, why."""
        job = await visible(app, who, str(job_id))
        entries = job.history
        return answer({"job_id": job.job_id, "items": entries, "dropped": _dropped(entries)})

    @api.get(
        "/jobs/{job_id:uuid}/logs",
        summary="Read what a job has logged",
        dependencies=READ,
        **_log_answers(),
    )
    async def read_logs(app: App, who: Who, job_id: JobId, full: Full = False) -> Response:
        """The last lines, as JSON, and where the full log lies; or, with `full=true`, the full log as text."""
        job = await visible(app, who, str(job_id))
        if not full:
            return answer({"job_id": job.job_id, **job.logs})
        first = await app.log_bytes(job.job_id)
        lines = _lines(job) if first is None else _log(app, job.job_id, first)
        return StreamingResponse(lines, media_type="text/plain; charset=utf-8")


def _found_out(api: APIRouter) -> None:
    @api.get(
        "/jobs/{job_id:uuid}/tree",
        summary="Read a job and all below it",
        dependencies=READ,
        **answers(documents.Tree, 404),
    )
    async def read_tree(app: App, who: Who, job_id: JobId) -> Response:
        """Up to 1,000 jobs, each before its children; `parent_job_id` and `dependencies` say how they hang together."""
        await visible(app, who, str(job_id))
        tree = await app.tree(str(job_id))
        seen = [each.job for each in tree if who.sees(each.job.queue)]
        complete = tree.complete and len(seen) == len(tree.jobs)
        return answer({"job_id": str(job_id), "items": [_summary(job) for job in seen], "complete": complete})

    @api.get(
        "/jobs/{job_id:uuid}/explain",
        summary="Say why a job is not running",
        dependencies=READ,
        **answers(documents.Explanation, 404),
    )
    async def explain_job(app: App, who: Who, job_id: JobId) -> Response:
        """In one sentence: why it is not running, or where it is at."""
        job = await visible(app, who, str(job_id))
        found = await explained(app, who, job)
        return answer(
            {
                "job_id": job.job_id,
                "job_type": job.job_type,
                "status": job.status,
                "reason": found.reason,
                "explanation": str(found),
                "until": found.until,
                "job_ids": found.job_ids,
            }
        )


def _log_answers() -> dict[str, Any]:
    found = answers(documents.Logs, 404)
    found["responses"][200]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    return found


def _dropped(entries: list[HistoryEntry]) -> int:
    return entries[-1].version - len(entries) if entries else 0


def _summary(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in SHOWN}


async def _log(app: Holdfast, job_id: str, piece: bytes | None) -> AsyncIterator[bytes]:
    at = 0
    while piece:
        yield piece
        at += len(piece)
        piece = await app.log_bytes(job_id, at)


async def _lines(job: Job) -> AsyncIterator[bytes]:
    """Where there is no file: the lines that the record keeps."""
    for each in job.logs["entries"]:
        yield f"{each['timestamp']} {each['level']} {each['message']}\n".encode()
        await asyncio.sleep(0)
