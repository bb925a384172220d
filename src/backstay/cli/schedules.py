"""`backstay schedules`: list, add, show, pause, resume, run, backfill and remove schedules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo

import typer

from backstay.app import Backstay
from backstay.cli import app_loader, options, output
from backstay.cli.options import AppName, AsJson, Url
from backstay.cli.output import Column, safe
from backstay.clock import Instant, to_datetime
from backstay.core.checks import away, count, span, utc
from backstay.core.schedules import (
    MISSED,
    NEXT_TICKS,
    OVERLAPS,
    Backfill,
    ScheduleInfo,
    ScheduleOptions,
)
from backstay.errors import ScheduleNotFound

NAMED_MAX = 20  # schedules that an error names
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.")]
Cron = Annotated[
    str, typer.Argument(metavar="CRON", help='"30 3 * * 1-5" (minute hour day month weekday), @daily, "@every 30s".')
]
Zone = Annotated[str, typer.Option(metavar="ZONE", help="Time zone of the rule, such as Europe/Berlin; default UTC.")]
Missed = Annotated[
    str,
    typer.Option(metavar="WHAT", help="Jobs for ticks that were missed: skip (none), one (default) or all."),
]
Overlaps = Annotated[
    str,
    typer.Option(
        metavar="WHAT", help="While the last job is active: queue (default), skip the tick, or replace that job."
    ),
]
Jitter = Annotated[
    timedelta | None,
    typer.Option(metavar="TIME", parser=options.length, help="Jobs are due up to TIME after their tick."),
]
StartsAt = Annotated[
    datetime | None,
    typer.Option(metavar="WHEN", parser=options.moment, help="No tick before this, such as 2026-12-01T00:00:00Z."),
]
EndsAt = Annotated[datetime | None, typer.Option(metavar="WHEN", parser=options.moment, help="No tick after this.")]
From = Annotated[datetime, typer.Option("--from", metavar="WHEN", parser=options.moment, help="Ticks from then on.")]
To = Annotated[
    datetime | None, typer.Option("--to", metavar="WHEN", parser=options.moment, help="Ticks until then; default now.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count.")]


def schedules(context: typer.Context, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """List the schedules; add, change, pause, run or remove one.

    A worker submits the job of a tick within seconds; "due 36 s ago" means that none has done so yet. doctor reports
    a schedule that is late by more than a lease (60 s).
    """
    if not options.handed_on(context, as_json, url, app):
        none = 'no schedules: add one with "backstay schedules add NAME CRON TYPE JSON"'
        app_loader.show(Backstay.schedules, _columns, none, as_json=as_json, url=url, app=app)


def add(
    context: typer.Context,
    name: Name,
    rule: Cron,
    job_type: options.JobType,
    payload: options.Payload = "{}",
    timezone: Zone = "UTC",
    missed: Missed = "one",
    overlap: Overlaps = "queue",
    jitter: Jitter = None,
    starts_at: StartsAt = None,
    ends_at: EndsAt = None,
    priority: options.Priority = None,
    queue: options.Queue = None,
    subject: options.Subject = None,
    tag: options.Tags = None,
    content_hash: options.ContentHash = None,
    reuse: options.Reuse = None,
    dedup_key: options.DedupKey = None,
    dedup_for: options.DedupFor = None,
    concurrency_key: options.ConcurrencyKey = None,
    rate_key: options.RateKey = None,
    rate_cost: options.RateCost = None,
    fairness_key: options.FairnessKey = None,
    fairness_weight: options.FairnessWeight = None,
    max_attempts: options.MaxAttempts = None,
    job_timeout: options.JobTimeout = None,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Add a schedule, or change an existing one."""
    if missed not in MISSED:
        raise typer.BadParameter(f"{missed!r}: use {', '.join(MISSED)}", param_hint="--missed")
    if overlap not in OVERLAPS:
        raise typer.BadParameter(f"{overlap!r}: use {', '.join(OVERLAPS)}", param_hint="--overlap")
    body = options.read(payload)
    chosen: ScheduleOptions = options.chosen(context, ScheduleOptions.__annotations__)

    async def work(app: Backstay) -> tuple[ScheduleInfo | None, ScheduleInfo, Instant]:
        before = await _stored(app, name)
        after = await app.schedule(
            name,
            rule,
            job_type,
            body,
            timezone=timezone,
            missed=missed,
            overlap=overlap,
            jitter=jitter or 0,
            starts_at=starts_at,
            ends_at=ends_at,
            by=options.actor(by),
            **chosen,
        )
        return before, after, app.clock.now()

    before, after, now = app_loader.run(url, app, work, makes=True)
    if as_json:
        output.emit_json(after)
        return
    what = "added" if before is None else "unchanged" if before.version == after.version else "changed"
    print(f"schedule {name} {what}; {_next(after, now)}")


def show(name: Name, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Show a schedule and its next runs."""

    async def work(app: Backstay) -> tuple[ScheduleInfo, Instant]:
        return await _find(app, name), app.clock.now()

    found, now = app_loader.run(url, app, work)
    if as_json:
        output.emit_json({**_document(found), "next_ticks": _ticks(found, now)})
        return
    at = to_datetime(now)
    for label, value in _facts(found, at):
        output.emit_paragraph(value, first=f"{label:<12}")
    print("\nPayload")
    for line in output.as_json(found.payload, output.width() or 100).split("\n"):
        print(f"  {line}")
    print("\nNext runs" if not found.paused else "\nNext runs, if resumed")
    if not _ticks(found, now):
        print("  none: it has ended")
    for tick in _ticks(found, now):
        print(f"  {_local(found, tick)}, {away(tick, at)}")


def pause(name: Name, by: options.By = None, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Pause a schedule: no jobs until it is resumed."""
    _change(lambda each: each.pause_schedule(name, by=options.actor(by)), as_json, url, app)


def resume(name: Name, by: options.By = None, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Resume a schedule from its next tick."""
    _change(lambda each: each.resume_schedule(name, by=options.actor(by)), as_json, url, app)


def run(name: Name, by: options.By = None, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Submit the job of a schedule now and print its id."""
    job = app_loader.run(url, app, lambda each: each.run_schedule(name, by=options.actor(by)))
    if as_json:
        output.emit_json({"job_id": job.job_id, "schedule": name, "status": job.status})
    else:
        print(job.job_id)


def backfill(
    name: Name,
    from_: From,
    to: To = None,
    dry_run: DryRun = False,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Submit the jobs of past ticks.

    Each tick in the span gets its job, unless it has one. Up to 1,000 ticks; repeating the command submits none twice.
    """

    async def work(app: Backstay) -> Backfill:
        until = to_datetime(app.clock.now()) if to is None else to
        return await app.backfill(name, from_, until, dry_run=dry_run, by=options.actor(by))

    found = app_loader.run(url, app, work)
    if as_json:
        output.emit_json(found)
        return
    new, old = count(len(found.submitted), "job"), len(found.existing)
    print(f"{count(found.ticks, 'tick')}: {new} {'to submit' if dry_run else 'submitted'}, {old:,} already there")


def remove(name: Name, by: options.By = None, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Remove a schedule; its existing jobs stay."""
    app_loader.run(url, app, lambda each: each.unschedule(name, by=options.actor(by)))
    if as_json:
        output.emit_json({"removed": name})
    else:
        print(f"schedule {name} removed; its existing jobs stay")


async def _find(app: Backstay, name: str) -> ScheduleInfo:
    found = await _stored(app, name)
    if found is not None:
        return found
    known = [each.name for each in await app.schedules(limit=NAMED_MAX + 1)]
    names = ", ".join(known[:NAMED_MAX]) + (", …" if len(known) > NAMED_MAX else "")
    raise ScheduleNotFound(f"no schedule {name!r:.80} (known: {names or 'none'})")


async def _stored(app: Backstay, name: str) -> ScheduleInfo | None:
    try:
        return await app.get_schedule(name)
    except ScheduleNotFound:
        return None


def _change(change: Callable[[Backstay], Awaitable[ScheduleInfo]], as_json: bool, url: Url, app: AppName) -> None:
    async def work(app: Backstay) -> tuple[ScheduleInfo, Instant]:
        return await change(app), app.clock.now()

    found, now = app_loader.run(url, app, work)
    if as_json:
        output.emit_json(found)
    else:
        print(f"schedule {found.name} {'paused' if found.paused else 'resumed'}; {_next(found, now)}")


def _next(found: ScheduleInfo, now: Instant) -> str:
    if found.next_at is None:
        return "no jobs until it is resumed" if found.paused else "it has no tick left"
    return f"next run {_local(found, found.next_at)}, {away(found.next_at, to_datetime(now))}"


def _local(found: ScheduleInfo, moment: datetime) -> str:
    """Format a time in the time zone of the schedule."""
    return f"{moment.astimezone(ZoneInfo(found.timezone)):%a %Y-%m-%d %H:%M:%S} {safe(found.timezone)}"


def _ticks(found: ScheduleInfo, now: Instant) -> list[datetime]:
    return found.ticks(to_datetime(now), NEXT_TICKS)


def _document(found: ScheduleInfo) -> dict[str, object]:
    return {name: getattr(found, name) for name in found.__struct_fields__}


def _facts(found: ScheduleInfo, now: datetime) -> list[tuple[str, str]]:
    facts = [
        ("schedule", found.name),
        ("rule", f"{found.cron} in {found.timezone}"),
        ("if missed", found.missed),
        ("overlap", found.overlap),
        *([("jitter", f"up to {span(found.jitter_seconds)}")] if found.jitter_seconds else []),
        *([("starts", utc(found.starts_at))] if found.starts_at else []),
        *([("ends", utc(found.ends_at))] if found.ends_at else []),
        ("declared by", f"the code of {found.declared_by}" if found.declared_by else "a call or a person"),
        ("job", f"{found.job_type} in queue {found.queue}, priority {found.priority}"),
        ("last run", "never" if found.last_at is None else f"{utc(found.last_at)}, {away(found.last_at, now)}"),
    ]
    if found.last_job_id is not None:
        facts.append(("last job", found.last_job_id))
    if found.skipped_at is not None:
        last = f"the last {away(found.skipped_at, now)}"
        facts.append(("skipped", f"{count(found.skipped, 'tick')} because of overlap, {last}"))
    if found.paused_at is not None:
        facts.append(("paused", f"{away(found.paused_at, now)}{f' by {found.paused_by}' if found.paused_by else ''}"))
    return facts


def _columns(now: datetime) -> list[Column[ScheduleInfo]]:
    return [
        Column("NAME", lambda each: each.name, cut=True),
        Column("RULE", lambda each: each.cron),
        Column("ZONE", lambda each: each.timezone, cut=True),
        Column("TYPE", lambda each: each.job_type, cut=True),
        Column("QUEUE", lambda each: each.queue, wide=True, cut=True),
        Column("IF MISSED", lambda each: each.missed, wide=True),
        Column("OVERLAP", lambda each: each.overlap, wide=True),
        Column("DECLARED BY", lambda each: each.declared_by or "", wide=True, cut=True),
        Column(
            "NEXT",
            lambda each: "ended" if each.ended else _coming(each.next_at, now),
            style=lambda each: "yellow" if each.paused else "",
        ),
        Column("LAST", lambda each: _away(each.last_at, now) or "never"),
        Column("LAST JOB", lambda each: each.last_job_id or "", is_id=True, wide=True),
        Column("PAUSED BY", lambda each: each.paused_by or "", wide=True, cut=True),
    ]


def _coming(moment: datetime | None, now: datetime) -> str:
    if moment is None:
        return "paused"
    return f"due {away(moment, now)}" if moment < now else away(moment, now)


def _away(moment: datetime | None, now: datetime) -> str:
    return "" if moment is None else away(moment, now)
