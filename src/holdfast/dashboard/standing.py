"""How many jobs are in which state now. Engines count these by walking an index, which takes longer the more there are:
the dashboard spends a small share of its time on it, and waits for no count that takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.app import Holdfast
from holdfast.store.types import DeadGroup, Depth

REST = 10  # times as long as a count took, it is not made again
WAIT_SECONDS = 0.12  # for a count; then the last one is shown, or none yet
DEAD_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Standing:
    counts: dict[str, int]
    depths: Sequence[Depth]
    dead: Sequence[DeadGroup]


class Census:
    """One for a server: those who look at the same time are served by the same count."""

    def __init__(self, app: Holdfast) -> None:
        self._app = app
        self._last: Standing | None = None
        self._took = self._rests_until = 0.0  # seconds
        self._counting: asyncio.Task[Standing] | None = None

    async def latest(self) -> Standing | None:
        """None: nobody has counted before, and the first count takes a while."""
        if self._last is not None and self._app.clock.monotonic() < self._rests_until:
            return self._last
        if self._counting is None or self._counting.done():
            self._counting = asyncio.get_running_loop().create_task(self._count())
            self._counting.add_done_callback(_heard)
        if self._last is not None and self._took > WAIT_SECONDS:
            return self._last
        done, _ = await asyncio.wait({self._counting}, timeout=WAIT_SECONDS)
        return self._counting.result() if done else self._last

    async def _count(self) -> Standing:
        began = self._app.clock.monotonic()
        store = self._app.store
        self._last = Standing(await store.counts(), await store.depths(), await store.dead(DEAD_SHOWN))
        ended = self._app.clock.monotonic()
        self._took, self._rests_until = ended - began, ended + REST * (ended - began)
        return self._last


def _heard(count: asyncio.Task[Standing]) -> None:
    """An error that nobody waits for any more is nobody's."""
    if not count.cancelled():
        count.exception()
