"""What happened in a window of time, from the counters. Slots that are over stay in memory: seven days of minutes are
read once, the newest first, and then only what came since. A page does not wait for that: it shows what is there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.app import Holdfast
from holdfast.clock import MICROS, Instant
from holdfast.dashboard.figures import Slot, Window, divided

OPEN_SECONDS = 600  # a slot is read anew for so long after its end: commits may be slow, and clocks late
PART_SECONDS = 43_200  # of counters, read at once
WAIT_SECONDS = 0.2  # for what has to be read
_BESIDE = 2_000  # so many counters are added up in a thread: others should not wait for it


@dataclass(frozen=True, slots=True)
class Past:
    slots: Sequence[tuple[Instant, Slot]]  # oldest first
    is_complete: bool  # False: some are still being read, and look empty


class History:
    """One for a server: those who look at the same time read once."""

    def __init__(self, app: Holdfast) -> None:
        self._app = app
        self._known: dict[str, dict[Instant, Slot]] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}

    async def read(self, window: Window) -> Past:
        task = self._reading.get(window.name)
        if task is None or task.done():
            task = self._reading[window.name] = asyncio.get_running_loop().create_task(self._read(window))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        done, _ = await asyncio.wait({task}, timeout=WAIT_SECONDS)
        if done:
            task.result()
        known = self._known.get(window.name, {})
        starts = window.starts(self._app.clock.now())
        return Past([(start, known.get(start, {})) for start in starts], is_complete=bool(done))

    async def _read(self, window: Window) -> None:
        now, width = self._app.clock.now(), window.slot_seconds * MICROS
        starts = window.starts(now)
        before = self._known.get(window.name, {})
        over = now - OPEN_SECONDS * MICROS - width
        known = self._known[window.name] = {start: before[start] for start in starts if start in before}
        missing = [start for start in starts if start not in known or start > over]
        per_part = max(1, PART_SECONDS // window.slot_seconds)
        while missing:
            part, missing = missing[-per_part:], missing[:-per_part]
            counters = await self._app.store.counters(part[0], part[-1] + width)
            if len(counters) < _BESIDE:
                known.update(divided(counters, part, window.slot_seconds))
            else:
                known.update(await asyncio.to_thread(divided, counters, part, window.slot_seconds))
