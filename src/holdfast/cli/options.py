"""Options that several commands share."""

from __future__ import annotations

import getpass
from datetime import datetime, timedelta
from typing import Annotated

import typer

from holdfast.cli import text

Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="Where the jobs are; default sqlite:///holdfast.db."),
]
AppName = Annotated[
    str | None,
    typer.Option("--app", metavar="MODULE:APP", help="Your app: a module or file, and its name there."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, or 6 or more of its first or last characters.")]
_IDS = typer.Argument(metavar="ID…", help="Ids, or 6 or more of the first or last characters of each.")
JobIds = Annotated[list[str], _IDS]
SomeJobIds = Annotated[list[str] | None, _IDS]
JobType = Annotated[str, typer.Argument(metavar="TYPE", help="The name of its handler.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why: kept in the history.")]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who; default: the name you are logged in as.")]
Payload = Annotated[str, typer.Argument(metavar="JSON", help="The payload: JSON, @file, or - for stdin.")]


def hand_on(context: typer.Context, url: str | None, app: str | None) -> None:
    """What stands before a command is as good as what stands after it. A variable would not be: an app that names its
    own URL does not read it, and a purge would go to the wrong queue."""
    given = {name: value for name, value in (("url", url), ("app", app)) if value is not None}
    if given and context.invoked_subcommand is not None:
        context.default_map = {context.invoked_subcommand: given}


def handed_on(context: typer.Context, as_json: bool, url: str | None, app: str | None) -> bool:
    """Whether a command of a group follows."""
    hand_on(context, url, app)
    if as_json and context.invoked_subcommand is not None:
        raise typer.BadParameter(f"write it after {context.invoked_subcommand}", param_hint="--json")
    return context.invoked_subcommand is not None


def priority(given: str) -> int | str:
    return int(given) if given.lstrip("-").isdecimal() else given


def who(given: str | None = None) -> str:
    """Who did it, for the history."""
    if given is not None:
        return given
    try:
        return f"{getpass.getuser()[:100]} (command line)"
    except (OSError, KeyError, ImportError):
        return "command line"


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
