"""The blocking face, for Django, Flask and scripts: the names of holdfast.Holdfast without `await`.

One thread runs an event loop with the async app in it; each call waits there for its answer. Calls may come from any
thread; those that come together share commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar, Unpack

import pydantic

from holdfast import limits
from holdfast.app import Holdfast as AsyncHoldfast
from holdfast.app import WorkerOptions
from holdfast.batches import BatchOptions
from holdfast.clock import Clock
from holdfast.explaining import Explanation
from holdfast.family_tree import Tree
from holdfast.files import StoredFile
from holdfast.finding import FindOptions
from holdfast.handlers import Handler, HandlerOptions, JobHandler
from holdfast.job import HistoryEntry, Job, JobView
from holdfast.job import JobHandle as AsyncJobHandle
from holdfast.observing import Observer
from holdfast.reading import Page
from holdfast.results.face import PlainRows
from holdfast.results.reading import PAGE, BlockingTableResults, read
from holdfast.results.row import ResultRow
from holdfast.retention import Retention
from holdfast.schedules import ScheduleInfo, ScheduleOptions
from holdfast.store.tables import ResultTable, RowPage, RowQuery
from holdfast.store.types import DeadGroup, WorkerRow
from holdfast.submission import SubmitOptions
from holdfast.submitting import Submission
from holdfast.sync_operating import SyncOperating
from holdfast.workflows.pipelines import Pipeline as AsyncPipeline
from holdfast.workflows.stages import Stage

R = TypeVar("R", bound=ResultRow)


class JobHandle(JobView):
    """What submit gives back: the job as it was stored, and the way to its result."""

    __slots__ = ("_app", "_inner")

    def __init__(self, app: Holdfast, inner: AsyncJobHandle) -> None:
        self._app = app
        self._inner = inner
        self._record = lambda: inner.record
        self.deduplicated = inner.deduplicated

    @property
    def job_id(self) -> str:
        return self._inner.job_id

    def result(self, timeout: float | timedelta | None = None) -> Any:
        """Wait for the end. JobFailed, JobCancelled or ResultTimeout where there is no result."""
        return self._app.result(self.job_id, timeout)

    def refresh(self) -> Job:
        return self._app.get(self.job_id)


class BoundHandler:
    """A handler of one app: `daily_summary.submit(payload)`. Calling it calls the function."""

    def __init__(self, app: Holdfast, handler: Handler) -> None:
        self.app = app
        self.handler = handler
        self.__doc__ = handler.__doc__

    @property
    def name(self) -> str:
        return self.handler.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.handler(*args, **kwargs)

    def submit(self, payload: Any, **options: Unpack[SubmitOptions]) -> JobHandle:
        return self.app.submit(self.handler, payload, **options)

    def join(self, target: Callable[..., Any] | str) -> Any:
        """`@analysis.join`: what is entered when the children have ended; see Handler.join."""
        return self.handler.join(target)


class Pipeline:
    """A declared pipeline: `full.submit({"stages": […]})`."""

    def __init__(self, app: Holdfast, inner: AsyncPipeline) -> None:
        self._app = app
        self.inner = inner
        self.handler = inner.handler

    def submit(self, payload: Any = None, **options: Unpack[SubmitOptions]) -> JobHandle:
        return JobHandle(self._app, self._app._call(self.inner.submit(payload, **options)))


class Holdfast(SyncOperating):
    def __init__(
        self,
        url: str | None = None,
        *,
        artifacts: str | None = None,
        lease: float | timedelta | None = None,
        poll_interval: float | timedelta | None = None,
        claim_limit: int | None = None,
        retention: Retention | None = None,
        purge_on_start: bool = False,
        clock: Clock | None = None,
        observers: Sequence[Observer] | None = None,
    ) -> None:
        inner = self.inner = AsyncHoldfast(
            url,
            artifacts=artifacts,
            lease=lease,
            poll_interval=poll_interval,
            claim_limit=claim_limit,
            retention=retention,
            purge_on_start=purge_on_start,
            clock=clock,
            observers=observers,
        )
        super().__init__(inner)

    @property
    def url(self) -> str:
        return self.inner.url

    def job(
        self, name: str, **options: Unpack[HandlerOptions]
    ) -> Callable[[Callable[..., Any] | type[JobHandler[Any]]], BoundHandler]:
        """Register a function (or a JobHandler class) as the handler of a job type."""
        register = self.inner.job(name, **options)
        return lambda target: BoundHandler(self, register(target))

    def batch_job(
        self, name: str, **options: Unpack[BatchOptions]
    ) -> Callable[[Callable[..., Any] | type[JobHandler[Any]]], BoundHandler]:
        """Register a function of a list of payloads as the handler of a job type."""
        register = self.inner.batch_job(name, **options)
        return lambda target: BoundHandler(self, register(target))

    def pipeline(
        self,
        name: str,
        stages: Sequence[Stage],
        *,
        options: type[pydantic.BaseModel] | None = None,
        **handler_options: Unpack[HandlerOptions],
    ) -> Pipeline:
        """Declare a graph of stages as one job type."""
        return Pipeline(self, self.inner.pipeline(name, stages, options=options, **handler_options))

    # Opening

    def migrate(self) -> list[str]:
        return asyncio.run(self.inner.migrate())

    def exists(self) -> bool:
        """Whether there is a queue at its URL; True where the engine cannot tell. It makes none, as opening would."""
        return asyncio.run(self.inner.exists())

    @property
    def location(self) -> str:
        """Where the queue is, as people may read it: with the region that the environment names, without a password."""
        return self.inner.location

    def would_erase(self) -> dict[str, int] | None:
        """What `erase` would delete: the tables, and about how many items each has. None: it would refuse."""
        return asyncio.run(self.inner.would_erase())

    def erase(self) -> list[str]:
        """Delete the queue with all that is in it, for good; the names of the tables that there were."""
        return asyncio.run(self.inner.erase())

    def migration_sql(self) -> str:
        return self.inner.migration_sql()

    # Submitting

    def submit(
        self, job_type: str | Handler | BoundHandler, payload: Any = None, **options: Unpack[SubmitOptions]
    ) -> JobHandle:
        """Store a job. Once this returns, the job is on disk."""
        target = job_type.handler if isinstance(job_type, BoundHandler) else job_type
        return JobHandle(self, self._call(self.inner.submit(target, payload, **options)))

    def submit_many(self, jobs: Iterable[Submission], *, connection: Any = None) -> list[JobHandle]:
        """Store many jobs in one commit, all or none."""
        plain = [(each[0].handler, *each[1:]) if isinstance(each[0], BoundHandler) else each for each in jobs]
        return [JobHandle(self, handle) for handle in self._call(self.inner.submit_many(plain, connection=connection))]

    # Reading

    def get(self, job_id: str) -> Job:
        return self._call(self.inner.get(job_id))

    def find(self, **options: Unpack[FindOptions]) -> Page:
        return self._call(self.inner.find(**options))

    def tree(self, job_id: str) -> Tree:
        return self._call(self.inner.tree(job_id))

    def history(self, job_id: str) -> list[HistoryEntry]:
        return self._call(self.inner.history(job_id))

    def artifacts(self, job_id: str) -> list[StoredFile]:
        return self._call(self.inner.artifacts(job_id))

    def artifact(self, job_id: str, name: str) -> bytes:
        return self._call(self.inner.artifact(job_id, name))

    def open_artifact(self, job_id: str, name: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """One of them in pieces; where it is not what was stored, StoreError comes instead of the last."""
        pieces = self.inner.open_artifact(job_id, name, start, stop)
        while (piece := self._call(_next(pieces))) is not None:
            yield piece

    def results(self, table: type[R]) -> BlockingTableResults[R]:
        """The rows of a table: `app.results(Point).all(job_id)`, `.stream`, `.get`, `.page`, `.latest`, …"""
        return BlockingTableResults(table, _Rows(self))

    def result_rows(
        self, job_id: str, table: str, after: str | None = None, limit: int = PAGE, *, subject: str | None = None
    ) -> PlainRows:
        return self._call(self.inner.result_rows(job_id, table, after, limit, subject=subject))

    def result_row(self, job_id: str, table: str, key: Any) -> dict[str, Any] | None:
        return self._call(self.inner.result_row(job_id, table, key))

    def counts(self) -> dict[str, int]:
        return self._call(self.inner.counts())

    def dead(self, limit: int = 100) -> list[DeadGroup]:
        return self._call(self.inner.dead(limit))

    def workers(self) -> list[WorkerRow]:
        return self._call(self.inner.workers())

    def result(self, job_id: str, timeout: float | timedelta | None = None) -> Any:
        return self._call(self.inner.result(job_id, timeout))

    # Changing

    def cancel(
        self,
        job_id: str,
        *,
        subtree: bool = False,
        reason: str | None = None,
        by: str | None = None,
        expected_version: int | None = None,
    ) -> Job:
        return self._call(
            self.inner.cancel(job_id, subtree=subtree, reason=reason, by=by, expected_version=expected_version)
        )

    def retry(
        self,
        job_id: str,
        *,
        subtree: bool = False,
        reason: str | None = None,
        by: str | None = None,
        expected_version: int | None = None,
    ) -> Job:
        return self._call(
            self.inner.retry(job_id, subtree=subtree, reason=reason, by=by, expected_version=expected_version)
        )

    def rerun(self, job_id: str, *, reason: str | None = None, by: str | None = None) -> Job:
        return self._call(self.inner.rerun(job_id, reason=reason, by=by))

    def retry_dead(self, *, job_type: str | None = None, error_type: str | None = None, by: str | None = None) -> int:
        return self._call(self.inner.retry_dead(job_type=job_type, error_type=error_type, by=by))

    def reprioritise(
        self,
        job_id: str,
        priority: int | str,
        *,
        reason: str | None = None,
        by: str | None = None,
        expected_version: int | None = None,
    ) -> Job:
        return self._call(
            self.inner.reprioritise(job_id, priority, reason=reason, by=by, expected_version=expected_version)
        )

    def reschedule(
        self,
        job_id: str,
        *,
        run_at: datetime | None = None,
        delay: float | timedelta | None = None,
        reason: str | None = None,
        by: str | None = None,
        expected_version: int | None = None,
    ) -> Job:
        return self._call(
            self.inner.reschedule(
                job_id, run_at=run_at, delay=delay, reason=reason, by=by, expected_version=expected_version
            )
        )

    # Operating

    def explain(self, job_id: str) -> Explanation:
        return self._call(self.inner.explain(job_id))

    def log_bytes(self, job_id: str, start: int = 0, size_max: int = limits.MIB) -> bytes | None:
        return self._call(self.inner.log_bytes(job_id, start, size_max))

    def schedule(
        self,
        name: str,
        cron: str,
        job_type: str | Handler | BoundHandler,
        payload: Any = None,
        *,
        timezone: str = "UTC",
        missed: str = "one",
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo:
        target = job_type.handler if isinstance(job_type, BoundHandler) else job_type
        return self._call(self.inner.schedule(name, cron, target, payload, timezone=timezone, missed=missed, **options))

    def schedules(self) -> list[ScheduleInfo]:
        return self._call(self.inner.schedules())

    def unschedule(self, name: str) -> None:
        return self._call(self.inner.unschedule(name))

    def pause_schedule(self, name: str, *, by: str | None = None) -> ScheduleInfo:
        return self._call(self.inner.pause_schedule(name, by=by))

    def resume_schedule(self, name: str) -> ScheduleInfo:
        return self._call(self.inner.resume_schedule(name))

    def run_schedule(self, name: str, *, by: str | None = None) -> JobHandle:
        return JobHandle(self, self._call(self.inner.run_schedule(name, by=by)))

    # Working

    @contextmanager
    def worker(self, **options: Unpack[WorkerOptions]) -> Iterator[None]:
        """A worker inside this process, on the app's own event loop."""

        async def start() -> Any:
            return await self.inner.worker(**options).__aenter__()

        worker = self._call(start())
        try:
            yield
        finally:
            self._call(worker.stop())


class _Rows:
    """Where the rows of an app come from, without await."""

    def __init__(self, app: Holdfast) -> None:
        self._app = app

    def rows(self, table: ResultTable, ask: RowQuery) -> RowPage:
        return self._app._call(read(self._app.inner.store, table, ask))

    def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
        return self._app._call(self._app.inner.store.rows_by_subject(table, subject, after, limit))

    def latest(self, subject: str, job_type: str) -> str | None:
        return self._app._call(self._app.inner.store.latest(subject, job_type))


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)
