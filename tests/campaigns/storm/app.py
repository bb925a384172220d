"""The handlers of a storm: one of each kind that the queue offers. Each notes its begin and its end in the ledger."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from pydantic import BaseModel

from backstay import (
    Backoff,
    Backstay,
    BackstayError,
    BatchContext,
    BlockingContext,
    Context,
    EventTimeout,
    ResultRow,
    Retention,
)
from backstay.clock import Clock
from tests.campaigns.storm.ledger import Runs

SOON = Backoff(base=0.05, factor=2, max=1.0, jitter=0.1)
MAX_ATTEMPTS = 500  # a job that loses five hundred workers is a bug of the queue, not of the storm
DOOMED_ATTEMPTS = 3
KEY_LIMIT = 2
RATE, RATE_STARTS, RATE_SECONDS = "10/s", 10, 1
ROWS = 12
TOLD = 6
NAP_SECONDS = 0.5
EVENT_SECONDS = 2.0
TREE_EVERY = 3  # of so many families one has another family among its children
TICK_SECONDS = 1
KEEP = Retention(completed=None, failed=None, cancelled=None, archive=None)
RUNS = Runs()


class Work(BaseModel):
    n: int
    millis: int = 0
    key: str = ""


class Drop(ResultRow, table="drops", key="number"):
    number: int
    nonce: str


async def quick(work: Work, ctx: Context) -> dict[str, Any]:
    run = RUNS.begin(ctx.job_id, ctx.attempt, "quick")
    await asyncio.sleep(work.millis / 1000)
    return {"nonce": RUNS.end(run)}


def threaded(work: Work, ctx: BlockingContext) -> dict[str, Any]:
    run = RUNS.begin(ctx.job_id, ctx.attempt, "threaded")
    time.sleep(work.millis / 1000)
    return {"nonce": RUNS.end(run)}


def isolated(work: Work, ctx: BlockingContext) -> dict[str, Any]:
    """Run in a child process, which the storm kills, and start a program there, which has to die with it."""
    run = RUNS.begin(ctx.job_id, ctx.attempt, "isolated")
    with subprocess.Popen(["sleep", "3600"]) as program:
        time.sleep(work.millis / 1000)
        program.kill()
    return {"nonce": RUNS.end(run)}


async def flaky(work: Work, ctx: Context) -> dict[str, Any]:
    run = RUNS.begin(ctx.job_id, ctx.attempt, "flaky")
    if ctx.attempt % 2:
        raise ConnectionError("the other side is down")
    return {"nonce": RUNS.end(run)}


async def doomed(work: Work, ctx: Context) -> None:
    """Fail every time: it has to end as a dead letter."""
    RUNS.begin(ctx.job_id, ctx.attempt, "doomed")
    raise ConnectionError("the other side will never be up")


async def keyed(work: Work, ctx: Context) -> dict[str, Any]:
    """Run at most KEY_LIMIT at a time under one key."""
    run = RUNS.begin(ctx.job_id, ctx.attempt, "keyed", work.key)
    await asyncio.sleep(work.millis / 1000)
    return {"nonce": RUNS.end(run)}


async def rated(work: Work, ctx: Context) -> dict[str, Any]:
    run = RUNS.begin(ctx.job_id, ctx.attempt, "rated", work.key)
    return {"nonce": RUNS.end(run)}


async def family(work: Work, ctx: Context) -> dict[str, Any]:
    """Submit children, one at once and the others with the wait, and return how many: some have children themselves."""
    run = RUNS.begin(ctx.job_id, ctx.attempt, "family")
    await ctx.submit("kin", {"n": work.n}, key="first", at_once=True)
    for n in range(work.n % 4):
        await ctx.submit("kin", {"n": n})
    if has_a_tree(work.n):
        await ctx.submit("family", {"n": 2})
    children = await ctx.wait_for_children()
    return {"nonce": RUNS.end(run), "children": len(children)}


def has_a_tree(n: int) -> bool:
    """Return whether a family with this number has another one, whose number is 2, among its children."""
    return n % TREE_EVERY == 0


async def kin(work: Work, ctx: Context) -> dict[str, Any]:
    run = RUNS.begin(ctx.job_id, ctx.attempt, "kin")
    return {"nonce": RUNS.end(run)}


async def rows(work: Work, ctx: Context) -> dict[str, Any]:
    run = RUNS.begin(ctx.job_id, ctx.attempt, "rows")
    first = ctx.attempt % 2  # the keys of the attempt before are not all the same
    await ctx.results(Drop).put(Drop(number=number, nonce=run.nonce) for number in range(first, first + ROWS))
    return {"nonce": RUNS.end(run)}


async def told(work: Work, ctx: Context) -> dict[str, Any]:
    """Stream, in several writes."""
    run = RUNS.begin(ctx.job_id, ctx.attempt, "told")
    for number in range(TOLD):
        await ctx.stream([run.nonce, number])
        await asyncio.sleep(work.millis / 1000)
    return {"nonce": RUNS.end(run)}


def patient_of(app: Backstay) -> Callable[[Work, Context], Awaitable[dict[str, Any]]]:
    """Return a handler that sleeps, and waits for an event of its own or of a key, which comes before it waits or
    meanwhile; if the worker dies that would send it, the wait times out."""
    sending: set[asyncio.Task[None]] = set()

    async def send(job_id: str, key: str | None, number: int) -> None:
        await asyncio.sleep(0.05 * (number % 3))
        with suppress(BackstayError):
            await app.send_event(None if key else job_id, "go", number, key=key, event_id=f"go {job_id}")

    async def patient(work: Work, ctx: Context) -> dict[str, Any]:
        run = RUNS.begin(ctx.job_id, ctx.attempt, "patient")
        await ctx.step("first", lambda: ctx.attempt)
        await ctx.sleep("nap", NAP_SECONDS)
        key = f"patient {ctx.job_id}" if work.n % 2 else None
        task = asyncio.create_task(send(ctx.job_id, key, work.n))
        sending.add(task)
        task.add_done_callback(sending.discard)
        try:
            received = await ctx.wait_for_event("go", key=key, timeout=EVENT_SECONDS)
        except EventTimeout:
            received = None
        return {"nonce": RUNS.end(run), "received": received}

    return patient


async def bulk(payloads: list[Work], ctx: BatchContext) -> list[dict[str, Any]]:
    runs = [RUNS.begin(item.job_id, item.attempt, "bulk") for item in ctx]
    await asyncio.sleep(0.01)
    return [{"nonce": RUNS.end(run)} for run in runs]


async def tick(work: Work, ctx: Context) -> dict[str, Any]:
    run = RUNS.begin(ctx.job_id, ctx.attempt, "tick")
    return {"nonce": RUNS.end(run)}


def make_app(url: str, clock: Clock | None = None) -> Backstay:
    app = Backstay(url, retention=KEEP, clock=clock)
    tough: Any = {"max_attempts": MAX_ATTEMPTS, "backoff": SOON}
    app.job("quick", **tough)(quick)
    app.job("threaded", **tough)(threaded)
    app.job("isolated", isolation="process", concurrency=1, **tough)(isolated)
    app.job("flaky", **tough)(flaky)
    app.job("doomed", max_attempts=DOOMED_ATTEMPTS, backoff=SOON)(doomed)
    app.job("keyed", global_concurrency=KEY_LIMIT, **tough)(keyed)
    app.job("rated", rate=RATE, **tough)(rated)
    app.job("family", **tough)(family)
    app.job("kin", **tough)(kin)
    app.job("rows", results=[Drop], **tough)(rows)
    app.job("told", **tough)(told)
    app.job("patient", **tough)(patient_of(app))
    app.batch_job("bulk", max_size=10, max_wait=0.05, same_once=False, **tough)(bulk)
    app.job("tick", **tough)(tick)
    return app


IMPORTED = make_app("sqlite:///unused.db")  # a child process finds its handler by importing this module
