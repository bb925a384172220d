"""`Lifetime`: ends a worker that has done its share: nothing is due, enough jobs, too much memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum

from backstay.clock import Clock
from backstay.core.checks import count
from backstay.core.port import Store
from backstay.limits import SWEEP_BATCH_MAX
from backstay.ops.wait import HOPELESS
from backstay.worker import memory
from backstay.worker.fetcher import Fetcher, WorkerSettings
from backstay.worker.maintenance import Scheduler
from backstay.worker.run import Runs
from backstay.worker.settler import Settler

log = logging.getLogger("backstay.worker")
LOOK_SECONDS = 0.1  # between looks; they ask the store only where the worker is idle


class Reason(Enum):
    """Why a worker ended by itself, without anything being wrong."""

    NOTHING_DUE = "nothing is due that this worker could run"
    JOBS = "it has run as many jobs as max_jobs says"
    MEMORY = "it uses more memory than max_memory says"

    @property
    def is_for_another(self) -> bool:
        """Whether there may be work for another worker in its place."""
        return self is not Reason.NOTHING_DUE


class Lifetime:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        settings: WorkerSettings,
        runs: Runs,
        settler: Settler,
        fetcher: Fetcher,
        stop: Callable[[], object],
    ) -> None:
        self.reason: Reason | None = None
        self._store = store
        self._clock = clock
        self._settings = settings
        self._runs = runs
        self._settler = settler
        self._fetcher = fetcher
        self._stop = stop
        self._schedules = Scheduler(store, clock, look_seconds=settings.poll_seconds)

    async def work(self) -> None:
        while (reason := await self._over()) is None:  # noqa: ASYNC110  # most of what it looks at has no signal
            await asyncio.sleep(LOOK_SECONDS)
        self.reason = reason
        log.info("the worker is stopping after %s: %s", count(self._settler.ran, "run"), reason.value)
        self._stop()

    async def _over(self) -> Reason | None:
        settings = self._settings
        if settings.max_jobs is not None and self._settler.ran >= settings.max_jobs:
            return Reason.JOBS
        if settings.max_memory is not None and (used := memory.resident_bytes()) > settings.max_memory:
            log.info("it uses %s, more than %s", memory.shown(used), memory.shown(settings.max_memory))
            return Reason.MEMORY
        if settings.burst and await self._is_dry():
            return Reason.NOTHING_DUE
        return None

    async def _is_dry(self) -> bool:
        """Return whether nothing runs here, nothing has become due, and a claim made after that was known is empty."""
        if self._runs.held or not self._fetcher.is_waiting:
            return False
        try:
            came = await self._came_due()
        except HOPELESS:
            raise
        except Exception as error:  # the store is away: what is due is not known
            log.debug("could not see what is due: %s", error)
            return False
        claimed = self._fetcher.claimed
        await self._fetcher.ask_again()
        return not came and self._fetcher.claimed == claimed and not self._runs.held

    async def _came_due(self) -> bool:
        """Make pending what is due: scheduled jobs and retries, ticks, and jobs whose dependencies have ended."""
        now = self._clock.now()
        next_tick = await self._schedules.look()
        promoted = await self._store.promote(now, SWEEP_BATCH_MAX)
        released = await self._store.release(now, SWEEP_BATCH_MAX)
        due = [each for each in (next_tick, promoted.next_due_at) if each is not None]
        return promoted.count > 0 or released > 0 or any(each <= now for each in due)
