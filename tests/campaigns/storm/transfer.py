"""Transfers of the queue during a storm, by the command, which is sometimes killed and then run again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import time
from pathlib import Path

from backstay.clock import Instant
from tests.campaigns.fleet import ROOT
from tests.campaigns.storm.site import Site

KILLED_SHARE = 0.5
KILLED_WITHIN = 3.0  # seconds
TRIES_SECONDS = 600.0  # for a transfer, through all faults
AGAIN_SECONDS = 0.5


class Transfers:
    def __init__(self, site: Site, folder: Path, lease: float) -> None:
        self._site = site
        self._log = folder / "transfers.log"
        self._environment = {**os.environ, "BACKSTAY_LEASE": str(lease)}
        self.ended: list[Instant] = []
        self.seconds: list[float] = []

    async def move(self, draw: random.Random) -> None:
        """Transfer the queue to a new place. A command that failed, because a server was down or a disk full, is run
        again, as the docs say."""
        target = self._site.next_url()
        began = time.monotonic()
        async with asyncio.timeout(TRIES_SECONDS):
            kill_after = draw.uniform(0, KILLED_WITHIN) if draw.random() < KILLED_SHARE else None
            while await self._run(target, kill_after) != 0:
                kill_after = None
                await asyncio.sleep(AGAIN_SECONDS)
        self._site.moved()
        self.ended.append(time.time_ns() // 1000)
        self.seconds.append(round(time.monotonic() - began, 1))

    async def _run(self, target: str, kill_after: float | None) -> int:
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "backstay", "move", self._site.url, target]
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment, cwd=ROOT
            )
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(kill_after):
                    return await process.wait()
            process.kill()
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
