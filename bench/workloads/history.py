"""Measures a drain in a file with a million finished and 200,000 waiting jobs, and in a file without them.

Both sides are measured alike: the worker drains without end in sight, and once enough handlers have started
the store is asked how many jobs are settled. Settled jobs divided by the time since the first handler's
start is the rate, so that asking may take long in a large file without blurring the figure.
"""

from __future__ import annotations

import asyncio

from bench.harness.contenders import Figures, Order
from bench.harness.payload import note
from bench.harness.setup import JOB_TYPE, Setup, open_setup
from bench.harness.timing import wait_for_marks
from bench.workloads.drain import CONCURRENCY

BARE_PENDING_FACTOR = 2  # enough that the drain without history has no end in sight either


def drain_with_history(order: Order) -> Figures:
    return _drain(order, finished=order.finished, pending=order.pending)


def drain_without_history(order: Order) -> Figures:
    return _drain(order, finished=0, pending=BARE_PENDING_FACTOR * order.jobs)


def _drain(order: Order, *, finished: int, pending: int) -> Figures:
    setup = open_setup(order, marked_jobs=0)
    name = f"prepared-{finished}-{pending}"
    if not setup.store.is_kept(name):
        asyncio.run(prepare(setup, finished, pending))
        setup.store.keep(name)
        setup.marks.clear()
    setup.store.restore(name)
    with setup.worker(f"--concurrency={CONCURRENCY}") as worker:
        wait_for_marks(worker, setup.marks, order.jobs)
        unsettled, at_ns = setup.store.unsettled()
    return {"rate": (pending - unsettled) / ((at_ns - setup.marks.first_ns) / 1e9)}


async def prepare(setup: Setup, finished: int, pending: int) -> None:
    """Create one finished and one waiting job with Backstay itself, the rest by copying their rows."""
    async with setup.app as app:
        if finished:
            async with app.worker():
                done = await app.submit(JOB_TYPE, note(0))
                await done.result(timeout=30)
        waiting = await app.submit(JOB_TYPE, note(0))
    if finished:
        setup.store.multiply(done.job_id, range(1, finished))
    setup.store.multiply(waiting.job_id, range(finished + 1, finished + pending))


MEASURES = {"history": drain_with_history}
WITHOUT_HISTORY = {"history": drain_without_history}
