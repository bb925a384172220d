"""Routes for details of a job: history, log, tree, explanation and files.

Files come from handlers and are not trusted. Each is sent in a sandbox without scripts, forms or an origin, with a
media type from a short list; everything else is a download.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from backstay.app import Backstay
from backstay.errors import ArtifactNotFound
from backstay.files.local import StoredFile
from backstay.job import HistoryEntry, Job
from backstay.server import problems, response_models, worker_summary
from backstay.server.auth import App, Who, needs, visible
from backstay.server.gate import ARTIFACT_POLICY
from backstay.server.problems import Problem
from backstay.server.routing import JobId, answer, answers, for_every_app, routes
from backstay.server.visibility import explained, without_foreign

READ = [Depends(needs("read"))]
Full = Annotated[bool, Query(description="The full log as text, instead of the last lines.")]


@for_every_app
def trees_router() -> APIRouter:
    api = routes("jobs")
    _recorded(api)
    _found_out(api)
    return api


def _recorded(api: APIRouter) -> None:
    @api.get(
        "/jobs/{job_id:uuid}/history",
        summary="Read the history of a job",
        dependencies=READ,
        **answers(response_models.History, 404),
    )
    async def read_history(app: App, who: Who, job_id: JobId) -> Response:
        """Every transition: when, who, why, and in which attempt."""
        job = await visible(app, who, str(job_id))
        [shown] = await without_foreign(app, who, [job])
        entries = shown.history
        return answer(response_models.History(job.job_id, entries, _dropped(entries)))

    @api.get(
        "/jobs/{job_id:uuid}/logs",
        summary="Read the log of a job",
        dependencies=READ,
        **_log_answers(),
    )
    async def read_logs(app: App, who: Who, job_id: JobId, full: Full = False) -> Response:
        """The last lines, as JSON, and the location of the full log; or, with `full=true`, the full log as text."""
        job = await visible(app, who, str(job_id))
        if not full:
            return answer(response_models.Logs(job.job_id, **job.logs))
        first = await app.log_bytes(job.job_id)
        lines = _lines(job) if first is None else _log(app, job.job_id, first)
        return StreamingResponse(lines, media_type="text/plain; charset=utf-8")


def _found_out(api: APIRouter) -> None:
    @api.get(
        "/jobs/{job_id:uuid}/tree",
        summary="Read a job and its descendants",
        dependencies=READ,
        **answers(response_models.Tree, 404),
    )
    async def read_tree(app: App, who: Who, job_id: JobId) -> Response:
        """Up to 1,000 jobs, each before its children; `parent_job_id` and `dependencies` show how they are"
        " connected."""
        await visible(app, who, str(job_id))
        tree = await app.tree(str(job_id))
        seen = [each.job for each in tree if who.sees(each.job.queue)]
        complete = tree.complete and len(seen) == len(tree.jobs)
        shown = await without_foreign(app, who, seen)
        return answer(response_models.Tree(str(job_id), [_summary(job) for job in shown], complete))

    @api.get(
        "/jobs/{job_id:uuid}/explain",
        summary="Explain why a job is not running",
        dependencies=READ,
        **answers(response_models.Explanation, 404),
    )
    async def explain_job(app: App, who: Who, request: Request, job_id: JobId) -> Response:
        """In one sentence, and as data: why it is not running, or how it ended."""
        job = await visible(app, who, str(job_id))
        found = await explained(app, who, job, await worker_summary.likely(request, job))
        return answer(
            response_models.Explanation(
                job.job_id,
                job.job_type,
                job.status,
                found.reason,
                str(found),
                found.params,
                found.until,
                found.job_ids,
                found.estimate,
                found.unforeseen,
            )
        )


def _log_answers() -> dict[str, Any]:
    found = answers(response_models.Logs, 404)
    found["responses"][200]["content"]["text/plain"] = {"schema": {"type": "string"}}
    return found


def _dropped(entries: list[HistoryEntry]) -> int:
    return entries[-1].version - len(entries) if entries else 0


def _summary(job: Job) -> msgspec.Struct:
    return response_models.JobSummary(*(getattr(job, name) for name in response_models.JobSummary.__struct_fields__))


async def _log(app: Backstay, job_id: str, piece: bytes | None) -> AsyncIterator[bytes]:
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


DOWNLOAD = "application/octet-stream"
# By the end of the name, never by what a file says of itself. Everything else is a download.
INLINE = {
    "txt": "text/plain; charset=utf-8",
    "log": "text/plain; charset=utf-8",
    "md": "text/plain; charset=utf-8",
    "csv": "text/plain; charset=utf-8",
    "tsv": "text/plain; charset=utf-8",
    "yaml": "text/plain; charset=utf-8",
    "json": "application/json",
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "html": "text/html; charset=utf-8",  # the sandbox lets it run nothing and load nothing
    "svg": "image/svg+xml",
}
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})", re.ASCII)
FileName = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$")]

Download = Annotated[bool, Query(description="Always send it as a download.")]
Ranged = Annotated[str | None, Header(description="A single byte range: `bytes=0-1023`.", alias="Range")]
IfNoneMatch = Annotated[str | None, Header()]
IfRange = Annotated[str | None, Header()]


@for_every_app
def artifacts_router() -> APIRouter:
    api = routes("artifacts")
    read = [Depends(needs("read"))]

    @api.get(
        "/jobs/{job_id:uuid}/artifacts",
        summary="List the artifacts of a job",
        dependencies=read,
        **answers(response_models.Artifacts, 404),
    )
    async def list_artifacts(app: App, who: Who, job_id: JobId) -> Response:
        """The files that its handler stored with `ctx.artifact`."""
        job = await visible(app, who, str(job_id))
        return answer(response_models.Artifacts(job.job_id, await app.artifacts(job.job_id)))

    path = "/jobs/{job_id:uuid}/artifacts/{name}"
    api.get(
        path,
        summary="Read an artifact of a job",
        dependencies=read,
        response_model=None,
        response_class=StreamingResponse,
        responses={
            200: {"description": "The file", "content": {DOWNLOAD: {"schema": {"type": "string", "format": "binary"}}}},
            206: {
                "description": "Part of the file",
                "content": {DOWNLOAD: {"schema": {"type": "string", "format": "binary"}}},
            },
            304: {"description": "The file has not changed"},
            **problems.documented(401, 403, 404, 416, 422, 429, 503),
        },
    )(show_artifact)
    api.head(path, dependencies=read, include_in_schema=False, response_model=None)(show_artifact)
    return api


async def show_artifact(
    app: App,
    who: Who,
    request: Request,
    job_id: JobId,
    name: FileName,
    download: Download = False,
    if_none_match: IfNoneMatch = None,
    if_range: IfRange = None,
    ranged: Ranged = None,
) -> Response:
    """The file, as it was stored; `Range` returns part of it. Its ETag is the SHA-256 of the whole file."""
    job = await visible(app, who, str(job_id))
    file = next((each for each in await app.artifacts(job.job_id) if each.name == name), None)
    if file is None:
        raise ArtifactNotFound(f"job {job.job_id} has no artifact {name!r:.80}")
    headers = _headers(file, download)
    if if_none_match is not None and _names(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    part = _part(ranged if if_range in (None, headers["ETag"]) else None, file.size)
    start, stop = part or (0, file.size)
    headers["Content-Length"] = str(stop - start)
    if part is not None:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{file.size}"
    status = 200 if part is None else 206
    media_type = _media_type(name)
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=media_type)
    body = await _begun(app.open_artifact(job.job_id, name, start, stop))
    return StreamingResponse(body, status, headers=headers, media_type=media_type)


def _headers(file: StoredFile, download: bool) -> dict[str, str]:
    shown = not download and _media_type(file.name) != DOWNLOAD
    return {
        "Content-Security-Policy": ARTIFACT_POLICY,
        "X-Content-Type-Options": "nosniff",
        "Content-Disposition": f'{"inline" if shown else "attachment"}; filename="{file.name}"',  # of a plain name
        "ETag": f'"{file.sha256}"',
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
    }


def _media_type(name: str) -> str:
    return INLINE.get(name.rpartition(".")[2].lower(), DOWNLOAD) if "." in name else DOWNLOAD


def _names(if_none_match: str, tag: str) -> bool:
    given = [each.strip().removeprefix("W/") for each in if_none_match.split(",")]
    return tag in given or given == ["*"]


def _part(ranged: str | None, size: int) -> tuple[int, int] | None:
    """Return the first byte and the one after the last; None for the whole file, or if the header is not one range."""
    found = None if ranged is None else _RANGE.fullmatch(ranged.replace(" ", ""))
    if found is None or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if first and last and int(last) < start:
        return None
    if start >= size:
        raise Problem(
            416, "no-such-range", f"the file has {size:,} bytes", headers={"Content-Range": f"bytes */{size}"}
        )
    return start, stop


async def _begun(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Return the response once its first piece has been read: a file that cannot be read at all is a problem, not half
    an answer."""
    first = await anext(pieces, b"")

    async def all_of_it() -> AsyncIterator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    return all_of_it()
