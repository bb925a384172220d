"""The blocking API, for Django, Flask and scripts: the names of backstay.Backstay without `await`.

One thread runs an event loop with the async app in it; each call waits there for its answer. Calls may come from any
thread; concurrent calls share commits.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast, overload

import pydantic

from backstay import limits
from backstay.app import Backstay as AsyncBackstay
from backstay.app import F, NamedSubmission, Page, Submission, TypedSubmission, WorkerOptions
from backstay.clock import Clock, Instant
from backstay.core import access_keys
from backstay.core.access_keys import AuditTrail, CreatedKey, KeyInfo
from backstay.core.checks import Until
from backstay.core.output import OutputEnd
from backstay.core.queues import Queue
from backstay.core.records import (
    ApiKey,
    Counter,
    DeadGroup,
    Depth,
    Finding,
    FormerWorker,
    JobType,
    QueueRow,
    Rate,
    WorkerRow,
)
from backstay.core.result_tables import ResultTable, RowPage, RowQuery
from backstay.core.run_limits import Limit
from backstay.core.schedules import Backfill, Overlap, ScheduleInfo, ScheduleOptions
from backstay.core.states import Status
from backstay.core.stats import Stats, TotalFigures
from backstay.errors import ForkedStore, NotOpen
from backstay.files.local import StoredFile
from backstay.files.references import ArtifactRef
from backstay.handlers import BatchOptions, Handler, HandlerOptions, HandlerRef, JobOptions, P, R
from backstay.job import HistoryEntry, Job, JobView, target_of
from backstay.middleware import M
from backstay.observers import Observer
from backstay.ops.audit import Audited, By
from backstay.ops.events import SentEvent, StepEntry
from backstay.ops.explanation import Explanation
from backstay.ops.jobs import BulkResult
from backstay.ops.output import OutputEntry, OutputPage
from backstay.ops.retention import Retention
from backstay.ops.tree import Tree
from backstay.options import FindOptions, JobFilter, SubmitOptions
from backstay.pipeline import Stage
from backstay.results.model import ResultRow
from backstay.results.reader import PAGE, BlockingTableResults, PlainRows
from backstay.sync_handlers import BoundHandler, JobHandle, Pipeline, Register, RegisterBatch, bound, each_of
from backstay.worker.worker import Worker as AsyncWorker

if TYPE_CHECKING:
    from backstay.ops.job_export import JobExport

__all__ = ["Backstay", "BoundHandler", "JobHandle", "Pipeline"]

T = TypeVar("T")
Row = TypeVar("Row", bound=ResultRow)


class Backstay:
    """A job queue for blocking code: `with Backstay(url) as app:`. Its methods are those of backstay.Backstay."""

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
        name: str | None = None,
    ) -> None:
        self.inner = AsyncBackstay(
            url,
            artifacts=artifacts,
            lease=lease,
            poll_interval=poll_interval,
            claim_limit=claim_limit,
            retention=retention,
            purge_on_start=purge_on_start,
            clock=clock,
            observers=observers,
            name=name,
        )
        self._thread = _LoopThread(self.inner)

    @classmethod
    def of(cls, app: AsyncBackstay) -> Self:
        """Return the blocking API of an async app; `app.sync` is that."""
        made = cls.__new__(cls)
        made.inner, made._thread = app, _LoopThread(app)
        return made

    @property
    def url(self) -> str:
        """The queue's URL."""
        return self.inner.url

    # Handlers

    def job(self, name: str, **options: Unpack[JobOptions]) -> Register:
        """Register a function (or a JobHandler class) as the handler of a job type; with `cron`, declare a schedule."""
        return cast(Register, self._bound(self.inner.job(name, **options)))

    def batch_job(self, name: str, **options: Unpack[BatchOptions]) -> RegisterBatch:
        """Register a function that takes a list of payloads as the handler of a job type."""
        return cast(RegisterBatch, self._bound(self.inner.batch_job(name, **options)))

    def _bound(self, register: Callable[[Any], Any]) -> Callable[[Any], BoundHandler]:
        return lambda target: bound(self, register(target))

    def lifespan(self, target: F) -> F:
        """Register a function with one `yield` that runs once in each process that runs handlers; see
        Backstay.lifespan."""
        return self.inner.lifespan(target)

    def middleware(self, target: M) -> M:
        """Register a function that wraps every run of every handler; see Backstay.middleware."""
        return self.inner.middleware(target)

    @overload
    def cron(
        self,
        name: str,
        cron: str,
        job_type: HandlerRef[P, Any],
        payload: P,
        *,
        timezone: str = "UTC",
        missed: str = "one",
        overlap: Overlap = "queue",
        jitter: float | timedelta = 0,
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> None: ...

    @overload
    def cron(
        self,
        name: str,
        cron: str,
        job_type: str | HandlerRef[None, Any],
        payload: Any = None,
        *,
        timezone: str = "UTC",
        missed: str = "one",
        overlap: Overlap = "queue",
        jitter: float | timedelta = 0,
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> None: ...

    def cron(
        self,
        name: str,
        cron: str,
        job_type: Any,
        payload: Any = None,
        *,
        timezone: str = "UTC",
        missed: str = "one",
        overlap: Overlap = "queue",
        jitter: float | timedelta = 0,
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> None:
        """Declare a schedule in code, which every worker stores when it starts; see backstay.Backstay.cron."""
        self.inner.cron(
            name,
            cron,
            job_type,
            payload,
            timezone=timezone,
            missed=missed,
            overlap=overlap,
            jitter=jitter,
            starts_at=starts_at,
            ends_at=ends_at,
            **options,
        )

    @property
    def name(self) -> str:
        """The name by which the store knows whose code declares a schedule."""
        return self.inner.name

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

    # Open and close

    def open(self) -> Self:
        """Open the app, where `with app:` does not fit: close it as often as you open it."""
        self._thread.open()
        return self

    def close(self) -> None:
        """Close the app, if it is open."""
        self._thread.close()

    def __enter__(self) -> Self:
        self._thread.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.close()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._thread.call(coroutine)

    @property
    def location(self) -> str:
        """Where the queue is, for display: includes the region that the environment names, never a password."""
        return self.inner.location

    # Submit

    @overload
    def submit(self, job_type: HandlerRef[P, R], payload: P, **options: Unpack[SubmitOptions]) -> JobHandle[R]: ...

    @overload
    def submit(
        self, job_type: HandlerRef[None, R], payload: None = None, **options: Unpack[SubmitOptions]
    ) -> JobHandle[R]: ...

    @overload
    def submit(self, job_type: str, payload: Any = None, **options: Unpack[SubmitOptions]) -> JobHandle: ...

    def submit(self, job_type: Any, payload: Any = None, **options: Unpack[SubmitOptions]) -> JobHandle[Any]:
        """Store a job of a handler, or of a type by name. When this returns, the job is on disk."""
        self._thread.check()
        target = target_of(job_type)
        return JobHandle(self, self.inner.submit_from_thread(target, payload, options, self._thread.call))

    @overload
    def submit_many(self, jobs: Iterable[TypedSubmission[P, R]], *, connection: Any = None) -> list[JobHandle[R]]: ...

    @overload
    def submit_many(self, jobs: Iterable[NamedSubmission], *, connection: Any = None) -> list[JobHandle]: ...

    def submit_many(self, jobs: Iterable[Submission], *, connection: Any = None) -> list[JobHandle[Any]]:
        """Store many jobs in one commit, all or none."""
        handles = self._call(self.inner.submit_many(cast(Any, jobs), connection=connection))
        return [JobHandle(self, handle) for handle in handles]

    # Work

    @contextmanager
    def worker(self, **options: Unpack[WorkerOptions]) -> Iterator[Worker]:
        """Create a worker inside this process, on the app's own event loop; see Backstay.worker."""

        async def start() -> Any:
            return await self.inner.worker(**options).__aenter__()

        worker = self._call(start())
        try:
            yield Worker(self, worker)
        finally:
            self._call(worker.stop())

    # Read

    def get(self, job_id: str) -> Job:
        """Return the job as it is now."""
        return self._call(self.inner.get(job_id))

    def find(self, **options: Unpack[FindOptions]) -> Page:
        """Find jobs, newest first, or in claim order with order="priority"."""
        return self._call(self.inner.find(**options))

    @overload
    def result(self, job_id: str, timeout: float | timedelta | None = None) -> Any: ...

    @overload
    def result(self, job_id: str, timeout: float | timedelta | None = None, *, as_type: HandlerRef[Any, R]) -> R: ...

    @overload
    def result(self, job_id: str, timeout: float | timedelta | None = None, *, as_type: type[T]) -> T: ...

    def result(self, job_id: str, timeout: float | timedelta | None = None, *, as_type: Any = None) -> Any:
        """Wait until a job has ended, and return its result: as plain JSON, or as the type or handler in `as_type`."""
        return self._call(self.inner.result(job_id, timeout, as_type=as_type))

    def wait(self, job_id: str, timeout: float | timedelta | None = None) -> Job:
        """Wait until a job has ended, however it ended, and return its record."""
        return self._call(self.inner.wait(job_id, timeout))

    def watch(self, job_id: str) -> Iterator[Job]:
        """Yield a job's record now, and again whenever its progress, stage or status has changed, up to its end."""
        return each_of(self, self.inner.watch(job_id))

    def output(self, job_id: str, *, after: str | None = None, limit: int = limits.FIND_LIMIT_MAX) -> OutputPage:
        """Return what a handler has streamed so far, from the beginning or behind a cursor."""
        return self._call(self.inner.output(job_id, after=after, limit=limit))

    def stream_output(self, job_id: str, *, after: str | None = None) -> Iterator[OutputEntry]:
        """Yield what a handler has streamed, and each entry that it still streams, until the job has ended."""
        return each_of(self, self.inner.stream_output(job_id, after=after))

    def output_end(self, job_id: str) -> OutputEnd | None:
        """Return how far the output of a job has come; None if its handler has streamed nothing."""
        return self._call(self.inner.output_end(job_id))

    def read_artifact(self, ref: ArtifactRef) -> bytes:
        """Read a file by the reference that a handler has passed on in a result."""
        return self._call(self.inner.read_artifact(ref))

    def export_job(
        self,
        job_id: str,
        path: str | os.PathLike[str],
        *,
        sensitive: bool = False,
        decrypt: bool = False,
        files: bool = True,
        by: By = None,
    ) -> JobExport:
        """Write a job to one file, to replay it on another machine; see backstay.Backstay.export_job."""
        return self._call(self.inner.export_job(job_id, path, sensitive=sensitive, decrypt=decrypt, files=files, by=by))

    def tree(self, job_id: str) -> Tree:
        """Load a job and everything below it, up to 1,000 jobs."""
        return self._call(self.inner.tree(job_id))

    def get_many(self, job_ids: Sequence[str]) -> list[Job | None]:
        """Return many jobs in the same order; None for one that does not exist."""
        return self._call(self.inner.get_many(job_ids))

    def children(self, job_id: str, after: str | None = None, limit: int = 50, status: Status | None = None) -> Page:
        """Return a page of the jobs that a job has submitted."""
        return self._call(self.inner.children(job_id, after, limit, status))

    def tree_queues(self, job_id: str) -> set[str]:
        """Return the queues of a job and of everything below it."""
        return self._call(self.inner.tree_queues(job_id))

    def history(self, job_id: str) -> list[HistoryEntry]:
        """Return every transition of a job."""
        return self._call(self.inner.history(job_id))

    def explain(self, job_id: str, *, ask_first: Sequence[str] = ()) -> Explanation:
        """Explain in one sentence why a job is not running."""
        return self._call(self.inner.explain(job_id, ask_first=ask_first))

    def steps(self, job_id: str) -> list[StepEntry]:
        """Return what a job's handler has recorded: steps, sleeps, and waits for events."""
        return self._call(self.inner.steps(job_id))

    def log_bytes(self, job_id: str, start: int = 0, size_max: int = limits.MIB) -> bytes | None:
        """Read part of a job's full log."""
        return self._call(self.inner.log_bytes(job_id, start, size_max))

    def counts(self) -> dict[str, int]:
        """Count jobs per state."""
        return self._call(self.inner.counts())

    def depths(self) -> list[Depth]:
        """Count active jobs per queue, type, state and priority."""
        return self._call(self.inner.depths())

    def counters(
        self, since: Instant, until: Instant, *, width: int | None = None, kinds: bool = True
    ) -> list[Counter]:
        """Return the counters of each minute in a span of time. With `width`, in microseconds: their sums over shorter
        spans of this length. Without `kinds`: over all types and queues."""
        return self._call(self.inner.counters(since, until, width=width, kinds=kinds))

    def job_types(self) -> list[JobType]:
        """List the job types that apps and remote workers have announced."""
        return self._call(self.inner.job_types())

    def type_of(self, job_type: str) -> Handler | JobType:
        """Return the handler of a type, or what its worker has announced."""
        return self._call(self.inner.type_of(job_type))

    def dead(self, limit: int = 100) -> list[DeadGroup]:
        """Return the dead letters, grouped by type and error."""
        return self._call(self.inner.dead(limit))

    def workers(self, ids: Sequence[str] = (), *, after: str = "", limit: int | None = None) -> list[WorkerRow]:
        """List the workers by id; if ids are given, only those that exist among them. With `limit`, a page: `after` is
        the last id of the previous one."""
        return self._call(self.inner.workers(ids, after=after, limit=limit))

    def former_workers(self) -> list[FormerWorker]:
        """List the workers that left, died or were lost in the last 24 hours, with their figures; the last one
        first."""
        return self._call(self.inner.former_workers())

    # Result rows and artifacts

    def results(self, table: type[Row]) -> BlockingTableResults[Row]:
        """Read the rows of a table: `app.results(Point).all(job_id)`, `.stream`, `.get`, `.page`, `.latest`, …"""
        return BlockingTableResults(table, _Rows(self))

    def result_rows(
        self, job_id: str, table: str, after: str | None = None, limit: int = PAGE, *, subject: str | None = None
    ) -> PlainRows:
        """Read a page of a job's rows as dicts."""
        return self._call(self.inner.result_rows(job_id, table, after, limit, subject=subject))

    def subject_rows(self, table: str, subject: str, after: str | None = None, limit: int = PAGE) -> PlainRows:
        """Read a page of a subject's rows across all completed jobs as dicts."""
        return self._call(self.inner.subject_rows(table, subject, after, limit))

    def result_row(self, job_id: str, table: str, key: Any) -> dict[str, Any] | None:
        """Read one row by its key."""
        return self._call(self.inner.result_row(job_id, table, key))

    def artifacts(self, job_id: str) -> list[StoredFile]:
        """List the files of a job."""
        return self._call(self.inner.artifacts(job_id))

    def artifact(self, job_id: str, name: str) -> bytes:
        """Read a file of a job."""
        return self._call(self.inner.artifact(job_id, name))

    def open_artifact(self, job_id: str, name: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Read a file in chunks; if it is not what was stored, StoreError is raised instead of the last one."""
        pieces = self.inner.open_artifact(job_id, name, start, stop)
        while (piece := self._call(_next(pieces))) is not None:
            yield piece

    # Change jobs

    def cancel(
        self,
        job_id: str,
        *,
        subtree: bool = False,
        reason: str | None = None,
        by: By = None,
        expected_version: int | None = None,
    ) -> Job:
        """Cancel a job in any active state."""
        return self._call(
            self.inner.cancel(job_id, subtree=subtree, reason=reason, by=by, expected_version=expected_version)
        )

    def retry(
        self,
        job_id: str,
        *,
        subtree: bool = False,
        forget_steps: bool = False,
        reason: str | None = None,
        by: By = None,
        expected_version: int | None = None,
    ) -> Job:
        """Retry an ended job, with its attempts reset."""
        return self._call(
            self.inner.retry(
                job_id,
                subtree=subtree,
                forget_steps=forget_steps,
                reason=reason,
                by=by,
                expected_version=expected_version,
            )
        )

    def rerun(self, job_id: str, *, forget_steps: bool = False, reason: str | None = None, by: By = None) -> Job:
        """Run this job and everything downstream again."""
        return self._call(self.inner.rerun(job_id, forget_steps=forget_steps, reason=reason, by=by))

    def send_event(
        self,
        job: str | JobView | None = None,
        name: str = "",
        payload: Any = None,
        *,
        key: str | None = None,
        event_id: str | None = None,
        by: By = None,
    ) -> SentEvent:
        """Send an event to a job, or to a correlation key; see backstay.Backstay.send_event."""
        return self._call(self.inner.send_event(job, name, payload, key=key, event_id=event_id, by=by))

    def reprioritise(
        self,
        job_id: str,
        priority: int | str,
        *,
        reason: str | None = None,
        by: By = None,
        expected_version: int | None = None,
    ) -> Job:
        """Change the priority of a job that has not ended."""
        return self._call(
            self.inner.reprioritise(job_id, priority, reason=reason, by=by, expected_version=expected_version)
        )

    def update(
        self,
        job_id: str,
        payload: Any,
        *,
        reason: str | None = None,
        by: By = None,
        expected_version: int | None = None,
    ) -> Job:
        """Give a job that waits another payload; see Backstay.update."""
        return self._call(self.inner.update(job_id, payload, reason=reason, by=by, expected_version=expected_version))

    def remove(
        self, job_id: str, *, reason: str | None = None, by: By = None, expected_version: int | None = None
    ) -> None:
        """Erase a job for good, with its files, rows and history; see Backstay.remove."""
        self._call(self.inner.remove(job_id, reason=reason, by=by, expected_version=expected_version))

    def reschedule(
        self,
        job_id: str,
        *,
        run_at: datetime | None = None,
        delay: float | timedelta | None = None,
        reason: str | None = None,
        by: By = None,
        expected_version: int | None = None,
    ) -> Job:
        """Change when a pending or scheduled job runs; without a time, it runs now."""
        return self._call(
            self.inner.reschedule(
                job_id, run_at=run_at, delay=delay, reason=reason, by=by, expected_version=expected_version
            )
        )

    def cancel_many(
        self,
        job_ids: Sequence[str] | None = None,
        *,
        created_until: datetime | None = None,
        dry_run: bool = False,
        reason: str | None = None,
        by: By = None,
        **conditions: Unpack[JobFilter],
    ) -> BulkResult:
        """Cancel up to 1,000 jobs, by id or by the conditions of find."""
        return self._call(
            self.inner.cancel_many(
                job_ids, created_until=created_until, dry_run=dry_run, reason=reason, by=by, **conditions
            )
        )

    def retry_many(
        self,
        job_ids: Sequence[str] | None = None,
        *,
        created_until: datetime | None = None,
        dry_run: bool = False,
        forget_steps: bool = False,
        reason: str | None = None,
        by: By = None,
        **conditions: Unpack[JobFilter],
    ) -> BulkResult:
        """Retry up to 1,000 ended jobs, by id or by the conditions of find."""
        return self._call(
            self.inner.retry_many(
                job_ids,
                created_until=created_until,
                dry_run=dry_run,
                forget_steps=forget_steps,
                reason=reason,
                by=by,
                **conditions,
            )
        )

    def retry_dead(
        self,
        *,
        job_type: str | None = None,
        error_type: str | None = None,
        forget_steps: bool = False,
        by: By = None,
    ) -> int:
        """Retry many dead letters; return how many."""
        return self._call(
            self.inner.retry_dead(job_type=job_type, error_type=error_type, forget_steps=forget_steps, by=by)
        )

    # Queues

    def queues(self) -> list[Queue]:
        """List every queue, with its job counts."""
        return self._call(self.inner.queues())

    def queue_settings(self) -> list[QueueRow]:
        """List the queues that were ever paused or limited, with these settings alone."""
        return self._call(self.inner.queue_settings())

    def unmark_sensitive(self, job_type: str, field: str, *, by: By = None) -> JobType:
        """Show a field to readers of the job that was once announced as sensitive."""
        return self._call(self.inner.unmark_sensitive(job_type, field, by=by))

    def pause_queue(self, name: str, *, until: Until | None = None, by: By = None, reason: str | None = None) -> Queue:
        """Stop claims from a queue until it is resumed, or until a time."""
        return self._call(self.inner.pause_queue(name, until=until, by=by, reason=reason))

    def resume_queue(self, name: str, *, by: By = None) -> Queue:
        """Resume a paused queue."""
        return self._call(self.inner.resume_queue(name, by=by))

    def limit_queue(self, name: str, max_pending: int | None, *, by: By = None) -> Queue:
        """Reject submits while a queue holds that many pending jobs; None means no limit."""
        return self._call(self.inner.limit_queue(name, max_pending, by=by))

    # Limits at run time

    def limits(self) -> list[Limit]:
        """List what was set at run time for job types and keys."""
        return self._call(self.inner.limits())

    def limit(
        self,
        *,
        job_type: str | None = None,
        key: str | None = None,
        concurrency: int | None = None,
        rate: str | Rate | None = None,
        by: By = None,
    ) -> Limit:
        """Limit a job type, or a key, at run time; None, or leaving a limit out, removes it."""
        return self._call(self.inner.limit(job_type=job_type, key=key, concurrency=concurrency, rate=rate, by=by))

    def pause_type(
        self, job_type: str, *, until: Until | None = None, by: By = None, reason: str | None = None
    ) -> Limit:
        """Stop claims of a job type until it is resumed, or until a time."""
        return self._call(self.inner.pause_type(job_type, until=until, by=by, reason=reason))

    def resume_type(self, job_type: str, *, by: By = None) -> Limit:
        """Resume a paused job type."""
        return self._call(self.inner.resume_type(job_type, by=by))

    # Schedules

    @overload
    def schedule(
        self,
        name: str,
        cron: str,
        job_type: HandlerRef[P, Any],
        payload: P,
        *,
        timezone: str = "UTC",
        missed: str = "one",
        overlap: Overlap = "queue",
        jitter: float | timedelta = 0,
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
        by: By = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo: ...

    @overload
    def schedule(
        self,
        name: str,
        cron: str,
        job_type: str | HandlerRef[None, Any],
        payload: Any = None,
        *,
        timezone: str = "UTC",
        missed: str = "one",
        overlap: Overlap = "queue",
        jitter: float | timedelta = 0,
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
        by: By = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo: ...

    def schedule(
        self,
        name: str,
        cron: str,
        job_type: Any,
        payload: Any = None,
        *,
        timezone: str = "UTC",
        missed: str = "one",
        overlap: Overlap = "queue",
        jitter: float | timedelta = 0,
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
        by: By = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo:
        """Submit a job at every tick; see backstay.Backstay.schedule."""
        return self._call(
            self.inner.schedule(
                name,
                cron,
                job_type,
                payload,
                timezone=timezone,
                missed=missed,
                overlap=overlap,
                jitter=jitter,
                starts_at=starts_at,
                ends_at=ends_at,
                by=by,
                **options,
            )
        )

    def schedules(self, *, after: str = "", limit: int | None = None) -> list[ScheduleInfo]:
        """List the schedules by name. With `limit`, a page: `after` is the last name of the previous one."""
        return self._call(self.inner.schedules(after=after, limit=limit))

    def get_schedule(self, name: str) -> ScheduleInfo:
        """Return the schedule with this name."""
        return self._call(self.inner.get_schedule(name))

    def unschedule(self, name: str, *, by: By = None) -> None:
        """Delete a schedule. The jobs it created remain."""
        return self._call(self.inner.unschedule(name, by=by))

    def pause_schedule(self, name: str, *, by: By = None) -> ScheduleInfo:
        """Stop a schedule from creating jobs until it is resumed."""
        return self._call(self.inner.pause_schedule(name, by=by))

    def resume_schedule(self, name: str, *, by: By = None) -> ScheduleInfo:
        """Resume with the next tick from now."""
        return self._call(self.inner.resume_schedule(name, by=by))

    def run_schedule(self, name: str, *, by: By = None, created_by: str | None = None) -> JobHandle:
        """Submit the job of a schedule now, in addition to its ticks."""
        return JobHandle(self, self._call(self.inner.run_schedule(name, by=by, created_by=created_by)))

    def backfill(self, name: str, from_: datetime, to: datetime, *, dry_run: bool = False, by: By = None) -> Backfill:
        """Submit the job of each tick of a schedule in this span that has none."""
        return self._call(self.inner.backfill(name, from_, to, dry_run=dry_run, by=by))

    # Figures, check-up, retention

    def stats(self, minutes: int = 60) -> Stats:
        """Return what happened in the last minutes."""
        return self._call(self.inner.stats(minutes))

    def totals(self) -> list[TotalFigures]:
        """Return all-time totals by type, queue and outcome."""
        return self._call(self.inner.totals())

    def check_up(self) -> list[Finding]:
        """Return what `backstay doctor` shows."""
        return self._call(self.inner.check_up())

    def waiting_alone(self, depths: Sequence[Depth] | None = None) -> int:
        """Count the pending jobs that must run alone, because they may have killed a worker: up to 1,000. They are
        looked for among `depths`, for callers that have them."""
        return self._call(self.inner.waiting_alone(depths))

    def purge(
        self, *, older_than: float | timedelta | None = None, job_types: list[str] | None = None, by: By = None
    ) -> int:
        """Archive ended jobs whose retention has expired; return how many."""
        return self._call(self.inner.purge(older_than=older_than, job_types=job_types, by=by))

    # API keys and sessions

    def create_key(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        queues: Sequence[str] = (),
        expires_in: float | timedelta | None = None,
        by: By = None,
        env: str = access_keys.ENV,
    ) -> CreatedKey:
        """Create a key for clients of the HTTP API."""
        return self._call(self.inner.create_key(name, scopes, queues=queues, expires_in=expires_in, by=by, env=env))

    def api_keys(self) -> list[KeyInfo]:
        """List all keys, newest first."""
        return self._call(self.inner.api_keys())

    def check_key(self, text: str) -> KeyInfo | None:
        """Return the key with this text if it is valid, otherwise None."""
        return self._call(self.inner.check_key(text))

    def revoke_key(self, key_id: str, *, by: By = None) -> KeyInfo:
        """Revoke a key, and the sessions opened with it."""
        return self._call(self.inner.revoke_key(key_id, by=by))

    def remove_key(self, key_id: str, *, by: By = None) -> None:
        """Delete a revoked or expired key."""
        return self._call(self.inner.remove_key(key_id, by=by))

    def open_session(self, key: ApiKey) -> CreatedKey:
        """Create a session key for a browser that logged in with another key."""
        return self._call(self.inner.open_session(key))

    def close_session(self, key_id: str) -> None:
        """Log out."""
        return self._call(self.inner.close_session(key_id))

    # Audit trail

    @contextmanager
    def audited(
        self,
        action: str,
        target: str,
        *,
        by: By = None,
        via: str = "python",
        before: Any = None,
        remote: str | None = None,
    ) -> Iterator[Audited]:
        """Write an audit entry for a change of your own; see backstay.Backstay.audited."""
        change = self.inner.audited(action, target, by=by, via=via, before=before, remote=remote)
        entry = self._call(change.__aenter__())
        try:
            yield entry
        except BaseException as error:
            self._call(change.__aexit__(type(error), error, error.__traceback__))
            raise
        self._call(change.__aexit__(None, None, None))

    def audit_trail(self, after: str | None = None, limit: int = 50) -> AuditTrail:
        """List changes, newest first."""
        return self._call(self.inner.audit_trail(after, limit))

    # Schema

    def migrate(self) -> list[str]:
        """Create or update the schema; return the names of the migrations applied."""
        return asyncio.run(self.inner.migrate())

    def exists(self) -> bool:
        """Return whether there is a queue at the URL; True if the engine cannot tell. Unlike opening, this creates
        nothing."""
        return asyncio.run(self.inner.exists())

    def would_erase(self) -> dict[str, int] | None:
        """Return what `erase` would delete: the tables, and about how many items each has. None if it would refuse."""
        return asyncio.run(self.inner.would_erase())

    def erase(self) -> list[str]:
        """Delete the queue and everything in it permanently; return the names of the deleted tables."""
        return asyncio.run(self.inner.erase())

    def migration_sql(self) -> str:
        """Return the schema's migrations as a script."""
        return self.inner.migration_sql()


class Worker:
    """A worker inside this process."""

    def __init__(self, app: Backstay, inner: AsyncWorker) -> None:
        self._app = app
        self._inner = inner

    def join(self) -> None:
        """Wait until it has ended by itself: with burst=True when nothing is due that it could run."""
        self._app._call(self._inner.join())


class _Rows:
    """Reads the rows of an app without await."""

    def __init__(self, app: Backstay) -> None:
        self._app = app

    def rows(self, table: ResultTable, ask: RowQuery) -> RowPage:
        return self._app._call(self._app.inner.stored_rows.rows(table, ask))

    def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
        return self._app._call(self._app.inner.stored_rows.rows_by_subject(table, subject, after, limit))

    def latest(self, subject: str, job_type: str) -> str | None:
        return self._app._call(self._app.inner.stored_rows.latest(subject, job_type))


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)


class _LoopThread:
    """Runs an event loop with an open app in a thread of its own; calls from other threads wait for their answers."""

    def __init__(self, app: AsyncBackstay) -> None:
        self._app = app
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._entered = 0
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def open(self) -> None:
        if os.getpid() != self._pid:  # forked: what the parent has opened is the parent's, its lock and loop too
            self._lock, self._entered, self._loop, self._thread = threading.Lock(), 0, None, None
            self._pid = os.getpid()
        with self._lock:
            self._entered += 1
            if self._entered > 1:
                return
            self._start()
            try:
                self.call(self._app.__aenter__())
            except BaseException:
                self._entered = 0
                self._stop()
                raise

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._entered = max(0, self._entered - 1)
            if self._entered or self._loop is None:
                return
            try:
                self.call(self._app.__aexit__(None, None, None))
            finally:
                self._stop()

    def _start(self) -> None:
        loop = asyncio.new_event_loop()
        self._loop = loop
        self._pid = os.getpid()
        self._thread = threading.Thread(target=_run_loop, args=(loop,), name="backstay-sync", daemon=True)
        self._thread.start()

    def _stop(self) -> None:
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def check(self) -> asyncio.AbstractEventLoop:
        """Return the event loop, if calls can be made from here."""
        if self._loop is not None and os.getpid() != self._pid:  # the thread that would answer is not in this process
            raise ForkedStore("this app was opened before fork(): open it in the child process, after the fork")
        if self._loop is None:
            raise NotOpen("the app is not open: use it inside `with app:`")
        if threading.current_thread() is self._thread:
            raise NotOpen("a blocking call on the event loop would deadlock: call it from another thread")
        return self._loop

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            loop = self.check()
        except BaseException:
            coroutine.close()
            raise
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result()
        except (KeyboardInterrupt, concurrent.futures.CancelledError):
            future.cancel()
            raise


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
