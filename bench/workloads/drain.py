"""Measures how fast Backstay's worker command drains a queue of no-op jobs."""

from __future__ import annotations

import asyncio

from bench.harness.contenders import Figures, Order
from bench.harness.payload import notes
from bench.harness.setup import JOB_TYPE, Setup, open_setup
from bench.harness.timing import jobs_per_second

CONCURRENCY = 100
FILL_BATCH = 10_000


def drain(order: Order, processes: int = 1) -> Figures:
    setup = open_setup(order)
    asyncio.run(fill(setup, order.jobs))
    with setup.worker(f"--concurrency={CONCURRENCY}", f"--processes={processes}") as worker:
        rate = jobs_per_second(worker, setup.marks, order.jobs, setup.anything_left)
    assert setup.store.count("completed") == order.jobs
    return {"rate": rate}


async def fill(setup: Setup, jobs: int) -> None:
    payloads = notes(jobs)
    async with setup.app as app:
        for start in range(0, jobs, FILL_BATCH):
            await app.submit_many([(JOB_TYPE, payload) for payload in payloads[start : start + FILL_BATCH]])


MEASURES = {"drain": drain}
TWO_PROCESSES = {"drain": lambda order: drain(order, processes=2)}
