"""One attempt of one job at a remote worker: its handler, run to an end, and how that end is said over HTTP."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import Executor
from typing import Any, assert_never

import msgspec

from holdfast import codec
from holdfast.client.context import BlockingRemoteContext, RemoteContext
from holdfast.client.records import RemoteJob
from holdfast.clock import MICROS, Clock
from holdfast.handlers import Handler
from holdfast.lifecycle import (
    Cancelled,
    Completed,
    Discarded,
    ErrorEntry,
    GivenBack,
    Outcome,
    Raised,
    RetryAsked,
    Snoozed,
    WaitingForChildren,
)
from holdfast.worker.mistakes import entry, outcome_of, result_json

STOPPED = "its worker is stopping"
End = tuple[str, dict[str, Any]]  # the route's verb, and the body without the token


class FarRun:
    def __init__(self, handler: Handler, job: RemoteJob, token: str, clock: Clock, threads: Executor) -> None:
        self.handler = handler
        self.job = job
        self.token = token
        self.context = RemoteContext(job) if handler.is_async else BlockingRemoteContext(job)
        self.task: asyncio.Task[None] | None = None
        self.is_lost = False  # the server says so: nothing that it does counts any more
        self.is_stopping = False
        self._clock = clock
        self._threads = threads
        self._is_inside = False  # the handler

    @property
    def claim(self) -> dict[str, str]:
        return {"job_id": self.job.job_id, "token": self.token}

    def stop(self) -> None:
        """Ask the handler to end: at its next await, or when it looks at ctx.cancelled."""
        self.context.stop()
        if self._is_inside and self.handler.is_async and self.task is not None:
            self.task.cancel()

    async def end(self) -> End:
        """Run the handler. Never raises, but CancelledError where the claim is lost."""
        self._is_inside = True
        try:
            return await self._end()
        finally:
            self._is_inside = False

    async def _end(self) -> End:
        seconds = float(self.job.timeout_seconds)
        attempt, now = self.context.attempt, self._clock.now
        try:
            async with asyncio.timeout(seconds) as limit:
                value = await self._call()
            return "complete", {"result": msgspec.Raw(result_json(value).encode())}
        except asyncio.CancelledError as error:
            if self.is_lost:
                raise
            if self.is_stopping and (task := asyncio.current_task()) is not None:
                task.uncancel()  # it goes on, to say so
                return said(GivenBack(STOPPED))
            return said(Raised(entry(error, attempt, now())))
        except BaseException as error:
            if isinstance(error, TimeoutError) and limit.expired():
                self.context.stop()
                return said(Raised(ErrorEntry(attempt, now(), "JobTimeout", f"ran longer than its {seconds:g} s")))
            return said(outcome_of(error, attempt, now()))

    async def _call(self) -> Any:
        handler, job = self.handler, self.job
        payload = handler.decode(codec.encode(job.payload).decode(), job.payload_version)
        arguments = (payload, self.context) if handler.takes_context else (payload,)
        if handler.is_async:
            return await handler.function(*arguments)
        inside = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._threads, inside.run, handler.function, *arguments)


def said(outcome: Outcome) -> End:
    """How an outcome is told to the server."""
    match outcome:
        case Completed(result):
            return "complete", {"result": None if result is None else codec.decode(result)}
        case Raised(error):
            return "fail", {"error": _error(error)}
        case RetryAsked(error, after_micros):
            after = {} if after_micros is None else {"retry_after": after_micros / MICROS}
            return "fail", {"error": _error(error), **after}
        case Discarded(error):
            return "fail", {"error": _error(error), "retry": False}
        case Snoozed(for_micros, reason):
            return "outcome", {"outcome": "snooze", "seconds": for_micros / MICROS, "reason": reason or None}
        case GivenBack(reason):
            return "outcome", {"outcome": "give_back", "reason": reason}
        case Cancelled(reason):
            return "outcome", {"outcome": "cancel", "reason": reason or None}
        case WaitingForChildren():
            why = "a remote worker cannot wait for children: submit what comes after with depends_on"
            return "fail", {"error": {"type": "WaitForChildren", "message": why}, "retry": False}
        case _:
            assert_never(outcome)


def _error(error: ErrorEntry) -> dict[str, str]:
    return {"type": error.type, "message": error.message, "traceback": error.traceback}
