"""A worker, until SIGTERM or death."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

from backstay import failpoints
from backstay.core.port import Store
from backstay.core.records import Hold, Signal
from backstay.engines.postgres import connection
from backstay.engines.sqlite.writer import Verb, Writer
from backstay.worker.leases import LeaseKeeper
from tests.campaigns.crash_app import make_app, record_calls, with_small_parts


async def work(*, url: str, calls: str, name: str, concurrency: int = 8, grace: float = 10, ready: int = -1) -> None:
    """Run a worker. `ready` is the descriptor of a pipe that gets one byte when the worker has started."""
    record_calls(Path(calls), name)
    with_small_parts()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with make_app(url) as app, app.worker(concurrency=concurrency, grace=grace):
        if ready >= 0:
            os.write(ready, b"!")
        await stop.wait()


async def stall(*, url: str, **options: Any) -> None:
    stop_only_in_claims_that_take()
    if url.startswith("sqlite:"):
        stop_outside_transactions()
    else:
        connection.IDLE_IN_TRANSACTION_SECONDS = 1.0  # how soon the server releases the locks of a stopped process
    await work(url=url, **options)


def stop_only_in_claims_that_take() -> None:
    """Ignore failpoints in claims without slots: the lease keeper repeats a slow claim with one. On a busy machine that
    would reach the failpoint first, and stop the process before it has a job."""

    async def ask_nothing(self: LeaseKeeper, store: Store) -> list[Hold]:
        return []

    LeaseKeeper._unheard_of = ask_nothing  # type: ignore[method-assign]


def stop_outside_transactions() -> None:
    """Let failpoints wait until no thread of this process is inside a transaction. A process stopped while it holds
    SQLite's write lock would stop all others: that is a limit of SQLite, and not what a stall is meant to test."""
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
