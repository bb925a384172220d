"""holdfast logs ID: what a job has logged, in full, its end, or as it comes."""

from __future__ import annotations

import asyncio
import codecs
from collections import deque
from collections.abc import AsyncIterator
from typing import Annotated, Any

import typer

from holdfast.app import Holdfast
from holdfast.cli import apps, lookup, output
from holdfast.cli.options import AppName, AsJson, JobId, Url
from holdfast.cli.text import safe, safe_lines
from holdfast.job import Job
from holdfast.lifecycle import TERMINAL

_LOOK_SECONDS = 0.5  # a worker writes what was logged once a second


def logs(
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    lines: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the last N lines.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Print what a job has logged."""
    if follow and as_json:
        raise typer.BadParameter("what is followed is no single document: leave out --json", param_hint="--follow")

    async def work(app: Holdfast) -> None:
        job = await app.get(await lookup.job_id(app, job_id))
        if as_json:
            kept = job.logs if lines is None else job.logs | {"entries": job.logs["entries"][-lines:]}
            output.emit_json({"job_id": job.job_id, **kept})
        elif follow:
            await _follow(app, job, lines)
        elif not await _print(app, job, lines):
            await _print_what_the_record_has(app, job, lines)

    apps.run(url, app, work)


async def _print(app: Holdfast, job: Job, count: int | None) -> bool:
    """The file, or its end; whether there is one."""
    if await app.log_bytes(job.job_id, 0, 1) is None:
        return False
    reader = _Lines(app, job.job_id)
    if count is None:
        async for line in reader.new():
            print(line)
    else:
        for line in await _last(reader, count):
            print(line)
    if rest := reader.rest():
        print(rest)
    return True


async def _last(reader: _Lines, count: int) -> deque[str]:
    kept: deque[str] = deque(maxlen=count)
    async for line in reader.new():
        kept.append(line)
    return kept


async def _follow(app: Holdfast, job: Job, count: int | None) -> None:
    reader = _Lines(app, job.job_id)
    for line in await _last(reader, count) if count is not None else ():
        print(line, flush=True)
    said = False
    while True:
        async for line in reader.new():
            print(line, flush=True)
        if job.status in TERMINAL:
            break
        if not job.attempt and not said:
            said = True
            output.say(f"job {job.job_id} has not run yet: {await app.explain(job.job_id)}")
        await asyncio.sleep(_LOOK_SECONDS)
        job = await app.get(job.job_id)
    if rest := reader.rest():
        print(rest)
    if reader.found:
        output.say(f"job {job.job_id} is {job.status.value}")
    else:
        await _print_what_the_record_has(app, job, count)


async def _print_what_the_record_has(app: Holdfast, job: Job, count: int | None) -> None:
    entries: list[dict[str, Any]] = job.logs["entries"]
    for entry in entries if count is None else entries[-count:]:
        print(f"{safe(entry['timestamp'])} {safe(entry['level'])} {safe_lines(entry['message'])}")
    location = job.logs["log_location"]
    if location is not None:
        output.say(f"these are the last lines; the full log is at {location}, which is not here")
    elif job.archived_at is not None:
        output.say(f"job {job.job_id} was archived: its log went with its retention")
    elif not entries:
        # Why it never ran, or where it is at: cancelled with a job that it depends on, paused, …
        output.say(f"job {job.job_id} has logged nothing: {await app.explain(job.job_id)}")


class _Lines:
    """The lines of a job's log from where the last look ended. A line that is still being written waits."""

    def __init__(self, app: Holdfast, job_id: str) -> None:
        self._app = app
        self._job_id = job_id
        self._at = 0
        self._begun = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.found = False

    async def new(self) -> AsyncIterator[str]:
        while part := await self._app.log_bytes(self._job_id, self._at):
            self.found = True
            self._at += len(part)
            *whole, self._begun = (self._begun + self._decoder.decode(part)).split("\n")
            for line in whole:
                yield safe_lines(line)

    def rest(self) -> str:
        return safe_lines(self._begun)
