"""Waiting for jobs to end: one reader for all who wait in this app, woken by signals, polling as the fallback."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from holdfast.clock import SystemClock
from holdfast.errors import ForkedStore, HoldfastError, NotOpen, StoreGone
from holdfast.lifecycle import TERMINAL
from holdfast.limits import FIND_LIMIT_MAX, RESULT_POLL_SECONDS
from holdfast.store.port import Store
from holdfast.store.types import JobRecord, Signal
from holdfast.trouble import Trouble
from holdfast.waits import within

log = logging.getLogger("holdfast")


class Waiting:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiters: dict[str, list[asyncio.Future[JobRecord | None]]] = {}
        self._stir = asyncio.Event()
        self._trouble = Trouble(log, SystemClock())
        self._task: asyncio.Task[None] | None = None
        self._unlisten: Callable[[], None] | None = None

    async def ended(self, job_id: str) -> JobRecord | None:
        """The record of a job once it has ended; None when there is no such job."""
        future: asyncio.Future[JobRecord | None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(job_id, []).append(future)
        if self._task is None:
            self._unlisten = self._store.listen(frozenset({Signal.ENDED}), lambda _: self._stir.set())
            self._task = asyncio.get_running_loop().create_task(self._work())
        self._stir.set()
        try:
            return await future
        finally:
            waiting = self._waiters.get(job_id, [])
            if future in waiting:
                waiting.remove(future)
            if not waiting:
                self._waiters.pop(job_id, None)

    async def close(self) -> None:
        if self._unlisten is not None:
            self._unlisten()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail_all(NotOpen("the app was closed while this waited for a result; the job goes on"))

    def _fail_all(self, error: Exception) -> None:
        for futures in list(self._waiters.values()):
            for future in list(futures):
                if not future.done():
                    future.set_exception(error)

    async def _work(self) -> None:
        while True:
            await within(RESULT_POLL_SECONDS if self._waiters else None, self._stir.wait())
            self._stir.clear()
            wanted = list(self._waiters)
            try:
                for start in range(0, len(wanted), FIND_LIMIT_MAX):
                    await self._look(wanted[start : start + FIND_LIMIT_MAX])
                self._trouble.over("waiting for results")
            except (StoreGone, ForkedStore, NotOpen) as error:
                self._fail_all(error)
            except HoldfastError as error:
                self._trouble.met("waiting for results", error)
            except Exception as error:
                log.exception("waiting for %d jobs", len(wanted))
                self._fail_all(error)

    async def _look(self, job_ids: list[str]) -> None:
        """States first: of a thousand jobs that are waited for, one has ended, and records are large."""
        statuses = await self._store.statuses(job_ids)
        ended = [each for each, status in zip(job_ids, statuses, strict=True) if status is None or status in TERMINAL]
        for job_id, record in zip(ended, await self._store.get(ended) if ended else (), strict=True):
            if record is not None and record.status not in TERMINAL:
                continue  # retried in between: it has not ended after all
            for future in self._waiters.pop(job_id, []):
                if not future.done():
                    future.set_result(record)
