"""Writes progress and logs of all running jobs about once a second, in one call. Failures are only logged."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping

from backstay.clock import Clock, within
from backstay.core.checks import count
from backstay.core.port import Store
from backstay.errors import StoreBusy, StoreUnavailable
from backstay.files.local import LOG_FILE, Files
from backstay.limits import LOG_FILE_BYTES_MAX, LOG_KEPT_BYTES_MAX
from backstay.ops.wait import Trouble
from backstay.worker.run import Report, Run

log = logging.getLogger("backstay.worker")


class Recorder:
    def __init__(
        self, store: Store, clock: Clock, files: Files | None, running: Mapping[str, Run], trouble: Trouble
    ) -> None:
        self._store = store
        self._trouble = trouble
        self._clock = clock
        self._files = files
        self._running = running
        self._kept: deque[tuple[str, bytes]] = deque()  # lines that could not be written yet, by job, in order
        self._kept_bytes = 0
        self._writing: asyncio.Task[None] | None = None  # the task that writes `_kept`

    async def work(self) -> None:
        while True:
            await asyncio.sleep(self._store.record_seconds)
            if self._kept:
                await self.write_kept()
            dirty = [run for run in self._running.values() if run.dirty and not run.settling]
            if dirty:
                await self.record(dirty)

    async def record(self, runs: list[Run]) -> None:
        for run in runs:
            await self.write_log(run)
        try:
            await self._store.note([run.note() for run in runs], self._clock.now())
        except Exception as error:  # bookkeeping never breaks the worker
            self._trouble.met("keeping progress", error)
            for run in runs:
                run.dirty = True  # what they said last is still worth a write
        else:
            self._trouble.over("keeping progress")

    async def write_log(self, run: Report) -> None:
        """Append what the handler has logged to the job's log file, whose location the record names.

        A write that is under way is waited for: a job that has ended is settled once its whole log is there."""
        while run.log_write is not None:
            await asyncio.wait((run.log_write,))
        text = run.take_log_text()
        if not text or self._files is None:
            return
        run.log_write = asyncio.get_running_loop().create_task(self._write_text(run, text, self._files))
        await asyncio.shield(run.log_write)

    async def _write_text(self, run: Report, text: str, files: Files) -> None:
        try:
            await self._append_or_keep(run, text, files)
        finally:
            run.log_write = None

    async def _append_or_keep(self, run: Report, text: str, files: Files) -> None:
        job_id, lines = run.job.job_id, text.encode("utf-8", "replace")
        where = files.uri(job_id, LOG_FILE)
        if self._kept:
            # The store is away: a job that has ended need not wait to hear the same, and lines stay in order.
            self._keep(job_id, lines)
            run.log_location = where
            return
        try:
            await self._append(job_id, lines)
            run.log_location = where
        except (StoreUnavailable, StoreBusy) as error:
            if not self._kept:
                log.warning("the log of job %s is buffered until it can be written: %s", job_id, error)
            self._keep(job_id, lines)
            run.log_location = where
        except Exception as error:
            log.warning("lost log lines of job %s, which cannot be written: %s", job_id, error)

    async def _append(self, job_id: str, lines: bytes) -> None:
        if self._files is not None:
            await asyncio.to_thread(self._files.append, job_id, LOG_FILE, lines, LOG_FILE_BYTES_MAX)

    def _keep(self, job_id: str, lines: bytes) -> None:
        if self._kept_bytes + len(lines) > LOG_KEPT_BYTES_MAX:
            log.warning("lost log lines of job %s: the store has been unavailable for too long to buffer more", job_id)
            return
        self._kept.append((job_id, lines))
        self._kept_bytes += len(lines)

    async def write_kept(self) -> None:
        """Write as much as the store takes; the rest waits for the next try. Callers share one write, which continues
        even if one of them is cancelled: its thread cannot be stopped, and a second write would append the same lines
        again."""
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write_kept())
        await asyncio.shield(self._writing)

    async def _write_kept(self) -> None:
        written: set[str] = set()
        while self._kept:
            job_id, lines = self._kept[0]
            try:
                await self._append(job_id, lines)
                written.add(job_id)
            except (StoreUnavailable, StoreBusy):
                return
            except Exception as error:
                log.warning("lost log lines of job %s, which cannot be written: %s", job_id, error)
            self._kept.popleft()
            self._kept_bytes -= len(lines)
        log.info("wrote the buffered logs of %s", count(len(written), "job"))

    async def close(self, seconds: float) -> None:
        """Try to write the rest a last time."""
        if self._kept:
            await within(seconds, self.write_kept())
        if self._writing is not None:
            self._writing.cancel()
        if self._kept:
            jobs = sorted({job_id for job_id, _ in self._kept})
            lost = count(len(jobs), "job")
            log.warning("lost log lines of %s, the store is unavailable: %s", lost, ", ".join(jobs[:10]))
