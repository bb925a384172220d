"""`backstay doctor`, `purge`, `migrate` and `encryption-key`: health, archiving, the schema, a new key."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from typing import Annotated

import typer

from backstay import encryption
from backstay.app import Backstay
from backstay.cli import app_loader, options, output
from backstay.cli.options import AppName, AsJson, Url
from backstay.cli.output import Exit, safe, without_password
from backstay.clock import to_datetime
from backstay.core.checks import count, did_you_mean, span
from backstay.core.records import Finding
from backstay.core.states import TERMINAL
from backstay.errors import BackstayError, ConfigurationError, InvalidOption, StoreUnavailable
from backstay.limits import FIND_LIMIT_MAX

_STYLES = {"ok": "green", "warn": "yellow", "bad": "bold red"}


def doctor(as_json: AsJson = False, url: Url = None, app: AppName = None) -> int:
    """Check the queue and its workers, and say what to do."""
    findings = _look(url, app)
    bad = sum(finding.level == "bad" for finding in findings)
    warnings = sum(finding.level == "warn" for finding in findings)
    if as_json:
        output.emit_json({"items": findings, "bad": bad, "warnings": warnings})
    else:
        for finding in findings:
            _print(finding, max(len(each.check) for each in findings))
        output.say(_verdict(len(findings), bad, warnings))
    return Exit.FAILED if bad else Exit.OK


def _look(url: str | None, app: str | None) -> list[Finding]:
    async def work(app: Backstay) -> list[Finding]:
        return await app.check_up()

    try:
        return app_loader.run(url, app, work)
    except ConfigurationError:
        raise
    except BackstayError as error:  # a queue that cannot be opened is what a doctor is called for
        away = isinstance(error, StoreUnavailable)
        return [Finding("opening", "bad", str(error), "start the server, or choose another with --url" if away else "")]


def _verdict(checks: int, bad: int, warnings: int) -> str:
    if not bad and not warnings:
        return f"{count(checks, 'check')} passed"
    parts = [count(bad, "problem")] if bad else []
    parts += [count(warnings, "warning")] if warnings else []
    return f"{' and '.join(parts)} in {count(checks, 'check')}"


def _print(finding: Finding, longest: int) -> None:
    """Print the checks. On a terminal the advice is below each finding; elsewhere a check is one line."""
    lead = f"{finding.level:<4}  {finding.check:<{longest}}  "
    mark = f"{output.arrow()} "
    if output.width() is None:
        output.emit_paragraph(finding.says + (f" {mark}{finding.advice}" if finding.advice else ""), first=lead)
        return
    output.emit_paragraph(finding.says, first=lead, style=_STYLES[finding.level])
    if finding.advice:
        output.emit_paragraph(finding.advice, first=" " * len(lead) + mark)


def purge(
    older_than: Annotated[
        timedelta | None,
        typer.Option(
            metavar="TIME", parser=options.length, help="Archive every job that ended longer ago, ignoring retention."
        ),
    ] = None,
    job_type: Annotated[
        list[str] | None,
        typer.Option(
            "--type", metavar="TYPE", help="Only this job type; repeatable. Trees with other types are left whole."
        ),
    ] = None,
    yes: options.Yes = False,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Archive ended jobs whose retention is over."""
    asked = older_than if not yes else None
    if asked is not None and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidOption(
            "--older-than archives jobs that retention would keep and deletes their payloads, results and files; there"
            " is no terminal to confirm on: add --yes"
        )

    async def work(app: Backstay) -> int | None:
        if asked is not None and not _confirm_purge(asked, job_type):
            return None
        number = await app.purge(older_than=older_than, job_types=job_type, by=options.actor(by))
        await _warn_of_unknown_types(app, job_type or [])
        for each in job_type or []:
            await _say_what_trees_keep(app, each, older_than)
        return number

    number = app_loader.run(url, app, work)
    if number is None:
        output.say("nothing was changed")
        return Exit.FAILED
    if as_json:
        output.emit_json({"archived": number})
    else:
        print(f"archived {count(number, 'job')}")
    return Exit.OK


async def _warn_of_unknown_types(app: Backstay, job_types: list[str]) -> None:
    """Warn only: jobs of a type that no program has any more are purged like others."""
    known = {each.job_type for each in await app.job_types()}
    for name in job_types:
        if name in known:
            continue
        found = await app.find(job_type=name, limit=1)
        if not found and found.next is None:
            output.say(f"unknown job type {name} ({did_you_mean(name, sorted(known))})")


async def _say_what_trees_keep(app: Backstay, job_type: str, older_than: timedelta | None) -> None:
    """Report jobs that stay: a tree is archived as a whole, and these share one with other types or with active
    jobs."""
    before = None if older_than is None else to_datetime(app.clock.now()) - older_than
    left = 0
    for status in TERMINAL:
        for job in await app.find(job_type=job_type, status=status, limit=FIND_LIMIT_MAX):
            in_tree = job.root_job_id is not None or job.child_count > 0
            left += in_tree and (before is None or (job.completed_at is not None and job.completed_at <= before))
    if left:
        output.say(
            f"{left:,} more {job_type} {'job belongs' if left == 1 else 'jobs belong'} to trees, which are archived as"
            " a whole: when every job in them has ended, is past its retention, and is of a type that was given"
        )


def _confirm_purge(older_than: timedelta, job_types: list[str] | None) -> bool:
    """Ask before purging: an archived job keeps its figures, but its payload, result, logs and files are deleted."""
    kind = f"{' or '.join(job_types)} jobs" if job_types else "all jobs"
    since = older_than.total_seconds()
    ended = f"ended more than {span(since)} ago" if since else "have ended"
    question = f"Archive {kind} that {ended}? Their payloads, results and files are deleted."
    return output.confirm(question)


def migrate(
    sql: Annotated[bool, typer.Option("--sql", help="Only print the SQL, to apply it by hand.")] = False,
    delete_existing: Annotated[
        bool,
        typer.Option("--delete-existing", help="First delete the queue and all its jobs for good (DynamoDB)."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Create the queue, or upgrade its schema."""
    if delete_existing and not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidOption("--delete-existing deletes every job; there is no terminal to confirm on: add --yes")
    target = app_loader.load(url, app)
    if sql:
        print(target.migration_sql(), end="")
        return Exit.OK
    place = without_password(target.url)
    if delete_existing:
        planned = asyncio.run(target.would_erase())
        if planned and not yes and not _confirm_delete(target.location, planned):
            output.say("nothing was changed")
            return Exit.FAILED
        gone = asyncio.run(target.erase())
        output.say(f"deleted {', '.join(gone)}" if gone else "there was nothing to delete")
    applied = asyncio.run(target.migrate())
    if as_json:
        output.emit_json({"url": place, "applied": applied})
    elif applied:
        print(f"{place}: applied {', '.join(applied)}")
    else:
        print(f"{place} is up to date")
    return Exit.OK


def _confirm_delete(place: str, planned: dict[str, int]) -> bool:
    """Ask for more than "y", which is typed too quickly."""
    tables = ", ".join(f"{name} (about {count(items, 'item')})" for name, items in planned.items())
    question = f"This deletes {tables} of {place} and everything in them, for good. Type delete to continue: "
    print(safe(question), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() == "delete"


def encryption_key() -> None:
    """Print a new key for encrypted fields, for BACKSTAY_ENCRYPTION_KEYS="name:KEY"."""
    print(encryption.new_key())
