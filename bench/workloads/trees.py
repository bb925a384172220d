"""Measures one parent with ten thousand children, and one job with ten thousand dependents: the time of each step, and
the longest single transaction, which blocks others.

`scripts/bench trees [--jobs 10000] [--url …]`: a line for each step. It uses the port, without handlers: only the
store is measured. On PostgreSQL a transaction's time includes its round trips.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

from backstay.core.port import Store
from backstay.core.records import Staged
from backstay.core.states import Status
from backstay.engines import open_url
from backstay.engines.postgres.connection import Session
from backstay.engines.sqlite.writer import Writer
from backstay.limits import CHILDREN_PART_MAX, RELEASE_BATCH_MAX, SETTLE_BATCH_MAX
from backstay.testing.conformance.factories import NOW, Claim, new_job, record, request, running, settle

T = TypeVar("T")


class Meter:
    """The longest transaction of each step."""

    def __init__(self) -> None:
        self.longest = 0.0
        transact, once = Writer._transact, Session._once

        def timed(writer: Writer, group: Any) -> Any:
            began = time.perf_counter()
            try:
                return transact(writer, group)
            finally:
                self._note(began)

        async def timed_once(session: Session, verb: Any, transaction: bool, *rest: Any) -> Any:
            began = time.perf_counter()
            try:
                return await once(session, verb, transaction, *rest)
            finally:
                self._note(began)

        Writer._transact = timed  # type: ignore[method-assign]
        Session._once = timed_once  # type: ignore[method-assign]

    def _note(self, began: float) -> None:
        self.longest = max(self.longest, time.perf_counter() - began)

    async def step(self, name: str, call: Awaitable[T]) -> T:
        self.longest, began = 0.0, time.perf_counter()
        answer = await call
        seconds = round(time.perf_counter() - began, 3)
        print(json.dumps({"step": name, "seconds": seconds, "longest_transaction": round(self.longest, 3)}))
        return answer


async def children(store: Store, meter: Meter, jobs: int) -> None:
    parent = await running(store, job_type="parent")
    born = [new_job(job_type="child", parent_job_id=parent.job_id, own_id=True) for _ in range(jobs)]
    parts = [born[start : start + CHILDREN_PART_MAX] for start in range(0, jobs, CHILDREN_PART_MAX)]

    async def stage() -> None:
        for part, some in enumerate(parts):
            await store.stage(parent.hold, part, some, NOW)

    await meter.step("children: staged", stage())
    await meter.step("children: wait", settle(store, parent.waits(staged=Staged(len(parts), jobs))))
    await meter.step("children: unpacked", quiet(store))
    await meter.step("children: claimed and completed", work_off(store, "child", jobs))
    assert (await record(store, parent.job_id)).status is Status.PENDING


async def dependents(store: Store, meter: Meter, jobs: int) -> None:
    first = await running(store, job_type="first")
    waiting = [new_job(job_type="dependent", depends_on=(first.job_id,)) for _ in range(jobs)]
    await meter.step("dependents: submitted in one batch", store.insert(waiting, NOW))
    await meter.step("dependents: the end of what they depend on", settle(store, first.completes()))
    await meter.step("dependents: the rest released", quiet(store))
    counts = await store.counts()
    assert counts["waiting"] == 0


async def quiet(store: Store) -> None:
    while await store.release(NOW, RELEASE_BATCH_MAX):
        pass


async def work_off(store: Store, job_type: str, jobs: int) -> None:
    done = 0
    while done < jobs:
        asked = request(slots={job_type: SETTLE_BATCH_MAX}, limit=SETTLE_BATCH_MAX)
        claims = [Claim(job, asked.token) for job in await store.claim(asked, NOW)]
        await settle(store, *(claim.completes() for claim in claims))
        done += len(claims)


async def run(url: str, jobs: int) -> None:
    meter = Meter()
    store = open_url(url)
    await store.open()
    try:
        await children(store, meter, jobs)
        await dependents(store, meter, jobs)
    finally:
        await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--url", help="an empty queue; a new file by default")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(asked.url or f"sqlite:///{folder}/jobs.db", asked.jobs))


if __name__ == "__main__":
    main()
