"""Measures claims by a worker that asks for many types and queues, what they do to the submits of others, and what it
costs while idle.

A pair of a type and a queue is a lane. A job waits in each lane, so that as many have to be compared as can be.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psycopg
from backstay import Backstay
from backstay.clock import MICROS, SystemClock
from backstay.core.port import Store
from backstay.core.records import ClaimRequest
from backstay.engines import open_url
from backstay.testing.conformance.factories import new_job

from bench.harness.contenders import Figures, Measure, Order
from bench.harness.processes import ROOT, cpu_of_server, cpu_percent, worker_process
from bench.harness.stores import PostgresDatabase, SqliteFile

IDLE_TYPES = 200
SUBMITS, SUBMIT_PAUSE_SECONDS = 100, 0.02
START_SECONDS = 10.0  # of a worker, with its first looks at everything
_TOGETHER = 1_000

now = SystemClock().now


@dataclass(frozen=True, slots=True)
class Shape:
    types: int
    queues: int
    own: bool = False  # each type has jobs only in a queue of its own

    @property
    def type_names(self) -> list[str]:
        return [f"type-{number:03d}" for number in range(self.types)]

    @property
    def queue_names(self) -> tuple[str, ...]:
        return tuple(f"queue-{number:04d}" for number in range(self.queues))

    def lanes(self) -> list[tuple[str, str]]:
        if self.own:
            return list(zip(self.type_names, self.queue_names, strict=True))
        return [(job_type, queue) for job_type in self.type_names for queue in self.queue_names]


SHAPES = {
    "lanes-1x1": Shape(1, 1),
    "lanes-5x1000": Shape(5, 1_000),
    "lanes-5x2000": Shape(5, 2_000),
    "lanes-200x200": Shape(200, 200),
    "lanes-200-own": Shape(200, 200, own=True),
}


def measure_of(shape: Shape) -> Measure:
    return lambda order: asyncio.run(_claims(order, shape))


async def _claims(order: Order, shape: Shape) -> Figures:
    url = _url(order)
    server = _server_pid(url)
    store = open_url(url)
    await store.open()
    lanes = shape.lanes()
    lanes *= math.ceil(2 * order.jobs / len(lanes))  # so that a job is left in each
    for start in range(0, len(lanes), _TOGETHER):
        jobs = [new_job(job_type=job_type, queue=queue) for job_type, queue in lanes[start : start + _TOGETHER]]
        await store.insert(jobs, now())
    await _claim(store, shape)
    used, times = time.process_time() + _cpu_of(server), []
    for _ in range(order.jobs):
        began = time.perf_counter()
        taken = await _claim(store, shape)
        times.append(1_000 * (time.perf_counter() - began))
        assert taken == 1, "there are jobs left"
    used = time.process_time() + _cpu_of(server) - used
    alone = await _submits_of_another(url)
    meanwhile = asyncio.ensure_future(_submits_of_another(url))
    while not meanwhile.done():
        await _claim(store, shape)
        await asyncio.sleep(0)
    await store.close()
    return {
        "p50": median(times),
        "p99": _percentile(times, 0.99),
        "cpu": 1_000 * used / len(times),
        "alone": median(alone),
        "alone-max": max(alone),
        "submit": median(meanwhile.result()),
        "submit-max": max(meanwhile.result()),
    }


async def _claim(store: Store, shape: Shape) -> int:
    request = ClaimRequest(
        worker_id="bench",
        worker_version="1",
        queues=shape.queue_names,
        slots=dict.fromkeys(shape.type_names, 1),
        limit=1,
        lease_micros=3_600 * MICROS,
        token=secrets.token_hex(8),
    )
    return len(await store.claim(request, now()))


def _percentile(times: Sequence[float], share: float) -> float:
    return sorted(times)[math.ceil(share * len(times)) - 1]


async def _submits_of_another(url: str) -> list[float]:
    """The times of the submits of another process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.workloads.lanes", cwd=ROOT, stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]), "BACKSTAY_URL": url},
    )  # fmt: skip
    said, _ = await process.communicate()
    times: list[float] = json.loads(said)
    return times


async def _submits(url: str) -> list[float]:
    store = open_url(url)
    await store.open()
    times = []
    for _ in range(SUBMITS + 1):
        began = time.perf_counter()
        await store.insert([new_job(job_type="elsewhere", queue="elsewhere")], now())
        times.append(1_000 * (time.perf_counter() - began))
        await asyncio.sleep(SUBMIT_PAUSE_SECONDS)
    await store.close()
    return times[1:]


def idle(order: Order) -> Figures:
    """Measure an idle worker process with many types, each in a queue of its own."""
    url = _url(order)
    asyncio.run(_migrated(url))
    command = (sys.executable, "-m", "backstay", "worker", "--app=bench.workloads.lanes:app")
    with worker_process(command, order.folder / "worker.log", {"BACKSTAY_URL": url}) as process:
        time.sleep(START_SECONDS)
        server = _server_pid(url)
        before, began = _cpu_of(server), time.monotonic()
        cpu = cpu_percent(process.pid, order.idle_seconds)
        return {"cpu": cpu, "server": 100 * (_cpu_of(server) - before) / (time.monotonic() - began)}


async def _migrated(url: str) -> None:
    store = open_url(url)
    await store.open()
    await store.close()


def _url(order: Order) -> str:
    return (SqliteFile(order) if order.url is None else PostgresDatabase(order)).url


def _server_pid(url: str) -> int | None:
    """The database server's first process, of which all others are children."""
    if not url.startswith("postgres"):
        return None
    with psycopg.connect(url) as connection:
        stat = Path(f"/proc/{connection.info.backend_pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def _cpu_of(server: int | None) -> float:
    return 0.0 if server is None else cpu_of_server(server)


def _app() -> Backstay:
    opened = Backstay(os.environ.get("BACKSTAY_URL", "sqlite:///jobs.db"))
    shape = Shape(IDLE_TYPES, IDLE_TYPES, own=True)
    for job_type, queue in shape.lanes():
        opened.job(job_type, queue=queue)(_work)
    return opened


async def _work(payload: dict[str, object]) -> None:
    """Nothing is run here."""


MEASURES = {name: measure_of(shape) for name, shape in SHAPES.items()} | {"lanes-idle": idle}
app = _app()

if __name__ == "__main__":
    print(json.dumps(asyncio.run(_submits(os.environ["BACKSTAY_URL"]))))
