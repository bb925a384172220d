"""Measures how many bytes of write-ahead log PostgreSQL writes for a job, from its submit to its completion.

The whole server is counted, vacuum included. There is a checkpoint before and none during it, so that pages are written
whole only for the reason that they are new to the log.
"""

from __future__ import annotations

import asyncio

from bench.harness.contenders import Figures, Order
from bench.harness.setup import open_setup
from bench.harness.stores import wal_position
from bench.harness.timing import jobs_per_second
from bench.workloads.drain import CONCURRENCY, fill


def bytes_per_job(order: Order) -> Figures:
    assert order.url is not None
    setup = open_setup(order)
    asyncio.run(fill(setup, 0))  # the tables
    setup.store.execute("CHECKPOINT")
    before = wal_position(order.url)
    asyncio.run(fill(setup, order.jobs))
    with setup.worker(f"--concurrency={CONCURRENCY}") as worker:
        jobs_per_second(worker, setup.marks, order.jobs, setup.anything_left)
        written = wal_position(order.url) - before
    assert setup.store.count("completed") == order.jobs
    return {"bytes": written / order.jobs}


MEASURES = {"wal": bytes_per_job}
