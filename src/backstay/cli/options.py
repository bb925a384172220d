"""Options and payload arguments that several commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from backstay import codec
from backstay.cli import output
from backstay.core.checks import utc
from backstay.core.states import Status
from backstay.errors import InvalidPayload
from backstay.limits import PAYLOAD_BYTES_MAX
from backstay.ops import audit
from backstay.ops.audit import Actor

Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="URL of the queue; default sqlite:///backstay.db."),
]
AppName = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:APP",
        help="Your app, or the function that makes it: module or file, and its name in it.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
JobId = Annotated[str, typer.Argument(metavar="ID", help="Job id, or 6 or more of its first or last characters.")]
_IDS = typer.Argument(metavar="ID…", help="Job ids, or 6 or more of the first or last characters of each.")
JobIds = Annotated[list[str], _IDS]
SomeJobIds = Annotated[list[str] | None, _IDS]
JobType = Annotated[str, typer.Argument(metavar="TYPE", help="Job type: the name of the handler.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Reason, kept in the history.")]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who is doing this; default: user@host.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
# Conditions on jobs
OnlyStatus = Annotated[str | None, typer.Option("--status", metavar="STATUS", help=f"One of {', '.join(Status)}.")]
OnlyType = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only this job type.")]
OnlyQueue = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Only this queue.")]
OnlySubject = Annotated[str | None, typer.Option("--subject", metavar="TEXT", help="Only this subject.")]
OnlyWorker = Annotated[
    str | None, typer.Option("--worker", metavar="ID", help="Only jobs that this worker runs or ran last.")
]
OnlyTag = Annotated[str | None, typer.Option("--tag", metavar="TAG", help="Only jobs with this tag.")]
OnlyCreatedBy = Annotated[
    str | None, typer.Option("--created-by", metavar="NAME", help="Only jobs submitted by this name.")
]
OnlyRoot = Annotated[str | None, typer.Option("--root", metavar="ID", help="Only jobs below this one in its tree.")]
OnlyContentHash = Annotated[
    str | None, typer.Option("--content-hash", metavar="HASH", help="Only jobs with this content hash.")
]
Payload = Annotated[str, typer.Argument(metavar="JSON", help="Payload: JSON, @file, or - for stdin.")]


def hand_on(context: typer.Context, url: str | None, app: str | None) -> None:
    """Treat options before a command as if they came after it. An environment variable would not do: an app that names
    its own URL does not read it, and a purge would go to the wrong queue."""
    given = {name: value for name, value in (("url", url), ("app", app)) if value is not None}
    if given and context.invoked_subcommand is not None:
        context.default_map = {context.invoked_subcommand: given}


def handed_on(context: typer.Context, as_json: bool, url: str | None, app: str | None) -> bool:
    """Return whether a command of a group follows."""
    hand_on(context, url, app)
    if as_json and context.invoked_subcommand is not None:
        raise typer.BadParameter(f"write it after {context.invoked_subcommand}", param_hint="--json")
    return context.invoked_subcommand is not None


def priority(given: str) -> int | str:
    return int(given) if given.lstrip("-").isdecimal() else given


def actor(by: str | None) -> Actor:
    """Return who makes a change: the name given with --by, or the user and host."""
    return msgspec.structs.replace(audit.actor(by), via="cli")


def length(given: str) -> timedelta:
    """Return a parser for options that take a length of time."""
    try:
        return output.duration(given)
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(str(error)) from None


def moment(given: str) -> datetime:
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        raise typer.BadParameter(f"{given!r} is not a time: write 2026-11-15T09:30:00Z") from None
    if found.tzinfo is None:
        raise typer.BadParameter(f"{given!r} has no time zone: add Z for UTC, or an offset like +01:00")
    return found


def until(given: str) -> datetime | timedelta:
    """Return a parser for options that take a time, or how long from now."""
    return moment(given) if "-" in given or ":" in given else length(given)


def until_text(moment: datetime | None) -> str:
    return "" if moment is None else f" until {utc(moment)}"


Until = Annotated[
    Any,  # a datetime or a timedelta
    typer.Option(
        "--until", metavar="WHEN", parser=until, help="Resume by itself after 30m, 2h, …, or at 2026-11-15T09:30:00Z."
    ),
]
Timeout = Annotated[
    timedelta | None,
    typer.Option(
        "--timeout", metavar="TIME", parser=length, help="Stop waiting after 90, 90s, 5m, …; the job stays active."
    ),
]


Priority = Annotated[str | None, typer.Option(metavar="N", help="0 to 100, or low, normal, high, urgent.")]
Delay = Annotated[
    timedelta | None, typer.Option(metavar="TIME", parser=length, help="Run it after 90, 90s, 5m, 1h30m, 2d.")
]
RunAt = Annotated[
    datetime | None,
    typer.Option(metavar="WHEN", parser=moment, help="When to run it, such as 2026-11-15T09:30:00Z."),
]
Expires = Annotated[
    str | None, typer.Option(metavar="WHEN", help="Cancel it if it has not started after 90s, 1h, … or by a time.")
]
Queue = Annotated[str | None, typer.Option(metavar="NAME", help="Queue; default: the handler's own.")]
Subject = Annotated[str | None, typer.Option(metavar="TEXT", help="What the job is about; searchable.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="Tag; repeatable.")]
DedupKey = Annotated[
    str | None, typer.Option(metavar="KEY", help="Submitting the same key again returns the same job …")
]
DedupFor = Annotated[
    str | None, typer.Option(metavar="TIME", help="… while it is active (default), for TIME, or forever.")
]
DedupBy = Annotated[
    list[str] | None, typer.Option(metavar="FIELD", help="Make the key of this payload field; repeatable.")
]
Dedup = Annotated[
    str | None,
    typer.Option(metavar="WHAT", help="What a repeat does: return (default), error if it differs, replace."),
]
DebounceMax = Annotated[
    timedelta | None,
    typer.Option(metavar="TIME", parser=length, help="With replace: the longest that repeats put the job off."),
]
ContentHash = Annotated[
    str | None, typer.Option(metavar="HASH", help="Your own hash of the work, to find identical jobs.")
]
Reuse = Annotated[
    str | None, typer.Option(metavar="TIME", help="Reuse an identical job's result up to TIME old, or any.")
]
DependsOn = Annotated[list[str] | None, typer.Option(metavar="ID", help="Wait for this job to end; repeatable.")]
OnDependencyFailure = Annotated[
    str | None, typer.Option(metavar="WHAT", help="If a dependency fails: cancel (default) or fail.")
]
TriggerRule = Annotated[
    str | None,
    typer.Option(
        metavar="RULE", help="When to start: all_success (default), all_done, one_success, one_failed, none_failed."
    ),
]
Parent = Annotated[str | None, typer.Option(metavar="ID", help="Make it a child of this job.")]
Stage = Annotated[str | None, typer.Option(metavar="TEXT", help="Name of its stage in the workflow.")]
ConcurrencyKey = Annotated[str | None, typer.Option(metavar="KEY", help="Apply the type's global concurrency per key.")]
RateCost = Annotated[int | None, typer.Option(metavar="N", help="How much of the rate a start takes: tokens, cents.")]
RateKey = Annotated[str | None, typer.Option(metavar="KEY", help="Apply the type's rate limit per key.")]
FairnessKey = Annotated[str | None, typer.Option(metavar="KEY", help="Take turns with jobs of other keys …")]
FairnessWeight = Annotated[int | None, typer.Option(metavar="N", help="… N jobs per turn; default 1.")]
MaxAttempts = Annotated[int | None, typer.Option(metavar="N", help="Failed attempts before it becomes a dead letter.")]
JobTimeout = Annotated[
    timedelta | None,
    typer.Option("--job-timeout", metavar="TIME", parser=length, help="Time limit for one attempt."),
]
OwnId = Annotated[
    str | None, typer.Option(metavar="UUID", help="Set the id; submitting it again returns the same job.")
]
CreatedBy = Annotated[str | None, typer.Option(metavar="NAME", help="Who submitted it.")]

_NAMES = {"tag": "tags", "job_timeout": "timeout"}  # where the command line has another word than the code
_WORDS = {"dedup_for": ("active", "forever"), "reuse": ("any",)}  # instead of a length of time


def chosen(context: typer.Context, allowed: Mapping[str, Any]) -> Any:
    """Return the given options that Python has too, under their Python names."""
    found: dict[str, Any] = {}
    for given, value in context.params.items():
        name = _NAMES.get(given, given)
        if name in allowed and given not in _NAMES.values() and value not in (None, [], ()):
            found[name] = _read(name, value)
    return found


def _read(name: str, value: Any) -> Any:
    if name == "priority":
        return priority(value)
    if name == "expires":
        return moment(value) if "T" in value or "-" in value else length(value)
    if name not in _WORDS:
        return value
    if value not in _WORDS[name]:
        return length(value)
    return True if value == "any" else value


def read(given: str) -> Any:
    if given == "-":
        raw = sys.stdin.buffer.read(4 * PAYLOAD_BYTES_MAX)  # far more is not a payload, whatever its spacing
    elif given.startswith("@"):
        try:
            raw = Path(given[1:]).read_bytes()
        except OSError as error:
            raise InvalidPayload(f"{given[1:]} cannot be read: {error.strerror}") from None
    else:
        raw = given.encode("utf-8", "surrogateescape")
    try:
        return codec.from_json(raw)
    except InvalidPayload as error:
        raise InvalidPayload(f"{error}{_hint(raw, typed=given != '-' and not given.startswith('@'))}") from None


def _hint(raw: bytes, *, typed: bool) -> str:
    """Return what to write instead. A shell that removed the quotes is the usual cause, unless Python can read the
    text."""
    constants: list[str] = []
    try:
        json.loads(raw, parse_constant=constants.append)
    except (ValueError, RecursionError):
        return "; write it in single quotes, with double ones inside: '{\"n\": 1}'" if typed else ""
    return f'; write null for {constants[0]}, or text: "{constants[0]}"' if constants else ""
