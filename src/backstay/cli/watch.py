"""Follows a job to its end: a progress bar on a terminal, plain lines elsewhere, both on stderr."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from backstay.app import Backstay
from backstay.cli import output
from backstay.cli.output import Exit, of_status, safe
from backstay.clock import to_datetime
from backstay.core.checks import after_attempts, count, span
from backstay.core.states import TERMINAL, Status
from backstay.errors import JobCancelled, JobFailed
from backstay.job import Job, whole
from backstay.ops.explanation import Reason
from backstay.ops.presentation import why_cancelled

_LOOK_SECONDS = 0.25  # durable progress comes at most once a second; its end comes by signal
_Show = Callable[[Job, datetime], None]


async def follow(app: Backstay, job_id: str, timeout: timedelta | None) -> Job:
    """Show a job until it has ended. Raises ResultTimeout if that takes too long."""
    job = await app.get(job_id)
    if job.status not in TERMINAL:
        await _warn_if_unserved(app, job)
    with _view() as show:
        ended = asyncio.ensure_future(app.result(job_id, timeout))
        try:
            while job.status not in TERMINAL:
                show(job, to_datetime(app.clock.now()))
                await asyncio.wait({ended}, timeout=_LOOK_SECONDS)
                if ended.done():
                    with contextlib.suppress(JobFailed, JobCancelled):
                        ended.result()
                job = await app.get(job_id)
            show(job, to_datetime(app.clock.now()))
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)
    return job


def report(job: Job, as_json: bool) -> Exit:
    """Print the result on stdout, or on stderr why there is none."""
    if as_json:
        output.emit_json(whole(job))
    elif job.status is Status.COMPLETED and job.archived_at is None:
        output.emit_json(job.result)
    match job.status:
        case Status.COMPLETED if job.archived_at is not None:
            output.say(f"job {job.job_id} completed, but its result was deleted by retention: submit it again")
            return Exit.FAILED
        case Status.COMPLETED:
            pass
        case Status.CANCELLED:
            reason = why_cancelled(job)
            output.say(f"job {job.job_id} was cancelled{f': {reason}' if reason else ''}")
        case _:
            output.say(
                f"job {job.job_id} failed{after_attempts(job.failures, job.max_attempts)}: {job.last_error};"
                f' see "backstay show {job.job_id}"'
            )
    return of_status(job.status)


_UNSERVED = (
    Reason.QUEUE_PAUSED,
    Reason.TYPE_PAUSED,
    Reason.NO_WORKER,
    Reason.NO_WORKER_FOR_TYPE,
    Reason.NO_WORKER_FOR_QUEUE,
    Reason.NO_WORKER_FOR_VERSION,
)


async def _warn_if_unserved(app: Backstay, job: Job) -> None:
    if job.status is Status.PENDING:
        why = await app.explain(job.job_id)
        if why.reason in _UNSERVED:
            output.say(f"the job is waiting, because {why}")
        return
    for worker in await app.workers():
        if job.job_type in worker.job_types and job.queue in worker.queues and not worker.stopping:
            return
    output.say(
        f"no worker runs {job.job_type} jobs of the queue {job.queue} yet, so this one will wait:"
        ' start one with "backstay worker --app …"'
    )


def _view() -> Any:
    return _bar() if sys.stderr.isatty() else _lines()


@contextmanager
def _lines() -> Iterator[_Show]:
    """Print a line for each change of status or stage, and for each failed attempt."""
    last: tuple[object, ...] = ()
    failures: int | None = None

    def show(job: Job, now: datetime) -> None:
        nonlocal last, failures
        if failures is not None and job.failures > failures and job.status in (Status.PENDING, Status.PROCESSING):
            output.say(f"job {job.job_id}: {_failed(job)}")
        failures = job.failures
        what = (job.status, job.failures, job.stage if job.status is Status.PROCESSING else "")
        if what != last:
            last = what
            output.say(f"job {job.job_id} is {job.status.value}{_detail(job, now)}")

    yield show


def _failed(job: Job) -> str:
    return f"{job.failures} of {count(job.max_attempts, 'attempt')} failed: {job.last_error}"


def _elapsed(job: Job, now: datetime) -> str:
    """Return the elapsed time of the attempt that runs or has ended the job."""
    until = now if job.status is Status.PROCESSING else job.completed_at
    return "" if until is None or job.started_at is None else span(max(0.0, (until - job.started_at).total_seconds()))


def _detail(job: Job, now: datetime) -> str:
    match job.status:
        case Status.PROCESSING:
            return f" {job.progress:.0%} {job.stage}".rstrip()
        case Status.WAITING:
            return output.progress_line(job, now).removeprefix("waiting")  # is waiting for 2 children
        case Status.PENDING | Status.SCHEDULED | Status.RETRYING:
            return f": {output.progress_line(job, now)}"
        case Status.COMPLETED | Status.FAILED | Status.CANCELLED:
            return ""  # the outcome is printed at the end


@contextmanager
def _bar() -> Iterator[_Show]:
    from rich.console import JustifyMethod
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    def column(field: str, justify: JustifyMethod = "left", **options: Any) -> TextColumn:
        table_column = Column(no_wrap=True, **options)
        return TextColumn(f"{{task.fields[{field}]}}", justify=justify, markup=False, table_column=table_column)

    progress = Progress(
        column("type", max_width=24, overflow="ellipsis"),
        TextColumn("{task.fields[status]}", style="bold", markup=False, table_column=Column(width=10)),
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=10, max_width=40)),
        column("percent", "right", width=4),
        column("detail", ratio=1, overflow="ellipsis"),
        column("elapsed", "right", width=8),
        console=output.console(stderr=True),
        expand=True,
    )
    task = progress.add_task("", total=1.0, type="", status="", percent="", detail="", elapsed="")

    failures: int | None = None

    def show(job: Job, now: datetime) -> None:
        nonlocal failures
        if failures is not None and job.failures > failures and job.status not in TERMINAL:
            progress.console.print(safe(_failed(job)), soft_wrap=True)
        failures = job.failures
        progress.update(
            task,
            completed=job.progress,
            type=safe(job.job_type),
            status=job.status.value,
            percent=f"{job.progress:.0%}",
            detail="" if job.status is Status.COMPLETED else safe(output.short_line(job, now)),
            elapsed=_elapsed(job, now),
        )

    with progress:
        yield show
