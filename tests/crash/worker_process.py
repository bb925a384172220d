"""A worker, until SIGTERM or death."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

from holdfast import failpoints
from holdfast.store.types import Signal
from holdfast.stores.postgres import session
from holdfast.stores.sqlite.writer import Verb, Writer
from tests.crash.crash_app import make_app, record_calls, with_small_parts


async def work(*, url: str, calls: str, name: str, concurrency: int = 8, grace: float = 10, ready: int = -1) -> None:
    """`ready` is the descriptor of a pipe that hears one byte when the worker has started."""
    record_calls(Path(calls), name)
    with_small_parts()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with make_app(url) as app, app.worker(concurrency=concurrency, grace=grace):
        if ready >= 0:
            os.write(ready, b"!")
        await stop.wait()


async def stall(*, url: str, **options: Any) -> None:
    if url.startswith("sqlite:"):
        stop_outside_transactions()
    else:
        session.IDLE_IN_TRANSACTION_SECONDS = 1.0  # so soon the server takes back what a stopped one holds
    await work(url=url, **options)


def stop_outside_transactions() -> None:
    """From now on failpoints wait until none of this process's threads is inside a transaction. One that stops while
    it holds SQLite's write lock stops everyone: that is a limit of one file, and not what a stall is to show."""
    outside = threading.RLock()
    hit, transact = failpoints.hit, Writer._transact

    def hit_outside(name: str) -> None:
        with outside:
            hit(name)

    def transact_alone(self: Writer, group: list[Verb]) -> set[Signal]:
        with outside:
            return transact(self, group)

    failpoints.hit = hit_outside
    Writer._transact = transact_alone  # type: ignore[method-assign]
