"""The common code of peers that store jobs in PostgreSQL and submit from asyncio."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Protocol

from bench.harness import timing
from bench.harness.contenders import Figures, Measure, Order
from bench.harness.marks import FILE_VARIABLE as MARKS_VARIABLE
from bench.harness.marks import Marks
from bench.harness.processes import cpu_percent, resident_megabytes, worker_process
from bench.harness.stores import PostgresDatabase, wal_position
from bench.harness.timing import jobs_per_second

WARM_UP_JOBS = 50
FILL_BATCH = 5_000
URL_VARIABLE = "BENCH_POSTGRES_URL"


class Client(Protocol):
    async def submit(self, number: int) -> object: ...

    async def submit_many(self, numbers: Sequence[int]) -> object: ...


class Peer(Protocol):
    WORKER: str  # the module to run
    UNSETTLED: str  # a statement that counts

    async def install(self, url: str) -> None: ...

    def client(self, url: str) -> AbstractAsyncContextManager[Client]: ...


class Measurements:
    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def measures(self) -> dict[str, Measure]:
        return {
            "submit-one": lambda order: asyncio.run(self._submit_one(order)),
            "submit-many": lambda order: asyncio.run(self._submit_many(order)),
            "drain": self._drain,
            "wal": self._wal,
            "pickup-other": self._pickup,
            "idle": self._idle,
        }

    async def _submit_one(self, order: Order) -> Figures:
        self._open(order)
        await self._peer.install(_url(order))
        async with self._peer.client(_url(order)) as client:
            for number in range(WARM_UP_JOBS):
                await client.submit(number)
            start = time.perf_counter()
            for number in range(order.jobs):
                await client.submit(number)
            return {"rate": order.jobs / (time.perf_counter() - start)}

    async def _submit_many(self, order: Order) -> Figures:
        self._open(order)
        await self._peer.install(_url(order))
        async with self._peer.client(_url(order)) as client:
            await client.submit_many(range(WARM_UP_JOBS))
            start = time.perf_counter()
            for first in range(0, order.jobs, FILL_BATCH):
                await client.submit_many(range(first, min(order.jobs, first + FILL_BATCH)))
            return {"rate": order.jobs / (time.perf_counter() - start)}

    def _drain(self, order: Order) -> Figures:
        marks = self._open(order)
        asyncio.run(self._peer.install(_url(order)))
        asyncio.run(self._fill(order))
        store = PostgresDatabase(order)
        store.execute("VACUUM ANALYZE")
        store.execute("CHECKPOINT")
        with self._worker(order) as worker:
            return {"rate": jobs_per_second(worker, marks, order.jobs, lambda: store.value(self._peer.UNSETTLED) > 0)}

    def _wal(self, order: Order) -> Figures:
        marks = self._open(order)
        asyncio.run(self._peer.install(_url(order)))
        store = PostgresDatabase(order)
        store.execute("CHECKPOINT")
        before = wal_position(_url(order))
        asyncio.run(self._fill(order))
        with self._worker(order) as worker:
            jobs_per_second(worker, marks, order.jobs, lambda: store.value(self._peer.UNSETTLED) > 0)
            return {"bytes": (wal_position(_url(order)) - before) / order.jobs}

    def _pickup(self, order: Order) -> Figures:
        marks = self._open(order)
        asyncio.run(self._peer.install(_url(order)))
        with self._worker(order):
            return asyncio.run(self._load(order, marks))

    def _idle(self, order: Order) -> Figures:
        marks = self._open(order)
        asyncio.run(self._peer.install(_url(order)))
        with self._worker(order) as worker:
            asyncio.run(self._one_job(order, marks))
            time.sleep(1.0)
            return {"cpu": cpu_percent(worker.pid, order.idle_seconds), "rss": resident_megabytes(worker.pid)}

    async def _fill(self, order: Order) -> None:
        async with self._peer.client(_url(order)) as client:
            for first in range(0, order.jobs, FILL_BATCH):
                await client.submit_many(range(first, min(order.jobs, first + FILL_BATCH)))

    async def _load(self, order: Order, marks: Marks) -> Figures:
        async with self._peer.client(_url(order)) as client:
            for _ in range(timing.WARM_UP_JOBS):
                await client.submit(timing.WARM_UP_NUMBER)
            await asyncio.to_thread(timing.wait_for_count, marks, timing.WARM_UP_JOBS)
            await asyncio.sleep(timing.SETTLE_SECONDS)
            begun = await timing.load(client.submit, order.jobs)
            await asyncio.to_thread(timing.wait_for_count, marks, timing.WARM_UP_JOBS + order.jobs)
        return timing.percentiles(begun, marks)

    async def _one_job(self, order: Order, marks: Marks) -> None:
        async with self._peer.client(_url(order)) as client:
            await client.submit(timing.WARM_UP_NUMBER)
            await asyncio.to_thread(timing.wait_for_count, marks, 1)

    def _open(self, order: Order) -> Marks:
        os.environ[URL_VARIABLE] = _url(order)
        os.environ[MARKS_VARIABLE] = str(order.folder / "marks")
        return Marks.create(order.folder / "marks", order.jobs)

    def _worker(self, order: Order) -> AbstractContextManager[subprocess.Popen[bytes]]:
        return worker_process([sys.executable, "-m", self._peer.WORKER], order.folder / "worker.log", {})


def _url(order: Order) -> str:
    assert order.url is not None
    return order.url
