"""Where a storm takes place: a store, the faults of its engine, and a new place for each transfer."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

Fault = Callable[[random.Random], Awaitable[bool | None]]  # False: it hit nothing, and does not count


@asynccontextmanager
async def up_as_long_as_down() -> AsyncIterator[None]:
    """Leave a server alone for as long as its fault took: on a slow machine it would always be down."""
    began = time.monotonic()
    yield
    await asyncio.sleep(time.monotonic() - began)


class Site(Protocol):
    faults: dict[str, Fault]
    clock_jumps: int
    release: str  # the version of the server

    @property
    def skew_seconds(self) -> float:
        """How wrong a clock may have been: leases and retries wait that much longer."""

    @property
    def url(self) -> str:
        """The queue as the processes reach it."""

    @property
    def direct(self) -> str:
        """The queue as the judge reads it."""

    async def open(self, folder: Path) -> None: ...

    async def close(self) -> None: ...

    def worker_options(self, slot: int) -> dict[str, Any]: ...

    def next_url(self) -> str:
        """Return an empty place for the next transfer."""

    def moved(self) -> None:
        """Use the place that was returned last."""

    async def calm(self) -> None:
        """End all faults."""
