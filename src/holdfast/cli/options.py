"""Options that several commands share."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, TypeVar

import typer

from holdfast.cli import text

Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="Where the jobs are (HOLDFAST_URL); default sqlite:///holdfast.db."),
]
AppName = Annotated[
    str | None,
    typer.Option(
        "--app", metavar="MODULE:APP", help="Your app: a module or a file, and its name in it (HOLDFAST_APP)."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id.", show_default=False)]
JobIds = Annotated[list[str], typer.Argument(metavar="ID...", help="The jobs' ids.", show_default=False)]

T = TypeVar("T")


def length(given: str) -> timedelta:
    """A parser for options that take a length of time."""
    try:
        return text.duration(given)
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(str(error)) from None


def moment(given: str) -> datetime:
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        raise typer.BadParameter(f"{given!r} is no time: write 2026-11-15T09:30:00Z") from None
    if found.tzinfo is None:
        raise typer.BadParameter(f"{given!r} has no time zone: add Z for UTC, or an offset like +01:00")
    return found


Timeout = Annotated[
    timedelta | None,
    typer.Option(
        "--timeout", metavar="TIME", parser=length, help="Stop waiting after 90, 90s, 5m, …; the job goes on."
    ),
]
