"""holdfast migrate"""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from holdfast.cli import apps, output
from holdfast.cli.options import AppName, AsJson, Url
from holdfast.cli.text import without_password


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
) -> None:
    """Make the queue, or bring its schema to this release."""
    target = apps.load(url, app)
    if sql:
        print(target.migration_sql(), end="")
        return
    place = without_password(target.url)
    if delete_existing:
        if not yes:
            typer.confirm(f"Delete {place} with all its jobs, for good?", abort=True, err=True)
        gone = asyncio.run(target.erase())
        print(f"deleted {', '.join(gone) or 'nothing: there were no tables'}", file=sys.stderr)
    applied = asyncio.run(target.migrate())
    if as_json:
        output.emit_json({"url": place, "applied": applied})
    elif applied:
        print(f"{place}: applied {', '.join(applied)}")
    else:
        print(f"{place} is up to date")
