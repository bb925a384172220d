"""Running a handler by its kind, and turning whatever comes of it into an outcome."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

from holdfast import codec, failpoints
from holdfast.clock import MICROS, Clock
from holdfast.context import BlockingContext, Context
from holdfast.files import Files
from holdfast.lifecycle import Completed, Discarded, ErrorEntry, GivenBack, Outcome, Raised
from holdfast.limits import RESULT_BYTES_MAX, RESULT_INLINE_BYTES_MAX
from holdfast.store.port import Store
from holdfast.worker import capture
from holdfast.worker.channels import LoopChannel, ThreadChannel
from holdfast.worker.mistakes import entry, outcome_of, result_json
from holdfast.worker.processes import Processes
from holdfast.worker.run import Run
from holdfast.worker.threads import Threads

TIMED_OUT = "timed out"
SHUT_DOWN = "worker is stopping"
LOST = "claim lost"


class Executor:
    def __init__(self, store: Store, clock: Clock, files: Files | None, begins: Callable[[Run], None]) -> None:
        self._store = store
        self._clock = clock
        self._files = files
        self._begins = begins  # called when the handler's time starts to count
        self._threads = Threads()
        self._processes = Processes()

    def close(self) -> None:
        self._threads.close()
        self._processes.close()

    async def run(self, run: Run) -> Outcome:
        """Never raises."""
        run.begun = True
        if _stop_asked(run):
            return self.stopped(run)
        try:
            failpoints.hit("handler.before")
            value = await self._call(run)
            failpoints.hit("handler.after")
            if _stop_asked(run):
                return self.stopped(run)
            if not isinstance(value, str):
                return value
            return await self._completed(run, value)
        except asyncio.CancelledError as error:
            # We cancel a run only with a reason: without one the handler did it, and that is a failure like any other.
            if _stop_asked(run):
                return self.stopped(run)
            return Raised(entry(error, run.job.attempt, self._clock.now()))
        except BaseException as error:
            if _stop_asked(run):
                return self.stopped(run)
            return outcome_of(error, run.job.attempt, self._clock.now())

    async def _call(self, run: Run) -> Outcome | str:
        """The result as JSON text, or an outcome that a child process has already named."""
        handler = run.handler
        match handler.isolation:
            case "async":
                self._begins(run)
                capture.current.set(run)  # the task's own context: nothing to reset
                payload = handler.decode(run.job.payload, run.job.payload_version)
                if handler.takes_context:
                    value = await handler.function(
                        payload, Context(LoopChannel(run, self._store, self._clock, self._files))
                    )
                else:
                    value = await handler.function(payload)
                return "null" if value is None else result_json(value)
            case "thread":
                return await self._in_thread(run)
            case "process":
                channel = LoopChannel(run, self._store, self._clock, self._files)
                return await self._processes.run(run, channel, self._clock, self._begins)

    async def _in_thread(self, run: Run) -> str:
        self._begins(run)
        handler = run.handler
        context = BlockingContext(ThreadChannel(run, self._store, self._clock, self._files))

        def call() -> str:
            capture.current.set(run)
            payload = handler.decode(run.job.payload, run.job.payload_version)
            value: Any = handler.function(payload, context) if handler.takes_context else handler.function(payload)
            return result_json(value)

        text: str = await self._threads.run(contextvars.copy_context(), call)
        return text

    def stopped(self, run: Run) -> Outcome:
        """What a stop means for the job. A lost claim is never settled, so what is said here does not matter."""
        if run.stop_reason == SHUT_DOWN:
            return GivenBack(SHUT_DOWN)
        seconds = run.job.timeout_micros / MICROS
        return Raised(
            ErrorEntry(run.job.attempt, self._clock.now(), "JobTimeout", f"ran longer than its {seconds:g} s")
        )

    async def _completed(self, run: Run, result: str) -> Outcome:
        if len(result) <= RESULT_INLINE_BYTES_MAX // 4:
            return Completed(result)
        raw = result.encode()
        if len(raw) <= RESULT_INLINE_BYTES_MAX:
            return Completed(result)
        if len(raw) > RESULT_BYTES_MAX or self._files is None:
            message = f"the result has {len(raw):,} bytes; the limit is {RESULT_BYTES_MAX:,} (RESULT_BYTES_MAX)"
            return Discarded(ErrorEntry(run.job.attempt, self._clock.now(), "ResultTooLarge", message))
        # Written before the completion commits, and named in it.
        stored = await asyncio.to_thread(self._files.write, run.job.job_id, run.job.attempt, ".result.json", raw)
        return Completed(None, codec.encode(stored).decode())


def _stop_asked(run: Run) -> bool:
    """Asked anew each time: it can change at every await, and in a thread at any moment."""
    return run.stop_reason is not None
