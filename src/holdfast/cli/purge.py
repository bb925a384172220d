"""holdfast purge: ended jobs over their time go to the archive now."""

from __future__ import annotations

import difflib
import sys
from datetime import timedelta
from typing import Annotated

import typer

from holdfast.app import Holdfast
from holdfast.cli import apps, options, output
from holdfast.cli.exits import Exit
from holdfast.cli.options import AppName, AsJson, Url
from holdfast.cli.text import count, safe, span


def purge(
    older_than: Annotated[
        timedelta | None,
        typer.Option(
            metavar="TIME", parser=options.length, help="All that ended so long ago, instead of by retention."
        ),
    ] = None,
    job_type: Annotated[
        list[str] | None, typer.Option("--type", metavar="TYPE", help="Only jobs of this type. May be repeated.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Move ended jobs that are over their time to the archive."""
    asked = older_than if not yes else None
    if asked is not None and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise typer.BadParameter(
            "it archives what retention would keep, without payloads, results and files, and there is no terminal"
            " to ask on: add --yes",
            param_hint="--older-than",
        )

    async def work(app: Holdfast) -> int | None:
        if asked is not None and not _agreed(asked, job_type):
            return None
        number = await app.purge(older_than=older_than, job_types=job_type)
        await _warn_of_unknown_types(app, job_type or [])
        return number

    number = apps.run(url, app, work)
    if number is None:
        output.say("nothing was done")
        return Exit.FAILED
    if as_json:
        output.emit_json({"archived": number})
    else:
        print(f"{count(number, 'job')} {'was' if number == 1 else 'were'} moved to the archive")
    return Exit.OK


async def _warn_of_unknown_types(app: Holdfast, job_types: list[str]) -> None:
    """Not an error: jobs of a type that no program has any longer are purged like others."""
    known = {each.job_type for each in await app.store.job_types()}
    for name in job_types:
        if name in known:
            continue
        found = await app.find(job_type=name, limit=1)
        if not found and found.next is None:
            close = difflib.get_close_matches(name, known, 1)
            meant = f": did you mean {close[0]}?" if close else f" (known: {', '.join(sorted(known)) or 'none'})"
            output.say(f"no job is of type {name}, and no program has a handler for it{meant}")


def _agreed(older_than: timedelta, job_types: list[str] | None) -> bool:
    """What is archived keeps its figures; payload, result, logs and files are gone. So a person is asked."""
    kind = f"{' or '.join(job_types)} jobs" if job_types else "all jobs"
    since = older_than.total_seconds()
    ended = f"ended more than {span(since)} ago" if since else "have ended"
    question = f"Archive {kind} that {ended}? Their payloads, results and files are deleted. [y/N] "
    print(safe(question), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
