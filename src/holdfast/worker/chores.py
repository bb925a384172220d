"""What workers do beside running jobs, without running any: for a server whose workers come over HTTP.

Without it a retry would never come due, and the job of a worker that fell silent would never be rescued.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.files import Files
from holdfast.observing import Observers
from holdfast.retention import Retention
from holdfast.store.port import Store
from holdfast.store.types import Signal
from holdfast.trouble import Trouble
from holdfast.worker.janitor import Janitor
from holdfast.worker.scheduler import Scheduler
from holdfast.worker.upkeep import Upkeep

log = logging.getLogger("holdfast.worker")


class Chores:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        files: Files | None,
        *,
        name: str,
        lease_seconds: float,
        poll_seconds: float,
        keep: Retention,
        observers: Observers | None = None,
    ) -> None:
        trouble = Trouble(log, clock)
        self._store = store
        self._upkeep = Upkeep(
            store,
            clock,
            worker_id=name,
            lease_seconds=lease_seconds,
            sweep_seconds=sweep_seconds(poll_seconds, lease_seconds),
            trouble=trouble,
            observers=observers,
        )
        self._scheduler = Scheduler(store, clock, look_seconds=poll_seconds, trouble=trouble)
        self._janitor = Janitor(store, clock, files, keep, trouble)
        self._tasks: list[asyncio.Task[None]] = []
        self._unlisten: Callable[[], None] = lambda: None

    async def __aenter__(self) -> Chores:
        self._unlisten = self._store.listen(frozenset({Signal.DUE, Signal.PLANNED}), self._hear)
        for work in (
            self._upkeep.promote(),
            self._upkeep.sweep(),
            self._scheduler.work(),
            self._janitor.work(),
        ):
            task = asyncio.get_running_loop().create_task(work)
            task.add_done_callback(_say_why)
            self._tasks.append(task)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._unlisten()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _hear(self, signal: Signal) -> None:
        if signal is Signal.DUE:
            self._upkeep.due_changed()
        else:
            self._scheduler.changed()


def sweep_seconds(poll_seconds: float, lease_seconds: float) -> float:
    """How often lost claims are looked for: a short lease is meant to be noticed soon."""
    return min(poll_seconds, max(0.05, lease_seconds / 2))


def _say_why(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("upkeep has ended: %s", error)
