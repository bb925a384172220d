"""holdfast schedules: the jobs that come again and again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated
from zoneinfo import ZoneInfo

import typer

from holdfast import cron
from holdfast.app import Holdfast
from holdfast.cli import apps, listing, options, output, payloads
from holdfast.cli import job_options as take
from holdfast.cli.options import AppName, AsJson, Url
from holdfast.cli.output import Column
from holdfast.cli.text import away, safe, utc
from holdfast.clock import Instant, to_datetime
from holdfast.errors import ScheduleNotFound
from holdfast.schedules import ScheduleInfo, ScheduleOptions
from holdfast.ticks import MISSED

NEXT_TICKS = 5  # enough to see that a rule means what it should
Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule.")]
Cron = Annotated[
    str, typer.Argument(metavar="CRON", help='"30 3 * * 1-5" (minute hour day month weekday), @daily, "@every 30s".')
]
Zone = Annotated[str, typer.Option(metavar="ZONE", help="Where the clock hangs: Europe/Berlin; default UTC.")]
Missed = Annotated[
    str,
    typer.Option(
        metavar="WHAT", help="Of ticks at which no worker ran: skip them, one job for them (default), or all of them."
    ),
]


def schedules(context: typer.Context, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """List the schedules; add, change, pause, run or remove one.

    A worker makes the job of a tick within seconds; "due 36 s ago" means that none has yet. doctor finds a schedule
    behind when that lasts for more than a lease, 60 s.
    """
    if not options.handed_on(context, as_json, url, app):
        none = 'no schedules: add one with "holdfast schedules add NAME CRON TYPE JSON"'
        listing.show(Holdfast.schedules, _columns, none, as_json=as_json, url=url, app=app)


def add(
    context: typer.Context,
    name: Name,
    rule: Cron,
    job_type: options.JobType,
    payload: options.Payload = "{}",
    timezone: Zone = "UTC",
    missed: Missed = "one",
    priority: take.Priority = None,
    queue: take.Queue = None,
    subject: take.Subject = None,
    tag: take.Tags = None,
    content_hash: take.ContentHash = None,
    concurrency_key: take.ConcurrencyKey = None,
    rate_key: take.RateKey = None,
    fairness_key: take.FairnessKey = None,
    fairness_weight: take.FairnessWeight = None,
    max_attempts: take.MaxAttempts = None,
    job_timeout: take.JobTimeout = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Add a schedule, or change the one of this name."""
    if missed not in MISSED:
        raise typer.BadParameter(f"{missed!r}: use {', '.join(MISSED)}", param_hint="--missed")
    body = payloads.read(payload)
    chosen: ScheduleOptions = take.chosen(context, ScheduleOptions.__annotations__)

    async def work(app: Holdfast) -> tuple[ScheduleInfo | None, ScheduleInfo, Instant]:
        before = next((each for each in await app.schedules() if each.name == name), None)
        after = await app.schedule(name, rule, job_type, body, timezone=timezone, missed=missed, **chosen)
        return before, after, app.clock.now()

    before, after, now = apps.run(url, app, work, makes=True)
    if as_json:
        output.emit_json(after)
        return
    what = "added" if before is None else "unchanged" if before.version == after.version else "changed"
    print(f"{name} is {what}; {_next(after, now)}")


def show(name: Name, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Show a schedule, and when it comes next."""

    async def work(app: Holdfast) -> tuple[ScheduleInfo, Instant]:
        return await _find(app, name), app.clock.now()

    found, now = apps.run(url, app, work)
    if as_json:
        output.emit_json({**_document(found), "next_ticks": _ticks(found, now)})
        return
    at = to_datetime(now)
    for label, value in _facts(found, at):
        output.emit_paragraph(value, first=f"{label:<12}")
    print("\nPayload")
    for line in output.as_json(found.payload, output.width() or 100).split("\n"):
        print(f"  {line}")
    print("\nComes next" if not found.paused else "\nWould come next")
    for tick in _ticks(found, now):
        print(f"  {_local(found, tick)}, {away(tick, at)}")


def pause(name: Name, by: options.By = None, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Make no more jobs of a schedule until it is resumed."""
    _change(lambda each: each.pause_schedule(name, by=options.who(by)), as_json, url, app)


def resume(name: Name, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Go on with the next tick from now."""
    _change(lambda each: each.resume_schedule(name), as_json, url, app)


def run(name: Name, by: options.By = None, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Submit the job of a schedule now, beside its ticks; print its id."""
    job = apps.run(url, app, lambda each: each.run_schedule(name, by=options.who(by)))
    if as_json:
        output.emit_json({"job_id": job.job_id, "schedule": name, "status": job.status})
    else:
        print(job.job_id)


def remove(name: Name, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Remove a schedule; the jobs that it has made stay."""
    apps.run(url, app, lambda each: each.unschedule(name))
    if as_json:
        output.emit_json({"removed": name})
    else:
        print(f"{name} is removed; the jobs that it has made stay")


async def _find(app: Holdfast, name: str) -> ScheduleInfo:
    known = await app.schedules()
    for each in known:
        if each.name == name:
            return each
    raise ScheduleNotFound(f"no schedule {name!r:.80} (known: {', '.join(each.name for each in known) or 'none'})")


def _change(change: Callable[[Holdfast], Awaitable[ScheduleInfo]], as_json: bool, url: Url, app: AppName) -> None:
    async def work(app: Holdfast) -> tuple[ScheduleInfo, Instant]:
        return await change(app), app.clock.now()

    found, now = apps.run(url, app, work)
    if as_json:
        output.emit_json(found)
    else:
        print(f"{found.name} {'is paused' if found.paused else 'goes on'}; {_next(found, now)}")


def _next(found: ScheduleInfo, now: Instant) -> str:
    if found.next_at is None:
        return "no job is made until it is resumed"
    return f"next at {_local(found, found.next_at)}, {away(found.next_at, to_datetime(now))}"


def _local(found: ScheduleInfo, moment: datetime) -> str:
    """As the clock shows it where the schedule hangs."""
    return f"{moment.astimezone(ZoneInfo(found.timezone)):%a %Y-%m-%d %H:%M:%S} {safe(found.timezone)}"


def _ticks(found: ScheduleInfo, now: Instant) -> list[datetime]:
    rule = cron.parse(found.cron, found.timezone)
    ticks: list[datetime] = []
    for _ in range(NEXT_TICKS):
        now = rule.after(now)
        ticks.append(to_datetime(now))
    return ticks


def _document(found: ScheduleInfo) -> dict[str, object]:
    return {name: getattr(found, name) for name in found.__struct_fields__}


def _facts(found: ScheduleInfo, now: datetime) -> list[tuple[str, str]]:
    facts = [
        ("schedule", found.name),
        ("rule", f"{found.cron} in {found.timezone}"),
        ("if missed", found.missed),
        ("job", f"{found.job_type} in the queue {found.queue}, priority {found.priority}"),
        ("last", "never" if found.last_at is None else f"{utc(found.last_at)}, {away(found.last_at, now)}"),
    ]
    if found.last_job_id is not None:
        facts.append(("last job", found.last_job_id))
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
        Column(
            "NEXT",
            lambda each: _coming(each.next_at, now),
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
