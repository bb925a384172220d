"""holdfast list, watch"""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import Annotated

import typer

from holdfast.app import Holdfast
from holdfast.cli import apps, lookup, notes, options, output, watching
from holdfast.cli.exits import Exit
from holdfast.cli.options import AppName, AsJson, JobId, Url
from holdfast.cli.output import STATUS_STYLES, Column
from holdfast.cli.text import span
from holdfast.clock import to_datetime
from holdfast.job import Job
from holdfast.job_json import whole
from holdfast.lifecycle import Status
from holdfast.reading import Page

_STATUSES = ", ".join(Status)


def list_jobs(
    status: Annotated[str | None, typer.Option(metavar="STATUS", help=f"One of {_STATUSES}.")] = None,
    job_type: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Of this type.")] = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="In this queue.")] = None,
    subject: Annotated[str | None, typer.Option(metavar="TEXT", help="About this subject.")] = None,
    worker: Annotated[str | None, typer.Option(metavar="ID", help="What this worker runs.")] = None,
    tag: Annotated[str | None, typer.Option(metavar="TAG", help="With this tag.")] = None,
    created_by: Annotated[str | None, typer.Option(metavar="NAME", help="Asked for by this name.")] = None,
    root: Annotated[str | None, typer.Option(metavar="ID", help="The jobs below this one.")] = None,
    content_hash: Annotated[str | None, typer.Option(metavar="HASH", help="With this content.")] = None,
    order: Annotated[
        str, typer.Option(metavar="ORDER", help="created: newest first; priority: as they would be claimed.")
    ] = "created",
    limit: Annotated[int, typer.Option(metavar="N", help="How many at most; default 20.")] = 20,
    after: Annotated[str | None, typer.Option(metavar="CURSOR", help="Go on where a page ended.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """List jobs, newest first."""

    async def work(app: Holdfast) -> None:
        page = await app.find(
            status=status,
            job_type=job_type,
            queue=queue,
            subject=subject,
            worker=worker,
            tag=tag,
            created_by=created_by,
            root=None if root is None else await lookup.job_id(app, root),
            content_hash=content_hash,
            order=order,
            after=after,
            limit=limit,
        )
        if as_json:
            output.emit_json({"items": [whole(job) for job in page], "next": page.next})
        else:
            _print(page, to_datetime(app.clock.now()), first=after is None)

    apps.run(url, app, work)


def _print(page: Page, now: datetime, *, first: bool) -> None:
    if page:
        output.emit_table(_columns(now), page)
    else:
        output.say("no jobs match" if first else "no more jobs")
    if page.next is not None:
        output.say(f"there are more: add --after {shlex.quote(page.next)}")


def _columns(now: datetime) -> list[Column[Job]]:
    return [
        Column("ID", lambda job: job.job_id, is_id=True),
        Column("TYPE", lambda job: job.job_type, cut=True),
        Column("STATUS", lambda job: job.status.value, style=lambda job: STATUS_STYLES[job.status]),
        Column("PRIORITY", lambda job: str(job.priority), wide=True, right=True),
        Column("QUEUE", lambda job: job.queue, wide=True, cut=True),
        Column("AGE", lambda job: span(max(0.0, (now - job.created_at).total_seconds())), right=True),
        Column("ATTEMPT", lambda job: str(job.attempt or ""), wide=True, right=True),
        Column("SUBJECT", lambda job: job.subject or "", wide=True, cut=True),
        Column("NOTE", lambda job: notes.note(job, now), cut=True),
    ]


def watch(
    job_id: JobId,
    timeout: options.Timeout = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Show a job's progress until its end, then its result."""

    async def work(app: Holdfast) -> Exit:
        whole = await lookup.job_id(app, job_id)
        return watching.report(await watching.follow(app, whole, timeout), as_json)

    return apps.run(url, app, work)
