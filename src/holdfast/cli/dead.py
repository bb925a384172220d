"""holdfast dead: the dead letters, grouped by what they died of."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from holdfast.app import Holdfast
from holdfast.cli import apps, output
from holdfast.cli.options import AppName, AsJson, Url
from holdfast.cli.output import Column
from holdfast.cli.text import away
from holdfast.clock import to_datetime
from holdfast.store.types import DeadGroup


def dead(
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="How many groups at most.")] = 50,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Show failed jobs, grouped by type and error."""

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
    output.say('look at one with "holdfast show ID"; run them again with "holdfast retry --dead --type … --error …"')


def _columns(now: datetime) -> list[Column[DeadGroup]]:
    return [
        Column("COUNT", lambda group: f"{group.count:,}", right=True),
        Column("TYPE", lambda group: group.job_type, cut=True),
        Column("ERROR", lambda group: group.error_type, cut=True),
        Column("LAST", lambda group: away(to_datetime(group.newest_at), now), right=True, wide=True),
        Column("NEWEST", lambda group: group.newest_job_id),
        Column("MESSAGE", lambda group: group.newest_error, cut=True, wide=True),
    ]


def _document(group: DeadGroup) -> dict[str, object]:
    return {
        "job_type": group.job_type,
        "error_type": group.error_type,
        "count": group.count,
        "newest_job_id": group.newest_job_id,
        "newest_error": group.newest_error,
        "newest_at": to_datetime(group.newest_at),
    }
