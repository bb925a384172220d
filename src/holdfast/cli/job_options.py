"""The options that say how a job is submitted: by `submit`, and by `schedules add` for the jobs to come."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from holdfast.cli import options

Priority = Annotated[str | None, typer.Option(metavar="N", help="0 to 100, or low, normal, high, urgent.")]
Delay = Annotated[
    timedelta | None, typer.Option(metavar="TIME", parser=options.length, help="Run after 90, 90s, 5m, 1h30m, 2d.")
]
RunAt = Annotated[
    datetime | None, typer.Option(metavar="WHEN", parser=options.moment, help="Run at 2026-11-15T09:30:00Z.")
]
Queue = Annotated[str | None, typer.Option(metavar="NAME", help="Another queue than the handler's own.")]
Subject = Annotated[str | None, typer.Option(metavar="TEXT", help="What the job is about, to find it by.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="May be repeated.")]
DedupKey = Annotated[str | None, typer.Option(metavar="KEY", help="An equal key answers with the same job …")]
DedupFor = Annotated[
    str | None, typer.Option(metavar="TIME", help="… while it is active (default), for a TIME, or forever.")
]
DedupConflict = Annotated[
    str | None, typer.Option(metavar="WHAT", help="… with another payload: return it (default), or error.")
]
ContentHash = Annotated[str | None, typer.Option(metavar="HASH", help="Your name for the same work.")]
Reuse = Annotated[str | None, typer.Option(metavar="TIME", help="Take its result if not older than TIME, or any.")]
DependsOn = Annotated[list[str] | None, typer.Option(metavar="ID", help="Wait for this job. May be repeated …")]
OnDependencyFailure = Annotated[
    str | None, typer.Option(metavar="WHAT", help="… and if one fails: cancel (default), or fail.")
]
TriggerRule = Annotated[
    str | None,
    typer.Option(metavar="RULE", help="When it starts: all_success (default), all_done, one_success, none_failed."),
]
Parent = Annotated[str | None, typer.Option(metavar="ID", help="The job under which this one stands.")]
Stage = Annotated[str | None, typer.Option(metavar="TEXT", help="Which stage of the work it is.")]
ConcurrencyKey = Annotated[str | None, typer.Option(metavar="KEY", help="The type's limit over all workers, per key.")]
RateKey = Annotated[str | None, typer.Option(metavar="KEY", help="The type's rate, per key.")]
FairnessKey = Annotated[str | None, typer.Option(metavar="KEY", help="Takes turns with jobs of other keys …")]
FairnessWeight = Annotated[int | None, typer.Option(metavar="N", help="… so many for one of theirs; default 1.")]
MaxAttempts = Annotated[int | None, typer.Option(metavar="N", help="Failures until it is dead.")]
JobTimeout = Annotated[
    timedelta | None,
    typer.Option("--job-timeout", metavar="TIME", parser=options.length, help="How long one attempt may run."),
]
OwnId = Annotated[str | None, typer.Option(metavar="UUID", help="Choose the id: then a repeat is the same job.")]
CreatedBy = Annotated[str | None, typer.Option(metavar="NAME", help="Who asked for it.")]

_NAMES = {"tag": "tags", "job_timeout": "timeout"}  # where the command line has another word than the code
_WORDS = {"dedup_for": ("active", "forever"), "reuse": ("any",)}  # instead of a length of time


def chosen(context: typer.Context, allowed: Mapping[str, Any]) -> Any:
    """What was given of the options that the code has, under the names that it has for them."""
    found: dict[str, Any] = {}
    for given, value in context.params.items():
        name = _NAMES.get(given, given)
        if name in allowed and given not in _NAMES.values() and value not in (None, [], ()):
            found[name] = _read(name, value)
    return found


def _read(name: str, value: Any) -> Any:
    if name == "priority":
        return options.priority(value)
    if name not in _WORDS:
        return value
    if value not in _WORDS[name]:
        return options.length(value)
    return True if value == "any" else value
