"""holdfast list, watch, logs, cancel, retry"""

from __future__ import annotations

import getpass
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

from holdfast.app import Holdfast, Page
from holdfast.cli import apps, options, output, watching
from holdfast.cli.exits import Exit, of_error
from holdfast.cli.options import AppName, AsJson, JobId, JobIds, Url
from holdfast.cli.output import STATUS_STYLES, Column
from holdfast.cli.text import away, safe, safe_lines, span
from holdfast.clock import to_datetime
from holdfast.errors import HoldfastError
from holdfast.job import Job
from holdfast.lifecycle import Status

_STATUSES = ", ".join(Status)


def list_jobs(
    status: Annotated[str | None, typer.Option(metavar="STATUS", help=f"One of {_STATUSES}.")] = None,
    job_type: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Of this type.")] = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="In this queue.")] = None,
    subject: Annotated[str | None, typer.Option(metavar="TEXT", help="About this subject.")] = None,
    worker: Annotated[str | None, typer.Option(metavar="ID", help="What this worker runs.")] = None,
    tag: Annotated[str | None, typer.Option(metavar="TAG", help="With this tag.")] = None,
    created_by: Annotated[str | None, typer.Option(metavar="NAME", help="Asked for by this name.")] = None,
    root: Annotated[str | None, typer.Option(metavar="ID", help="The jobs of one tree.")] = None,
    content_hash: Annotated[str | None, typer.Option(metavar="HASH", help="With this content.")] = None,
    order: Annotated[
        str, typer.Option(metavar="ORDER", help="created: newest first; priority: as they would be claimed.")
    ] = "created",
    limit: Annotated[int, typer.Option(metavar="N", help="How many at most.")] = 20,
    after: Annotated[str | None, typer.Option(metavar="CURSOR", help="Go on where a page ended.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """List jobs, newest first."""

    async def work(app: Holdfast) -> tuple[Page, datetime]:
        page = await app.find(
            status=status,
            job_type=job_type,
            queue=queue,
            subject=subject,
            worker=worker,
            tag=tag,
            created_by=created_by,
            root=root,
            content_hash=content_hash,
            order=order,
            after=after,
            limit=limit,
        )
        return page, to_datetime(app.clock.now())

    page, now = apps.run(url, app, work)
    if as_json:
        output.emit_json({"items": [job.to_dict() for job in page], "next": page.next})
        return
    if page:
        output.emit_table(_columns(now), page)
    else:
        output.say("no jobs match" if after is None else "no more jobs")
    if page.next is not None:
        output.say(f"there are more: add --after {page.next}")


def _columns(now: datetime) -> list[Column[Job]]:
    return [
        Column("ID", lambda job: job.job_id),
        Column("TYPE", lambda job: job.job_type, cut=True),
        Column("STATUS", lambda job: job.status.value, style=lambda job: STATUS_STYLES[job.status]),
        Column("PRIO", lambda job: str(job.priority), wide=True, right=True),
        Column("QUEUE", lambda job: job.queue, wide=True, cut=True),
        Column("AGE", lambda job: span(max(0.0, (now - job.created_at).total_seconds())), right=True),
        Column("TRIES", lambda job: str(job.attempt), wide=True, right=True),
        Column("SUBJECT", lambda job: job.subject or "", wide=True, cut=True),
        Column("NOTE", lambda job: _note(job, now), cut=True),
    ]


def _note(job: Job, now: datetime) -> str:
    match job.status:
        case Status.PROCESSING:
            return f"{job.progress:.0%} {job.stage}".rstrip()
        case Status.SCHEDULED:
            return away(job.scheduled_for, now)
        case Status.RETRYING:
            return f"{away(job.scheduled_for, now)}: {job.last_error or ''}"
        case Status.FAILED:
            return job.last_error or ""
        case Status.COMPLETED if job.processing_time_ms is not None:
            return f"in {span(job.processing_time_ms / 1000)}"
        case _:
            return ""


def watch(
    job_id: JobId,
    timeout: options.Timeout = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Show a job's progress until its end, then its result."""

    async def work(app: Holdfast) -> Exit:
        return watching.report(await watching.follow(app, job_id, timeout), as_json)

    return apps.run(url, app, work)


# Logs


def logs(job_id: JobId, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Print what a job has logged."""
    job = apps.run(url, app, lambda each: each.get(job_id))
    if as_json:
        output.emit_json({"job_id": job.job_id, **job.logs})
        return
    location = job.logs["log_location"]
    file = _log_file(job)
    if file is not None:
        with file.open(encoding="utf-8", errors="replace", newline="\n") as lines:
            for line in lines:
                print(safe_lines(line.removesuffix("\n")))
        return
    for entry in job.logs["entries"]:
        print(f"{safe(entry['timestamp'])} {safe(entry['level'])} {safe_lines(entry['message'])}")
    if location is not None:
        output.say(f"these are the last lines; the full log is at {location}, which is not here")
    elif not job.logs["entries"]:
        output.say(f"job {job.job_id} has logged nothing{'' if job.attempt else ': it has not run yet'}")


def _log_file(job: Job) -> Path | None:
    """The file that the record names, if it is here and is this job's own: a record must not name just any file."""
    location = urlsplit(job.logs["log_location"] or "")
    path = Path(unquote(location.path))
    return path if location.scheme == "file" and path.parent.name == job.job_id and path.is_file() else None


# Changing


def cancel(
    job_ids: JobIds,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Kept in the job's history.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Cancel jobs; running handlers are stopped."""
    return apps.run(
        url, app, lambda each: _change(job_ids, lambda one: each.cancel(one, reason=reason, by=_who()), as_json)
    )


def retry(
    job_ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", show_default=False)] = None,
    dead: Annotated[bool, typer.Option("--dead", help="All dead letters, instead of ids …")] = False,
    job_type: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="… of this type")] = None,
    error: Annotated[str | None, typer.Option(metavar="NAME", help="… that died of this error.")] = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Kept in the job's history.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Run ended jobs again, with fresh attempts."""
    if dead == bool(job_ids):
        raise typer.BadParameter("give the ids of jobs, or --dead for all dead letters", param_hint="ID")
    if not dead and (job_type or error):
        raise typer.BadParameter("they choose among the dead letters: add --dead", param_hint="--type, --error")
    if dead:
        count = apps.run(url, app, lambda each: each.retry_dead(job_type=job_type, error_type=error, by=_who()))
        if as_json:
            output.emit_json({"retried": count})
        else:
            print(f"{count} {'job runs' if count == 1 else 'jobs run'} again")
        return Exit.OK
    return apps.run(
        url,
        app,
        lambda each: _change(job_ids or [], lambda one: each.retry(one, reason=reason, by=_who()), as_json),
    )


async def _change(job_ids: list[str], change: Callable[[str], Awaitable[Job]], as_json: bool) -> int:
    """Each on its own: one that cannot be changed does not keep the others from it. The worst exit code counts."""
    changed: list[Job] = []
    code = 0
    for job_id in dict.fromkeys(job_ids):
        try:
            job = await change(job_id)
        except HoldfastError as error:
            output.say(str(error))
            code = max(code, of_error(error))
        else:
            changed.append(job)
            if not as_json:
                print(f"{job.job_id} is {job.status.value}")
    if as_json:
        output.emit_json({"items": [job.to_dict() for job in changed]})
    return code


def _who() -> str:
    """Who did it, for the history."""
    try:
        return f"{getpass.getuser()[:100]} (command line)"
    except (OSError, KeyError, ImportError):
        return "command line"
