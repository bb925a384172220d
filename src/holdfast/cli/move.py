"""holdfast move FROM TO: a queue is carried to another engine, or another place."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated

import typer

from holdfast import moving
from holdfast.cli import options, output
from holdfast.cli.exits import Exit, Interrupted
from holdfast.cli.options import AsJson
from holdfast.cli.text import count, safe, span, without_password
from holdfast.moving import Progress, Report
from holdfast.store import dumps

_Show = Callable[[Progress], None]
_NAMES = {
    dumps.TYPES: "job type",
    dumps.QUEUES: "queue",
    dumps.SCHEDULES: "schedule",
    dumps.TABLES: "result table",
    dumps.STEPS: "step",
    dumps.GUARDS: "dedup key",
    dumps.COUNTERS: "counter",
    dumps.KEYS: "API key",
    dumps.AUDIT: "audit record",
    dumps.ROWS: "result row",
}


def move(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The URL of the queue.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The URL of where it goes: there must be no queue yet.")],
    artifacts: Annotated[
        str | None, typer.Option(metavar="URI", help="Where its files are, if not with the queue: s3://…, file:///….")
    ] = None,
    to_artifacts: Annotated[
        str | None, typer.Option(metavar="URI", help="Where they go; by default they stay with --artifacts.")
    ] = None,
    grace: Annotated[
        timedelta | None,
        typer.Option(
            metavar="TIME", parser=options.length, help="Wait so long for running jobs; by default 60 s and a lease."
        ),
    ] = None,
    thaw: Annotated[bool, typer.Option("--thaw", help="Give the move up: the queue goes on where it was.")] = False,
    force: Annotated[bool, typer.Option("--force", help="With --thaw: even if the move has finished.")] = False,
    as_json: AsJson = False,
) -> int:
    """Carry a queue to another engine or place.

    No job is taken in or started meanwhile; what runs is waited for. Both sides are compared before the new one is
    opened. Run it again if it was interrupted: it goes on where it was.
    """
    if force and not thaw:
        raise typer.BadParameter("it goes with --thaw", param_hint="--force")
    if thaw:
        asyncio.run(moving.thaw(source, target, force=force))
        output.say(f"{without_password(source)} takes and gives jobs again; empty {without_password(target)} by hand")
        return Exit.OK
    try:
        with _bar() if sys.stderr.isatty() else _lines() as show:
            report = asyncio.run(
                moving.move(
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
            "interrupted: run the same command again, and it goes on where it was, or add --thaw to give it up; until"
            " then neither queue takes or gives jobs"
        ) from None
    if as_json:
        output.emit_json(report)
    else:
        _say(report)
    return Exit.OK


def _say(report: Report) -> None:
    if not report.copied:
        print(f"the queue has moved to {safe(report.target)} before")
        return
    print(
        f"{count(report.copied['jobs'], 'job')} and {count(report.copied['archive'], 'archived one')} moved to"
        f" {safe(report.target)} in {span(report.seconds)}; both sides were compared, and are the same"
    )
    others = [count(number, _NAMES[kind]) for kind, number in report.copied.items() if kind in _NAMES and number]
    if others:
        print(f"with them {', '.join(others)}")
    if report.files:
        print(f"{count(report.files, 'file')} of {report.file_bytes:,} bytes")
    if report.shortened:
        output.say(
            f"of {count(report.shortened, 'item')} long errors, reasons or logs were shortened to what fits there"
        )
    if report.missing_count:
        output.say(
            f"{count(report.missing_count, 'file')} that jobs name could not be read, before the move as after it:"
            f" {', '.join(report.missing)}"
        )
    output.say(f"point HOLDFAST_URL to {shlex.quote(report.target)} and start your workers again")


@contextmanager
def _lines() -> Iterator[_Show]:
    """One line for each step."""
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
        case "waiting":
            return "waiting for what still runs"
        case "verifying":
            return "comparing both sides"
        case kind:
            return f"copying {kind}"
