"""`backstay logs`: the log of a job, in full, its last lines, or live."""

from __future__ import annotations

import asyncio
import codecs
from collections import deque
from collections.abc import AsyncIterator
from typing import Annotated, Any

import typer

from backstay.app import Backstay
from backstay.cli import app_loader, output
from backstay.cli.options import AppName, AsJson, JobId, Url
from backstay.cli.output import safe, safe_lines
from backstay.core.states import TERMINAL
from backstay.job import Job

_LOOK_SECONDS = 0.5  # a worker writes what was logged once a second


def logs(
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the job ends.")] = False,
    lines: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the last N lines.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Print a job's log."""
    if follow and as_json:
        raise typer.BadParameter("--follow prints a stream, not one document: remove --json", param_hint="--follow")

    async def work(app: Backstay) -> None:
        job = await app.get(await app_loader.job_id(app, job_id))
        if as_json:
            kept = job.logs if lines is None else job.logs | {"entries": job.logs["entries"][-lines:]}
            output.emit_json({"job_id": job.job_id, **kept})
        elif follow:
            await _follow(app, job, lines)
        elif not await _print(app, job, lines):
            await _print_what_the_record_has(app, job, lines)

    app_loader.run(url, app, work)


async def _print(app: Backstay, job: Job, count: int | None) -> bool:
    """Print the log file or its end; return whether there is one."""
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


async def _follow(app: Backstay, job: Job, count: int | None) -> None:
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


async def _print_what_the_record_has(app: Backstay, job: Job, count: int | None) -> None:
    entries: list[dict[str, Any]] = job.logs["entries"]
    for entry in entries if count is None else entries[-count:]:
        print(f"{safe(entry['timestamp'])} {safe(entry['level'])} {safe_lines(entry['message'])}")
    location = job.logs["log_location"]
    if location is not None:
        output.say(f"these are the last lines; the full log is at {location}, which cannot be read from here")
    elif job.archived_at is not None:
        output.say(f"job {job.job_id} was archived and its log deleted")
    elif not entries:
        # Why it never ran, or where it is at: cancelled with a job that it depends on, paused, …
        output.say(f"job {job.job_id} has no log output: {await app.explain(job.job_id)}")


class _Lines:
    """The lines of a job's log since the last look. A line that is still being written waits for the next look."""

    def __init__(self, app: Backstay, job_id: str) -> None:
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
