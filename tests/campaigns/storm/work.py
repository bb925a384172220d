"""A worker of a storm, until SIGTERM or death."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path

from backstay import StoreError
from backstay.clock import Clock
from tests.campaigns.clocks import Clocks, SlotClock
from tests.campaigns.storm.app import make_app
from tests.campaigns.storm.planted import plant

PROGRAM = "tests.campaigns.storm.work:work"
CONCURRENCY = 10
GRACE_SECONDS = 5
AGAIN_SECONDS = 0.2


async def work(
    *, url: str, calls: str, name: str, clocks: str = "", start: int = 0, slot: int = 0, bug: str = ""
) -> None:
    plant(bug)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    clock: Clock | None = SlotClock(Clocks(Path(clocks), start, rate=1), slot) if clocks else None
    while not stop.is_set():
        async with AsyncExitStack() as stack:
            app = make_app(url, clock)
            try:
                await stack.enter_async_context(app)
                await stack.enter_async_context(app.worker(concurrency=CONCURRENCY, grace=GRACE_SECONDS))
            except StoreError:  # a program that starts while its server is down is started again
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            await stop.wait()
