"""A worker, until SIGTERM or death."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from tests.crash.crash_app import make_app, record_calls


async def work(*, url: str, calls: str, name: str, concurrency: int = 8, grace: float = 10, ready: int = -1) -> None:
    """`ready` is the descriptor of a pipe that hears one byte when the worker has started."""
    record_calls(Path(calls), name)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with make_app(url) as app, app.worker(concurrency=concurrency, grace=grace):
        if ready >= 0:
            os.write(ready, b"!")
        await stop.wait()
