"""Measures submits: one at a time, from blocking code and from asyncio, from many tasks at once, and in bulk. No worker
runs."""

from __future__ import annotations

import asyncio
import time

from bench.harness.contenders import Figures, Order
from bench.harness.payload import NotePayload, notes
from bench.harness.setup import JOB_TYPE, open_setup

TASKS = 64
WARM_UP_JOBS = 50


def submit_blocking(order: Order) -> Figures:
    """One thread with the blocking API, as in Django or a script."""
    setup, payloads = open_setup(order), notes(order.jobs)
    from bench.harness.blocking_app import app  # reads the variables that the set-up has written, on import

    with app:
        for payload in payloads[:WARM_UP_JOBS]:
            app.submit(JOB_TYPE, payload)
        start = time.perf_counter()
        for payload in payloads:
            app.submit(JOB_TYPE, payload)
        seconds = time.perf_counter() - start
    assert setup.store.count("pending") == order.jobs + WARM_UP_JOBS
    return {"rate": order.jobs / seconds}


def submit_one(order: Order) -> Figures:
    return asyncio.run(_submit_one(order))


def submit_concurrent(order: Order) -> Figures:
    return asyncio.run(_submit_concurrent(order))


def submit_many(order: Order) -> Figures:
    return asyncio.run(_submit_many(order))


async def _submit_one(order: Order) -> Figures:
    setup, payloads = open_setup(order), notes(order.jobs)
    async with setup.app as app:
        for payload in payloads[:WARM_UP_JOBS]:
            await app.submit(JOB_TYPE, payload)
        start = time.perf_counter()
        for payload in payloads:
            await app.submit(JOB_TYPE, payload)
        seconds = time.perf_counter() - start
    assert setup.store.count("pending") == order.jobs + WARM_UP_JOBS
    return {"rate": order.jobs / seconds}


async def _submit_concurrent(order: Order) -> Figures:
    """Each task awaits its submit before it makes the next one."""
    setup, payloads = open_setup(order), notes(order.jobs)

    async def submit_each(share: list[NotePayload]) -> None:
        for payload in share:
            await app.submit(JOB_TYPE, payload)

    async with setup.app as app:
        await submit_each(payloads[:WARM_UP_JOBS])
        start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for task in range(TASKS):
                group.create_task(submit_each(payloads[task::TASKS]))
        seconds = time.perf_counter() - start
    assert setup.store.count("pending") == order.jobs + WARM_UP_JOBS
    return {"rate": order.jobs / seconds}


async def _submit_many(order: Order) -> Figures:
    setup = open_setup(order)
    jobs = [(JOB_TYPE, payload) for payload in notes(order.jobs)]
    async with setup.app as app:
        await app.submit_many(jobs[:WARM_UP_JOBS])
        start = time.perf_counter()
        await app.submit_many(jobs)
        seconds = time.perf_counter() - start
    assert setup.store.count("pending") == order.jobs + WARM_UP_JOBS
    return {"rate": order.jobs / seconds}


MEASURES = {
    "submit-blocking": submit_blocking,
    "submit-one": submit_one,
    "submit-concurrent": submit_concurrent,
    "submit-many": submit_many,
}
