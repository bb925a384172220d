"""Holdfast, the application object: handlers, submitting, reading and changing jobs, workers."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypedDict, Unpack

import msgspec

from holdfast import ids, lifecycle, limits, settings
from holdfast import retention as retaining
from holdfast.checks import check_text
from holdfast.clock import Clock, Instant, SystemClock, micros, seconds
from holdfast.editing import edit, retry_dead
from holdfast.errors import (
    ArtifactNotFound,
    ConfigurationError,
    InvalidOption,
    InvalidSubmission,
    JobCancelled,
    JobFailed,
    JobNotFound,
    NotOpen,
    ResultGone,
    ResultTimeout,
    UnknownJobType,
)
from holdfast.files import Files, StoredFile, read_result
from holdfast.finding import FindOptions, query
from holdfast.handlers import Handler, HandlerOptions, JobHandler, check_name
from holdfast.job import HistoryEntry, Job, JobHandle
from holdfast.lifecycle import Status
from holdfast.operating import Operating, check_words
from holdfast.retention import Retention
from holdfast.store.port import Store
from holdfast.store.types import DeadGroup, Inserted, JobRecord, JobType, NewJob, WorkerRow
from holdfast.stores import open_files, open_url
from holdfast.submission import JobRef, SubmitOptions, build, new_record
from holdfast.waiting import Waiting
from holdfast.worker import Worker
from holdfast.worker.run import Run

_KNOWN_SECONDS = 5.0  # how long a type that others handle is taken as it was read: a deploy may change it

Submission = tuple[Any, Any] | tuple[Any, Any, SubmitOptions]


class BoundHandler(Handler):
    """A handler of one app: `await daily_summary.submit(payload)`."""

    app: Holdfast

    async def submit(self, payload: Any, **options: Unpack[SubmitOptions]) -> JobHandle:
        return await self.app.submit(self, payload, **options)


class WorkerOptions(TypedDict, total=False):
    """The keyword options of worker."""

    concurrency: int | None
    queues: Sequence[str] | None
    lease: float | timedelta | None
    poll_interval: float | timedelta | None
    grace: float | timedelta | None
    job_types: Sequence[str] | None


class Page(list[Job]):
    """Jobs that were found; `next` is the cursor for `after=`, or None at the end."""

    next: str | None = None


class Holdfast(Operating):
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
    ) -> None:
        self.url = settings.url(url)
        self.handlers: dict[str, BoundHandler] = {}
        self.clock: Clock = clock or SystemClock()
        self._artifacts = settings.setting("artifacts", artifacts, str, "") or None
        self._lease_seconds = settings.lease(None if lease is None else seconds(lease))
        self._claim_limit = settings.claim_limit(claim_limit)
        self._retention = retaining.default(retention)
        self._purge_on_start = purge_on_start
        self._store: Store | None = None
        self._files: Files | None = None
        self._waiting: Waiting | None = None
        self._known_types: dict[str, JobType] = {}
        self._known_since = 0.0
        self._live: dict[str, Run] = {}  # what workers in this process run now, for live progress
        self._entered = 0
        self._pid = os.getpid()
        store = open_url(self.url)  # a wrong URL is an error here, not at the first use
        open_files(self.url, store, self._artifacts)
        poll = None if poll_interval is None else seconds(poll_interval)
        self._poll_seconds = settings.poll_interval(poll, store.poll_seconds)

    # Handlers

    def job(
        self, name: str, **options: Unpack[HandlerOptions]
    ) -> Callable[[Callable[..., Any] | type[JobHandler[Any]]], BoundHandler]:
        """Register a function (or a JobHandler class) as the handler of a job type."""
        if not isinstance(name, str):
            raise ConfigurationError('write @app.job("name"): a handler is registered under the name of its job type')
        if unknown := options.keys() - HandlerOptions.__annotations__.keys():
            known = ", ".join(sorted(HandlerOptions.__annotations__))
            raise ConfigurationError(f"job has no option {', '.join(sorted(unknown))}; it has {known}")

        def register(target: Callable[..., Any] | type[JobHandler[Any]]) -> BoundHandler:
            handler = BoundHandler(name, target, **options)
            if name in self.handlers:
                raise ConfigurationError(f"{name!r} has a handler already: {self.handlers[name]!r}")
            handler.app = self
            self.handlers[name] = handler
            return handler

        return register

    # Opening

    async def __aenter__(self) -> Holdfast:
        if os.getpid() != self._pid:  # forked: what the parent has opened is the parent's
            self._entered, self._store, self._files, self._waiting, self._live = 0, None, None, None, {}
            self._pid = os.getpid()
        self._entered += 1
        if self._entered > 1:
            return self
        store = open_url(self.url)
        try:
            await store.open()
            if self.handlers:
                await self._announce(store)
        except BaseException:
            self._entered = 0
            await asyncio.shield(store.close())
            raise
        self._store, self._waiting = store, Waiting(store)
        self._files = open_files(self.url, store, self._artifacts)
        if self._purge_on_start:
            try:
                await self.purge()
            except BaseException:
                await asyncio.shield(self.__aexit__())
                raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._entered -= 1
        if self._entered:
            return
        store, waiting, files = self._store, self._waiting, self._files
        self._store = self._waiting = self._files = None
        if waiting is not None:
            await waiting.close()
        if files is not None:
            await asyncio.to_thread(files.close)
        if store is not None:
            await store.close()

    async def _announce(self, store: Store) -> None:
        """Let those without our code submit to us. Written only where something changed: opening stays cheap."""
        now = self.clock.now()
        known = {each.job_type: each for each in await store.job_types()}
        ours = [handler.describe(now) for handler in self.handlers.values()]
        changed = [each for each in ours if _differs(each, known.get(each.job_type))]
        if changed:
            await store.announce(changed)

    async def migrate(self) -> list[str]:
        """Make or update the schema; the names of what was applied."""
        return await open_url(self.url).migrate()

    async def exists(self) -> bool:
        """Whether there is a queue at its URL; True where the engine cannot tell. It makes none, as opening would."""
        look = getattr(open_url(self.url), "exists", None)
        return True if look is None else bool(await look())

    async def erase(self) -> list[str]:
        """Delete the queue with all that is in it, for good; the names of the tables that there were."""
        return await open_url(self.url).erase()

    def migration_sql(self) -> str:
        """The schema's migrations as a script, for those who let nobody but themselves change a schema."""
        script = open_url(self.url).migration_sql()
        if script is None:
            raise ConfigurationError(f"{self.url} is migrated as it is opened: there is no script for it")
        return script

    @property
    def store(self) -> Store:
        if self._store is None:
            raise NotOpen("the app is not open: use it inside `async with app:`")
        return self._store

    # Submitting

    async def submit(self, job_type: str | Handler, payload: Any = None, **options: Unpack[SubmitOptions]) -> JobHandle:
        """Store a job. Once this returns, the job is on disk."""
        store = self.store
        now = self.clock.now()
        target = await self._target(job_type)
        job = build(target, payload, ids.new_id(now), now, options)
        connection = options.get("connection")
        if connection is None:
            inserted = (await store.insert((job,), now))[0]
        else:
            inserted = (await store.insert_in(connection, (job,), now))[0]
        return self._handle(job, inserted, now)

    async def submit_many(self, jobs: Iterable[Submission], *, connection: Any = None) -> list[JobHandle]:
        """Store many jobs in one commit, all or none: (type, payload) or (type, payload, {options}). With `connection`,
        all of them inside the caller's own transaction."""
        store = self.store
        now = self.clock.now()
        listed = list(jobs)
        if len(listed) > limits.SUBMIT_BATCH_MAX:
            raise InvalidSubmission(
                f"{len(listed):,} jobs at once; the limit is {limits.SUBMIT_BATCH_MAX:,}: split them"
            )
        built: list[NewJob] = []
        targets: dict[Any, Handler | JobType] = {}
        for position, (job_id, each) in enumerate(zip(ids.new_ids(len(listed), now), listed, strict=True)):
            try:
                job_type, payload, *rest = each
                target = targets.get(job_type)
                if target is None:
                    target = targets[job_type] = await self._target(job_type)
                built.append(build(target, payload, job_id, now, _of_one(rest)))
            except InvalidSubmission as error:
                error.args = (f"job {position} of {len(listed)}: {error}",)
                raise
            except (TypeError, ValueError):
                raise InvalidSubmission(
                    f"job {position} of {len(listed)}: give (type, payload) or (type, payload, options)"
                ) from None
        if not built:
            return []
        inserted = await (store.insert(built, now) if connection is None else store.insert_in(connection, built, now))
        return [self._handle(job, each, now) for job, each in zip(built, inserted, strict=True)]

    async def _target(self, job_type: str | Handler) -> Handler | JobType:
        if isinstance(job_type, Handler):
            return job_type
        try:
            handler = self.handlers.get(job_type)
        except TypeError:  # a list, say, cannot even be looked up
            check_name(job_type, "job type")
            raise
        if handler is not None:
            return handler
        known = self._known_types.get(job_type)
        now = self.clock.monotonic()
        if known is None or now - self._known_since > _KNOWN_SECONDS:
            check_name(job_type, "job type")
            self._known_types = {each.job_type: each for each in await self.store.job_types()}
            self._known_since = now
            known = self._known_types.get(job_type)
        if known is None:
            names = ", ".join(sorted({*self.handlers, *self._known_types})) or "none yet"
            raise UnknownJobType(
                f"{job_type!r} has no handler here and no worker has announced one (known: {names}):"
                " register it with @app.job, or start its worker once"
            )
        return known

    def _handle(self, job: NewJob, inserted: Inserted, now: Instant) -> JobHandle:
        if inserted.existing is not None:
            return JobHandle(self, inserted.job_id, inserted.existing, deduplicated=True)
        if (
            inserted.job_id != job.job_id
        ):  # a duplicate that the caller's own transaction has made, and nobody else sees
            job = msgspec.structs.replace(job, job_id=inserted.job_id)
            return JobHandle(self, job.job_id, partial(new_record, job, inserted, now), deduplicated=True)
        return JobHandle(self, job.job_id, partial(new_record, job, inserted, now))

    # Reading

    async def get(self, job_id: str) -> Job:
        """The job as it is now, with live progress where it runs in this process."""
        job_id = ids.canonical(job_id)
        record = (await self.store.get([job_id]))[0]
        if record is None:
            raise JobNotFound(f"no job {job_id}")
        return self._job(record)

    def _job(self, record: JobRecord) -> Job:
        run = self._live.get(record.job_id)
        if run is not None and record.status is Status.PROCESSING and run.job.attempt == record.attempt:
            record = msgspec.structs.replace(
                record,
                progress=record.progress if run.progress is None else run.progress,
                stage=record.stage if run.stage is None else run.stage,
                logs=run.logs_json() or record.logs,
                metrics=run.metrics_json() or record.metrics,
                artifacts=run.artifacts_json() or record.artifacts,
            )
        files = self._files
        return Job(record, None if files is None else lambda: read_result(files, record.result_artifact))

    async def find(self, **options: Unpack[FindOptions]) -> Page:
        """Jobs, newest first, or in claim order with order="priority"."""
        found = await self.store.find(query(**options))
        page = Page([self._job(record) for record in found.items])
        page.next = found.next
        return page

    async def history(self, job_id: str) -> list[HistoryEntry]:
        """Every transition: who, when, which attempt, why. Beyond 200, the first and the last hundred."""
        return (await self.get(job_id)).history

    async def artifacts(self, job_id: str) -> list[StoredFile]:
        """The files that a job's handler kept with it."""
        record = (await self.get(job_id)).record
        return msgspec.json.decode(record.artifacts, type=list[StoredFile]) if record.artifacts else []

    async def artifact(self, job_id: str, name: str) -> bytes:
        """One of them, checked against the hash that was stored with it."""
        for stored in await self.artifacts(job_id):
            if stored.name == name and self._files is not None:
                return await asyncio.to_thread(self._files.read, stored)
        raise ArtifactNotFound(f"job {job_id} has no artifact {name!r}")

    async def counts(self) -> dict[str, int]:
        """Jobs per state."""
        return await self.store.counts()

    async def dead(self, limit: int = 100) -> list[DeadGroup]:
        """The dead letters, grouped by type and error."""
        return await self.store.dead(limit)

    async def workers(self) -> list[WorkerRow]:
        return await self.store.workers()

    async def result(self, job_id: str, timeout: float | timedelta | None = None) -> Any:
        """Wait until a job has ended; its result, or JobFailed, JobCancelled, JobNotFound, ResultTimeout."""
        job_id = ids.canonical(job_id)
        if self._waiting is None:
            raise NotOpen("the app is not open: use it inside `async with app:`")
        try:
            async with asyncio.timeout(None if timeout is None else seconds(timeout)):
                record = await self._waiting.ended(job_id)
        except TimeoutError:
            raise ResultTimeout(
                f"job {job_id} has not ended within {seconds(timeout or 0):g} s; it goes on, ask again later"
            ) from None
        if record is None:
            raise JobNotFound(f"no job {job_id}")
        match record.status:
            case Status.COMPLETED if record.archived_at is not None:
                raise ResultGone(f"job {job_id} completed, but its result went with its retention: submit it anew")
            case Status.COMPLETED:
                return await asyncio.to_thread(lambda: self._job(record).result)
            case Status.CANCELLED:
                reason = record.history[-1].reason if record.history else None  # the archive keeps none
                raise JobCancelled(
                    f"job {job_id} was cancelled{f': {reason}' if reason else ''}",
                    job_id=job_id,
                    reason=reason,
                )
            case _:
                raise JobFailed(
                    f"job {job_id} failed after {record.failures} of {record.max_attempts} attempts:"
                    f" {record.last_error}",
                    job_id=job_id,
                    last_error=record.last_error,
                )

    # Changing

    async def cancel(
        self,
        job_id: str,
        *,
        reason: str | None = None,
        by: str | None = None,
        expected_version: int | None = None,
    ) -> Job:
        """Cancel a job in any active state; a running handler is stopped."""
        by, reason = check_words(by, reason)
        await edit(
            self.store, self.clock, job_id, expected_version, lambda job, _: lifecycle.cancel(job, by=by, reason=reason)
        )
        return await self.get(job_id)

    async def retry(
        self,
        job_id: str,
        *,
        reason: str | None = None,
        by: str | None = None,
        expected_version: int | None = None,
    ) -> Job:
        """Run an ended job again, with a fresh budget of attempts."""
        by, reason = check_words(by, reason)
        await edit(
            self.store,
            self.clock,
            job_id,
            expected_version,
            lambda job, now: lifecycle.manual_retry(job, now=now, by=by, reason=reason),
        )
        return await self.get(job_id)

    async def retry_dead(
        self, *, job_type: str | None = None, error_type: str | None = None, by: str | None = None
    ) -> int:
        """Run many dead letters again: all, or those of a type or an error. How many."""
        for name, value in (("job_type", job_type), ("error_type", error_type), ("by", by)):
            check_text(name, value, limits.KEY_LENGTH_MAX)
        return await retry_dead(self.store, self.clock, job_type, error_type, by)

    # Working

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """A worker inside this process: `async with app.worker(concurrency=10): …`

        It serves the queues of its handlers, and `default`, unless told which.
        """
        if unknown := options.keys() - WorkerOptions.__annotations__.keys():
            raise ConfigurationError(f"worker has no option {', '.join(sorted(unknown))}")
        handlers = self._chosen(options.get("job_types"))
        lease, poll, grace = options.get("lease"), options.get("poll_interval"), options.get("grace")
        return Worker(
            self.store,
            lambda: open_url(self.url),
            handlers,
            self.clock,
            self._files,
            self._live,
            queues=_queues(options.get("queues"), handlers),
            concurrency=settings.concurrency(options.get("concurrency")),
            lease_seconds=self._lease_seconds if lease is None else settings.lease(seconds(lease)),
            poll_seconds=self._poll_seconds if poll is None else settings.poll_interval(seconds(poll)),
            claim_limit=self._claim_limit,
            grace_seconds=settings.grace(None if grace is None else seconds(grace)),
            keep=self._retention,
            version=_release(),
        )

    def _chosen(self, job_types: Sequence[str] | None) -> dict[str, BoundHandler]:
        if not self.handlers:
            raise ConfigurationError("this app has no handlers: register one with @app.job before starting a worker")
        if job_types is None:
            return self.handlers
        if missing := [name for name in job_types if name not in self.handlers]:
            raise ConfigurationError(f"no handler for {', '.join(missing)}")
        return {name: self.handlers[name] for name in job_types}


def _of_one(rest: Sequence[SubmitOptions]) -> SubmitOptions:
    """The options of one of many."""
    options = rest[0] if rest else SubmitOptions()
    if options and options.get("connection") is not None:
        raise InvalidOption("connection is for all of them or for none: write submit_many(…, connection=…)")
    return options


def _queues(given: Sequence[str] | None, handlers: Mapping[str, Handler]) -> tuple[str, ...]:
    if given is None:
        return tuple(sorted({"default", *(handler.queue for handler in handlers.values())}))
    if isinstance(given, str):
        raise ConfigurationError(f"queues={given!r}: give a list of names")
    return tuple(dict.fromkeys(check_name(each, "queue") for each in given))


def _release() -> str:
    try:
        return importlib.metadata.version("holdfast")
    except importlib.metadata.PackageNotFoundError:
        return "0"


def _differs(ours: JobType, stored: JobType | None) -> bool:
    if stored is None:
        return True
    if stored.version > ours.version:
        return False  # older code beside newer, in the middle of a deploy: what the newer has announced stands
    fresh = ours.last_seen - stored.last_seen < micros(timedelta(hours=1))
    return not fresh or msgspec.structs.replace(ours, last_seen=stored.last_seen) != stored


__all__ = ["BoundHandler", "Holdfast", "JobRef", "Page"]
