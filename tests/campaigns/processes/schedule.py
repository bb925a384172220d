"""A worker that fires schedules by a clock of its own, and logs its decisions before it acts."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

import backstay.app
from backstay import Backoff, Backstay, Retention
from backstay.clock import Clock, Instant
from backstay.core.port import Store
from backstay.core.records import Firing, Verdict
from backstay.engines import open_url
from tests.campaigns.clocks import Clocks, SlotClock
from tests.campaigns.processes.worker import stop_outside_transactions

WORK = "tests.campaigns.processes.schedule:work"
STALL = "tests.campaigns.processes.schedule:stall"
SOON = Backoff(base=0.02, factor=1, max=0.02, jitter=0)


class Fired(msgspec.Struct, frozen=True):
    """A call that a process was about to make, and its answer, if the process lived to get it."""

    process: str
    schedule: str
    due_at: Instant
    next_at: Instant
    now: Instant
    ticks: tuple[Instant, ...]
    verdict: Verdict | None = None


def make_app(url: str, clock: Clock) -> Backstay:
    """Return the app. Nothing is archived: the clocks pass weeks, and every job is checked in the end."""
    keep = Retention(completed=None, failed=None, cancelled=None, archive=None)
    app = Backstay(url, clock=clock, retention=keep)

    @app.job("tick", max_attempts=200, backoff=SOON)
    async def tick(payload: dict[str, Any]) -> dict[str, Any]:
        return payload

    return app


async def work(*, url: str, calls: str, name: str, clocks: str, start: int, rate: int, slot: int) -> None:
    backstay.app.open_url = _watched(Path(calls) / f"{name}.fired", name)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    clock = SlotClock(Clocks(Path(clocks), start, rate), slot)
    async with make_app(url, clock) as app, app.worker(concurrency=4, grace=5):
        await stop.wait()


async def stall(**options: Any) -> None:
    stop_outside_transactions()
    await work(**options)


def _watched(path: Path, name: str) -> Callable[[str], Store]:
    return lambda url: cast(Store, _Watched(open_url(url), path, name))


class _Watched:
    """Logs calls. Each line is a single write to the kernel, which outlives the process."""

    def __init__(self, store: Store, path: Path, name: str) -> None:
        self._store = store
        self._name = name
        self._descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def fire(self, firings: Sequence[Firing], now: Instant) -> list[Verdict]:
        asked = [
            Fired(self._name, each.name, each.due_at, each.next_at, now, tuple(job.tick_at or 0 for job in each.jobs))
            for each in firings
        ]
        self._write(asked)
        verdicts = await self._store.fire(firings, now)
        self._write([msgspec.structs.replace(each, verdict=heard) for each, heard in zip(asked, verdicts, strict=True)])
        return verdicts

    def _write(self, lines: list[Fired]) -> None:
        for line in lines:
            os.write(self._descriptor, msgspec.json.encode(line) + b"\n")


def fired_in(path: Path) -> list[Fired]:
    """Return each call, with its verdict if it is known."""
    found: dict[int, Fired] = {}
    open_calls: dict[tuple[str, Instant, Instant], int] = {}
    lines = path.read_bytes().split(b"\n")[:-1]
    for number, line in enumerate(lines):
        fired = msgspec.json.decode(line, type=Fired)
        key = (fired.schedule, fired.due_at, fired.now)
        found[open_calls.pop(key) if fired.verdict is not None else open_calls.setdefault(key, number)] = fired
    return list(found.values())
