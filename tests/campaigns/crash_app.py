"""The application whose processes are killed: a handler of each kind, and a store that records every call."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import backstay.app
from backstay import Backoff, Backstay, BlockingContext, Context, failpoints
from backstay.core.port import Store
from backstay.engines import open_url
from backstay.testing.history import OperationLog, recorded
from backstay.worker import channels, run

SOON = Backoff(base=0.02, factor=1, max=0.02, jitter=0)
MAX_ATTEMPTS = 200  # a job that loses two hundred workers is a bug of the queue, not of the test


class Work(BaseModel):
    n: int
    millis: int = 0


def record_calls(folder: Path, name: str) -> None:
    """Log the calls of every store that this process opens in `folder`."""
    backstay.app.open_url = recording(folder, name)


def recording(folder: Path, name: str) -> Callable[[str], Store]:
    opened = 0

    def open_recorded(url: str) -> Store:
        nonlocal opened
        opened += 1
        return recorded(open_url(url), OperationLog(folder / f"{name}.{opened}.jsonl"))

    return open_recorded


def with_small_parts() -> None:
    """Lower the limits, so that a few children exceed one commit, and a part holds a handful."""
    channels.CHILDREN_INLINE_MAX = 4
    channels.CHILDREN_PART_MAX = run.CHILDREN_PART_MAX = 3


def make_app(url: str) -> Backstay:
    app = Backstay(url)

    @app.job("quick", max_attempts=MAX_ATTEMPTS, backoff=SOON)
    async def quick(work: Work, ctx: Context) -> dict[str, Any]:
        failpoints.hit("handler.inside")
        return _answer(work, ctx.attempt)

    @app.job("slow", max_attempts=MAX_ATTEMPTS, backoff=SOON)
    async def slow(work: Work, ctx: Context) -> dict[str, Any]:
        ctx.progress(0.5, stage="halfway")
        await asyncio.sleep(work.millis / 1000)
        failpoints.hit("handler.inside")
        return _answer(work, ctx.attempt)

    @app.job("flaky", max_attempts=MAX_ATTEMPTS, backoff=SOON)
    async def flaky(work: Work, ctx: Context) -> dict[str, Any]:
        if ctx.attempt % 2:
            raise ConnectionError("the other side is down")
        return _answer(work, ctx.attempt)

    @app.job("threaded", max_attempts=MAX_ATTEMPTS, backoff=SOON)
    def threaded(work: Work, ctx: BlockingContext) -> dict[str, Any]:
        time.sleep(work.millis / 1000)
        failpoints.hit("handler.inside")
        return _answer(work, ctx.attempt)

    @app.job("limited", max_attempts=MAX_ATTEMPTS, backoff=SOON, global_concurrency=2)
    async def limited(work: Work, ctx: Context) -> dict[str, Any]:
        await asyncio.sleep(work.millis / 1000)
        return _answer(work, ctx.attempt)

    @app.job("family", max_attempts=MAX_ATTEMPTS, backoff=SOON)
    async def family(work: Work, ctx: Context) -> dict[str, Any]:
        """Submit one child at once, others with the wait: few in its commit, more in parts before it."""
        await ctx.submit("kin", {"n": work.n}, key="first", at_once=True)
        for n in range(work.n % 13):
            await ctx.submit("kin", {"n": n})
        failpoints.hit("handler.inside")
        children = await ctx.wait_for_children()
        return _answer(work, ctx.attempt) | {"children": len(children)}

    @app.job("kin", max_attempts=MAX_ATTEMPTS, backoff=SOON)
    async def kin(work: Work, ctx: Context) -> dict[str, Any]:
        if work.n % 5 == 4 and ctx.attempt == 1:
            raise ConnectionError("the other side is down")
        return _answer(work, ctx.attempt)

    @app.job("bulky")
    async def bulky(text: str) -> None:
        """Never runs: scheduled for later, to fill the disk."""

    return app


def _answer(work: Work, attempt: int) -> dict[str, Any]:
    """Return a result that differs for each run, so that the judge can tell which one was stored."""
    return {"n": work.n, "attempt": attempt, "pid": os.getpid(), "at": time.monotonic_ns()}
