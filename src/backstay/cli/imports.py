"""`backstay import SOURCE ADDRESS`: brings the queue of another system in."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Annotated, TypeVar

import typer

from backstay import imports
from backstay.app import Backstay
from backstay.cli import app_loader, options, output
from backstay.cli.options import AppName, AsJson, Url
from backstay.cli.output import Column, Exit, Interrupted, safe
from backstay.core.checks import count, span
from backstay.errors import InvalidOption
from backstay.handlers import Handler
from backstay.imports.importer import Difference, Importer, Line, Part, Plan, Progress, Report

T = TypeVar("T")
Handlers = Mapping[str, Handler]
_NONE: Handlers = MappingProxyType({})
_STEPS = {"reading": "reading the source", "importing": "importing", "comparing": "comparing both sides"}
_LINES: tuple[Column[Line], ...] = (
    Column("TYPE", lambda line: line.job_type),
    Column("THERE", lambda line: line.state),
    Column("BECOMES", lambda line: line.becomes),
    Column("QUEUE", lambda line: line.queue),
    Column("JOBS", lambda line: f"{line.count:,}", right=True),
    Column("NOTE", lambda line: line.note),
)

_DIFFERENCES: tuple[Column[Difference], ...] = (
    Column("ID", lambda job: job.source_id),
    Column("TYPE", lambda job: job.job_type),
    Column("THERE", lambda job: job.there),
    Column("HERE", lambda job: job.here or "not here"),
)


def import_jobs(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=f"One of {', '.join(imports.SOURCES)}.")],
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="Where it is: its URL or file, as its page describes.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would become of it; write nothing anywhere.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Only list the jobs that differ, here and in the source; write nothing.")
    ] = False,
    only: Annotated[Part, typer.Option("--only", metavar="PART", help="active, ended or all (default).")] = Part.ALL,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="Queue for all of its jobs; default: that of each type.")
    ] = None,
    rename: Annotated[
        list[str] | None, typer.Option(metavar="OLD=NEW", help="Import a job type under another name; repeatable.")
    ] = None,
    yes: options.Yes = False,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Import the queue of another system.

    Shows first what would become of it and asks. Nothing is changed in the source. Jobs keep their ids, and those that
    are here already are left alone, so that it can be repeated, also after it was interrupted.
    """
    if compare and dry_run:
        raise InvalidOption("--dry-run is for before an import, --compare for after it: give one")
    if not (dry_run or compare or yes) and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidOption("there is no terminal to confirm the import on: add --dry-run to look at it, or --yes")
    renamed = _renamed(rename or [])

    async def differ(app: Backstay) -> list[Difference]:
        async with imports.opened(source, address) as found:
            with _shown() as show:
                importer = Importer(app, source, found, part=only, queue=queue, renamed=renamed, show=show)
                return await importer.differences()

    if compare:
        _print_differences(app_loader.run(url, app, differ), as_json)
        return Exit.OK

    async def work(app: Backstay, handlers: Handlers = _NONE) -> tuple[Plan | None, Report | None]:
        async with imports.opened(source, address) as found:
            with _shown() as show:
                importer = Importer(
                    app, source, found, part=only, queue=queue, renamed=renamed, handlers=handlers, show=show
                )
                plan = None if yes and not dry_run else await importer.plan()
            if plan is not None and not as_json:
                _print_plan(plan)
            if dry_run or (plan is not None and not _confirmed(plan, app)):
                return plan, None
            with _shown() as show:
                importer = Importer(app, source, found, part=only, queue=queue, renamed=renamed, show=show)
                return plan, await importer.run(options.actor(by))

    try:
        plan, report = _looked(url, app, work) if dry_run else app_loader.run(url, app, work, makes=True)
    except KeyboardInterrupt:
        raise Interrupted("interrupted: run the same command again to continue") from None
    if as_json:
        output.emit_json(report if report is not None else plan)
    elif report is not None:
        _print_report(report, shown=plan is not None)
    elif not dry_run:
        output.say("nothing was imported")
    return Exit.OK if dry_run or report is not None else Exit.FAILED


def _looked(url: str | None, name: str | None, work: Callable[[Backstay, Handlers], Awaitable[T]]) -> T:
    """Run a dry run. It needs no queue, and makes none where there is none yet: then it uses one that is thrown away.
    A queue that exists is opened without the application's code, which would announce its job types and schedules."""
    app = app_loader.load(url, name)

    async def looked() -> T:
        with tempfile.TemporaryDirectory(prefix="backstay-") as folder:
            there = app.url if await app.exists() else f"sqlite:///{folder}/none.db"
            bare = Backstay(there, artifacts=app._artifacts, clock=app.clock, purge_on_start=False)
            async with bare:
                return await work(bare, app.handlers)

    return asyncio.run(looked())


def _renamed(given: list[str]) -> dict[str, str]:
    found = {}
    for each in given:
        old, equals, new = each.partition("=")
        if not (old and equals and new):
            raise typer.BadParameter(f"{each!r}: write OLD=NEW", param_hint="--rename")
        found[old] = new
    return found


def _confirmed(plan: Plan, app: Backstay) -> bool:
    if not plan.jobs:
        return False
    return output.confirm(f"Import {count(plan.jobs, 'job')} into {app.location}?")


def _print_differences(found: list[Difference], as_json: bool) -> None:
    if as_json:
        output.emit_json(found)
        return
    if found:
        output.emit_table(_DIFFERENCES, found)
    output.say(f"{count(len(found), 'job')} differ" if len(found) != 1 else "1 job differs")


def _print_plan(plan: Plan) -> None:
    output.emit_table(_LINES, plan.lines)
    for refusal in plan.refused:
        more = ", …" if refusal.count > len(refusal.examples) else ""
        output.emit_paragraph(
            f"{count(refusal.count, 'job')} ({safe(refusal.state)}): {safe(refusal.reason)}:"
            f" {', '.join(map(safe, refusal.examples))}{more}",
            first="cannot be imported  ",
        )
    for note in plan.notes:
        output.say(note)
    output.say(f"{count(plan.jobs, 'job')} of {safe(plan.source)} can be imported, {plan.unmapped:,} cannot")


def _print_report(report: Report, *, shown: bool) -> None:
    if not shown:
        _print_plan(report.plan)
    here = f"; {count(report.here_before, 'job')} had been imported before" if report.here_before else ""
    print(f"imported {count(report.imported, 'job')} in {span(report.seconds)}{here}")
    if report.changed:
        output.say(
            f"both sides were compared: {count(report.compared, 'job')} match; changed since the import, here or in the"
            f" source: {count(report.changed, 'job')}, such as {', '.join(report.changed_examples)}"
        )
    else:
        output.say(f"both sides were compared and match: {count(report.compared, 'job')}")
    if report.not_imported:
        output.say(
            f"{count(report.not_imported, 'job')} not imported, because another job here has the dedup key, or a job"
            f" that it waits for is not here: {', '.join(report.not_imported_examples)}"
        )


@contextmanager
def _shown() -> Iterator[Callable[[Progress], None]]:
    """Show progress: a bar on a terminal, else a line for each step."""
    if not sys.stderr.isatty():
        said = ""

        def show(progress: Progress) -> None:
            nonlocal said
            if progress.step != said:
                said = progress.step
                output.say(f"{_STEPS[progress.step]}: {count(progress.total, 'job')}")

        yield show
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bars

    bars = Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        console=output.console(stderr=True),
        transient=True,
    )
    task = bars.add_task("", total=None)
    with bars:
        yield lambda progress: bars.update(
            task, description=_STEPS[progress.step], completed=progress.done, total=progress.total
        )
