"""Throughput after many lost claims, compared with that of as many ordinary jobs.

    scripts/campaign lost-claims --engine postgres --jobs 3000 --workers 4

Every job takes 10 ms. `lost` are jobs whose claims expired once, `alone` those that run alone, because it happened
again; with the latter come ordinary jobs, which must get at least half of what they get otherwise. Shares are within a
round, and the median of the rounds counts: a machine that does other things meanwhile changes its pace.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import msgspec

from backstay import Backstay
from backstay.core.records import ClaimRequest, Lost
from backstay.limits import CLAIM_LIMIT
from backstay.worker.maintenance import Sweeper
from tests.campaigns.rounds import say, versions
from tests.support.servers.dynamodb import DynamoDB
from tests.support.servers.postgres import Postgres

JOB_SECONDS = 0.01
SECONDS_MAX = 600.0
SHARE_MIN = 0.5  # of the usual throughput


class Figures(msgspec.Struct, frozen=True):
    usual_seconds: float  # for so many ordinary jobs
    lost_seconds: float  # for as many that were lost once
    ordinary_seconds: float  # for so many ordinary ones while others wait to run alone
    alone_seconds: float  # for those that run alone, in the same run
    failed: int

    @property
    def lost_share(self) -> float:
        """Throughput of lost jobs, as a share of the usual."""
        return self.usual_seconds / self.lost_seconds

    @property
    def ordinary_share(self) -> float:
        return self.usual_seconds / self.ordinary_seconds


def a_queue(url: str) -> Backstay:
    app = Backstay(url)

    @app.job("work")
    async def work(payload: int) -> None:
        await asyncio.sleep(JOB_SECONDS)

    return app


async def lose(app: Backstay, queue: str, job_type: str, count: int) -> None:
    """A worker takes so many jobs, and is lost with them."""
    for lost in (Lost.SHARED, Lost.ALONE):
        while count > 0:
            request = ClaimRequest(
                "lost", "1", (queue,), {job_type: count}, min(count, CLAIM_LIMIT), 0, "token", lost=lost
            )
            if not (taken := await app.store.claim(request, app.clock.now())):
                break
            count -= len(taken)
    assert not count
    sweeper = Sweeper(app.store, app.clock, worker_id="sweeper", lease_seconds=60, sweep_seconds=1)
    while await sweeper.sweep_once():
        pass
    while (await app.store.promote(app.clock.now(), 500)).count:
        pass


async def work_off(app: Backstay, workers: int, *queues: str) -> dict[str, float]:
    """Return how long it takes until nothing is left, of each queue."""
    began = perf_counter()
    took: dict[str, float] = {}
    async with asyncio.timeout(SECONDS_MAX), AsyncExitStack() as stack:
        for _ in range(workers):
            await stack.enter_async_context(app.worker(queues=queues))
        while len(took) < len(queues):
            await asyncio.sleep(0.02)
            left = {each.queue for each in await app.store.depths() if each.count}
            took |= {queue: perf_counter() - began for queue in queues if queue not in left and queue not in took}
    return took


async def measured(app: Backstay, count: int, alone: int, workers: int = 1) -> Figures:
    """Measure in an app that has only just been opened."""
    for queue, jobs in (("usual", count), ("lost", count), ("ordinary", count), ("alone", alone)):
        for start in range(0, jobs, 500):
            await app.submit_many([("work", n, {"queue": queue}) for n in range(start, min(jobs, start + 500))])
    usual = await work_off(app, workers, "usual")
    await lose(app, "lost", "work", count)
    lost = await work_off(app, workers, "lost")
    for _ in range(2):
        await lose(app, "alone", "work", alone)
    both = await work_off(app, workers, "ordinary", "alone")
    failed = (await app.counts()).get("failed", 0)
    return Figures(usual["usual"], lost["lost"], both["ordinary"], both["alone"], failed)


async def lost_claims(engine: str, jobs: int, alone: int, workers: int, rounds: int) -> dict[str, Any]:
    """Return the figures, each round on an engine of its own."""
    logging.getLogger("backstay").setLevel(logging.ERROR)  # each rescue is a warning
    started = time.monotonic()
    found: list[Figures] = []
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        with TemporaryDirectory(prefix="backstay-lost-") as folder, _url(engine, Path(folder)) as url:
            async with a_queue(url) as app:
                found.append(await measured(app, jobs, alone, workers))
    lost = median(each.lost_share for each in found)
    ordinary = median(each.ordinary_share for each in found)
    failed = sum(each.failed for each in found)
    return {
        "verdict": "passed" if min(lost, ordinary) >= SHARE_MIN and not failed else "failed",
        "asked": {"engine": engine, "jobs": jobs, "alone": alone, "workers": workers, "rounds": rounds},
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average": os.getloadavg(),
        "seconds": round(time.monotonic() - started),
        "versions": versions(),
        "rounds": [_plain(each) for each in found],
        "failed": failed,
        "throughput of jobs that were lost once, of the usual": round(lost, 2),
        "throughput of ordinary jobs next to those that run alone, of the usual": round(ordinary, 2),
    }


def _plain(figures: Figures) -> dict[str, float]:
    return {name: round(value, 2) for name, value in msgspec.structs.asdict(figures).items()}


@contextmanager
def _url(engine: str, folder: Path) -> Iterator[str]:
    match engine:
        case "postgres":
            with Postgres() as postgres:
                yield postgres.url()
        case "dynamodb":
            with DynamoDB() as dynamodb:
                yield dynamodb.url("lost")
        case _:
            yield f"sqlite:///{folder}/jobs.db"
