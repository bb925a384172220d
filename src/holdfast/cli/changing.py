"""holdfast cancel, retry, rerun, reprioritise, reschedule"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Annotated

import typer

from holdfast.app import Holdfast
from holdfast.cli import apps, dead, lookup, options, output
from holdfast.cli.exits import Exit, of_error
from holdfast.cli.options import AppName, AsJson, JobId, JobIds, Url
from holdfast.errors import HoldfastError
from holdfast.job import Job
from holdfast.job_json import whole
from holdfast.lifecycle import Status

Subtree = Annotated[bool, typer.Option("--subtree", help="The jobs and all that they have submitted.")]


def cancel(
    job_ids: JobIds,
    subtree: Subtree = False,
    reason: options.Reason = None,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Cancel jobs; running handlers are stopped."""

    async def work(app: Holdfast) -> int:
        return await _each(
            app,
            job_ids,
            lambda one: app.cancel(one, subtree=subtree, reason=reason, by=options.who(by)),
            as_json,
        )

    return apps.run(url, app, work)


def retry(
    job_ids: options.SomeJobIds = None,
    all_dead: Annotated[bool, typer.Option("--dead", help="All dead letters, instead of ids …")] = False,
    job_type: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="… of this type")] = None,
    error: Annotated[str | None, typer.Option(metavar="NAME", help="… that died of this error.")] = None,
    subtree: Subtree = False,
    reason: options.Reason = None,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Run ended jobs again, with fresh attempts."""
    if all_dead == bool(job_ids):
        raise typer.BadParameter("give the ids of jobs, or --dead for all dead letters", param_hint="ID")
    if not all_dead and (job_type or error):
        raise typer.BadParameter("they choose among the dead letters: add --dead", param_hint="--type, --error")
    if all_dead and subtree:
        raise typer.BadParameter("it goes with ids: leave --dead out", param_hint="--subtree")
    if all_dead:
        return dead.retry_all(job_type, error, by, as_json, url, app)

    async def work(app: Holdfast) -> int:
        return await _each(
            app,
            job_ids or [],
            lambda one: app.retry(one, subtree=subtree, reason=reason, by=options.who(by)),
            as_json,
        )

    return apps.run(url, app, work)


def rerun(
    job_ids: JobIds,
    reason: options.Reason = None,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Run again from here: jobs, what they submitted, and what depends on them."""

    async def work(app: Holdfast) -> int:
        return await _each(app, job_ids, lambda one: app.rerun(one, reason=reason, by=options.who(by)), as_json)

    return apps.run(url, app, work)


def reprioritise(
    job_id: JobId,
    priority: Annotated[str, typer.Argument(metavar="PRIORITY", help="0 to 100, or low, normal, high, urgent.")],
    reason: options.Reason = None,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Give a job that has not ended another place in line."""

    async def work(app: Holdfast) -> Job:
        whole = await lookup.job_id(app, job_id)
        return await app.reprioritise(whole, options.priority(priority), reason=reason, by=options.who(by))

    job = apps.run(url, app, work)
    if as_json:
        output.emit_json(whole(job))
    else:
        print(f"{job.job_id} is {job.status.value} with priority {job.priority}")


def reschedule(
    job_id: JobId,
    at: Annotated[
        datetime | None, typer.Option(metavar="WHEN", parser=options.moment, help="Run at 2026-11-15T09:30:00Z.")
    ] = None,
    in_: Annotated[
        timedelta | None,
        typer.Option("--in", metavar="TIME", parser=options.length, help="Run after 90, 90s, 5m, 1h30m, 2d; 0 is now."),
    ] = None,
    reason: options.Reason = None,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Let a pending or scheduled job run at another time."""
    if (at is None) == (in_ is None):
        raise typer.BadParameter("give one of them; --in 0 means now", param_hint="--at, --in")

    async def work(app: Holdfast) -> Job:
        whole = await lookup.job_id(app, job_id)
        return await app.reschedule(whole, run_at=at, delay=in_, reason=reason, by=options.who(by))

    job = apps.run(url, app, work)
    if as_json:
        output.emit_json(whole(job))
    elif job.status is Status.SCHEDULED:
        print(f"{job.job_id} is scheduled for {job.scheduled_for:%Y-%m-%d %H:%M:%S} UTC")
    else:
        print(f"{job.job_id} is {job.status.value}")


async def _each(app: Holdfast, given: list[str], change: Callable[[str], Awaitable[Job]], as_json: bool) -> int:
    """Each on its own: one that cannot be changed does not keep the others from it. The worst exit code counts."""
    changed: list[Job] = []
    code: int = Exit.OK
    for each in dict.fromkeys(given):
        try:
            job = await change(await lookup.job_id(app, each))
        except HoldfastError as error:
            output.say(str(error))
            code = max(code, of_error(error))
        else:
            changed.append(job)
            if not as_json:
                print(f"{job.job_id} is {job.status.value}")
    if as_json:
        output.emit_json({"items": [whole(job) for job in changed]})
    return code
