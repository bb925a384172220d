"""How a handler's context reaches its run: on the event loop, or from the handler's thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.clock import Clock
from holdfast.contents import AsyncSource, Content, Source, content_of, kept_in_thread, until, watched
from holdfast.errors import ConfigurationError, InvalidRow
from holdfast.files import Files, read_result
from holdfast.handlers import Handler
from holdfast.lifecycle import Effect
from holdfast.offspring import Ended, Submitted
from holdfast.results.reading import read
from holdfast.store.port import Store
from holdfast.store.tables import ResultTable, RowPage, RowQuery, Value
from holdfast.store.types import ClaimedJob, JobRecord, Page, Verdict
from holdfast.submission import SubmitOptions
from holdfast.trees import Awaits
from holdfast.worker.children import Children
from holdfast.worker.rows import Rows
from holdfast.worker.run import Run

T = TypeVar("T")


class Services(msgspec.Struct, frozen=True):
    """What a handler's context reaches: of one worker, for all its runs."""

    store: Store
    clock: Clock
    files: Files | None
    children: Children
    rows: Rows


class LoopChannel:
    """For `async def` handlers: straight through."""

    __slots__ = ("_run", "_services", "job")

    def __init__(self, run: Run, services: Services) -> None:
        self.job: ClaimedJob = run.job
        self._run = run
        self._services = services

    def progress(self, fraction: float, stage: str | None) -> None:
        self._run.say_progress(fraction, stage)

    def metric(self, name: str, value: float) -> None:
        self._run.say_metric(name, value)

    def cancelled(self) -> bool:
        return self._run.is_stopped

    def effects(self, statements: list[Effect]) -> None:
        self._run.say_effects(statements)

    def refuse_rows(self, reason: str) -> None:
        self._run.rows_refused = self._run.rows_refused or InvalidRow(reason)

    async def step(self, name: str) -> str | None:
        return await self._services.store.step(self.job.job_id, name)

    async def record_step(self, name: str, answer: str) -> bool:
        verdict = await self._services.store.record_step(self._run.hold, name, answer, self._services.clock.now())
        return verdict is Verdict.APPLIED

    async def artifact(self, name: str, source: AsyncSource) -> str:
        return await kept_in_thread(self.keep, name, source)

    def keep(self, name: str, content: Content) -> str:
        """Write a file here and now, in the thread that asks."""
        if self._services.files is None:
            raise ConfigurationError("this store has no place for artifacts: give Holdfast(..., artifacts=...)")
        run = self._run
        # A task or a thread that outlives its run would write over what was recorded of it.
        wanted = until(content, lambda: run.is_over)
        stored = self._services.files.write(self.job.job_id, self.job.attempt, name, wanted)
        run.say_artifact(stored)
        return stored.uri

    # Children

    def loaded_children(self) -> list[JobRecord]:
        return [] if self._run.family is None else list(self._run.family.stored.values())

    def large_result(self, record: JobRecord) -> str | None:
        return None if self._services.files is None else read_result(self._services.files, record.result_artifact)

    async def record(self, job_id: str) -> JobRecord | None:
        return (await self._services.store.get([job_id]))[0]

    async def submit(
        self, job_type: str | Handler, payload: Any, key: str | None, at_once: bool, options: SubmitOptions
    ) -> Submitted:
        return await self._services.children.submit(self._run, job_type, payload, key, at_once, options)

    async def children(self, after: str | None, named: int = 0) -> Page:
        return await self._services.children.page(self._run, after, named)

    async def ended(self, awaits: Awaits) -> Ended | None:
        return await self._services.children.ended(self._run, awaits)

    async def upstream(self) -> list[JobRecord]:
        return await self._services.children.upstream(self._run)

    def join_of(self, asked: str | None) -> str | None:
        return self._run.handler.join_of(asked)

    # Result tables

    async def put_rows(self, table: ResultTable, rows: Sequence[tuple[Value, ...]]) -> None:
        await self._services.rows.put(self._run, table, rows)

    async def rows(self, table: ResultTable, ask: RowQuery) -> RowPage:
        return await read(self._services.store, table, ask)

    async def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
        return await self._services.store.rows_by_subject(table, subject, after, limit)

    async def latest(self, subject: str, job_type: str) -> str | None:
        return await self._services.store.latest(subject, job_type)


class ThreadChannel:
    """For `def` handlers in a thread: store calls hop to the event loop and wait there."""

    __slots__ = ("_inner", "_loop", "job")

    def __init__(self, run: Run, services: Services) -> None:
        run.cancelled = threading.Event()
        self.job: ClaimedJob = run.job
        self._inner = LoopChannel(run, services)
        self._loop = asyncio.get_running_loop()

    def _hop(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def progress(self, fraction: float, stage: str | None) -> None:
        self._inner.progress(fraction, stage)

    def metric(self, name: str, value: float) -> None:
        self._inner.metric(name, value)

    def cancelled(self) -> bool:
        return self._inner.cancelled()

    def effects(self, statements: list[Effect]) -> None:
        self._inner.effects(statements)

    def refuse_rows(self, reason: str) -> None:
        self._inner.refuse_rows(reason)

    def artifact(self, name: str, source: Source) -> str:
        return self._inner.keep(name, watched(content_of(name, source), self.cancelled))

    def step(self, name: str) -> str | None:
        return self._hop(self._inner.step(name))

    def record_step(self, name: str, answer: str) -> bool:
        return self._hop(self._inner.record_step(name, answer))

    def loaded_children(self) -> list[JobRecord]:
        return self._inner.loaded_children()

    def large_result(self, record: JobRecord) -> str | None:
        return self._inner.large_result(record)

    def submit(
        self, job_type: str | Handler, payload: Any, key: str | None, at_once: bool, options: SubmitOptions
    ) -> Submitted:
        return self._hop(self._inner.submit(job_type, payload, key, at_once, options))

    def children(self, after: str | None, named: int = 0) -> Page:
        return self._hop(self._inner.children(after, named))

    def ended(self, awaits: Awaits) -> Ended | None:
        return self._hop(self._inner.ended(awaits))

    def upstream(self) -> list[JobRecord]:
        return self._hop(self._inner.upstream())

    def join_of(self, asked: str | None) -> str | None:
        return self._inner.join_of(asked)

    def put_rows(self, table: ResultTable, rows: Sequence[tuple[Value, ...]]) -> None:
        self._hop(self._inner.put_rows(table, rows))

    def rows(self, table: ResultTable, ask: RowQuery) -> RowPage:
        return self._hop(self._inner.rows(table, ask))

    def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
        return self._hop(self._inner.rows_by_subject(table, subject, after, limit))

    def latest(self, subject: str, job_type: str) -> str | None:
        return self._hop(self._inner.latest(subject, job_type))
