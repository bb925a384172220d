"""Holdfast's worker: how fast it drains, how soon it picks up a job, and what it costs while idle."""

from __future__ import annotations

import asyncio
import time

import pickup
from contenders import Figures, Order
from drain import jobs_per_second
from holdfast_setup import JOB_TYPE, Setup, open_setup
from payload import note, notes
from processes import cpu_percent, resident_megabytes

DRAIN_CONCURRENCY = 100
FILL_BATCH = 10_000


def drain(order: Order, processes: int = 1) -> Figures:
    setup = open_setup(order)
    asyncio.run(_fill(setup, order.jobs))
    with setup.worker(f"--concurrency={DRAIN_CONCURRENCY}", f"--processes={processes}") as worker:
        rate = jobs_per_second(worker, setup.marks, order.jobs, setup.anything_left)
    assert setup.store.count("completed") == order.jobs
    return {"rate": rate}


def drain_by_two(order: Order) -> Figures:
    return drain(order, processes=2)


def pickup_same(order: Order) -> Figures:
    return asyncio.run(_pickup_same(order))


def pickup_other(order: Order) -> Figures:
    setup = open_setup(order)
    with setup.worker():
        return asyncio.run(_pickup(setup, order.jobs))


def idle(order: Order) -> Figures:
    """An idle worker process that has done one job."""
    setup = open_setup(order)
    with setup.worker() as worker:
        asyncio.run(_one_job(setup))
        time.sleep(1.0)
        return {"cpu": cpu_percent(worker.pid, order.idle_seconds), "rss": resident_megabytes(worker.pid)}


async def _fill(setup: Setup, jobs: int) -> None:
    payloads = notes(jobs)
    async with setup.app as app:
        for start in range(0, jobs, FILL_BATCH):
            await app.submit_many([(JOB_TYPE, payload) for payload in payloads[start : start + FILL_BATCH]])


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

    for _ in range(pickup.WARM_UP_JOBS):
        await submit(pickup.WARM_UP_NUMBER)
    await asyncio.to_thread(pickup.wait_for_count, setup.marks, pickup.WARM_UP_JOBS)
    await asyncio.sleep(pickup.SETTLE_SECONDS)
    begun = await pickup.load(submit, jobs)
    await asyncio.to_thread(pickup.wait_for_count, setup.marks, pickup.WARM_UP_JOBS + jobs)
    return pickup.percentiles(begun, setup.marks)


async def _one_job(setup: Setup) -> None:
    async with setup.app as app:
        await app.submit(JOB_TYPE, note(pickup.WARM_UP_NUMBER))
        await asyncio.to_thread(pickup.wait_for_count, setup.marks, 1)
