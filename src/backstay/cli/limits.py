"""`backstay limits`: list what was set at run time for job types and keys; limit one."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from backstay.app import Backstay
from backstay.cli import app_loader, options, output
from backstay.cli.options import AppName, AsJson, Url
from backstay.cli.output import Column
from backstay.core.checks import span
from backstay.core.run_limits import Limit

OfType = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="The job type to limit …")]
OfKey = Annotated[str | None, typer.Option(metavar="KEY", help="… or the concurrency key or rate key.")]


def limits(context: typer.Context, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """List job types and keys paused or limited at run time; limit one."""
    if not options.handed_on(context, as_json, url, app):
        none = "no limits: nothing was paused or limited at run time"
        app_loader.show(Backstay.limits, _columns, none, as_json=as_json, url=url, app=app)


def set_limit(
    job_type: OfType = None,
    key: OfKey = None,
    concurrency: Annotated[
        int | None, typer.Option(metavar="N", help="How many of its jobs run at once, over all workers.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="RATE", help="How many start in a span of time: 10/s, 100/m, 5000/d.")
    ] = None,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Limit a job type or a key, also for jobs that wait already."""
    if concurrency is None and rate is None:
        raise typer.BadParameter("give --concurrency, --rate or both; limits remove takes them away")
    found = app_loader.run(
        url,
        app,
        lambda each: each.limit(
            job_type=_one(job_type, key), key=key, concurrency=concurrency, rate=rate, by=options.actor(by)
        ),
    )
    _report(found, as_json)


def remove(
    job_type: OfType = None,
    key: OfKey = None,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Remove the limits of a job type or a key."""
    found = app_loader.run(
        url, app, lambda each: each.limit(job_type=_one(job_type, key), key=key, by=options.actor(by))
    )
    _report(found, as_json)


def _one(job_type: str | None, key: str | None) -> str | None:
    """Return the job type, unless it is not one of the two that is given."""
    if (job_type is None) == (key is None):
        raise typer.BadParameter("give --type or --key: what the limit is of")
    return job_type


def _report(found: Limit, as_json: bool) -> None:
    if as_json:
        output.emit_json(found)
    else:
        of = f"type {found.job_type}" if found.job_type is not None else f"key {found.key}"
        print(f"{of}: {_said(found) or 'no limits'}")


def _said(limit: Limit) -> str:
    most = None if limit.concurrency is None else f"{limit.concurrency:,} at once"
    return ", ".join(each for each in (most, limit.rate) if each is not None)


def _columns(now: datetime) -> list[Column[Limit]]:
    return [
        Column("OF", lambda limit: "type" if limit.job_type is not None else "key"),
        Column("NAME", lambda limit: limit.job_type or limit.key or "", wrap=True),
        Column("LIMITS", _said),
        Column(
            "STATE",
            lambda limit: "paused" if limit.paused else "active",
            style=lambda limit: "yellow" if limit.paused else "",
        ),
        Column("NOTE", lambda limit: _note(limit, now), wrap=True),
    ]


def _note(limit: Limit, now: datetime) -> str:
    if limit.paused_at is None:
        return f"set by {limit.set_by}" if limit.set_by else ""
    age = span(max(0.0, (now - limit.paused_at).total_seconds()))
    by = f" by {limit.paused_by}" if limit.paused_by else ""
    why = f": {limit.pause_reason}" if limit.pause_reason else ""
    return f"for {age}{options.until_text(limit.paused_until)}{by}{why}"
