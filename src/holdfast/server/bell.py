"""One ear at the store for all requests that wait: they hear of a signal without a listener each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.app import Holdfast
from holdfast.store.types import Signal


class Bell:
    """Listens while someone waits, and not longer."""

    def __init__(self, app: Holdfast, signals: frozenset[Signal]) -> None:
        self.rung = 0  # how often; whoever has seen this number has missed nothing
        self._app = app
        self._signals = signals
        self._event = asyncio.Event()
        self._waiting = 0
        self._unlisten: Callable[[], None] = lambda: None

    @contextmanager
    def listening(self) -> Iterator[None]:
        if self._waiting == 0:
            self._unlisten = self._app.store.listen(self._signals, lambda _: self.ring())
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self._unlisten()

    def ring(self) -> None:
        self.rung += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seen: int) -> None:
        """Until it rings, unless it has since it was at `seen`."""
        if self.rung == seen:
            await self._event.wait()
