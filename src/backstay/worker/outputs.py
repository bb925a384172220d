"""Writes what running jobs append with `ctx.stream`, about ten times a second, all jobs in one call.

An entry that was handed over is written soon, in order, and before the completion of its job: a run that has ended
waits until all of its output is stored. The store refuses what an attempt appends whose claim is over, and the handler
is told with its next entry.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from backstay import failpoints
from backstay.clock import Clock, within
from backstay.core.output import OutputBuffer, OutputPart
from backstay.core.port import Store
from backstay.core.records import Verdict
from backstay.errors import ClaimLost, StoreMoved
from backstay.limits import OUTPUT_INTERVAL_SECONDS
from backstay.ops.wait import HOPELESS, OF_THE_STORE, Trouble
from backstay.worker.run import Run

PAUSE_SECONDS = 0.2  # before a write that failed is repeated …
TRIES_MAX = 3  # … so often if the store is there, and cannot take it


class Outputs:
    """The writer of all runs of a worker. It has a task only while there is something to write."""

    def __init__(self, store: Store, clock: Clock, trouble: Trouble) -> None:
        self._store = store
        self._clock = clock
        self._trouble = trouble
        self._waiting: dict[Run, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()  # a run has ended, and waits for its output
        self._written = asyncio.Event()  # set, and replaced, after every write
        self._apart = False  # a call failed: what each run has is written by itself
        self._next = float("-inf")

    async def append(self, run: Run, entry: str) -> None:
        """Append an entry. Returns at once, unless so much waits that the store must catch up first."""
        output = run.output
        if output is None:
            output = run.output = OutputBuffer()
        output.add(entry)
        self._stir(run)
        while output.is_full:
            await self._written.wait()
        if output.error is not None:
            raise output.error

    async def flush(self, run: Run) -> None:
        """Wait until all output of a run is stored. Raises what has kept it from being stored."""
        output = run.output
        if output is None:
            return
        while not output.is_empty:
            self._hurry.set()
            self._stir(run)
            await self._written.wait()
        if output.error is not None:
            raise output.error

    async def flush_quietly(self, run: Run) -> None:
        """The same for a run that has failed anyway: its readers see how far it came."""
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await self.flush(run)

    def _stir(self, run: Run) -> None:
        self._waiting[run] = None
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._write())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        tries = 0
        interval = max(OUTPUT_INTERVAL_SECONDS, self._store.record_seconds / 10)
        while self._waiting:
            rest = self._next - loop.time()
            if rest > 0:
                await within(rest, self._hurry.wait())
            self._hurry.clear()
            runs = [run for run in self._waiting if run.output is not None and not run.output.is_empty]
            runs = runs[:1] if self._apart else runs
            parts = {run: run.output.part(run.hold) for run in runs if run.output is not None}
            try:
                await self._append(parts)
                tries = 0
                self._next = loop.time() + interval
            except asyncio.CancelledError:
                raise
            except Exception as error:
                tries += 1
                if self._is_over(runs, error, tries):
                    tries = 0
                else:
                    self._trouble.met("writing output", error)
                    await asyncio.sleep(PAUSE_SECONDS)
            self._drop_written()

    async def _append(self, parts: dict[Run, OutputPart]) -> None:
        if not parts:
            return
        failpoints.hit("output.before")
        verdicts = await self._store.append_output(list(parts.values()), self._clock.now())
        failpoints.hit("output.after")
        self._trouble.over("writing output")
        for (run, part), verdict in zip(parts.items(), verdicts, strict=True):
            if run.output is None:
                continue
            if verdict is Verdict.APPLIED:
                run.output.answered(part)
            else:
                run.output.refuse(ClaimLost(f"output was not stored: this run no longer holds job {run.job.job_id}"))

    def _is_over(self, runs: Sequence[Run], error: Exception, tries: int) -> bool:
        """Return whether a failed write is not to be repeated as it was."""
        if isinstance(error, (*HOPELESS, StoreMoved)):
            for run in runs:
                if run.output is not None:
                    run.output.refuse(error)
            return True
        for run in runs:
            if run.lost and run.output is not None:  # no one waits for it any more
                run.output.refuse(ClaimLost(f"this run no longer holds job {run.job.job_id}"))
        if isinstance(error, OF_THE_STORE) or tries < TRIES_MAX:
            return False
        if len(runs) > 1:
            self._apart = True
        elif runs[0].output is not None:
            runs[0].output.refuse(error)
        return True

    def _drop_written(self) -> None:
        for run in list(self._waiting):
            if run.output is None or run.output.is_empty:
                del self._waiting[run]
        if not self._waiting:
            self._apart = False
        self._written.set()
        self._written = asyncio.Event()
