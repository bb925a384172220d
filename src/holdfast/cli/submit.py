"""holdfast submit TYPE JSON"""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast import codec
from holdfast.app import Holdfast
from holdfast.cli import apps, options, output, watching
from holdfast.cli.exits import Exit
from holdfast.cli.options import AppName, AsJson, Url
from holdfast.errors import InvalidPayload
from holdfast.limits import PAYLOAD_BYTES_MAX
from holdfast.submission import SubmitOptions

Payload = Annotated[str, typer.Argument(metavar="JSON", help="The payload: JSON, @file, or - for stdin.")]
Delay = Annotated[
    timedelta | None, typer.Option(metavar="TIME", parser=options.length, help="Run after 90, 90s, 5m, 1h30m, 2d.")
]
RunAt = Annotated[
    datetime | None, typer.Option(metavar="WHEN", parser=options.moment, help="Run at 2026-11-15T09:30:00Z.")
]
DedupFor = Annotated[
    str | None, typer.Option(metavar="TIME", help="… while it is active (default), for a TIME, or forever.")
]
DependsOn = Annotated[
    list[str] | None, typer.Option(metavar="ID", help="Wait for this job to complete. May be given several times.")
]
JobTimeout = Annotated[
    timedelta | None, typer.Option(metavar="TIME", parser=options.length, help="How long one attempt may run.")
]
OwnId = Annotated[str | None, typer.Option(metavar="UUID", help="Choose the id: then a repeat is the same job.")]
DedupKey = Annotated[str | None, typer.Option(metavar="KEY", help="An equal key answers with the same job …")]


def submit(
    job_type: Annotated[str, typer.Argument(metavar="TYPE", show_default=False)],
    payload: Payload = "{}",
    priority: Annotated[str | None, typer.Option(metavar="N", help="0 to 100, or low, normal, high, urgent.")] = None,
    delay: Delay = None,
    run_at: RunAt = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="Another queue than the handler's own.")] = None,
    subject: Annotated[str | None, typer.Option(metavar="TEXT", help="What the job is about, to find it by.")] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="May be given several times.")] = None,
    dedup_key: DedupKey = None,
    dedup_for: DedupFor = None,
    depends_on: DependsOn = None,
    max_attempts: Annotated[int | None, typer.Option(metavar="N", help="Failures until it is dead.")] = None,
    job_timeout: JobTimeout = None,
    job_id: OwnId = None,
    created_by: Annotated[str | None, typer.Option(metavar="NAME", help="Who asked for it.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Show its progress to the end, then print its result.")] = False,
    timeout: options.Timeout = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Store a job; print its id, or with --wait its result."""
    if timeout is not None and not wait:
        raise typer.BadParameter(
            "it says how long to --wait; the job's own limit is --job-timeout", param_hint="--timeout"
        )
    given = {
        "priority": _priority(priority),
        "delay": delay,
        "run_at": run_at,
        "queue": queue,
        "subject": subject,
        "tags": tag or None,
        "dedup_key": dedup_key,
        "dedup_for": _dedup_for(dedup_for),
        "depends_on": depends_on or None,
        "max_attempts": max_attempts,
        "timeout": job_timeout,
        "job_id": job_id,
        "created_by": created_by,
    }
    chosen: Any = {name: value for name, value in given.items() if value is not None}
    body = _payload(payload)
    return apps.run(url, app, lambda each: _submit(each, job_type, body, chosen, wait, timeout, as_json), makes=True)


async def _submit(
    app: Holdfast,
    job_type: str,
    payload: Any,
    chosen: SubmitOptions,
    wait: bool,
    timeout: timedelta | None,
    as_json: bool,
) -> Exit:
    handle = await app.submit(job_type, payload, **chosen)
    if handle.deduplicated:
        output.say(f"job {handle.job_id} answers for it already ({handle.status.value}); nothing new was stored")
    if wait:
        if not as_json:
            output.say(f"job {handle.job_id} is stored")
        job = await watching.follow(app, handle.job_id, timeout)
        job.deduplicated = handle.deduplicated
        return watching.report(job, as_json)
    if as_json:
        job = await handle.refresh()
        job.deduplicated = handle.deduplicated
        output.emit_json(job.to_dict())
    else:
        print(handle.job_id)
    return Exit.OK


def _payload(given: str) -> Any:
    if given == "-":
        raw = sys.stdin.buffer.read(4 * PAYLOAD_BYTES_MAX)  # far more is no payload, whatever its spacing
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
        hint = "" if given == "-" or given.startswith("@") else "; put JSON in single quotes: '{\"n\": 1}'"
        raise InvalidPayload(f"{error}{hint}") from None


def _priority(given: str | None) -> int | str | None:
    return int(given) if given is not None and given.lstrip("-").isdecimal() else given


def _dedup_for(given: str | None) -> str | timedelta | None:
    return given if given in (None, "active", "forever") else options.length(given)
