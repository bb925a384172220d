"""A run without a queue: what `handler.call` gives a handler as its context."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

from backstay.clock import SystemClock
from backstay.context import BlockingContext, Context, batch_context
from backstay.core.records import ClaimedJob, Inserted, shared
from backstay.core.states import Status
from backstay.errors import InvalidOption, InvalidResult
from backstay.handlers import BatchHandler, Handler
from backstay.ids import new_id
from backstay.lifespan import Resources
from backstay.options import SubmitOptions, build, new_record


class _Channel:
    """Records steps in memory; progress and metrics go nowhere. What needs a queue is refused."""

    def __init__(self, job: ClaimedJob, resources: Resources) -> None:
        self.job = job
        self._resources = resources
        self._steps: dict[str, str] = {}

    @property
    def state(self) -> Any:
        return self._resources.state

    def progress(self, fraction: float, stage: str | None) -> None:
        """Nothing shows it."""

    def metric(self, name: str, value: float) -> None:
        """Nothing keeps it."""

    def cancelled(self) -> bool:
        return False

    def loaded_children(self) -> list[Any]:
        return []

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        raise InvalidOption(
            f"handler.call runs the function here, without a queue, and this needs one ({name}): use"
            " backstay.testing.inline(app)"
        )


class _BlockingChannel(_Channel):
    def stream(self, entry: str) -> None:
        """Nothing reads it."""

    def step(self, name: str) -> str | None:
        return self._steps.get(name)

    def record_step(self, name: str, answer: str) -> bool:
        self._steps[name] = answer
        return True

    def sleep(self, name: str, micros: int) -> None:
        """Sleeps are over at once."""


class _AsyncChannel(_Channel):
    async def stream(self, entry: str) -> None:
        """Nothing reads it."""

    async def step(self, name: str) -> str | None:
        return self._steps.get(name)

    async def record_step(self, name: str, answer: str) -> bool:
        self._steps[name] = answer
        return True

    async def sleep(self, name: str, micros: int) -> None:
        """Sleeps are over at once."""


def _prepared(handler: Handler, payload: Any) -> tuple[ClaimedJob, Any]:
    """Return a job as a worker would get it, and its payload, checked and converted as between submit and run."""
    now = SystemClock().now()
    job = build(handler, payload, new_id(now), now, SubmitOptions())
    record = new_record(job, Inserted(job.job_id, Status.PROCESSING), now)
    fields = shared(record, ClaimedJob) | {
        "attempt": 1,
        "lease_expires_at": now,
        "worker_id": "here",
        "started_at": now,
    }
    return ClaimedJob(**fields), handler.decode(job.payload)


async def call(handler: Handler, payload: Any) -> Any:
    """Call a handler with a payload, inside its middleware, after the start of the lifespan if that runs nowhere on
    this event loop: a coroutine here, a plain function in a thread. Return what it returns."""
    async with Resources(handler.lifespans) as resources:
        if not handler.is_async:
            return await asyncio.to_thread(_run, handler, payload, resources)
        job, value = _prepared(handler, payload)
        function, takes_context = handler.entry(None)
        channel = _AsyncChannel(job, resources)
        if isinstance(handler, BatchHandler):
            context = batch_context(True, [channel], channel.cancelled)
            return _of_one(handler, await (function([value], context) if takes_context else function([value])))
        return await (function(value, Context(channel)) if takes_context else function(value))


def call_blocking(handler: Handler, payload: Any) -> Any:
    """The same without a running event loop."""
    if handler.is_async or (handler.lifespans is not None and handler.lifespans.lifespan is not None):
        return asyncio.run(call(handler, payload))
    return _run(handler, payload, Resources(None))


def _run(handler: Handler, payload: Any, resources: Resources) -> Any:
    job, value = _prepared(handler, payload)
    function, takes_context = handler.entry(None)
    channel = _BlockingChannel(job, resources)
    if isinstance(handler, BatchHandler):
        context = batch_context(False, [channel], channel.cancelled)
        return _of_one(handler, function([value], context) if takes_context else function([value]))
    return function(value, BlockingContext(channel)) if takes_context else function(value)


def _of_one(handler: Handler, answers: Any) -> Any:
    """Return the answer of a batch handler to its only payload."""
    if not isinstance(answers, list | tuple) or len(answers) != 1:
        raise InvalidResult(f"{handler.name} must return a list of 1, for the one payload, not {answers!r:.200}")
    if isinstance(answers[0], BaseException):
        raise answers[0]
    return answers[0]
