"""How a handler's context reaches its run: on the event loop, or from the handler's thread."""

from __future__ import annotations

import asyncio
import threading

from holdfast.clock import Clock
from holdfast.errors import ConfigurationError
from holdfast.files import Files
from holdfast.lifecycle import Effect
from holdfast.store.port import Store
from holdfast.store.types import ClaimedJob, Verdict
from holdfast.worker.run import Run


class LoopChannel:
    """For `async def` handlers: straight through."""

    __slots__ = ("_clock", "_files", "_run", "_store", "job")

    def __init__(self, run: Run, store: Store, clock: Clock, files: Files | None) -> None:
        self.job: ClaimedJob = run.job
        self._run = run
        self._store = store
        self._clock = clock
        self._files = files

    def progress(self, fraction: float, stage: str | None) -> None:
        self._run.say_progress(fraction, stage)

    def metric(self, name: str, value: float) -> None:
        self._run.say_metric(name, value)

    def cancelled(self) -> bool:
        return self._run.is_stopped

    def effects(self, statements: list[Effect]) -> None:
        self._run.say_effects(statements)

    async def step(self, name: str) -> str | None:
        return await self._store.step(self.job.job_id, name)

    async def record_step(self, name: str, answer: str) -> bool:
        verdict = await self._store.record_step(self._run.hold, name, answer, self._clock.now())
        return verdict is Verdict.APPLIED

    async def artifact(self, name: str, content: bytes) -> str:
        if self._files is None:
            raise ConfigurationError("this store has no place for artifacts: give Holdfast(..., artifacts=...)")
        stored = await asyncio.to_thread(self._files.write, self.job.job_id, self.job.attempt, name, content)
        self._run.say_artifact(stored)
        return stored.uri


class ThreadChannel:
    """For `def` handlers in a thread: store calls hop to the event loop and wait there."""

    __slots__ = ("_inner", "_loop", "job")

    def __init__(self, run: Run, store: Store, clock: Clock, files: Files | None) -> None:
        run.cancelled = threading.Event()
        self.job: ClaimedJob = run.job
        self._inner = LoopChannel(run, store, clock, files)
        self._loop = asyncio.get_running_loop()

    def progress(self, fraction: float, stage: str | None) -> None:
        self._inner.progress(fraction, stage)

    def metric(self, name: str, value: float) -> None:
        self._inner.metric(name, value)

    def cancelled(self) -> bool:
        return self._inner.cancelled()

    def effects(self, statements: list[Effect]) -> None:
        self._inner.effects(statements)

    def artifact(self, name: str, content: bytes) -> str:
        return asyncio.run_coroutine_threadsafe(self._inner.artifact(name, content), self._loop).result()

    def step(self, name: str) -> str | None:
        return asyncio.run_coroutine_threadsafe(self._inner.step(name), self._loop).result()

    def record_step(self, name: str, answer: str) -> bool:
        return asyncio.run_coroutine_threadsafe(self._inner.record_step(name, answer), self._loop).result()
