"""Looking at what streams are about: one look for all who watch the same, woken by signals, polling as the fallback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from holdfast.app import Holdfast
from holdfast.errors import HoldfastError
from holdfast.limits import KEY_STREAMS_MAX, STREAMS_MAX
from holdfast.server.bell import Bell
from holdfast.server.places import Leave, Places
from holdfast.server.problems import Problem
from holdfast.store.types import Signal
from holdfast.waits import within

T = TypeVar("T")
LIVE_SECONDS = 0.2  # between looks into this process's memory
GAP_SECONDS = 0.1  # between looks at the store, however often it signals …
LOOKS_PER_SECOND = 200  # … and so many for all watches together
_SIGNALS = frozenset({Signal.READY, Signal.DUE, Signal.STOPPED, Signal.ENDED})
_LATER_SECONDS = 5


class Watch(Generic[T]):
    """What is known of one thing, and everyone who wants to hear of it."""

    def __init__(self, first: T) -> None:
        self.latest = first
        self.error: HoldfastError | None = None
        self.told = 0
        self.watchers = 0
        self.task: asyncio.Task[None] | None = None
        self._event = asyncio.Event()

    def tell(self, latest: T) -> None:
        self.latest, self.error = latest, None
        self._ring()

    def fail(self, error: HoldfastError) -> None:
        self.error = error
        self._ring()

    def _ring(self) -> None:
        self.told += 1
        self._event.set()
        self._event = asyncio.Event()

    async def news(self, heard: int, seconds: float) -> None:
        """Until more was told than had been heard, or for so long."""
        if self.told == heard:
            await within(seconds, self._event.wait())


class Watches:
    """All of one server. `look` reads a thing from the store; `glance`, where there is one, from memory."""

    def __init__(self, app: Holdfast) -> None:
        self._app = app
        self._bell = Bell(app, _SIGNALS)
        self._watches: dict[tuple[str, str], Watch[object]] = {}
        self._places = Places()

    @asynccontextmanager
    async def on(
        self,
        key: tuple[str, str],
        first: T,
        look: Callable[[], Awaitable[T]],
        glance: Callable[[T], T | None] = lambda _: None,
    ) -> AsyncIterator[Watch[T]]:
        watch: Watch[T] = self._watches.setdefault(key, Watch(first))  # type: ignore[assignment]
        if watch.task is None:
            watch.task = asyncio.get_running_loop().create_task(self._work(watch, look, glance))
        watch.watchers += 1
        try:
            yield watch
        finally:
            watch.watchers -= 1
            if not watch.watchers:
                self._watches.pop(key, None)
                watch.task.cancel()
                await asyncio.gather(watch.task, return_exceptions=True)

    def place(self, key_id: str | None) -> Leave:
        """Before an answer begins: a stream that is one too many is refused in words."""
        return self._places.take(key_id, most=STREAMS_MAX, share=KEY_STREAMS_MAX, refused=_too_many)

    async def _work(self, watch: Watch[T], look: Callable[[], Awaitable[T]], glance: Callable[[T], T | None]) -> None:
        with self._bell.listening():
            while True:
                rung = self._bell.rung
                try:
                    watch.tell(await look())
                except HoldfastError as error:
                    watch.fail(error)
                gap = max(GAP_SECONDS, len(self._watches) / LOOKS_PER_SECOND)
                await asyncio.sleep(gap)
                await self._rest(watch, rung, max(gap, self._app.store.record_seconds), glance)

    async def _rest(self, watch: Watch[T], rung: int, seconds: float, glance: Callable[[T], T | None]) -> None:
        """Until the bell rings, or it is time to look; what runs here is looked at meanwhile."""
        until = self._app.clock.monotonic() + seconds
        while (left := until - self._app.clock.monotonic()) > 0:
            live = glance(watch.latest)
            if live is not None:
                watch.tell(live)
            if await within(min(left, LIVE_SECONDS) if live is not None else left, self._bell.wait(rung)):
                return


def _too_many(whose: str) -> Problem:
    return Problem(
        429,
        "too-many-streams",
        f"{whose} streams, which is all it may: ask for the job itself, or come again later",
        retry_after=_LATER_SECONDS,
    )
