"""A submitter that fills the disk and keeps trying."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from backstay import StoreFull
from tests.campaigns.crash_app import make_app, record_calls

TEXT = "x" * 8_000


async def flood(*, url: str, calls: str, name: str) -> None:
    """Submit until the first refusal, then stop itself to notify the harness; once continued, submit until SIGTERM."""
    record_calls(Path(calls), name)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    told = False
    async with make_app(url) as app:
        while not stop.is_set():
            try:
                await app.submit("bulky", TEXT, delay=3600)
            except StoreFull:
                if not told:
                    told = True
                    os.kill(os.getpid(), signal.SIGSTOP)
                await asyncio.sleep(0.002)
