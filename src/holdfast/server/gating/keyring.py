"""The keys of the store, as a server knows them: all of them, never more than five seconds old.

What is used was read from the store at most SECONDS ago, or by a read that began at most READ_SECONDS ago; together
these are the five seconds after which a revoked key is refused everywhere. A store that does not answer lets nobody in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping

from holdfast.app import Holdfast
from holdfast.errors import StoreUnavailable
from holdfast.store.types import ApiKey

SECONDS = 3.0
READ_SECONDS = 2.0
Known = Mapping[str, ApiKey]


class KeyRing:
    def __init__(self, app: Holdfast) -> None:
        self._app = app
        self._known: Known = {}
        self._read_at = float("-inf")
        self._reading: asyncio.Task[Known] | None = None

    async def known(self) -> Known:
        found = self.at_hand()
        return await self._read_once() if found is None else found

    def at_hand(self) -> Known | None:
        """What is known without asking the store; None where that is too old."""
        return self._known if self._app.clock.monotonic() - self._read_at < SECONDS else None

    def stale(self) -> None:
        """Read anew before the next use: a key was made, revoked or logged out here."""
        self._read_at = float("-inf")
        self._reading = None

    async def with_one(self, key_id: str) -> Known:
        """Beside those that are known, one that may have been made a moment ago."""
        found = {key.key_id: key for key in await _limited(self._app.store.keys([key_id]))}
        return {**self._known, **found}

    async def _read_once(self) -> Known:
        """One read at a time, for all who wait; it goes on where one of them leaves."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read())
            self._reading.add_done_callback(_heard)
        return await asyncio.shield(self._reading)

    async def _read(self) -> Known:
        began = self._app.clock.monotonic()
        known = {key.key_id: key for key in await _limited(self._app.store.keys())}
        if self._reading is asyncio.current_task():  # else it was stale before it was there
            self._known, self._read_at = known, began
        return known


async def _limited(read: Awaitable[list[ApiKey]]) -> list[ApiKey]:
    try:
        async with asyncio.timeout(READ_SECONDS):
            return await read
    except TimeoutError:
        raise StoreUnavailable(f"the store did not tell the keys within {READ_SECONDS:g} seconds: try again") from None


def _heard(task: asyncio.Task[Known]) -> None:
    """An error that nobody waits for any more is nobody's."""
    if not task.cancelled():
        task.exception()
