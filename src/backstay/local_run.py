"""A run without a queue: what `handler.call` gives a handler as its context."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

from backstay.clock import SystemClock
from backstay.context import BlockingContext, Context
from backstay.core.records import ClaimedJob, Inserted, shared
from backstay.core.states import Status
from backstay.errors import InvalidOption
from backstay.handlers import Handler
from backstay.ids import new_id
from backstay.options import SubmitOptions, build, new_record


class _Channel:
    """Records steps in memory; progress and metrics go nowhere. What needs a queue is refused."""

    def __init__(self, job: ClaimedJob) -> None:
        self.job = job
        self._steps: dict[str, str] = {}

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
    def step(self, name: str) -> str | None:
        return self._steps.get(name)

    def record_step(self, name: str, answer: str) -> bool:
        self._steps[name] = answer
        return True


class _AsyncChannel(_Channel):
    async def step(self, name: str) -> str | None:
        return self._steps.get(name)

    async def record_step(self, name: str, answer: str) -> bool:
        self._steps[name] = answer
        return True


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
    """Call a handler with a payload: a coroutine here, a plain function in a thread. Return what it returns."""
    if not handler.is_async:
        return await asyncio.to_thread(call_blocking, handler, payload)
    job, value = _prepared(handler, payload)
    if not handler.takes_context:
        return await handler.function(value)
    return await handler.function(value, Context(_AsyncChannel(job)))


def call_blocking(handler: Handler, payload: Any) -> Any:
    """The same without a running event loop."""
    if handler.is_async:
        return asyncio.run(call(handler, payload))
    job, value = _prepared(handler, payload)
    if not handler.takes_context:
        return handler.function(value)
    return handler.function(value, BlockingContext(_BlockingChannel(job)))
