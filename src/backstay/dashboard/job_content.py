"""Payloads, results, files and result rows as the job page shows them: shortened, with secrets masked.

Files are never served as anything that could run in the dashboard's origin: every response is sandboxed without
scripts, forms or an origin, and its media type comes from a short list of file name extensions; everything else is a
download.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any
from urllib.parse import quote

import msgspec
from fastapi import Depends, Request, Response
from fastapi.responses import StreamingResponse

from backstay import codec
from backstay.app import Backstay
from backstay.core import sensitive
from backstay.core.output import OutputPlace
from backstay.dashboard import page as dashboard_page
from backstay.errors import ArtifactNotFound, StoreError
from backstay.files.local import StoredFile
from backstay.job import Job
from backstay.limits import KIB, MIB
from backstay.results.model import OWN
from backstay.server import visibility
from backstay.server.auth import App, Who, needs, visible
from backstay.server.gate import ARTIFACT_POLICY

TEXT_BYTES_MAX = 64 * KIB  # of a text file shown on a page; the rest is in the file
STREAMED_MAX = 1_000  # entries of a job's output shown on its page: the last ones
TEXTS_MAX = 3  # files of one job whose text is on its page; the others are links
PICTURE_BYTES_MAX = 20 * MIB  # of an image that a page loads automatically

# What is displayed, by file name extension. Everything else is a download: no type here may run in a browser.
_TYPES = {
    "png": ("image", "image/png"),
    "jpg": ("image", "image/jpeg"),
    "jpeg": ("image", "image/jpeg"),
    "gif": ("image", "image/gif"),
    "webp": ("image", "image/webp"),
    "avif": ("image", "image/avif"),
    "svg": ("image", "image/svg+xml"),
    "html": ("page", "text/html; charset=utf-8"),
    "htm": ("page", "text/html; charset=utf-8"),
    **dict.fromkeys(
        ("txt", "md", "csv", "tsv", "log", "json", "jsonl", "ndjson", "xml", "yaml", "yml", "toml", "py", "sql"),
        ("text", "text/plain; charset=utf-8"),
    ),
}
_DOWNLOAD = ("download", "application/octet-stream")


class Shown(msgspec.Struct, frozen=True):
    """A file and how to display it: "image", "page", "text" (with its beginning), "link", "download" or "lost"."""

    file: StoredFile
    how: str
    text: str | None = None
    is_all: bool = True


class Result(msgspec.Struct, frozen=True):
    """`value` if it is short enough to display; else its size."""

    value: Any = None
    bytes: int = 0


class Streamed(msgspec.Struct, frozen=True):
    """The end of a job's output: texts as they follow one another, other values as a line of JSON each."""

    text: str
    entries: int
    attempt: int
    is_all: bool


async def streamed(app: Backstay, job: Job) -> Streamed | None:
    """Return the last entries of what the handler has streamed; None if it has streamed nothing."""
    end = None if not job.attempt or job.archived_at is not None else await app.output_end(job.job_id)
    if end is None:
        return None
    attempt, take, last = end.place
    skipped = max(0, last - STREAMED_MAX)
    page = await app.output(job.job_id, after=OutputPlace(attempt, take, skipped).cursor)
    text = ""
    for entry in page:
        if isinstance(entry.value, str):
            text += entry.value
        else:
            text += ("" if text.endswith("\n") or not text else "\n") + codec.encode(entry.value).decode() + "\n"
    is_all = not skipped and len(text) <= TEXT_BYTES_MAX
    return Streamed(text[-TEXT_BYTES_MAX:], last, attempt, is_all)


def kind_of(name: str) -> tuple[str, str]:
    """How to display a file, and its media type."""
    return _TYPES.get(name.rpartition(".")[2].lower(), _DOWNLOAD) if "." in name else _DOWNLOAD


async def artifacts(app: Backstay, job: Job) -> list[Shown]:
    found: list[Shown] = []
    texts = 0
    for file in await app.artifacts(job.job_id):
        how, _ = kind_of(file.name)
        texts += how == "text"
        if (how == "image" and file.size > PICTURE_BYTES_MAX) or (how == "text" and texts > TEXTS_MAX):
            how = "link"
        found.append(await _text(app, job, file) if how == "text" else Shown(file, how))
    return found


async def _text(app: Backstay, job: Job, file: StoredFile) -> Shown:
    """The beginning of a text file, without reading a long one to its end."""
    pieces = app.open_artifact(job.job_id, file.name)
    content = b""
    try:
        async for piece in pieces:
            content += piece
            if len(content) > TEXT_BYTES_MAX:
                break
    except StoreError:  # the other files can still be displayed
        return Shown(file, "lost")
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]  # a generator that is not read to its end
    return Shown(file, "text", content[:TEXT_BYTES_MAX].decode("utf-8", "replace"), len(content) <= TEXT_BYTES_MAX)


def result_of(job: Job) -> Result:
    record = job.row
    if record.result_artifact is not None:
        return Result(bytes=msgspec.json.decode(record.result_artifact, type=StoredFile).size)
    return Result(value=job.result)


async def payload_of(app: Backstay, job: Job) -> Any:
    """The payload, with its sensitive values masked."""
    marks = (await visibility.all_marks(app)).get(job.job_type)
    return sensitive.masked(marks, job.payload) if marks else job.payload


router = dashboard_page.pages()


@router.get("/jobs/{job_id}/artifacts/{name}", dependencies=[Depends(needs("read"))])
async def artifact(request: Request, app: App, who: Who, job_id: str, name: str) -> Response:
    job = await visible(app, who, job_id)
    file = next((each for each in await app.artifacts(job.job_id) if each.name == name), None)
    if file is None:
        raise ArtifactNotFound(f"job {job.job_id} has no artifact {name!r:.80}")
    how, media_type = kind_of(name)
    download = how == "download" or bool(request.query_params.get("download"))
    headers = {
        "Content-Security-Policy": ARTIFACT_POLICY,
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, no-cache",
        "ETag": f'"{file.sha256}"',
        "Content-Disposition": f"{'attachment' if download else 'inline'}; filename*=UTF-8''{quote(name, safe='')}",
    }
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    pieces = app.open_artifact(job.job_id, name)
    first = await anext(aiter(pieces), b"")  # an unreadable file gives an error page, not half a file
    headers["Content-Length"] = str(file.size)
    return StreamingResponse(_all(first, pieces), media_type=media_type, headers=headers)


async def _all(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


PAGE = 100
NUMBERS_SHOWN = 4  # of a vector: 384 would be unreadable
CELL_MAX = 400  # characters per cell


@router.get("/jobs/{job_id}/results/{table}", dependencies=[Depends(needs("read"))])
async def rows(request: Request, app: App, who: Who, job_id: str, table: str) -> Response:
    job = await visible(app, who, job_id)
    after = request.query_params.get("after") or None
    page = await app.result_rows(job.job_id, table, after, PAGE)
    names = [name for name in page[0] if name not in OWN] if page else []
    return dashboard_page.render(
        request,
        "rows.html",
        live=f"job:{job.job_id}" if after is None else None,
        job=job,
        table=table,
        names=names,
        rows=[[cell(row[name]) for name in names] for row in page],
        numeric=[bool(page) and isinstance(page[0][name], int | float) for name in names],
        after=after,
        following=page.next,
    )


def cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            text = value
        case bool():
            text = "yes" if value else "no"
        case datetime():
            text = value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case bytes():
            text = f"{len(value):,} bytes"
        case float():
            text = f"{value:.6g}"
        case list() if len(value) > NUMBERS_SHOWN and all(isinstance(each, float) for each in value):
            first = ", ".join(f"{number:.4g}" for number in value[:NUMBERS_SHOWN])
            text = f"[{first}, …] ({len(value)})"
        case _:
            text = msgspec.json.encode(value, enc_hook=str).decode()
    return text if len(text) <= CELL_MAX else f"{text[: CELL_MAX - 1]}…"
