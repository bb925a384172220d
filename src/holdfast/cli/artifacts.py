"""holdfast artifacts ID [NAME]: the files that a job's handler kept with it, wherever they are."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast.app import Holdfast
from holdfast.cli import apps, lookup, output
from holdfast.cli.options import AppName, AsJson, JobId, Url
from holdfast.cli.output import Column
from holdfast.cli.text import safe_lines
from holdfast.errors import InvalidOption
from holdfast.files import StoredFile
from holdfast.limits import MIB

TEXT_BYTES_MAX = MIB  # on a terminal; nobody reads more there


def artifacts(
    job_id: JobId,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Print this one.", show_default=False)] = None,
    into: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it here, whole or not at all.")
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """List the files that a job has kept, or print one."""
    if into is not None and name is None:
        raise typer.BadParameter("name the file that should be written there", param_hint="--output")

    async def work(app: Holdfast) -> None:
        whole = await lookup.job_id(app, job_id)
        if name is not None:
            await _fetch(app, whole, name, into)
            return
        stored = await app.artifacts(whole)
        if as_json:
            output.emit_json({"job_id": whole, "items": stored})
        elif not stored:
            output.say(f"job {output.named(whole)} keeps no files")
        else:
            output.emit_table(_COLUMNS, stored)

    apps.run(url, app, work)


async def _fetch(app: Holdfast, job_id: str, name: str, into: Path | None) -> None:
    """In pieces, as it is, into a pipe or a file; on a terminal only what is text."""
    if into is not None:
        await _save(app, job_id, name, into)
    elif sys.stdout.isatty():
        await _show(app, job_id, name)
    else:
        async for piece in app.open_artifact(job_id, name):
            sys.stdout.buffer.write(piece)


async def _save(app: Holdfast, job_id: str, name: str, into: Path) -> None:
    draft = into.with_name(f".{into.name}.{os.getpid()}.draft")
    try:
        with draft.open("wb") as file:
            async for piece in app.open_artifact(job_id, name):
                file.write(piece)
        draft.replace(into)
    except OSError as error:
        raise InvalidOption(f"{into} cannot be written: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


async def _show(app: Holdfast, job_id: str, name: str) -> None:
    content = b""
    async for piece in app.open_artifact(job_id, name):
        content += piece
        if len(content) > TEXT_BYTES_MAX:
            raise InvalidOption(f"{name} is too long to be read here: send it to a file with > {name}")
    try:
        print(safe_lines(content.decode()))
    except UnicodeDecodeError:
        raise InvalidOption(f"{name} is no text: send its {len(content):,} bytes to a file with > {name}") from None


_COLUMNS: list[Column[StoredFile]] = [
    Column("NAME", lambda file: file.name),
    Column("BYTES", lambda file: f"{file.size:,}", right=True),
    Column("SHA-256", lambda file: file.sha256, wide=True),
    Column("WHERE", lambda file: file.uri),
]
