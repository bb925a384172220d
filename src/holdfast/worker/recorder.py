"""Durable progress and logs: about once a second, a worker's jobs together. Trouble is only logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.files import LOG_FILE, Files
from holdfast.limits import LOG_FILE_BYTES_MAX
from holdfast.store.port import Store
from holdfast.worker.run import Run

log = logging.getLogger("holdfast.worker")
STALL_SECONDS = 1.0  # an event loop that is late by more than this is blocked by a handler


class Recorder:
    def __init__(self, store: Store, clock: Clock, files: Files | None, runs: Callable[[], list[Run]]) -> None:
        self._store = store
        self._clock = clock
        self._files = files
        self._runs = runs

    async def work(self) -> None:
        while True:
            before = self._clock.monotonic()
            interval = self._store.record_seconds
            await asyncio.sleep(interval)
            self._warn_of_stall(self._clock.monotonic() - before - interval)
            dirty = [run for run in self._runs() if run.dirty and not run.settling]
            if dirty:
                await self.record(dirty)

    def _warn_of_stall(self, seconds: float) -> None:
        if seconds > STALL_SECONDS:
            types = sorted({run.job.job_type for run in self._runs() if run.handler.isolation == "async"})
            log.warning(
                "the event loop stood still for %.1f s: an async handler blocks it%s; make it a plain `def`, which runs"
                ' in a thread, or give it isolation="process"',
                seconds,
                f" (running: {', '.join(types)})" if types else "",
            )

    async def record(self, runs: list[Run]) -> None:
        for run in runs:
            await self.write_log(run)
        try:
            await self._store.note([run.note() for run in runs], self._clock.now())
        except Exception as error:  # bookkeeping never breaks the worker
            log.warning("progress of %d jobs could not be kept: %s", len(runs), error)

    async def write_log(self, run: Run) -> None:
        """Append what the handler has logged to the job's file, whose place the record names."""
        text = run.take_log_text()
        if not text or self._files is None:
            return
        try:
            await asyncio.to_thread(
                self._files.append,
                run.job.job_id,
                LOG_FILE,
                text.encode("utf-8", "replace"),
                LOG_FILE_BYTES_MAX,
            )
            run.log_location = self._files.uri(run.job.job_id, LOG_FILE)
        except Exception as error:
            log.warning("the log of job %s could not be written: %s", run.job.job_id, error)
