"""holdfast results ID [TABLE]: the rows that a job has put into a result table."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from holdfast.app import Holdfast
from holdfast.cli import apps, lookup, output
from holdfast.cli.options import AppName, AsJson, JobId, Url
from holdfast.cli.output import Column
from holdfast.codec import encode

_OF_JOB = ("job_id", "created_at", "parent_job_id", "root_job_id", "job_stage")
_NUMBERS_SHOWN = 3  # of a vector


def results(
    job_id: JobId,
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="Print its rows.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="How many at most; default 20.")] = 20,
    after: Annotated[str | None, typer.Option(metavar="CURSOR", help="Go on where a page ended.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """List the tables in which a job has rows, or print the rows of one."""

    async def work(app: Holdfast) -> None:
        whole = await lookup.job_id(app, job_id)
        if table is None:
            _print_tables(whole, list((await app.get(whole)).record.result_tables), as_json)
            return
        page = await app.result_rows(whole, table, after, limit)
        if as_json:
            output.emit_json({"job_id": whole, "table": table, "items": page, "next": page.next})
            return
        if page:
            output.emit_table([_column(name) for name in page[0] if name not in _OF_JOB], page)
        else:
            output.say(f"job {output.named(whole)} has no rows in {table} to see: they come with its completion")
        if page.next is not None:
            output.say(f"more: --after '{page.next}'")

    apps.run(url, app, work)


def _print_tables(job_id: str, tables: list[str], as_json: bool) -> None:
    if as_json:
        output.emit_json({"job_id": job_id, "items": tables})
    elif not tables:
        output.say(f"job {output.named(job_id)} has no rows in any table")
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
