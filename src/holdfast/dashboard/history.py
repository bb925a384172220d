"""What happened in a window of time, from the counters. Slots that are over stay in memory: seven days of minutes are
read once, and then only what came since."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.app import Holdfast
from holdfast.clock import MICROS, Instant
from holdfast.dashboard.figures import Slot, Window, divided

OPEN_SECONDS = 600  # a slot is read anew for so long after its end: commits may be slow, and clocks late
PART_SECONDS = 86_400  # of counters, read at once


class History:
    def __init__(self, app: Holdfast) -> None:
        self._app = app
        self._over: dict[str, dict[Instant, Slot]] = {}
        self._reading = asyncio.Lock()  # two who look at the same time read once

    async def read(self, window: Window) -> list[tuple[Instant, Slot]]:
        """Its slots, oldest first."""
        now = self._app.clock.now()
        starts = window.starts(now)
        async with self._reading:
            known = self._over.get(window.name, {})
            missing = [start for start in starts if start not in known]
            found = await self._read(missing, window.slot_seconds)
            slots = [(start, known[start] if start in known else found[start]) for start in starts]
            limit = now - (OPEN_SECONDS + window.slot_seconds) * MICROS
            self._over[window.name] = {start: slot for start, slot in slots if start <= limit}
        return slots

    async def _read(self, missing: Sequence[Instant], slot_seconds: int) -> dict[Instant, Slot]:
        """Those that are missing follow one another, up to now; but for a clock that was set back."""
        found: dict[Instant, Slot] = {}
        per_part = max(1, PART_SECONDS // slot_seconds)
        for first in range(0, len(missing), per_part):
            part = missing[first : first + per_part]
            counters = await self._app.store.counters(part[0], part[-1] + slot_seconds * MICROS)
            found.update(divided(counters, part, slot_seconds))
        return found
