"""`backstay output`: what a handler has streamed, so far or live."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
import typer

from backstay import codec
from backstay.app import Backstay
from backstay.cli import app_loader
from backstay.cli import output as terminal
from backstay.cli.options import AppName, AsJson, JobId, Url
from backstay.cli.output import safe_lines
from backstay.core.states import TERMINAL
from backstay.ops.output import OutputEntry


def output(
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the job ends.")] = False,
    after: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Only what follows: the `cursor` of an entry.")
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Print what a job's handler has streamed: texts one after another, other values as a line of JSON each."""

    async def work(app: Backstay) -> None:
        job = await app.get(await app_loader.job_id(app, job_id))
        printer = _Printer(as_json)
        if follow:
            async for entry in app.stream_output(job.job_id, after=after):
                printer.show(entry)
            job = await app.get(job.job_id)
            printer.end()
            terminal.say(f"job {job.job_id} is {job.status.value}")
            return
        cursor = after
        while True:
            page = await app.output(job.job_id, after=cursor)
            for entry in page:
                printer.show(entry)
            if not page.more:
                break
            cursor = page.next
        printer.end()
        if not printer.has_shown and job.status not in TERMINAL:
            terminal.say(f"job {job.job_id} has no output yet: {await app.explain(job.job_id)}")
        elif not printer.has_shown:
            terminal.say(f"job {job.job_id} is {job.status.value} and has no output")

    app_loader.run(url, app, work)


class _Printer:
    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._is_in_line = False
        self.has_shown = False

    def show(self, entry: OutputEntry) -> None:
        self.has_shown = True
        if self._as_json:
            self._line(codec.encode(msgspec.structs.asdict(entry)).decode())
            return
        if entry.restarted:
            self.end()
            terminal.say(f"attempt {entry.attempt} begins again; this replaces the output above")
        if isinstance(entry.value, str):
            self._text(safe_lines(entry.value))
        else:
            self.end()
            self._line(_json(entry.value))

    def end(self) -> None:
        if self._is_in_line:
            self._text("\n")

    def _line(self, text: str) -> None:
        print(text, flush=True)

    def _text(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
        if text:
            self._is_in_line = not text.endswith("\n")


def _json(value: Any) -> str:
    return codec.encode(value).decode()
