"""Measures how soon Backstay's worker picks up a job, and what it costs while idle."""

from __future__ import annotations

import asyncio
import time

from bench.harness import timing
from bench.harness.contenders import Figures, Order
from bench.harness.payload import note
from bench.harness.processes import cpu_percent, resident_megabytes
from bench.harness.setup import JOB_TYPE, Setup, open_setup


def pickup_same(order: Order) -> Figures:
    return asyncio.run(_pickup_same(order))


def pickup_other(order: Order) -> Figures:
    setup = open_setup(order)
    with setup.worker():
        return asyncio.run(_pickup(setup, order.jobs))


def idle(order: Order) -> Figures:
    """Measure an idle worker process that has done one job."""
    setup = open_setup(order)
    with setup.worker() as worker:
        asyncio.run(_one_job(setup))
        time.sleep(1.0)
        return {"cpu": cpu_percent(worker.pid, order.idle_seconds), "rss": resident_megabytes(worker.pid)}


async def _pickup_same(order: Order) -> Figures:
    setup = open_setup(order)
    async with setup.app as app, app.worker():
        return await _load(setup, order.jobs)


async def _pickup(setup: Setup, jobs: int) -> Figures:
    async with setup.app:
        return await _load(setup, jobs)


async def _load(setup: Setup, jobs: int) -> Figures:
    async def submit(number: int) -> None:
        await setup.app.submit(JOB_TYPE, note(number))

    for _ in range(timing.WARM_UP_JOBS):
        await submit(timing.WARM_UP_NUMBER)
    await asyncio.to_thread(timing.wait_for_count, setup.marks, timing.WARM_UP_JOBS)
    await asyncio.sleep(timing.SETTLE_SECONDS)
    begun = await timing.load(submit, jobs)
    await asyncio.to_thread(timing.wait_for_count, setup.marks, timing.WARM_UP_JOBS + jobs)
    return timing.percentiles(begun, setup.marks)


async def _one_job(setup: Setup) -> None:
    async with setup.app as app:
        await app.submit(JOB_TYPE, note(timing.WARM_UP_NUMBER))
        await asyncio.to_thread(timing.wait_for_count, setup.marks, 1)


MEASURES = {"pickup-same": pickup_same, "pickup-other": pickup_other, "idle": idle}
