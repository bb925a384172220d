"""holdfast migrate"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from holdfast.cli import apps, output
from holdfast.cli.options import AppName, AsJson, Url
from holdfast.cli.text import without_password


def migrate(
    sql: Annotated[bool, typer.Option("--sql", help="Only print the script, to have it applied by hand.")] = False,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Make the queue, or bring its schema to this release."""
    target = apps.load(url, app)
    if sql:
        print(target.migration_sql(), end="")
        return
    applied = asyncio.run(target.migrate())
    place = without_password(target.url)
    if as_json:
        output.emit_json({"url": place, "applied": applied})
    elif applied:
        print(f"{place}: applied {', '.join(applied)}")
    else:
        print(f"{place} is up to date")
