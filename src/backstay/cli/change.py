"""`backstay cancel`, `retry`, `rerun`, `reprioritise`, `reschedule`, and `dead` for dead letters."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, cast

import msgspec
import typer

from backstay.app import Backstay
from backstay.cli import app_loader, options, output
from backstay.cli.options import AppName, AsJson, JobId, JobIds, Url
from backstay.cli.output import Column, Exit, of_error
from backstay.clock import to_datetime
from backstay.core.checks import away, count
from backstay.core.records import DeadGroup
from backstay.core.states import Status
from backstay.errors import BackstayError
from backstay.job import Job, whole
from backstay.ops.audit import Actor
from backstay.ops.jobs import Action, BulkResult
from backstay.options import JobFilter

ForgetSteps = Annotated[
    bool, typer.Option("--forget-steps", help="Start without the answers that ctx.once has recorded.")
]


def dead(
    context: typer.Context,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="Maximum number of groups; default 50.")
    ] = 50,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """List dead letters (failed jobs) by type and error."""
    if options.handed_on(context, as_json, url, app):
        return

    async def work(app: Backstay) -> tuple[list[DeadGroup], datetime]:
        return await app.dead(limit), to_datetime(app.clock.now())

    groups, now = app_loader.run(url, app, work)
    if as_json:
        output.emit_json({"items": [_document(group) for group in groups]})
        return
    if not groups:
        output.say("no dead letters")
        return
    output.emit_table(_columns(now), groups)
    output.say('inspect one with "backstay show ID"; retry them with "backstay dead retry --type … --error …"')


def retry_dead(
    job_type: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only this job type.")] = None,
    error: Annotated[str | None, typer.Option(metavar="NAME", help="Only this error.")] = None,
    forget_steps: ForgetSteps = False,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Retry dead letters: all, or those of a type or an error."""
    return retry_all(job_type, error, forget_steps, by, as_json, url, app)


def retry_all(
    job_type: str | None,
    error: str | None,
    forget_steps: bool,
    by: str | None,
    as_json: bool,
    url: str | None,
    app: str | None,
) -> Exit:
    who = options.actor(by)
    number = app_loader.run(
        url,
        app,
        lambda each: each.retry_dead(job_type=job_type, error_type=error, forget_steps=forget_steps, by=who),
    )
    if as_json:
        output.emit_json({"retried": number})
    else:
        print(f"retried {count(number, 'job')}")
    return Exit.OK


def _columns(now: datetime) -> list[Column[DeadGroup]]:
    return [
        Column("COUNT", lambda group: f"{group.count:,}", right=True),
        Column("TYPE", lambda group: group.job_type, cut=True),
        Column("ERROR", lambda group: group.error_type),  # in full: `dead retry --error` asks for it
        Column("LAST", lambda group: away(to_datetime(group.newest_at), now), right=True),
        Column("NEWEST", lambda group: group.newest_job_id, is_id=True),
        Column("MESSAGE", lambda group: _message(group), wrap=True, wide=True),
    ]


def _message(group: DeadGroup) -> str:
    """Return the error's message without its type, which has a column of its own."""
    return group.newest_error.removeprefix(f"{group.error_type}: ")


def _document(group: DeadGroup) -> dict[str, object]:
    return msgspec.structs.asdict(group) | {"newest_at": to_datetime(group.newest_at)}


Subtree = Annotated[bool, typer.Option("--subtree", help="Include every job below them in the tree.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With conditions: only count the jobs.")]


def cancel(
    context: typer.Context,
    job_ids: options.SomeJobIds = None,
    status: options.OnlyStatus = None,
    job_type: options.OnlyType = None,
    queue: options.OnlyQueue = None,
    subject: options.OnlySubject = None,
    worker: options.OnlyWorker = None,
    tag: options.OnlyTag = None,
    created_by: options.OnlyCreatedBy = None,
    root: options.OnlyRoot = None,
    content_hash: options.OnlyContentHash = None,
    subtree: Subtree = False,
    dry_run: DryRun = False,
    yes: options.Yes = False,
    reason: options.Reason = None,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Cancel jobs by id, or all that match conditions."""
    conditions = _conditions(context)
    _check(job_ids, conditions, subtree=subtree, dry_run=dry_run, yes=yes)

    async def work(app: Backstay) -> int:
        who = options.actor(by)
        if conditions:
            return await _matching(app, Action.CANCEL, conditions, reason, who, dry_run, yes, as_json)
        return await _each(
            app,
            job_ids or [],
            lambda one: app.cancel(one, subtree=subtree, reason=reason, by=who),
            as_json,
        )

    return app_loader.run(url, app, work)


def retry(
    context: typer.Context,
    job_ids: options.SomeJobIds = None,
    all_dead: Annotated[bool, typer.Option("--dead", help="Retry dead letters, with --type and --error.")] = False,
    error: Annotated[str | None, typer.Option(metavar="NAME", help="With --dead: only this error.")] = None,
    status: options.OnlyStatus = None,
    job_type: options.OnlyType = None,
    queue: options.OnlyQueue = None,
    subject: options.OnlySubject = None,
    worker: options.OnlyWorker = None,
    tag: options.OnlyTag = None,
    created_by: options.OnlyCreatedBy = None,
    root: options.OnlyRoot = None,
    content_hash: options.OnlyContentHash = None,
    subtree: Subtree = False,
    forget_steps: ForgetSteps = False,
    dry_run: DryRun = False,
    yes: options.Yes = False,
    reason: options.Reason = None,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Retry ended jobs, by id or all that match conditions."""
    conditions = _conditions(context)
    if all_dead:
        _check_dead(job_ids, conditions, subtree=subtree, dry_run=dry_run)
        return retry_all(job_type, error, forget_steps, by, as_json, url, app)
    if error:
        raise typer.BadParameter("it selects dead letters: add --dead", param_hint="--error")
    _check(job_ids, conditions, subtree=subtree, dry_run=dry_run, yes=yes)

    async def work(app: Backstay) -> int:
        who = options.actor(by)
        if conditions:
            return await _matching(app, Action.RETRY, conditions, reason, who, dry_run, yes, as_json, forget_steps)
        return await _each(
            app,
            job_ids or [],
            lambda one: app.retry(one, subtree=subtree, forget_steps=forget_steps, reason=reason, by=who),
            as_json,
        )

    return app_loader.run(url, app, work)


def _conditions(context: typer.Context) -> JobFilter:
    given = {name: context.params.get(name) for name in JobFilter.__annotations__}
    return cast(JobFilter, {name: value for name, value in given.items() if value is not None})


def _check(job_ids: list[str] | None, conditions: JobFilter, *, subtree: bool, dry_run: bool, yes: bool) -> None:
    if bool(job_ids) == bool(conditions):
        raise typer.BadParameter("give job ids, or conditions such as --type and --status", param_hint="ID")
    if conditions and subtree:
        raise typer.BadParameter("it works with job ids only", param_hint="--subtree")
    if job_ids and dry_run:
        raise typer.BadParameter("it works with conditions only", param_hint="--dry-run")
    if conditions and not (dry_run or yes or (sys.stdin.isatty() and sys.stderr.isatty())):
        raise typer.BadParameter(
            "there is no terminal to confirm this change on: add --yes, or --dry-run to see what it would do",
            param_hint="--yes",
        )


def _check_dead(job_ids: list[str] | None, conditions: JobFilter, *, subtree: bool, dry_run: bool) -> None:
    if job_ids:
        raise typer.BadParameter("give job ids, or --dead for dead letters", param_hint="ID")
    if subtree or dry_run:
        raise typer.BadParameter(
            f"it works with {'job ids' if subtree else 'conditions'} only: remove --dead",
            param_hint="--subtree" if subtree else "--dry-run",
        )
    if others := conditions.keys() - {"job_type"}:
        named = ", ".join(sorted(f"--{name.replace('_', '-')}" for name in others))
        raise typer.BadParameter("--dead takes --type and --error", param_hint=named)


async def _matching(
    app: Backstay,
    action: Action,
    conditions: JobFilter,
    reason: str | None,
    by: Actor,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    forget_steps: bool = False,
) -> int:
    """Change every match after confirmation. Jobs that are submitted after the question are not affected."""
    if "root" in conditions:
        conditions["root"] = await app_loader.job_id(app, str(conditions["root"]))
    change = app.cancel_many if action is Action.CANCEL else partial(app.retry_many, forget_steps=forget_steps)
    asked_at = to_datetime(app.clock.now())
    if dry_run or not yes:
        found = await change(dry_run=True, created_until=asked_at, by=by, **conditions)
        if dry_run or not found.changed:
            return _report(action, found, as_json)
        if not output.confirm(f"{action.value.capitalize()} {_counted(found)}?"):
            output.say("nothing was changed")
            return Exit.FAILED
    found = await change(created_until=asked_at, reason=reason, by=by, **conditions)
    return _report(action, found, as_json)


def _counted(found: BulkResult) -> str:
    statuses = ", ".join(f"{number:,} {status.value}" for status, number in found.by_status.items())
    limit = ", the most that one command changes" if found.more else ""
    return f"{count(len(found.changed), 'job')} ({statuses}{limit})"


def _report(action: Action, found: BulkResult, as_json: bool) -> int:
    if as_json:
        output.emit_json(found)
    elif not found.changed and not found.refused:
        output.say("no jobs match")
    elif found.dry_run:
        print(f"would {action.value} {_counted(found)}")
    else:
        print(f"{action.done} {count(len(found.changed), 'job')}")
    for why, number in found.reasons.items():
        output.say(f"{count(number, 'job')} not {action.done}: {why}")
    if found.more and not found.dry_run:
        output.say("more jobs match: repeat the command to continue")
    return Exit.FAILED if found.refused else Exit.OK


def rerun(
    job_ids: JobIds,
    forget_steps: ForgetSteps = False,
    reason: options.Reason = None,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Rerun jobs, with their children and dependents.

    These are the jobs that they submitted, and everything in their trees that depends on one of these.
    """

    async def work(app: Backstay) -> int:
        return await _each(
            app,
            job_ids,
            lambda one: app.rerun(one, forget_steps=forget_steps, reason=reason, by=options.actor(by)),
            as_json,
        )

    return app_loader.run(url, app, work)


def reprioritise(
    job_id: JobId,
    priority: Annotated[str, typer.Argument(metavar="PRIORITY", help="0 to 100, or low, normal, high, urgent.")],
    reason: options.Reason = None,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Change the priority of a job that has not ended."""

    async def work(app: Backstay) -> Job:
        whole = await app_loader.job_id(app, job_id)
        return await app.reprioritise(whole, options.priority(priority), reason=reason, by=options.actor(by))

    job = app_loader.run(url, app, work)
    if as_json:
        output.emit_json(whole(job))
    else:
        print(f"{job.job_id} is {job.status.value} with priority {job.priority}")


def reschedule(
    job_id: JobId,
    at: Annotated[
        datetime | None,
        typer.Option(metavar="WHEN", parser=options.moment, help="When to run it, such as 2026-11-15T09:30:00Z."),
    ] = None,
    in_: Annotated[
        timedelta | None,
        typer.Option(
            "--in", metavar="TIME", parser=options.length, help="Run it after 90, 90s, 5m, 1h30m, 2d; 0 means now."
        ),
    ] = None,
    reason: options.Reason = None,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Change when a pending or scheduled job runs."""
    if (at is None) == (in_ is None):
        raise typer.BadParameter("give one of the two; --in 0 means now", param_hint="--at, --in")

    async def work(app: Backstay) -> Job:
        whole = await app_loader.job_id(app, job_id)
        return await app.reschedule(whole, run_at=at, delay=in_, reason=reason, by=options.actor(by))

    job = app_loader.run(url, app, work)
    if as_json:
        output.emit_json(whole(job))
    elif job.status is Status.SCHEDULED:
        print(f"{job.job_id} is scheduled for {job.scheduled_for:%Y-%m-%d %H:%M:%S} UTC")
    else:
        print(f"{job.job_id} is {job.status.value}")


def update(
    job_id: JobId,
    payload: options.Payload,
    reason: options.Reason = None,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Give a job that waits another payload."""
    body = options.read(payload)

    async def work(app: Backstay) -> Job:
        whole = await app_loader.job_id(app, job_id)
        return await app.update(whole, body, reason=reason, by=options.actor(by))

    job = app_loader.run(url, app, work)
    if as_json:
        output.emit_json(whole(job))
    else:
        print(f"{job.job_id} is {job.status.value} with its new payload")


def remove(
    job_ids: JobIds,
    yes: options.Yes = False,
    reason: options.Reason = None,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Erase jobs for good, with their files, rows and history.

    A job that waits is cancelled first; one that is running, or has children, is refused.
    """
    if not (yes or (sys.stdin.isatty() and sys.stderr.isatty())):
        raise typer.BadParameter("there is no terminal to confirm this on: add --yes", param_hint="--yes")

    async def work(app: Backstay) -> int:
        removed: list[str] = []
        code: int = Exit.OK
        for each in dict.fromkeys(job_ids):
            try:
                job_id = await app_loader.job_id(app, each)
                if not yes and not output.confirm(f"Remove job {job_id} for good?"):
                    output.say("nothing was removed")
                    code = max(code, Exit.FAILED)
                    continue
                await app.remove(job_id, reason=reason, by=options.actor(by))
            except BackstayError as error:
                output.say(str(error))
                code = max(code, of_error(error))
            else:
                removed.append(job_id)
                if not as_json:
                    print(f"{job_id} is removed")
        if as_json:
            output.emit_json({"removed": removed})
        return code

    return app_loader.run(url, app, work)


async def _each(app: Backstay, given: list[str], change: Callable[[str], Awaitable[Job]], as_json: bool) -> int:
    """Change each job separately, so that one failure does not stop the others. Return the highest exit code."""
    changed: list[Job] = []
    code: int = Exit.OK
    for each in dict.fromkeys(given):
        try:
            job = await change(await app_loader.job_id(app, each))
        except BackstayError as error:
            output.say(str(error))
            code = max(code, of_error(error))
        else:
            changed.append(job)
            if not as_json:
                print(f"{job.job_id} is {job.status.value}")
    if as_json:
        output.emit_json({"items": [whole(job) for job in changed]})
    return code
