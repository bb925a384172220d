"""The files of a job, streamed through: whoever may read the job needs no way to where they lie.

What a handler wrote is not ours. Each answer is in a sandbox without scripts, forms or an origin, of a type from a
short list; what is not on it is a download.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from holdfast.app import Holdfast
from holdfast.errors import ArtifactNotFound
from holdfast.files import StoredFile
from holdfast.server import documents, problems
from holdfast.server.guarding import App, Who, needs, visible
from holdfast.server.problems import Problem
from holdfast.server.routing import JobId, answer, answers, routes

POLICY = "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'; frame-ancestors 'self'"
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

Download = Annotated[bool, Query(description="As a file to be saved, whatever it is.")]
Ranged = Annotated[str | None, Header(description="One range of bytes: `bytes=0-1023`.", alias="Range")]
IfNoneMatch = Annotated[str | None, Header()]
IfRange = Annotated[str | None, Header()]


def router(_: Holdfast) -> APIRouter:
    api = routes("artifacts")
    read = [Depends(needs("read"))]

    @api.get(
        "/jobs/{job_id:uuid}/artifacts",
        summary="List the files of a job",
        dependencies=read,
        **answers(documents.Artifacts, 404),
    )
    async def list_artifacts(app: App, who: Who, job_id: JobId) -> Response:
        """Those that its handler kept with `ctx.artifact`."""
        job = await visible(app, who, str(job_id))
        return answer({"job_id": job.job_id, "items": await app.artifacts(job.job_id)})

    path = "/jobs/{job_id:uuid}/artifacts/{name}"
    api.get(
        path,
        summary="Read a file of a job",
        dependencies=read,
        response_model=None,
        response_class=StreamingResponse,
        responses={
            200: {"description": "The file", "content": {DOWNLOAD: {"schema": {"type": "string", "format": "binary"}}}},
            206: {
                "description": "A part of it",
                "content": {DOWNLOAD: {"schema": {"type": "string", "format": "binary"}}},
            },
            304: {"description": "It is what the client has"},
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
    """The file, as it was stored; `Range` gives a part of it. Its ETag is the SHA-256 of the whole."""
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
        "Content-Security-Policy": POLICY,
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
    """From which byte on and before which; None: all of it, also for what is no single range, as HTTP has it."""
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
    """With its first piece in hand: what cannot be read at all is a problem, not half an answer."""
    first = await anext(pieces, b"")

    async def all_of_it() -> AsyncIterator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    return all_of_it()
