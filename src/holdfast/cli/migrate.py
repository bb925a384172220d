"""holdfast migrate"""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from holdfast.cli import apps, output
from holdfast.cli.exits import Exit
from holdfast.cli.options import AppName, AsJson, Url
from holdfast.cli.text import count, safe, without_password


def migrate(
    sql: Annotated[bool, typer.Option("--sql", help="Only print the script, to have it applied by hand.")] = False,
    delete_existing: Annotated[
        bool,
        typer.Option("--delete-existing", help="Delete the queue with all its jobs first, for good (DynamoDB)."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before deleting.")] = False,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Make the queue, or bring its schema to this release."""
    if delete_existing and not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise typer.BadParameter(
            "it deletes every job, and there is no terminal to ask on: add --yes", param_hint="--delete-existing"
        )
    target = apps.load(url, app)
    if sql:
        print(target.migration_sql(), end="")
        return Exit.OK
    place = without_password(target.url)
    if delete_existing:
        planned = asyncio.run(target.would_erase())
        if planned and not yes and not _agreed(target.location, planned):
            output.say("nothing was done")
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


def _agreed(place: str, planned: dict[str, int]) -> bool:
    """A y that was typed too fast must not be enough."""
    tables = ", ".join(f"{name} (about {count(items, 'item')})" for name, items in planned.items())
    question = f"This deletes {tables} of {place} with all that is in them, for good. Type delete to go on: "
    print(safe(question), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() == "delete"
