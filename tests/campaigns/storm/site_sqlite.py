"""A storm on SQLite: the disk runs full, and clocks of workers jump.

The file is on a small disk in memory, which only this process and its children see (`unshare --mount`, as root).
Without root there is no such disk, and it does not run full.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import apsw

from tests.campaigns.clocks import Clocks
from tests.campaigns.storm.site import Fault

DISK = "size=4g"
FULL_SECONDS = (0.5, 2.5)
SKEWS = (0, 0, 0, 5, -5, 15, -15)  # seconds
SLOTS = 16


class SQLiteSite:
    def __init__(self, *, own_disk: bool) -> None:
        self.release = apsw.sqlite_lib_version()
        self.clock_jumps = 0
        self.faults: dict[str, Fault] = {"clock jump": self._jump}
        if own_disk:
            self.faults["full disk"] = self._fill
        self._own_disk = own_disk
        self._number = 0
        self._at = 0

    async def open(self, folder: Path) -> None:
        self._disk = folder / "disk"
        self._disk.mkdir()
        if self._own_disk:
            _run("mount", "-t", "tmpfs", "-o", DISK, "tmpfs", str(self._disk))
        self._clock_file = folder / "clocks"
        self._start = time.time_ns() // 1000
        self._clocks = Clocks.create(self._clock_file, SLOTS, self._start, rate=1)

    async def close(self) -> None:
        if self._own_disk:
            _run("umount", "--lazy", str(self._disk))

    @property
    def skew_seconds(self) -> float:
        return float(max(SKEWS)) if self.clock_jumps else 0.0

    @property
    def url(self) -> str:
        return self._url(self._at)

    direct = url

    def _url(self, number: int) -> str:
        return f"sqlite:///{self._disk}/jobs-{number}.db"

    def worker_options(self, slot: int) -> dict[str, Any]:
        return {"clocks": str(self._clock_file), "start": self._start, "slot": slot % SLOTS}

    def next_url(self) -> str:
        self._number += 1
        return self._url(self._number)

    def moved(self) -> None:
        self._at = self._number

    async def calm(self) -> None:
        for slot in range(SLOTS):
            self._clocks.set_skew(slot, 0)

    async def _jump(self, draw: random.Random) -> None:
        self.clock_jumps += 1
        self._clocks.set_skew(draw.randrange(SLOTS), draw.choice(SKEWS))

    async def _fill(self, draw: random.Random) -> bool:
        """Shrink the disk to what is used, for a moment."""
        ends = time.monotonic() + draw.uniform(*FULL_SECONDS)
        full = False
        while not full and time.monotonic() < ends:
            full = await asyncio.to_thread(self._shrink)  # not if someone has written in between
        await asyncio.sleep(max(0.0, ends - time.monotonic()))
        await asyncio.to_thread(_run, "mount", "-o", f"remount,{DISK}", str(self._disk))
        return full

    def _shrink(self) -> bool:
        disk = os.statvfs(self._disk)
        used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
        command = ("mount", "-o", f"remount,size={used}", str(self._disk))
        return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
