"""holdfast artifacts ID [NAME]: the files that a job's handler kept with it, wherever they are."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from holdfast.app import Holdfast
from holdfast.cli import apps, lookup, output
from holdfast.cli.options import AppName, AsJson, JobId, Url
from holdfast.cli.output import Column
from holdfast.cli.text import safe_lines
from holdfast.errors import InvalidOption
from holdfast.files import StoredFile


def artifacts(
    job_id: JobId,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Print this one.", show_default=False)] = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """List the files that a job has kept, or print one."""

    async def work(app: Holdfast) -> None:
        whole = await lookup.job_id(app, job_id)
        if name is not None:
            _print(name, await app.artifact(whole, name))
            return
        stored = await app.artifacts(whole)
        if as_json:
            output.emit_json({"job_id": whole, "items": stored})
        elif not stored:
            output.say(f"job {output.named(whole)} keeps no files")
        else:
            output.emit_table(_COLUMNS, stored)

    apps.run(url, app, work)


def _print(name: str, content: bytes) -> None:
    """As it is, into a pipe or a file; on a terminal only what is text."""
    if not sys.stdout.isatty():
        sys.stdout.buffer.write(content)
        return
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
