"""Measures what DynamoDB charges: read and write units per job, as it reports them, and those of an idle worker."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from backstay import Backstay, ids
from backstay.backoff import Backoff
from backstay.clock import MICROS, SystemClock
from backstay.core.lifecycle import Completed, decide
from backstay.core.records import ClaimedJob, ClaimRequest, NewJob
from backstay.engines.dynamodb import transport
from backstay.engines.dynamodb.store import DynamoStore
from pydantic import BaseModel

from bench.harness.contenders import Figures, Order
from bench.harness.payload import note, notes

JOB_TYPE = "noop"
BATCH = 50  # jobs per transaction
LEASE_MICROS = 60 * MICROS
SECONDS_OF_DAY = 86_400
IDLE_LOOKS = 9  # times as long as for other workers: this one polls every half minute
clock = SystemClock()


class Note(BaseModel):
    user_id: int
    text: str


def one_by_one(order: Order) -> Figures:
    return asyncio.run(_jobs(order, 1))


def together(order: Order) -> Figures:
    return asyncio.run(_jobs(order, BATCH))


def idle(order: Order) -> Figures:
    return asyncio.run(_idle(order))


async def _jobs(order: Order, batch: int) -> Figures:
    """Meter each of the three verbs separately, on batches of this size."""
    assert order.url is not None
    app = Backstay(order.url)
    _register(app)
    payloads = [app.handlers[JOB_TYPE].encode(each) for each in notes(batch)]
    units: dict[str, float] = dict.fromkeys(("submit", "claim", "complete", "reads"), 0.0)
    async with app:
        store = app.store
        assert isinstance(store, DynamoStore)
        begun = time.perf_counter()
        for start in range(0, order.jobs, batch):
            now = clock.now()
            jobs = [_new_job(job_id, text, now) for job_id, text in zip(ids.new_ids(batch, now), payloads, strict=True)]
            mark = _units(store)
            await store.insert(jobs, now)
            mark = _add(units, "submit", store, mark)
            claimed = await store.claim(_request(batch, start), clock.now())
            mark = _add(units, "claim", store, mark)
            await store.apply([_completion(job, start) for job in claimed], clock.now())
            _add(units, "complete", store, mark)
            assert len(claimed) == batch
        seconds = time.perf_counter() - begun
    return {name: value / order.jobs for name, value in units.items()} | {"rate": order.jobs / seconds}


async def _idle(order: Order) -> Figures:
    """Meter all stores of the process: a worker has a separate one for leases and heartbeats."""
    assert order.url is not None
    meters: list[transport.Meter] = []

    class Kept(transport.Meter):
        def __init__(self) -> None:
            super().__init__()
            meters.append(self)

    transport.Meter = Kept  # type: ignore[misc]
    app = Backstay(order.url)
    _register(app)
    seconds = IDLE_LOOKS * order.idle_seconds
    async with app, app.worker():
        await (await app.submit(JOB_TYPE, note(0))).result(timeout=30)
        await asyncio.sleep(1.0)
        start = [(each.read_units, each.write_units) for each in meters]
        await asyncio.sleep(seconds)
        end = [(each.read_units, each.write_units) for each in meters]
    a_day = SECONDS_OF_DAY / seconds
    reads = sum(after[0] - before[0] for before, after in zip(start, end, strict=True))
    writes = sum(after[1] - before[1] for before, after in zip(start, end, strict=True))
    return {"reads": reads * a_day, "writes": writes * a_day}


def _register(app: Backstay) -> None:
    @app.job(JOB_TYPE)
    async def noop(payload: Note) -> dict[str, int]:
        return {"seen": payload.user_id}


def _new_job(job_id: str, payload: str, now: int) -> NewJob:
    return NewJob(job_id, JOB_TYPE, "default", 50, payload, now, 5, 3600 * MICROS)


def _request(limit: int, number: int) -> ClaimRequest:
    return ClaimRequest(
        worker_id="bench:1:abcdef",
        worker_version="1",
        queues=("default",),
        slots={JOB_TYPE: limit},
        limit=limit,
        lease_micros=LEASE_MICROS,
        token=f"{number:032x}",
    )


def _completion(job: ClaimedJob, number: int) -> Any:
    return decide(
        job,
        Completed('{"seen":100001}'),
        now=clock.now(),
        backoff=Backoff(),
        draw=0.5,
        token=f"{number:032x}",
        by="bench:1:abcdef",
    )


def _units(store: DynamoStore) -> tuple[float, float]:
    meter = store.meter
    return meter.read_units, meter.write_units


def _add(units: dict[str, float], verb: str, store: DynamoStore, before: tuple[float, float]) -> tuple[float, float]:
    after = _units(store)
    units[verb] += after[1] - before[1]
    units["reads"] += after[0] - before[0]
    return after


MEASURES = {"units-one": one_by_one, "units-together": together, "units-idle": idle}
