"""How many jobs are in which state now. Engines count these by walking an index, which takes longer the more there are:
the dashboard spends a small share of its time on it, and waits for no count that takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.app import Holdfast
from holdfast.stats import span
from holdfast.store.types import Counter, DeadGroup, Depth

REST = 8  # times as long as a count took, it is not made again
WAIT_SECONDS = 0.2  # for a count; then the last one is shown, or none yet
DEAD_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Standing:
    counts: dict[str, int]
    depths: Sequence[Depth]
    dead: Sequence[DeadGroup]


@dataclass(frozen=True, slots=True)
class Taken:
    """A count, as someone got it."""

    standing: Standing | None  # None: nobody has counted before, and the first count takes a while
    again_seconds: float  # until a newer one is worth a look; 0: nothing is known to have changed since

    @property
    def depths(self) -> Sequence[Depth]:
        return () if self.standing is None else self.standing.depths


class Census:
    """One for a server: those who look at the same time are served by the same count."""

    def __init__(self, app: Holdfast) -> None:
        self._app = app
        self._last: Standing | None = None
        self._took = self._rests_until = 0.0  # seconds
        self._counting: asyncio.Task[Standing] | None = None
        self._since = 0  # the minute of the last count, and what the counters said from there on when it began
        self._mark: list[Counter] = []

    async def latest(self) -> Taken:
        rests = self._rests_until - self._app.clock.monotonic()
        if self._last is not None and rests > 0:
            return Taken(self._last, rests if await self._marked() != self._mark else 0.0)
        if self._counting is None or self._counting.done():
            self._counting = asyncio.get_running_loop().create_task(self._count())
            self._counting.add_done_callback(_let_go)
        if self._last is not None and self._took > WAIT_SECONDS:
            return Taken(self._last, self._took)
        done, _ = await asyncio.wait({self._counting}, timeout=WAIT_SECONDS)
        return Taken(self._counting.result(), 0.0) if done else Taken(self._last, WAIT_SECONDS)

    async def _marked(self) -> list[Counter]:
        """What tells at little cost whether jobs came or ended."""
        return await self._app.store.counters(self._since, span(self._app.clock.now(), 1)[1])

    async def _count(self) -> Standing:
        began = self._app.clock.monotonic()
        store = self._app.store
        self._since = span(self._app.clock.now(), 1)[0]
        self._mark = await self._marked()
        self._last = Standing(await store.counts(), await store.depths(), await store.dead(DEAD_SHOWN))
        ended = self._app.clock.monotonic()
        self._took, self._rests_until = ended - began, ended + REST * (ended - began)
        return self._last


def _let_go(count: asyncio.Task[Standing]) -> None:
    """An error that nobody waits for any more is nobody's."""
    if not count.cancelled():
        count.exception()
