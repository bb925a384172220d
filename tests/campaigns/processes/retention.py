"""Processes with short retention: workers that archive constantly, submitters, purgers, and an operator."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from backstay import (
    Backoff,
    Backstay,
    Context,
    DedupConflict,
    IllegalTransition,
    Retention,
    StoreError,
    UnknownDependency,
    VersionConflict,
)
from backstay.worker import maintenance
from tests.campaigns.crash_app import record_calls
from tests.campaigns.processes.submit import Place, job_id

WORK = "tests.campaigns.processes.retention:work"
SUBMIT = "tests.campaigns.processes.retention:submit"
PURGE = "tests.campaigns.processes.retention:purge"
MEDDLE = "tests.campaigns.processes.retention:meddle"
PASS_SECONDS = 0.05  # between passes of retention
FOREVER_KEYS = 5
SOON = Backoff(base=0.02, factor=1, max=0.02, jitter=0)
NEVER = Retention(completed=None, failed=None, cancelled=None, archive=None)

# Retention by type, in seconds: of completed jobs, and of failed or cancelled ones; None means forever.
KEPT = {
    "brief": (0.2, 0.2),
    "slow": (0.1, 0.4),
    "filed": (0.3, 0.3),
    "failing": (0.2, 0.5),
    "purged": (3600, 3600),  # except for purges by name
    "kept": (None, None),
}


class Work(BaseModel):
    n: int
    millis: int = 0


def make_app(url: str) -> Backstay:
    app = Backstay(url, retention=NEVER)

    def register(name: str, max_attempts: int = 200) -> Callable[[Callable[..., Any]], Any]:
        completed, other = KEPT[name]
        keep = Retention(completed=completed, failed=other, cancelled=other)
        return app.job(name, max_attempts=max_attempts, backoff=SOON, retention=keep)

    async def plain(work: Work, ctx: Context) -> dict[str, Any]:
        await asyncio.sleep(work.millis / 1000)
        return _answer(work, ctx.attempt)

    for name in ("brief", "slow", "purged", "kept"):
        register(name)(plain)

    @register("filed")
    async def filed(work: Work, ctx: Context) -> dict[str, Any]:
        await ctx.artifact("page.txt", f"{work.n} {ctx.attempt}")
        return _answer(work, ctx.attempt)

    @register("failing", max_attempts=1)
    async def failing(work: Work, ctx: Context) -> None:
        raise ValueError("it never works")

    return app


def _answer(work: Work, attempt: int) -> dict[str, Any]:
    return {"n": work.n, "attempt": attempt, "pid": os.getpid(), "at": time.monotonic_ns()}


async def work(*, url: str, calls: str, name: str) -> None:
    record_calls(Path(calls), name)
    maintenance.START_SECONDS = maintenance.RETIRE_INTERVAL_SECONDS = maintenance.RETIRE_REST_SECONDS = PASS_SECONDS
    maintenance.REST_FACTOR = 0  # as many as possible
    stop = _told_to_stop()
    async with make_app(url) as app, app.worker(concurrency=8, grace=10):
        await stop.wait()


async def submit(*, url: str, calls: str, name: str, lane: str, until: int, pause: float = 0.004) -> None:
    """Submit the lane's jobs from the predecessor's last position; occasionally repeat an old one."""
    record_calls(Path(calls), name)
    stop = _told_to_stop()
    place = Place(Path(calls) / f"{lane}.place")
    async with make_app(url) as app:
        while place.position < until and not stop.is_set():
            at = place.position
            draw = random.Random(f"{lane}/{at}")
            try:
                if at > 5 and draw.random() < 0.1:
                    await _submit_one(app, lane, draw.randrange(at))
                await _submit_one(app, lane, at)
            except StoreError:
                continue
            place.move(at + 1)
            await asyncio.sleep(pause)


async def _submit_one(app: Backstay, lane: str, position: int) -> None:
    """Submit the job of a position: always the same one, whether it waits, runs, has ended or is archived."""
    draw = random.Random(f"{lane}/{position}/job")
    options: dict[str, Any] = {"job_id": job_id(lane, position)}
    kind = draw.choices(list(KEPT), (30, 15, 15, 10, 15, 15))[0]
    if draw.random() < 0.1:
        options |= {"dedup_key": f"{lane}/{draw.randrange(FOREVER_KEYS)}", "dedup_for": "forever"}
    elif draw.random() < 0.2 and position:
        options["depends_on"] = [job_id(lane, draw.randrange(max(0, position - 40), position))]
    elif draw.random() < 0.1 and position:
        options["parent"] = job_id(lane, draw.randrange(max(0, position - 10), position))
    millis = draw.choice((20, 100, 300)) if kind == "slow" else 0
    with suppress(UnknownDependency):  # a job with a key may be deduplicated to another, and a parent may be archived
        await app.submit(kind, {"n": position, "millis": millis}, **options)


async def purge(*, url: str, calls: str, name: str) -> None:
    record_calls(Path(calls), name)
    stop = _told_to_stop()
    async with make_app(url) as app:
        while not stop.is_set():
            await _busy_or(app.purge())
            await _busy_or(app.purge(older_than=0, job_types=["purged"]))
            await asyncio.sleep(0.02)


async def meddle(*, url: str, calls: str, name: str, seed: int, pause: float = 0.01) -> None:
    """Retry ended jobs, cancel active ones, and read known ones, which must always be found."""
    record_calls(Path(calls), name)
    stop = _told_to_stop()
    draw = random.Random(seed)
    seen: list[str] = []
    async with make_app(url) as app:
        while not stop.is_set():
            status = draw.choice(("completed", "completed", "failed", "cancelled", "pending", "processing"))
            page = await app.find(status=status, limit=50)
            seen += [job.job_id for job in page]
            for job in draw.sample(page, min(3, len(page))):
                active = status in ("pending", "processing")
                await _busy_or(app.cancel(job.job_id) if active else app.retry(job.job_id, by="meddler"))
            for each in draw.sample(seen, min(5, len(seen))):
                await app.get(each)
            await asyncio.sleep(pause)


async def _busy_or(call: Awaitable[Any]) -> None:
    # It was archived, changed state, lost its key to another job, or the store was busy.
    with suppress(IllegalTransition, VersionConflict, DedupConflict, StoreError):
        await call


def _told_to_stop() -> asyncio.Event:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    return stop
