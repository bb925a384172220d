"""A worker that stops when no job is left to run now."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from backstay import Queue
from rules.jobs import QUEUE, app

LOOK_SECONDS = 0.1


class Paused(Exception):
    """The queue is paused."""


@dataclass(frozen=True, slots=True)
class Worked:
    done: int
    retrying: int
    failed: int


async def work(console: Console) -> Worked:
    """Run jobs until none is left. Jobs that wait for a retry are left to a later call: that may be minutes away."""
    before = await app.counts()
    if open_jobs := _open(await _queue()):
        await _embed(open_jobs, console)
    after, queue = await app.counts(), await _queue()
    return Worked(
        done=after["completed"] - before["completed"],
        retrying=0 if queue is None else queue.retrying,
        failed=after["failed"] - before["failed"],
    )


async def _embed(open_jobs: int, console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("embedding", total=open_jobs)
        async with app.worker():
            while left := _open(queue := await _queue()):
                if queue is not None and queue.paused and not queue.processing:
                    raise Paused(
                        f"the queue {QUEUE} is paused, and {left} wait in it:"
                        f" backstay --app rules.jobs:app queues resume {QUEUE}"
                    )
                open_jobs = max(open_jobs, left)  # new ones may have been submitted
                bar.update(task, total=open_jobs, completed=open_jobs - left)
                await asyncio.sleep(LOOK_SECONDS)
        bar.update(task, completed=open_jobs)


async def _queue() -> Queue | None:
    return next((queue for queue in await app.queues() if queue.name == QUEUE), None)


def _open(queue: Queue | None) -> int:
    return 0 if queue is None else queue.pending + queue.processing + queue.scheduled
