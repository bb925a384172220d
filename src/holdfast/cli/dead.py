"""holdfast dead: the dead letters, grouped by what they died of, and the way to run them again."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from holdfast.app import Holdfast
from holdfast.cli import apps, options, output
from holdfast.cli.exits import Exit
from holdfast.cli.options import AppName, AsJson, Url
from holdfast.cli.output import Column
from holdfast.cli.text import away, count
from holdfast.clock import to_datetime
from holdfast.store.types import DeadGroup


def dead(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="How many groups at most; default 50.")] = 50,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Show failed jobs, grouped by type and error."""
    if options.handed_on(context, as_json, url, app):
        return

    async def work(app: Holdfast) -> tuple[list[DeadGroup], datetime]:
        return await app.dead(limit), to_datetime(app.clock.now())

    groups, now = apps.run(url, app, work)
    if as_json:
        output.emit_json({"items": [_document(group) for group in groups]})
        return
    if not groups:
        output.say("no dead letters")
        return
    output.emit_table(_columns(now), groups)
    output.say('look at one with "holdfast show ID"; run them again with "holdfast dead retry --type … --error …"')


def retry(
    job_type: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only those of this type.")] = None,
    error: Annotated[str | None, typer.Option(metavar="NAME", help="Only those that died of this error.")] = None,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Run dead letters again: all, or those of a type or an error."""
    return retry_all(job_type, error, by, as_json, url, app)


def retry_all(
    job_type: str | None, error: str | None, by: str | None, as_json: bool, url: str | None, app: str | None
) -> Exit:
    who = options.who(by)
    number = apps.run(url, app, lambda each: each.retry_dead(job_type=job_type, error_type=error, by=who))
    if as_json:
        output.emit_json({"retried": number})
    else:
        print(f"{count(number, 'job')} {'runs' if number == 1 else 'run'} again")
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
    """Its error type has a column of its own."""
    return group.newest_error.removeprefix(f"{group.error_type}: ")


def _document(group: DeadGroup) -> dict[str, object]:
    return {
        "job_type": group.job_type,
        "error_type": group.error_type,
        "count": group.count,
        "newest_job_id": group.newest_job_id,
        "newest_error": group.newest_error,
        "newest_at": to_datetime(group.newest_at),
    }
