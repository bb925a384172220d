"""What a job's page shows of payloads, results and files: as much as people read, and nothing that is a secret."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast import sensitive
from holdfast.app import Holdfast
from holdfast.errors import StoreError
from holdfast.files import StoredFile
from holdfast.job import Job
from holdfast.limits import KIB, MIB

TEXT_BYTES_MAX = 64 * KIB  # of a text file that a page shows; the file itself has the rest
TEXTS_MAX = 3  # files of one job whose text stands on its page; the others are links
PICTURE_BYTES_MAX = 20 * MIB  # of an image that a page loads by itself

# What is shown, by the end of a name. Everything else is for downloading: a type that a browser might run is none here.
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
    """A file, and how: "image", "page", "text" (then with its beginning), "link", "download", or "lost"."""

    file: StoredFile
    how: str
    text: str | None = None
    is_all: bool = True


class Result(msgspec.Struct, frozen=True):
    """`value` where it is short enough to be shown; else its size."""

    value: Any = None
    bytes: int = 0


def kind_of(name: str) -> tuple[str, str]:
    """How a file is shown, and the type that it is sent with."""
    return _TYPES.get(name.rpartition(".")[2].lower(), _DOWNLOAD) if "." in name else _DOWNLOAD


async def artifacts(app: Holdfast, job: Job) -> list[Shown]:
    found: list[Shown] = []
    texts = 0
    for file in await app.artifacts(job.job_id):
        how, _ = kind_of(file.name)
        texts += how == "text"
        if (how == "image" and file.size > PICTURE_BYTES_MAX) or (how == "text" and texts > TEXTS_MAX):
            how = "link"
        found.append(await _text(app, job, file) if how == "text" else Shown(file, how))
    return found


async def _text(app: Holdfast, job: Job, file: StoredFile) -> Shown:
    """The beginning of it; a long file is not read to its end for that."""
    pieces = app.open_artifact(job.job_id, file.name)
    content = b""
    try:
        async for piece in pieces:
            content += piece
            if len(content) > TEXT_BYTES_MAX:
                break
    except StoreError:  # the others can still be looked at
        return Shown(file, "lost")
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]  # a generator, which nobody reads to its end
    return Shown(file, "text", content[:TEXT_BYTES_MAX].decode("utf-8", "replace"), len(content) <= TEXT_BYTES_MAX)


def result_of(job: Job) -> Result:
    record = job.record
    if record.result_artifact is not None:
        return Result(bytes=msgspec.json.decode(record.result_artifact, type=StoredFile).size)
    return Result(value=job.result)


async def payload_of(app: Holdfast, job: Job) -> Any:
    """With what its schema marks as sensitive covered."""
    return sensitive.masked(await schema_of(app, job.job_type), job.payload)


async def schema_of(app: Holdfast, job_type: str) -> str | None:
    """The one that the type has announced; of a type that is new here, its handler's own."""
    for each in await app.store.job_types():
        if each.job_type == job_type:
            return each.payload_schema
    handler = app.handlers.get(job_type)
    return None if handler is None else handler.describe(app.clock.now()).payload_schema
