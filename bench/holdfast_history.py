"""Drain in a file with a million finished and 200,000 waiting jobs, and the same in a file without them.

Both sides are measured alike: the worker drains without end in sight, and once enough handlers have started
the store is asked how many jobs are settled. Settled jobs divided by the time since the first handler's
start is the rate, so that asking may take long in a large file without blurring the figure.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import apsw

import large_file
from contenders import Figures, Order
from drain import wait_for_marks
from holdfast_setup import JOB_TYPE, Setup, open_setup
from holdfast_worker import DRAIN_CONCURRENCY
from payload import note

UNSETTLED = """
SELECT (SELECT count(*) FROM job WHERE status = 'pending')
     + (SELECT count(*) FROM job WHERE status = 'processing')
"""
BARE_PENDING_FACTOR = 2  # enough that the drain without history has no end in sight either


def drain_large(order: Order) -> Figures:
    return _drain(order, finished=order.finished, pending=order.pending)


def drain_bare(order: Order) -> Figures:
    return _drain(order, finished=0, pending=BARE_PENDING_FACTOR * order.jobs)


def _drain(order: Order, *, finished: int, pending: int) -> Figures:
    setup = open_setup(order, marked_jobs=0)
    prepared = order.shared / f"prepared-{finished}-{pending}.db"
    if not prepared.exists():
        asyncio.run(prepare(setup, finished, pending))
        setup.file.rename(prepared)
        setup.marks.clear()
    large_file.copy(prepared, setup.file)
    with setup.worker(f"--concurrency={DRAIN_CONCURRENCY}") as worker:
        wait_for_marks(worker, setup.marks, order.jobs)
        unsettled, at_ns = snapshot(setup.file)
    return {"rate": (pending - unsettled) / ((at_ns - setup.marks.first_ns) / 1e9)}


def snapshot(file: Path) -> tuple[int, float]:
    """The number of unsettled jobs, and the moment for which it is true: when the reading began."""
    connection = apsw.Connection(str(file))
    connection.set_busy_timeout(10_000)
    try:
        connection.execute("BEGIN")
        before = time.monotonic_ns()
        connection.execute("SELECT 1 FROM job LIMIT 1").fetchall()  # fixes what this transaction sees
        after = time.monotonic_ns()
        return connection.execute(UNSETTLED).get, (before + after) / 2
    finally:
        connection.close()


async def prepare(setup: Setup, finished: int, pending: int) -> None:
    """One finished and one waiting job by Holdfast itself, the rest by copying their rows."""
    async with setup.app as app:
        if finished:
            async with app.worker():
                done = await app.submit(JOB_TYPE, note(0))
                await done.result(timeout=30)
        waiting = await app.submit(JOB_TYPE, note(0))
    if finished:
        large_file.multiply(setup.file, "job", done.job_id, range(1, finished))
    large_file.multiply(setup.file, "job", waiting.job_id, range(finished + 1, finished + pending))
