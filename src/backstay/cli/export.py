"""`backstay export` and `replay`: a job in one file, and its run on another machine without the queue."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from backstay import codec
from backstay.app import Backstay
from backstay.cli import app_loader, output
from backstay.cli.options import AppName, AsJson, JobId, Url
from backstay.cli.output import Exit, safe, safe_lines
from backstay.core.checks import count
from backstay.replay import ReplayReport
from backstay.replay import replay as run_again


def export(
    job_id: JobId,
    to: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The file to write; else ID.backstay.zip.")
    ] = None,
    sensitive: Annotated[bool, typer.Option("--sensitive", help="Include the values of sensitive fields.")] = False,
    decrypt: Annotated[bool, typer.Option("--decrypt", help="Decrypt encrypted fields.")] = False,
    no_files: Annotated[bool, typer.Option("--no-files", help="Leave the files of the jobs out.")] = False,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Write a job with its payload, steps, output, files, log and tree to one file, for "backstay replay"."""

    async def work(app: Backstay) -> None:
        found = await app_loader.job_id(app, job_id)
        path = to or Path(f"{found}.backstay.zip")
        exported = await app.export_job(found, path, sensitive=sensitive, decrypt=decrypt, files=not no_files)
        if as_json:
            output.emit_json(msgspec.to_builtins(exported))
            return
        print(f"{safe(str(path))}: {count(len(exported.jobs), 'job')}, {exported.size:,} bytes")
        for each in exported.left_out:
            output.say(f"left out: {each}")
        if exported.masked:
            output.say('sensitive fields are masked: to replay it, export it with "--sensitive"')

    app_loader.run(url, app, work)


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help='What "backstay export" has written.')],
    as_json: AsJson = False,
    app: AppName = None,
) -> int:
    """Run an exported job again here, with its recorded steps and without its queue; exit code 1 if it fails."""
    report = asyncio.run(run_again(app_loader.load(None, app), file))
    if as_json:
        output.emit_json(msgspec.to_builtins(report) | {"diverged": list(report.diverged)})
    else:
        _show(report)
    return Exit.OK if report.completed else Exit.FAILED


def _show(report: ReplayReport) -> None:
    print(f"{safe(report.job_type)} {report.job_id}, attempt {report.attempt}")
    print(f"recorded  {safe_lines(report.recorded)}")
    if report.error is None:
        value = f": {codec.encode(report.result).decode()}" if report.completed else ""
        print(f"now       {report.outcome}{safe_lines(value)}")
    else:
        print(f"now       failed: {safe_lines(f'{report.error.type}: {report.error.message}')}")
    for name, steps in (("used", report.steps_used), ("new", report.steps_new), ("unused", report.steps_unused)):
        if steps:
            print(f"steps     {name}: {safe(', '.join(steps))}")
    if report.submitted:
        print(f"children  {safe(', '.join(report.submitted))} (not run)")
    for each in report.diverged:
        print(f"diverged  {safe_lines(each)}")
    if not report.diverged:
        print("diverged  in nothing")
    for each in report.left_out:
        print(f"left out  {safe(each)}")
    if report.error is not None and report.error.traceback:
        print(safe_lines(report.error.traceback))
    if report.log:
        print(safe_lines(report.log), end="")
