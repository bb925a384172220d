"""`backstay types`: list job types with their sensitive fields; pause and resume one; show such a field again."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from backstay.app import Backstay
from backstay.cli import app_loader, options, output
from backstay.cli.options import AppName, AsJson, Url
from backstay.cli.output import Column
from backstay.core.records import JobType
from backstay.core.run_limits import Limit


def types(context: typer.Context, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """List the job types, with their sensitive fields."""
    if not options.handed_on(context, as_json, url, app):
        none = "no job types yet: an app or a worker announces its types when it starts"
        app_loader.show(Backstay.job_types, _columns, none, as_json=as_json, url=url, app=app)


def unmark(
    job_type: Annotated[str, typer.Argument(metavar="TYPE", help="Name of the job type.")],
    field: Annotated[str, typer.Argument(metavar="FIELD", help='Path of the field, as "types" lists it: /card.')],
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Show a field to readers that was once announced as sensitive."""
    found = app_loader.run(url, app, lambda each: each.unmark_sensitive(job_type, field, by=options.actor(by)))
    if as_json:
        output.emit_json(found)
    else:
        print(f"{field} of {job_type} is shown to everyone who may read its jobs")


def pause(
    job_type: options.JobType,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help='Reason, shown by "explain" and "limits".')] = None,
    until: options.Until = None,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Pause a job type in every queue: running jobs finish, no others start."""
    found = app_loader.run(
        url, app, lambda each: each.pause_type(job_type, until=until, by=options.actor(by), reason=reason)
    )
    _report(found, f"type {job_type} paused{options.until_text(found.paused_until)}", as_json)


def resume(
    job_type: options.JobType, by: options.By = None, as_json: AsJson = False, url: Url = None, app: AppName = None
) -> None:
    """Resume a paused job type."""
    found = app_loader.run(url, app, lambda each: each.resume_type(job_type, by=options.actor(by)))
    _report(found, f"type {job_type} resumed", as_json)


def _report(found: Limit, line: str, as_json: bool) -> None:
    if as_json:
        output.emit_json(found)
    else:
        print(line)


def _columns(_: datetime) -> list[Column[JobType]]:
    return [
        Column("TYPE", lambda each: each.job_type, wrap=True),
        Column("QUEUE", lambda each: each.queue, wrap=True),
        Column("VERSION", lambda each: f"{each.version:,}", right=True),
        Column("SENSITIVE", lambda each: " ".join(mark or "(the whole payload)" for mark in each.sensitive), wrap=True),
    ]
