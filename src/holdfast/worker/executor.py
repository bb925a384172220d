"""Running a handler by its kind, and turning whatever comes of it into an outcome."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

from holdfast import failpoints
from holdfast.clock import MICROS
from holdfast.context import BlockingContext, Context
from holdfast.lifecycle import ErrorEntry, GivenBack, Outcome, Raised
from holdfast.worker import capture
from holdfast.worker.channels import LoopChannel, Services, ThreadChannel
from holdfast.worker.completing import completion
from holdfast.worker.execution import Execution
from holdfast.worker.mistakes import entry, outcome_of, result_json
from holdfast.worker.processes import Processes
from holdfast.worker.run import Run
from holdfast.worker.threads import Threads

TIMED_OUT = "timed out"
SHUT_DOWN = "worker is stopping"
LOST = "claim lost"


class Executor:
    def __init__(self, services: Services, begins: Callable[[Execution], None]) -> None:
        self.services = services
        self._clock = services.clock
        self._files = services.files
        self.begins = begins  # called when the handler's time starts to count
        self.threads = Threads()
        self.processes = Processes()

    def close(self) -> None:
        self.threads.close()
        self.processes.close()

    def channel(self, run: Run) -> LoopChannel:
        return LoopChannel(run, self.services)

    def thread_channel(self, run: Run) -> ThreadChannel:
        return ThreadChannel(run, self.services)

    async def run(self, run: Run) -> Outcome:
        """Never raises."""
        run.begun = True
        if _stop_asked(run):
            return self.stopped(run, run)
        try:
            if run.job.children:
                await self.services.children.load(run)
            failpoints.hit("handler.before")
            value = await self._call(run)
            failpoints.hit("handler.after")
            if _stop_asked(run):
                return self.stopped(run, run)
            if not isinstance(value, str):
                return value
            if run.rows_refused is not None:
                raise run.rows_refused
            if run.family:
                await self.services.children.flush(run)
            return await self.completed(run, value)
        except asyncio.CancelledError as error:
            # We cancel a run only with a reason: without one the handler did it, and that is a failure like any other.
            if _stop_asked(run):
                return self.stopped(run, run)
            return Raised(entry(error, run.job.attempt, self._clock.now()))
        except BaseException as error:
            if _stop_asked(run):
                return self.stopped(run, run)
            return outcome_of(error, run.job.attempt, self._clock.now())

    async def _call(self, run: Run) -> Outcome | str:
        """The result as JSON text, or an outcome that a child process has already named."""
        handler = run.handler
        match handler.isolation:
            case "async":
                self.begins(run)
                capture.current.set(run)  # the task's own context: nothing to reset
                payload = handler.decode(run.job.payload, run.job.payload_version)
                function, takes_context = handler.entry(run.job.join)
                value = await (function(payload, Context(self.channel(run))) if takes_context else function(payload))
                return "null" if value is None else result_json(value)
            case "thread":
                return await self._in_thread(run)
            case "process":
                return await self.processes.run(run, self.channel(run), self._clock, self.begins)

    async def _in_thread(self, run: Run) -> str:
        self.begins(run)
        handler = run.handler
        context = BlockingContext(self.thread_channel(run))

        def call() -> str:
            capture.current.set(run)
            payload = handler.decode(run.job.payload, run.job.payload_version)
            function, takes_context = handler.entry(run.job.join)
            value: Any = function(payload, context) if takes_context else function(payload)
            return result_json(value)

        text: str = await self.threads.run(contextvars.copy_context(), call)
        return text

    def stopped(self, run: Run, execution: Execution) -> Outcome:
        """What a stop of what it runs in means for a job. A lost claim is never settled, so what is said here of one
        does not matter."""
        if execution.stop_reason == SHUT_DOWN:
            return GivenBack(SHUT_DOWN)
        seconds = execution.timeout_micros / MICROS
        return Raised(
            ErrorEntry(run.job.attempt, self._clock.now(), "JobTimeout", f"ran longer than its {seconds:g} s")
        )

    async def completed(self, run: Run, result: str) -> Outcome:
        return await completion(run.job.job_id, run.job.attempt, result, self._files, self._clock.now())


def _stop_asked(run: Run) -> bool:
    """Asked anew each time: it can change at every await, and in a thread at any moment."""
    return run.stop_reason is not None
