"""`backstay move FROM TO`: transfers a queue to another engine or another place."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

import typer

from backstay import transfer
from backstay.cli import options, output
from backstay.cli.options import AsJson
from backstay.cli.output import Exit, Interrupted, safe, without_password
from backstay.core import dumps
from backstay.core.checks import count, span
from backstay.transfer import Progress, Report

_Show = Callable[[Progress], None]
_NAMES = {
    dumps.TYPES: "job type",
    dumps.QUEUES: "queue",
    dumps.SCHEDULES: "schedule",
    dumps.TABLES: "result table",
    dumps.STEPS: "step",
    dumps.MAILBOXES: "event key",
    dumps.GUARDS: "dedup key",
    dumps.COUNTERS: "counter",
    dumps.KEYS: "API key",
    dumps.AUDIT: "audit record",
    dumps.ROWS: "result row",
}


def move(
    source: Annotated[str, typer.Argument(metavar="FROM", help="URL of the queue.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="URL to transfer it to; a queue there must be empty.")],
    artifacts: Annotated[
        str | None, typer.Option(metavar="URI", help="Where its files are, if not with the queue: s3://…, file:///….")
    ] = None,
    to_artifacts: Annotated[
        str | None, typer.Option(metavar="URI", help="Where to copy them; default: they stay at --artifacts.")
    ] = None,
    grace: Annotated[
        timedelta | None,
        typer.Option(
            metavar="TIME", parser=options.length, help="How long to wait for running jobs; default: 60 s plus a lease."
        ),
    ] = None,
    thaw: Annotated[bool, typer.Option("--thaw", help="Abandon the transfer: the source queue resumes.")] = False,
    force: Annotated[bool, typer.Option("--force", help="With --thaw: even if the transfer has finished.")] = False,
    as_json: AsJson = False,
) -> int:
    """Transfer a queue to another engine or location.

    Meanwhile no job is accepted or started, and running jobs are waited for. Both sides are compared before the new
    queue opens. If it is interrupted, run it again: it continues where it left off.
    """
    if force and not thaw:
        raise typer.BadParameter("it only works with --thaw", param_hint="--force")
    if thaw:
        asyncio.run(transfer.thaw(source, target, force=force))
        output.say(
            f"{without_password(source)} accepts and runs jobs again; before the next transfer to"
            f" {without_password(target)}, empty that: {_how_to_empty(target)}"
        )
        return Exit.OK
    try:
        with _bar() if sys.stderr.isatty() else _lines() as show:
            report = asyncio.run(
                transfer.move(
                    source,
                    target,
                    artifacts=artifacts,
                    to_artifacts=to_artifacts,
                    grace=None if grace is None else grace.total_seconds(),
                    show=show,
                )
            )
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted: run the same command again to continue, or add --thaw to abandon the transfer; until then"
            " neither queue accepts or runs jobs"
        ) from None
    if as_json:
        output.emit_json(report)
    else:
        _say(report)
    return Exit.OK


def _how_to_empty(url: str) -> str:
    match url.partition(":")[0]:
        case "sqlite":
            file = url.removeprefix("sqlite:///")
            return f"delete {', '.join(f'{file}{ending}' for ending in ('', '-wal', '-shm', '.files'))}"
        case "dynamodb":
            return f"backstay --url {shlex.quote(url)} migrate --delete-existing"
        case _:
            schema = dict(parse_qsl(urlsplit(url).query)).get("schema", "backstay")
            return f'DROP SCHEMA "{schema}" CASCADE'


def _say(report: Report) -> None:
    if not report.copied:
        print(f"the queue has already been transferred to {safe(report.target)}")
        return
    print(
        f"transferred {count(report.copied['jobs'], 'job')} and {count(report.copied['archive'], 'archived job')} to"
        f" {safe(report.target)} in {span(report.seconds)}; both sides were compared and match"
    )
    others = [count(number, _NAMES[kind]) for kind, number in report.copied.items() if kind in _NAMES and number]
    if others:
        print(f"also {', '.join(others)}")
    if report.files:
        print(f"also {count(report.files, 'file')} ({count(report.file_bytes, 'byte')})")
    if report.shortened:
        output.say(
            f"long errors, reasons or logs of {count(report.shortened, 'item')} were shortened to fit the new engine"
        )
    if report.missing_count:
        output.say(
            f"{count(report.missing_count, 'file')} named by jobs could not be read, neither before nor after the"
            f" transfer: {', '.join(report.missing)}"
        )
    output.say(f"set BACKSTAY_URL to {shlex.quote(report.target)} and restart your workers")


@contextmanager
def _lines() -> Iterator[_Show]:
    """Print a line for each step."""
    said = ""

    def show(progress: Progress) -> None:
        nonlocal said
        if progress.step != said:
            said = progress.step
            output.say(_words(progress))

    yield show


@contextmanager
def _bar() -> Iterator[_Show]:
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars
    from rich.table import Column

    column = Column(no_wrap=True)
    bars = Bars(
        TextColumn("{task.description}", markup=False, table_column=column),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[numbers]}", markup=False, table_column=column),
        console=output.console(stderr=True),
        transient=True,
    )
    task = bars.add_task("", total=None, numbers="")

    def show(progress: Progress) -> None:
        numbers = f"{progress.done:,}" + ("" if progress.total is None else f" of {progress.total:,}")
        bars.update(task, description=_words(progress), completed=progress.done, total=progress.total, numbers=numbers)

    with bars:
        yield show


def _words(progress: Progress) -> str:
    match progress.step:
        case "opening":
            return f"waiting for the store: {progress.reason}"
        case "waiting":
            return "waiting for running jobs"
        case "verifying":
            return "comparing both sides"
        case kind:
            return f"copying {kind}"
