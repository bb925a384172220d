"""`backstay artifacts` and `results`: the files of a job, and its rows in result tables."""

from __future__ import annotations

import contextlib
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from backstay.app import Backstay
from backstay.cli import app_loader, output
from backstay.cli.options import AppName, AsJson, JobId, Url
from backstay.cli.output import Column, safe_lines
from backstay.codec import encode
from backstay.errors import InvalidOption
from backstay.files.local import StoredFile
from backstay.limits import MIB

TEXT_BYTES_MAX = MIB  # on a terminal, where more is not readable


def artifacts(
    job_id: JobId,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Print this artifact.", show_default=False)] = None,
    into: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it to FILE, all or nothing.")
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """List the artifacts of a job, or print one."""
    if into is not None and name is None:
        raise typer.BadParameter("give the NAME of the artifact to write", param_hint="--output")

    async def work(app: Backstay) -> None:
        whole = await app_loader.job_id(app, job_id)
        if name is not None:
            await _fetch(app, whole, name, into)
            return
        stored = await app.artifacts(whole)
        if as_json:
            output.emit_json({"job_id": whole, "items": stored})
        elif not stored:
            output.say(f"job {output.named(whole)} has no artifacts")
        else:
            output.emit_table(_COLUMNS, stored)

    app_loader.run(url, app, work)


async def _fetch(app: Backstay, job_id: str, name: str, into: Path | None) -> None:
    """Copy a file in chunks, unchanged, to a pipe or a file. On a terminal, print only text."""
    if into is not None:
        await _save(app, job_id, name, into)
    elif sys.stdout.isatty():
        await _show(app, job_id, name)
    else:
        async for piece in app.open_artifact(job_id, name):
            sys.stdout.buffer.write(piece)


async def _save(app: Backstay, job_id: str, name: str, into: Path) -> None:
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


async def _show(app: Backstay, job_id: str, name: str) -> None:
    content = b""
    async for piece in app.open_artifact(job_id, name):
        content += piece
        if len(content) > TEXT_BYTES_MAX:
            raise InvalidOption(f"{name} is too large to print here: write it to a file with -o {name}")
    try:
        print(safe_lines(content.decode()))
    except UnicodeDecodeError:
        raise InvalidOption(f"{name} is not text: write its {len(content):,} bytes to a file with -o {name}") from None


_COLUMNS: list[Column[StoredFile]] = [
    Column("NAME", lambda file: file.name),
    Column("BYTES", lambda file: f"{file.size:,}", right=True),
    Column("SHA-256", lambda file: file.sha256, wide=True),
    Column("LOCATION", lambda file: file.uri),
]


_OF_JOB = ("job_id", "created_at", "parent_job_id", "root_job_id", "job_stage")
_NUMBERS_SHOWN = 3  # of a vector


def results(
    job_id: JobId,
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="Print the rows of this table.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="Maximum number of rows; default 20.")] = 20,
    after: Annotated[str | None, typer.Option(metavar="CURSOR", help="Continue after this cursor.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """List the result tables of a job, or print the rows of one."""

    async def work(app: Backstay) -> None:
        whole = await app_loader.job_id(app, job_id)
        if table is None:
            _print_tables(whole, list((await app.get(whole)).row.result_tables), as_json)
            return
        page = await app.result_rows(whole, table, after, limit)
        if as_json:
            output.emit_json({"job_id": whole, "table": table, "items": page, "next": page.next})
            return
        if page:
            output.emit_table([_column(name) for name in page[0] if name not in _OF_JOB], page)
        else:
            output.say(f"job {output.named(whole)} has no rows in {table} yet: rows appear when the job completes")
        if page.next is not None:
            output.say(f"more rows: add --after '{page.next}'")

    app_loader.run(url, app, work)


def _print_tables(job_id: str, tables: list[str], as_json: bool) -> None:
    if as_json:
        output.emit_json({"job_id": job_id, "items": tables})
    elif not tables:
        output.say(f"job {output.named(job_id)} has no result rows")
    else:
        for table in tables:
            print(table)


def _column(name: str) -> Column[dict[str, Any]]:
    return Column(name.upper(), lambda row: _shown(row[name]), cut=True)


def _shown(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case datetime():
            return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case bytes():
            return f"{len(value):,} bytes"
        case list() if len(value) > _NUMBERS_SHOWN and all(isinstance(each, float) for each in value):
            first = ", ".join(f"{number:.4g}" for number in value[:_NUMBERS_SHOWN])
            return f"[{first}, …] ({len(value)})"
        case _:
            return encode(value).decode()
