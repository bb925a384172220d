"""`Backstay`, the application object: register handlers, submit, read, change and operate jobs, start workers.

It turns arguments into plain data, calls the store, and turns records into what users see. The blocking API in
`sync.py` has the same names without `await`.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, cast, overload

import msgspec
import pydantic

from backstay import codec, ids, limits, origins, posix, settings
from backstay.clock import Clock, Instant, SystemClock, seconds
from backstay.core import access_keys, checks, schedules, stats
from backstay.core.access_keys import AuditTrail, CreatedKey, KeyInfo
from backstay.core.checks import Until, check_name, check_text
from backstay.core.declarations import Code, DeclaredSchedule
from backstay.core.output import OutputEnd
from backstay.core.port import Store
from backstay.core.queues import Queue
from backstay.core.records import (
    ApiKey,
    Counter,
    DeadGroup,
    Depth,
    Finding,
    FormerWorker,
    Inserted,
    JobRecord,
    JobType,
    NewJob,
    QueueRow,
    Rate,
    Signal,
    WorkerRow,
)
from backstay.core.run_limits import Limit
from backstay.core.schedules import Backfill, Overlap, ScheduleInfo, ScheduleOptions, TimingOptions
from backstay.core.states import TERMINAL, Status
from backstay.core.stats import Stats, TotalFigures
from backstay.engines import open_files, open_url
from backstay.errors import (
    ArtifactNotFound,
    ConfigurationError,
    InvalidOption,
    InvalidSubmission,
    JobNotFound,
    NotOpen,
    ResultTimeout,
    UnknownJobType,
)
from backstay.files.local import LOG_FILE, Files, StoredFile, parts, read_result
from backstay.files.references import ArtifactRef
from backstay.handlers import BatchOptions, Handler, HandlerOptions, HandlerRef, JobOptions, P, R
from backstay.job import HistoryEntry, Job, JobHandle, JobView, decode_result, target_of
from backstay.lifespan import Lifespans, Make
from backstay.middleware import Layer, M
from backstay.observers import Observer, base
from backstay.observers.base import submitting
from backstay.ops import access, audit, events, jobs, manage, output
from backstay.ops import retention as retention_policy
from backstay.ops.audit import Actor, Audited, By, actor
from backstay.ops.edit import record_of
from backstay.ops.events import SentEvent, StepEntry
from backstay.ops.explanation import Explanation
from backstay.ops.jobs import BulkResult
from backstay.ops.output import OutputEntry, OutputPage
from backstay.ops.retention import Retention
from backstay.ops.tree import Tree, load, nodes, with_progress
from backstay.ops.wait import Waiting, check_completed
from backstay.options import (
    FindOptions,
    JobFilter,
    SubmitOptions,
    Unread,
    build,
    build_alike,
    encoded_payload,
    in_order,
    job_template,
    query,
)
from backstay.pipeline import Pipeline, Stage
from backstay.registration import BoundBatchHandler, BoundHandler, bound
from backstay.results.model import ResultRow
from backstay.results.reader import PAGE, PlainRows, StoreRows, TableResults, plain_row, plain_rows, plain_subject_rows
from backstay.worker import main_guard, memory
from backstay.worker.fetcher import WorkerSettings
from backstay.worker.maintenance import Maintenance
from backstay.worker.remote import RemoteWork
from backstay.worker.run import Run
from backstay.worker.worker import Worker

if TYPE_CHECKING:
    from backstay import sync as blocking
    from backstay.ops.job_export import JobExport
    from backstay.registrars import Register, RegisterBatch

log = logging.getLogger("backstay")

_KNOWN_SECONDS = 5.0  # how long a type that others handle is taken as it was read: a deploy may change it

Insert = Callable[[Sequence[NewJob], Instant], Awaitable[list[Inserted]]]
# One job of submit_many: of a handler, whose payload is checked, or of a type by name.
TypedSubmission = tuple[HandlerRef[P, R], P] | tuple[HandlerRef[P, R], P, SubmitOptions]
NamedSubmission = tuple[str, Any] | tuple[str, Any, SubmitOptions]
Submission = tuple[Any, Any] | tuple[Any, Any, SubmitOptions]
T = TypeVar("T")
F = TypeVar("F", bound=Make)
Row = TypeVar("Row", bound=ResultRow)


class Page(list[Job]):
    """The jobs that were found; `next` is the cursor to pass as `after=`, or None at the end."""

    next: str | None = None


class WorkerOptions(TypedDict, total=False):
    """The keyword options of Backstay.worker."""

    concurrency: int | None
    queues: Sequence[str] | None
    lease: float | timedelta | None
    poll_interval: float | timedelta | None
    grace: float | timedelta | None
    job_types: Sequence[str] | None
    burst: bool
    max_jobs: int | None
    max_memory: int | str | None


class Backstay:
    """A job queue: its handlers, its store and its settings. Use it as `async with Backstay(url) as app:`."""

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
        self.url = settings.url(url)
        given = settings.setting("name", name, str, "")
        self._name = check_name(given, "name of an app") if given else ""
        self.made_in = origins.made_in()
        self._declared: dict[str, DeclaredSchedule] = {}
        self.handlers: dict[str, BoundHandler] = {}
        self.lifespans = Lifespans()
        self.layers: list[Layer] = []  # of middleware, the outermost first
        self.clock: Clock = clock or SystemClock()
        self.observers = base.of_app(observers)
        self._artifacts = settings.setting("artifacts", artifacts, str, "") or None
        self._lease_seconds = settings.lease(None if lease is None else seconds(lease))
        self._claim_limit = settings.claim_limit(claim_limit)
        self._retention = retention_policy.default(retention)
        self._purge_on_start = purge_on_start
        self._store: Store | None = None
        self._files: Files | None = None
        self._waiting: Waiting | None = None
        self._known_types: dict[str, JobType] = {}
        self._known_since = 0.0
        self._live: dict[str, Run] = {}  # what workers in this process run now, for live progress
        self._entered = 0
        self._pid = os.getpid()
        self._sync: blocking.Backstay | None = None
        # What is wrong with them is an error here, not at the first use.
        store = settings.used("url", url, lambda: open_url(self.url))
        settings.used("artifacts", artifacts, lambda: open_files(self.url, store, self._artifacts))
        poll = None if poll_interval is None else seconds(poll_interval)
        self._poll_seconds = settings.poll_interval(poll, store.poll_seconds)

    # Handlers

    def job(self, name: str, **options: Unpack[JobOptions]) -> Register:
        """Register a function (or a JobHandler class) as the handler of a job type. With `cron`, its code declares a
        schedule of the same name, which submits `cron_payload`; see `cron`."""
        _check_options("job", name, options, JobOptions)
        of_handler, of_schedule = _apart(name, options)

        def register(target: Any) -> BoundHandler:
            handler = self._register(bound(name, target, of_handler))
            if of_schedule:
                self._declare_own(handler, of_schedule)
            return handler

        return cast("Register", register)

    def _declare_own(self, handler: BoundHandler, options: Mapping[str, Any]) -> None:
        """Declare the schedule of a handler. Without a payload it is empty: `{}`, or nothing."""
        given = dict(options)
        rule, payloads = given.pop("cron"), [given.pop("cron_payload")] if "cron_payload" in given else [{}, None]
        for payload in payloads[:-1]:
            with suppress(InvalidSubmission):
                handler.encode(payload)
                payloads = [payload]
        try:
            self.cron(handler.name, rule, handler, payloads[-1], **given)
        except InvalidSubmission as error:
            if "cron_payload" in options:
                raise
            raise ConfigurationError(
                f"{handler.name}: cron needs cron_payload=…, the payload of its jobs ({error})"
            ) from None

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
        """Declare a schedule in code: `app.cron("nightly", "30 3 * * *", report, Report(of="sales"))`.

        Every worker that starts declares the schedules of its code. One that the code no longer declares is removed;
        those of other apps, and those made by `schedule`, stay as they are. The rest is as for `schedule`.
        """
        _check_schedule_options(options)
        check_name(name, "schedule")
        when = schedules.timing(
            cron,
            timezone=timezone,
            missed=missed,
            overlap=overlap,
            jitter=jitter,
            starts_at=starts_at,
            ends_at=ends_at,
        )
        if name in self._declared:
            raise ConfigurationError(f"the schedule {name!r} is declared twice: give one of them another name")
        if len(self._declared) >= limits.DECLARED_MAX:
            raise ConfigurationError(f"more than {limits.DECLARED_MAX:,} schedules in code (DECLARED_MAX)")
        named = target_of(job_type)
        handler = named if isinstance(named, Handler) else self.handlers.get(named)
        if handler is not None:
            job = job_template(handler, payload, cast(SubmitOptions, options))
            declared = DeclaredSchedule(name=name, when=when, job_type=handler.name, job=job)
        else:
            assert isinstance(named, str)  # noqa: S101 - otherwise it is a handler
            check_name(named, "job type")
            told = codec.decode(codec.to_json(payload))
            declared = DeclaredSchedule(
                name=name, when=when, job_type=named, job=None, payload=told, options=cast(dict[str, Any], options)
            )
        self._declared[name] = declared

    @property
    def name(self) -> str:
        """The name by which the store knows whose code declares a schedule: the option `name`, otherwise where the app
        was made, such as `reports:app`."""
        return self._name or origins.name_of(self.made_in)

    def _code(self) -> Code:
        """Return what the code of this app declares. A type by name may have got its handler after the schedule."""
        declared = [
            each
            if each.job is not None or (handler := self.handlers.get(each.job_type)) is None
            else msgspec.structs.replace(
                each,
                job=job_template(handler, each.payload, cast(SubmitOptions, each.options)),
                payload=None,
                options={},
            )
            for each in self._declared.values()
        ]
        return Code.of(self.name, declared, self.handlers)

    def batch_job(self, name: str, **options: Unpack[BatchOptions]) -> RegisterBatch:
        """Register a function that takes a list of payloads as the handler of a job type. One call handles up to
        `max_size` jobs and returns a result or an exception for each."""
        _check_options("batch_job", name, options, BatchOptions)

        def register(target: Any) -> BoundHandler:
            return self._register(BoundBatchHandler(name, target, **options))

        return cast("RegisterBatch", register)

    def pipeline(
        self,
        name: str,
        stages: Sequence[Stage],
        *,
        options: type[pydantic.BaseModel] | None = None,
        **handler_options: Unpack[HandlerOptions],
    ) -> Pipeline:
        """Declare a graph of stages as one job type, which takes `{"stages": [{"stage": "PCA", "config": {…}}, …]}`.
        `options` is a model for additional fields of its payload; the other options are those of @app.job, for its
        root."""
        _check_options("pipeline", name, handler_options, HandlerOptions)
        pipeline = Pipeline(self, name, stages, options, self.handlers)
        return pipeline.registered(self.job(name, **handler_options)(pipeline.function()))

    def _register(self, handler: BoundHandler) -> BoundHandler:
        if handler.name in self.handlers:
            raise ConfigurationError(f"{handler.name!r} already has a handler: {self.handlers[handler.name]!r}")
        handler.check_middleware(self.layers)
        handler.wrap(self.layers)
        handler.app = self
        handler.observers, handler.lifespans = self.observers, self.lifespans
        self.handlers[handler.name] = handler
        return handler

    # What surrounds handlers

    def lifespan(self, target: F) -> F:
        """Register a function with one `yield`, async or plain, as `@app.lifespan`: it runs once in each process that
        runs handlers, before the first, and what it yields is their `ctx.state`. What comes after the yield runs
        behind the last. A function that returns a context manager will do, too."""
        self.lifespans.register(target)
        return target

    def middleware(self, target: M) -> M:
        """Register a function that wraps every run of every handler, as `@app.middleware`; the first that is registered
        is the outermost. `async def f(ctx, call_next)` fits handlers that are `async def`, `def f(ctx, call_next)`
        those that are `def`, and `def f(ctx)` with one `yield` fits both."""
        layer = Layer(target)
        for handler in self.handlers.values():
            handler.check_middleware([layer])
        self.layers.append(layer)
        for handler in self.handlers.values():
            handler.wrap(self.layers)
        return target

    # Open and close

    async def open(self) -> Backstay:
        """Open the app, where `async with app:` does not fit: close it as often as you open it."""
        return await self.__aenter__()

    async def close(self) -> None:
        """Close the app, if it is open."""
        if self._entered:
            await self.__aexit__()

    @property
    def sync(self) -> blocking.Backstay:
        """The same app for blocking code: `with app.sync: app.sync.submit(report, …)`. It has the same handlers and
        settings, and is opened on its own, on an event loop in a thread."""
        from backstay import sync  # imports this module

        if self._sync is None:
            another = copy.copy(self)
            another._forget()
            another._known_types = {}
            self._sync = sync.Backstay.of(another)
        return self._sync

    def _forget(self) -> None:
        """Take nothing as open: what is, belongs to another process or another event loop."""
        self._entered, self._store, self._files, self._waiting, self._live = 0, None, None, None, {}
        self._pid = os.getpid()

    async def __aenter__(self) -> Backstay:
        main_guard.check()
        if os.getpid() != self._pid:  # forked
            self._forget()
        self._entered += 1
        if self._entered > 1:
            return self
        store = open_url(self.url)
        try:
            await store.open()
            if await manage.accepts_changes(store) and self.handlers:
                await manage.announce(store, self.clock, self.handlers.values())
        except BaseException:
            self._entered = 0
            await asyncio.shield(store.close())
            raise
        self._store, self._waiting = store, Waiting(store)
        self._files = open_files(self.url, store, self._artifacts)
        if self._purge_on_start:
            try:
                archived = await retention_policy.purge(store, self.clock, self._files, self._retention)
                if archived:
                    log.info("retention archived %s", checks.count(archived, "job"))
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

    @property
    def store(self) -> Store:
        """The open store. Raises NotOpen outside `async with app:`."""
        if self._store is None:
            raise NotOpen("the app is not open: use it inside `async with app:`")
        return self._store

    @property
    def is_open(self) -> bool:
        """Whether the app is open."""
        return self._store is not None

    @property
    def files(self) -> Files | None:
        """Where logs, large results and artifacts are stored while the app is open; None if this store has no place for
        files."""
        return self._files

    @property
    def location(self) -> str:
        """Where the queue is, for display: includes the region that the environment names, never a password."""
        return open_url(self.url).location

    # For servers

    def listen(self, signals: frozenset[Signal], heard: Callable[[Signal], None]) -> Callable[[], None]:
        """Call `heard` on the event loop whenever the store sends one of these signals; return how to stop that."""
        return self.store.listen(signals, heard)

    @property
    def remote_work(self) -> RemoteWork:
        """Claims and settles jobs for workers on other machines."""
        return RemoteWork(self.store, self.clock, self._files)

    async def key_records(self, key_ids: Sequence[str] = ()) -> list[ApiKey]:
        """Return stored keys and sessions with the hashes of their secrets, to check requests against."""
        return await self.store.keys(key_ids)

    async def server_secret(self) -> bytes:
        """Return the secret with which the servers of this queue sign."""
        return await access_keys.server_secret(self.store)

    @property
    def record_seconds(self) -> float:
        """How often workers write the progress of running jobs."""
        return self.store.record_seconds

    @property
    def lease_seconds(self) -> float:
        """How long a claim lasts without a heartbeat."""
        return self._lease_seconds

    @property
    def poll_seconds(self) -> float:
        """How often a worker polls when nothing wakes it."""
        return self._poll_seconds

    # Submit

    @overload
    async def submit(
        self, job_type: HandlerRef[P, R], payload: P, **options: Unpack[SubmitOptions]
    ) -> JobHandle[R]: ...

    @overload
    async def submit(
        self, job_type: HandlerRef[None, R], payload: None = None, **options: Unpack[SubmitOptions]
    ) -> JobHandle[R]: ...

    @overload
    async def submit(self, job_type: str, payload: Any = None, **options: Unpack[SubmitOptions]) -> JobHandle: ...

    async def submit(self, job_type: Any, payload: Any = None, **options: Unpack[SubmitOptions]) -> JobHandle[Any]:
        """Store a job of a handler, or of a type by name. When this returns, the job is on disk."""
        insert = _into(self.store, options.get("connection"))
        target = await self._target(job_type)
        now = self.clock.now()
        job = build(target, payload, ids.new_id(now), now, options)
        if self.observers is None:
            inserted = (await insert((job,), now))[0]
        else:
            with self.observers.submitting((job,)) as (job,):
                inserted = (await insert((job,), now))[0]
        return self._handle(job, inserted, now, target)

    def submit_from_thread(
        self,
        job_type: str | Handler,
        payload: Any,
        options: SubmitOptions,
        wait: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> JobHandle:
        """As `submit`, for a thread without an event loop; `wait` runs a coroutine on the app's loop, and waits for it.
        Only what needs the loop goes there: a switch between threads costs more than building a job."""
        store, connection = self.store, options.get("connection")
        target: Handler | JobType
        if isinstance(job_type, Handler):
            target = job_type
        elif isinstance(job_type, str) and job_type in self.handlers:
            target = self.handlers[job_type]
        else:
            target = wait(self._target(job_type))
        now = self.clock.now()
        job = build(target, payload, ids.new_id(now), now, options)

        def insert(jobs: Sequence[NewJob]) -> Inserted:
            inserted = None if connection is not None else store.insert_here(jobs, now)
            return (wait(_insert(store, connection, jobs, now)) if inserted is None else inserted)[0]

        if self.observers is None:
            return self._handle(job, insert((job,)), now, target)
        with self.observers.submitting((job,)) as (job,):
            inserted = insert((job,))
        return self._handle(job, inserted, now, target)

    @overload
    async def submit_many(
        self, jobs: Iterable[TypedSubmission[P, R]], *, connection: Any = None
    ) -> list[JobHandle[R]]: ...

    @overload
    async def submit_many(self, jobs: Iterable[NamedSubmission], *, connection: Any = None) -> list[JobHandle]: ...

    async def submit_many(self, jobs: Iterable[Submission], *, connection: Any = None) -> list[JobHandle[Any]]:
        """Store many jobs in one commit, all or none: (type, payload) or (type, payload, {options}). With `connection`,
        store all of them inside the caller's own transaction."""
        store = self.store
        now = self.clock.now()
        listed = list(jobs)
        if len(listed) > limits.SUBMIT_BATCH_MAX:
            raise InvalidSubmission(
                f"{len(listed):,} jobs at once; the limit is {limits.SUBMIT_BATCH_MAX:,}: split them"
            )
        built, handlers = await self._build_many(listed, now)
        if not built:
            return []
        with submitting(self.observers, built) as observed:
            return await self._store_many(observed, handlers, now, _into(store, connection))

    async def _build_many(
        self, listed: Sequence[Submission], now: Instant
    ) -> tuple[list[NewJob], Mapping[str, Handler]]:
        """Return the jobs, and the handlers of their types as far as they are known here."""
        job_ids = ids.new_ids(len(listed), now)
        if (handler := self._handler_of_all(listed)) is not None:
            alike = build_alike(handler, map(itemgetter(1), listed), job_ids, now)
            if alike is not None:
                return alike, {handler.name: handler}
        built: list[NewJob] = []
        targets: dict[Any, Handler | JobType] = {}
        for position, (job_id, each) in enumerate(zip(job_ids, listed, strict=True)):
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
        return built, {each.name: each for each in targets.values() if isinstance(each, Handler)}

    def _handler_of_all(self, listed: Sequence[Submission]) -> Handler | None:
        """Return the handler of all of these if they have the same, and no options."""
        try:
            if set(map(len, listed)) != {2}:
                return None
            named, *others = set(map(itemgetter(0), listed))
        except (TypeError, LookupError):  # one is not what it should be, which is said of each
            return None
        if others:
            return None
        return named if isinstance(named, Handler) else self.handlers.get(named)

    async def _store_many(
        self, built: Sequence[NewJob], handlers: Mapping[str, Handler], now: Instant, insert: Insert
    ) -> list[JobHandle]:
        places = in_order(built)
        if places is None:
            inserted = await insert(built, now)
        else:
            answers = await insert([built[place] for place in places], now)
            inserted = [answer for _, answer in sorted(zip(places, answers, strict=True), key=_place)]
        return [
            self._handle(job, each, now, handlers.get(job.job_type)) for job, each in zip(built, inserted, strict=True)
        ]

    async def _target(self, job_type: Any) -> Handler | JobType:
        named = target_of(job_type)
        if isinstance(named, Handler):
            return named
        job_type, handler = named, self.handlers.get(named)
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
                f"{job_type!r} has no handler here, and no worker has announced one (known: {names}):"
                " register it with @app.job, or start its worker once"
            )
        return known

    def _handle(self, job: NewJob, inserted: Inserted, now: Instant, target: Handler | JobType | None) -> JobHandle:
        handler = target if isinstance(target, Handler) else None
        if inserted.existing is not None:
            return JobHandle(self, inserted.job_id, inserted.existing, deduplicated=True, handler=handler)
        if (
            inserted.job_id != job.job_id
        ):  # a duplicate of a job in the caller's own transaction, which no one else sees
            job = msgspec.structs.replace(job, job_id=inserted.job_id)
            return JobHandle(self, job.job_id, Unread(job, inserted, now), deduplicated=True, handler=handler)
        return JobHandle(self, job.job_id, Unread(job, inserted, now), handler=handler)

    # Work

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """Create a worker inside this process: `async with app.worker(concurrency=10): …`. By default it serves
        `default` and the queues of its handlers. It ends by itself, which `worker.join()` waits for, with `burst=True`
        when nothing is due that it could run, after `max_jobs` runs, and when the process uses more than `max_memory`
        ("500M"), which also replaces processes of handlers."""
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
            self._target,
            WorkerSettings(
                queues=_queues(options.get("queues"), handlers),
                concurrency=settings.concurrency(options.get("concurrency")),
                lease_seconds=self._lease_seconds if lease is None else settings.lease(seconds(lease)),
                poll_seconds=self._poll_seconds if poll is None else settings.poll_interval(seconds(poll)),
                claim_limit=self._claim_limit,
                grace_seconds=settings.grace(None if grace is None else seconds(grace)),
                keep=self._retention,
                version=settings.release(),
                code=self._code(),
                burst=bool(options.get("burst")),
                max_jobs=checks.check_count("max_jobs", options.get("max_jobs")),
                max_memory=_memory(options.get("max_memory")),
            ),
            self.observers,
            self.lifespans,
        )

    def _chosen(self, job_types: Sequence[str] | None) -> dict[str, BoundHandler]:
        if not self.handlers:
            raise ConfigurationError("this app has no handlers: register one with @app.job before starting a worker")
        if missing := [name for name in job_types or () if name not in self.handlers]:
            raise ConfigurationError(f"no handler for {', '.join(missing)}")
        chosen = self.handlers if job_types is None else {name: self.handlers[name] for name in job_types}
        if not posix.HAS_PROCESSES and (
            apart := [each.name for each in chosen.values() if each.isolation == "process"]
        ):
            raise ConfigurationError(
                f'{", ".join(apart)}: isolation="process" {posix.ONLY_HERE}; leave it out, or leave these types to'
                " other workers with job_types="
            )
        return chosen

    def maintenance(self, name: str) -> Maintenance:
        """Run the maintenance that workers do, without running jobs: `async with app.maintenance("server"): …`."""
        return Maintenance(
            self.store,
            self.clock,
            self._files,
            name=name,
            lease_seconds=self._lease_seconds,
            poll_seconds=self._poll_seconds,
            keep=self._retention,
            observers=self.observers,
        )

    # Read

    async def get(self, job_id: str) -> Job:
        """Return the job as it is now, with live progress if it runs in this process."""
        job_id = ids.canonical(job_id)
        record = (await self.store.get([job_id]))[0]
        if record is None:
            raise JobNotFound(f"no job {job_id}")
        return self._job(await with_progress(self.store, record))

    async def get_many(self, job_ids: Sequence[str]) -> list[Job | None]:
        """Return many jobs in the same order, up to 1,000; None for one that does not exist."""
        if len(job_ids) > limits.FIND_LIMIT_MAX:
            raise InvalidOption(f"{len(job_ids):,} ids at once; the limit is {limits.FIND_LIMIT_MAX:,}: split them")
        found = await self.store.get([ids.canonical(each) for each in job_ids]) if job_ids else []
        return [None if record is None else self._job(record) for record in found]

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

    def seen_live(self, job: Job) -> Job | None:
        """Return the record with its run's current state from memory; None if it does not run in this process."""
        return self._job(job.row) if job.job_id in self._live else None

    async def find(self, **options: Unpack[FindOptions]) -> Page:
        """Find jobs, newest first, or in claim order with order="priority"."""
        found = await self.store.find(query(**options))
        page = Page([self._job(record) for record in found.items])
        page.next = found.next
        return page

    @overload
    async def result(self, job_id: str, timeout: float | timedelta | None = None) -> Any: ...

    @overload
    async def result(
        self, job_id: str, timeout: float | timedelta | None = None, *, as_type: HandlerRef[Any, R]
    ) -> R: ...

    @overload
    async def result(self, job_id: str, timeout: float | timedelta | None = None, *, as_type: type[T]) -> T: ...

    @overload
    async def result(self, job_id: str, timeout: float | timedelta | None = None, *, as_type: Any = None) -> Any: ...

    async def result(self, job_id: str, timeout: float | timedelta | None = None, *, as_type: Any = None) -> Any:
        """Wait until a job has ended, and return its result: as plain JSON, or as the type or handler in `as_type`.
        Raises JobFailed, JobCancelled, JobNotFound or ResultTimeout."""
        job_id = ids.canonical(job_id)
        completed = check_completed(job_id, await self._ended(job_id, timeout))
        text = completed.result
        if completed.result_artifact is not None:
            text = await asyncio.to_thread(self._job(completed).result_text)  # a large one is read from its file
        if as_type is None or (isinstance(as_type, Handler) and as_type.name != completed.job_type):
            return None if text is None else codec.decode(text)  # the latter: a duplicate of a job of another type
        return decode_result(as_type, job_id, text, completed.job_type)

    async def wait(self, job_id: str, timeout: float | timedelta | None = None) -> Job:
        """Wait until a job has ended, however it ended, and return its record. Raises JobNotFound or ResultTimeout."""
        job_id = ids.canonical(job_id)
        record = await self._ended(job_id, timeout)
        if record is None:
            raise JobNotFound(f"no job {job_id}")
        return self._job(record)

    async def _ended(self, job_id: str, timeout: float | timedelta | None) -> JobRecord | None:
        if self._waiting is None:
            raise NotOpen("the app is not open: use it inside `async with app:`")
        try:
            async with asyncio.timeout(None if timeout is None else seconds(timeout)):
                return await self._waiting.ended(job_id)
        except TimeoutError:
            raise ResultTimeout(
                f"job {job_id} did not end within {seconds(timeout or 0):g} s; it is still active, ask again later"
            ) from None

    async def watch(self, job_id: str) -> AsyncGenerator[Job, None]:
        """Yield a job's record now, and again whenever its progress, stage or status has changed, up to its end."""
        stir = asyncio.Event()
        unlisten = self.store.listen(frozenset({Signal.ENDED}), lambda _: stir.set())
        seen: tuple[object, ...] | None = None
        try:
            while True:
                stir.clear()
                job = await self.get(job_id)
                now = job.status, job.attempt, job.progress, job.stage
                if now != seen:
                    yield job
                if job.status in TERMINAL:
                    return
                seen = now
                with suppress(TimeoutError):
                    async with asyncio.timeout(limits.RESULT_POLL_SECONDS):
                        await stir.wait()
        finally:
            unlisten()

    async def output(self, job_id: str, *, after: str | None = None, limit: int = limits.FIND_LIMIT_MAX) -> OutputPage:
        """Return what a handler has streamed so far, from the beginning or behind a cursor: a page of entries, whose
        `next` is the cursor of what follows."""
        return await output.page(self.store, ids.canonical(job_id), after, limit)

    def stream_output(self, job_id: str, *, after: str | None = None) -> AsyncGenerator[OutputEntry, None]:
        """Yield what a handler has streamed, and each entry that it still streams, until the job has ended: a reader
        that saw the end has seen everything. If the handler runs again, its output replaces that of the earlier run;
        its first entry is `restarted`."""
        return output.follow(self.store, ids.canonical(job_id), after)

    async def output_end(self, job_id: str) -> OutputEnd | None:
        """Return how far the output of a job has come; None if its handler has streamed nothing."""
        return await self.store.output_end(ids.canonical(job_id))

    async def read_artifact(self, ref: ArtifactRef) -> bytes:
        """Read a file by the reference that a handler has passed on in a result: of up to 64 MiB. Raises
        ArtifactNotFound if it is gone, or another file by now."""
        if self._files is None:
            raise ConfigurationError(
                "the files of this queue cannot be read from here: pass Backstay(..., artifacts=...)"
            )
        [record] = await self.store.get([ids.canonical(ref.job_id)])
        return await asyncio.to_thread(self._files.read, ref.found_in(record))

    async def export_job(
        self,
        job_id: str,
        path: str | os.PathLike[str],
        *,
        sensitive: bool = False,
        decrypt: bool = False,
        files: bool = True,
        by: By = None,
    ) -> JobExport:
        """Write a job to one file, to replay it on another machine: its record, payload, steps, output, log and files,
        and the records of its tree. Sensitive fields are masked and encrypted ones stay encrypted, unless
        `sensitive` or `decrypt` say otherwise, which leaves an entry in the audit trail."""
        from backstay.ops import job_export  # as above

        job_id, target = ids.canonical(job_id), Path(path)
        choice = job_export.Choice(sensitive=sensitive, decrypt=decrypt, files=files)
        known = {each.job_type: each.sensitive for each in await self.store.job_types()}

        def marks(job_type: str) -> Sequence[str]:
            handler = self.handlers.get(job_type)
            here = () if handler is None else (*handler.sensitive, *handler.marked)
            return (*known.get(job_type, ()), *here)

        work = job_export.export_job(self.store, self.clock, self._files, marks, job_id, target, choice)
        if not sensitive and not decrypt:
            return await work
        async with audit.audited(self.store, self.clock, actor(by), "job.export", job_id, None) as entry:
            entry.after = {"sensitive": sensitive, "decrypt": decrypt}
            return await work

    async def type_of(self, job_type: str) -> Handler | JobType:
        """Return the handler of a type, or what its worker has announced. Raises UnknownJobType."""
        return await self._target(job_type)

    async def tree(self, job_id: str) -> Tree:
        """Load a job and everything below it, up to 1,000 jobs: `tree.job`, `tree.children`, `tree.jobs` by id,
        `tree.complete`."""
        return await load(self.store, await record_of(self.store, job_id), self._job)

    async def children(
        self, job_id: str, after: str | None = None, limit: int = 50, status: Status | None = None
    ) -> Page:
        """Return a page of the jobs that a job has submitted, in order; pass `next` as `after=`."""
        if not 1 <= limit <= limits.FIND_LIMIT_MAX:
            raise InvalidOption(f"limit={limit!r}: use 1 to {limits.FIND_LIMIT_MAX}, and `after` for the next page")
        found = await self.store.children(ids.canonical(job_id), after, limit, status)
        page = Page([self._job(record) for record in found.items])
        page.next = found.next
        return page

    async def tree_queues(self, job_id: str) -> set[str]:
        """Return the queues of a job and of everything below it."""
        return {node.queue for node in (await nodes(self.store, await record_of(self.store, job_id))).values()}

    async def history(self, job_id: str) -> list[HistoryEntry]:
        """Return every transition: who, when, which attempt, why. Beyond 200 entries, the first and last hundred."""
        return (await self.get(job_id)).history

    async def explain(self, job_id: str, *, ask_first: Sequence[str] = ()) -> Explanation:
        """Why a job is not running, or how it ended: a reason and its parameters, of which `str()` is the sentence.
        Among many workers, those in `ask_first` are looked at before all others."""
        from backstay.ops.explain import explain  # a worker never needs it, and is measured by its memory

        job = (await self.get(job_id)).row
        return await explain(self.store, job, self.clock.now(), manage.is_dead, ask_first)

    async def steps(self, job_id: str) -> list[StepEntry]:
        """Return what a job's handler has recorded, in that order: steps, sleeps, and waits for events; and events that
        were sent to it and that no wait has received yet."""
        return await events.steps(self.store, job_id)

    async def log_bytes(self, job_id: str, start: int = 0, size_max: int = limits.MIB) -> bytes | None:
        """Read part of a job's full log, UTF-8, starting at a byte offset: empty at the end. None if the log file is
        not available here; the record has the last lines in any case."""
        files, job_id = self._files, ids.canonical(job_id)
        return None if files is None else await asyncio.to_thread(files.read_part, job_id, LOG_FILE, start, size_max)

    async def counts(self) -> dict[str, int]:
        """Count jobs per state."""
        return await self.store.counts()

    async def depths(self) -> list[Depth]:
        """Count active jobs per queue, type, state and priority."""
        return await self.store.depths()

    async def counters(
        self, since: Instant, until: Instant, *, width: int | None = None, kinds: bool = True
    ) -> list[Counter]:
        """Return the counters of each minute in a span of time: submitted, completed, failed, by type and queue. With
        `width`, in microseconds: their sums over shorter spans of this length. Without `kinds`: over all types and
        queues."""
        return await self.store.counters(since, until, width=width, kinds=kinds)

    async def job_types(self) -> list[JobType]:
        """List the job types that apps and remote workers have announced."""
        return await self.store.job_types()

    async def dead(self, limit: int = 100) -> list[DeadGroup]:
        """Return the dead letters, grouped by type and error."""
        return await self.store.dead(limit)

    async def workers(self, ids: Sequence[str] = (), *, after: str = "", limit: int | None = None) -> list[WorkerRow]:
        """List the workers by id; if ids are given, only those that exist among them. With `limit`, a page: `after` is
        the last id of the previous one."""
        return await self.store.workers(ids, after=after, limit=limit)

    async def former_workers(self) -> list[FormerWorker]:
        """List the workers that left, died or were lost in the last 24 hours, with their figures; the last one
        first."""
        return await self.store.former_workers(self.clock.now())

    # Result rows and artifacts

    def results(self, table: type[Row]) -> TableResults[Row]:
        """Read the rows of a table: `await app.results(Point).all(job_id)`, `.get`, `.page`, `.latest`,
        `.by_subject`."""
        return TableResults(table, self.stored_rows)

    @property
    def stored_rows(self) -> StoreRows:
        """Reads rows as they are stored, for callers that have the table but not its model."""
        return StoreRows(self.store)

    async def result_rows(
        self, job_id: str, table: str, after: str | None = None, limit: int = PAGE, *, subject: str | None = None
    ) -> PlainRows:
        """Return a page of a job's rows as dicts, for callers without the table's model; pass `next` as `after=`."""
        return await plain_rows(self.store, job_id, table, after, limit, subject)

    async def subject_rows(self, table: str, subject: str, after: str | None = None, limit: int = PAGE) -> PlainRows:
        """Return a page of a subject's rows across all completed jobs, oldest first, as dicts. The table needs
        subject_index=True."""
        return await plain_subject_rows(self.store, table, subject, after, limit)

    async def result_row(self, job_id: str, table: str, key: Any) -> dict[str, Any] | None:
        """Return one row by its key; any kind of key may be given as text."""
        return await plain_row(self.store, job_id, table, key)

    async def artifacts(self, job_id: str) -> list[StoredFile]:
        """List the files that a job's handler stored with it."""
        record = (await self.get(job_id)).row
        return msgspec.json.decode(record.artifacts, type=list[StoredFile]) if record.artifacts else []

    async def artifact(self, job_id: str, name: str) -> bytes:
        """Read a whole file, checked against its stored hash."""
        files, stored = await self._artifact(job_id, name)
        return await asyncio.to_thread(files.read, stored)

    async def open_artifact(
        self, job_id: str, name: str, start: int = 0, stop: int | None = None
    ) -> AsyncIterator[bytes]:
        """Read a file in chunks: `async for chunk in app.open_artifact(job_id, "video")`.

        If the content is not what was stored, StoreError is raised instead of the last chunk. A part, bytes from
        `start` up to but not including `stop`, is checked only by its length.
        """
        files, stored = await self._artifact(job_id, name)
        stop = stored.size if stop is None else min(stop, stored.size)
        pieces = files.stream(stored) if (start, stop) == (0, stored.size) else parts(files, stored, start, stop)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece

    async def _artifact(self, job_id: str, name: str) -> tuple[Files, StoredFile]:
        for stored in await self.artifacts(job_id):
            if stored.name == name and self._files is not None:
                return self._files, stored
        raise ArtifactNotFound(f"job {job_id} has no artifact {name!r}")

    # Change jobs. `by` names who does it, in the history and the audit trail; by default, the user and host.

    async def cancel(
        self,
        job_id: str,
        *,
        subtree: bool = False,
        reason: str | None = None,
        by: By = None,
        expected_version: int | None = None,
    ) -> Job:
        """Cancel a job in any active state; a running handler is stopped. `subtree` also cancels the active jobs below
        it."""
        record = await jobs.cancel(
            self.store,
            self.clock,
            actor(by),
            job_id,
            subtree=subtree,
            reason=reason,
            expected_version=expected_version,
        )
        return self._job(record)

    async def retry(
        self,
        job_id: str,
        *,
        subtree: bool = False,
        forget_steps: bool = False,
        reason: str | None = None,
        by: By = None,
        expected_version: int | None = None,
    ) -> Job:
        """Retry an ended job, with its attempts reset. `subtree` retries every failed or cancelled job in its tree, and
        keeps completed ones. Steps, sleeps and events that the handler got past are not repeated, unless
        `forget_steps`."""
        record = await jobs.retry(
            self.store,
            self.clock,
            actor(by),
            job_id,
            subtree=subtree,
            forget_steps=forget_steps,
            reason=reason,
            expected_version=expected_version,
        )
        return self._job(record)

    async def rerun(self, job_id: str, *, forget_steps: bool = False, reason: str | None = None, by: By = None) -> Job:
        """Run this job again, with everything below it, everything in its tree that depends on one of these, and then
        its parents. Results of upstream jobs are kept and read again; so are recorded steps. With
        `forget_steps`, all of these jobs but its parents start without them."""
        record = await jobs.rerun(self.store, self.clock, actor(by), job_id, forget_steps=forget_steps, reason=reason)
        return self._job(record)

    async def send_event(
        self,
        job: str | JobView | None = None,
        name: str = "",
        payload: Any = None,
        *,
        key: str | None = None,
        event_id: str | None = None,
        by: By = None,
    ) -> SentEvent:
        """Send an event to a job, `await app.send_event(job, "approved", {"by": "ada"})`, for its
        `ctx.wait_for_event("approved")`; also before it waits. With `key` instead of a job, it goes to the job that has
        waited longest for this key, or is kept for a week until one does. Sending again with the same `event_id` has no
        further effect. Raises JobNotFound, EventRefused if the job has ended, InvalidEvent or EventsFull."""
        job_id = job.job_id if isinstance(job, JobView) else job
        return await events.send_event(
            self.store, self.clock, actor(by), job_id, name, payload, key=key, event_id=event_id
        )

    async def reprioritise(
        self,
        job_id: str,
        priority: int | str,
        *,
        reason: str | None = None,
        by: By = None,
        expected_version: int | None = None,
    ) -> Job:
        """Change the priority of a job that has not ended."""
        record = await jobs.reprioritise(
            self.store, self.clock, actor(by), job_id, priority, reason=reason, expected_version=expected_version
        )
        return self._job(record)

    async def update(
        self,
        job_id: str,
        payload: Any,
        *,
        reason: str | None = None,
        by: By = None,
        expected_version: int | None = None,
    ) -> Job:
        """Give a job that waits, for its time, a worker, a retry or other jobs, another payload. It is checked as by
        submit. What was derived from the first payload, such as a subject or a dedup key, stays."""

        async def encoded(record: JobRecord) -> tuple[str, int]:
            target = await self._target(record.job_type)
            return encoded_payload(target, payload), target.version

        record = await jobs.update(
            self.store, self.clock, actor(by), job_id, encoded, reason=reason, expected_version=expected_version
        )
        return self._job(record)

    async def remove(
        self, job_id: str, *, reason: str | None = None, by: By = None, expected_version: int | None = None
    ) -> None:
        """Erase a job for good: its record, payload, result, files, rows, steps, history and dedup key, also from the
        archive. One that waits is cancelled first; one that runs, or has children, is refused. The audit trail keeps
        one line, without anything that the job contained."""
        from backstay.ops import removal  # as above

        await removal.remove(
            self.store,
            self.clock,
            actor(by),
            self._files,
            job_id,
            reason=reason,
            expected_version=expected_version,
        )

    async def reschedule(
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
        record = await jobs.reschedule(
            self.store,
            self.clock,
            actor(by),
            job_id,
            run_at=run_at,
            delay=delay,
            reason=reason,
            expected_version=expected_version,
        )
        return self._job(record)

    async def cancel_many(
        self,
        job_ids: Sequence[str] | None = None,
        *,
        created_until: datetime | None = None,
        dry_run: bool = False,
        reason: str | None = None,
        by: By = None,
        **conditions: Unpack[JobFilter],
    ) -> BulkResult:
        """Cancel up to 1,000 jobs, by id or by the conditions of find: `await app.cancel_many(job_type="mail")`. A job
        that cannot be cancelled is reported and does not stop the rest. `dry_run` only counts."""
        return await jobs.change_many(
            self.store,
            self.clock,
            actor(by),
            jobs.Action.CANCEL,
            job_ids,
            conditions,
            created_until=created_until,
            reason=reason,
            dry_run=dry_run,
        )

    async def retry_many(
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
        """Retry up to 1,000 ended jobs, by id or by the conditions of find. Without a status, a search finds failed and
        cancelled jobs. A job that cannot be retried is reported and does not stop the rest. `dry_run` only counts;
        `forget_steps` as for retry."""
        return await jobs.change_many(
            self.store,
            self.clock,
            actor(by),
            jobs.Action.RETRY,
            job_ids,
            conditions,
            created_until=created_until,
            reason=reason,
            dry_run=dry_run,
            forget_steps=forget_steps,
        )

    async def retry_dead(
        self,
        *,
        job_type: str | None = None,
        error_type: str | None = None,
        forget_steps: bool = False,
        by: By = None,
    ) -> int:
        """Retry all dead letters, or those of one type or error. Return how many. `forget_steps` as for retry."""
        return await jobs.retry_dead(self.store, self.clock, actor(by), job_type, error_type, forget_steps=forget_steps)

    # Queues

    async def queues(self) -> list[Queue]:
        """List every queue that is named anywhere, with its job counts."""
        return await manage.list_queues(self.store)

    async def unmark_sensitive(self, job_type: str, field: str, *, by: By = None) -> JobType:
        """Show a field to readers of the job that was once announced as sensitive: `"/card"`. Marks of all
        announcements add up, and nothing else takes one away."""
        return await manage.unmark_sensitive(self.store, self.clock, actor(by), job_type, field)

    async def queue_settings(self) -> list[QueueRow]:
        """List the queues that were ever paused or limited, with these settings alone; `queues` also counts jobs."""
        return await self.store.queues()

    async def pause_queue(
        self, name: str, *, until: Until | None = None, by: By = None, reason: str | None = None
    ) -> Queue:
        """Stop claims from a queue until it is resumed, or until a time: a datetime, or how long from now. Running jobs
        continue; submitted jobs wait."""
        return await manage.pause_queue(self.store, self.clock, actor(by), name, reason, until)

    async def resume_queue(self, name: str, *, by: By = None) -> Queue:
        """Resume a paused queue."""
        return await manage.resume_queue(self.store, self.clock, actor(by), name)

    async def limit_queue(self, name: str, max_pending: int | None, *, by: By = None) -> Queue:
        """Reject submits (QueueFull) while a queue holds that many pending jobs; None means no limit."""
        return await manage.limit_queue(self.store, self.clock, actor(by), name, max_pending)

    # Limits at run time

    async def limits(self) -> list[Limit]:
        """List what was set at run time for job types and keys."""
        return await manage.list_limits(self.store)

    async def limit(
        self,
        *,
        job_type: str | None = None,
        key: str | None = None,
        concurrency: int | None = None,
        rate: str | Rate | None = None,
        by: By = None,
    ) -> Limit:
        """Limit a job type, or a key, at run time: how many of its jobs run at once over all workers, and how many
        start in a span of time (`"100/m"`). It holds at once, also for jobs that wait already, whatever they were
        submitted with. Both limits are set: None, or leaving one out, removes it."""
        return await manage.set_limit(self.store, self.clock, actor(by), job_type, key, concurrency, rate)

    async def pause_type(
        self, job_type: str, *, until: Until | None = None, by: By = None, reason: str | None = None
    ) -> Limit:
        """Stop claims of a job type, in every queue, until it is resumed, or until a time: a datetime, or how long from
        now. Running jobs continue; submitted jobs wait."""
        return await manage.pause_type(self.store, self.clock, actor(by), job_type, reason, until)

    async def resume_type(self, job_type: str, *, by: By = None) -> Limit:
        """Resume a paused job type."""
        return await manage.resume_type(self.store, self.clock, actor(by), job_type)

    # Schedules

    @overload
    async def schedule(
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
    async def schedule(
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

    async def schedule(
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
        """Submit a job at every tick: `await app.schedule("nightly", "30 3 * * *", "report", {...})`.

        Repeating the same call changes nothing; a different call changes the schedule with this name. `missed` decides
        how ticks are handled at which no worker ran: skip them, create one job for all of them, or one for each.
        `overlap` decides what a tick does while the job of the last one is active: its job queues, it is skipped, or it
        replaces that job, which is cancelled. `jitter` makes jobs due up to this much later, each tick's always by the
        same; no tick is before `starts_at` or after `ends_at`. To declare it in code instead, use `cron`.
        """
        _check_schedule_options(options)
        timing = TimingOptions(
            timezone=timezone, missed=missed, overlap=overlap, jitter=jitter, starts_at=starts_at, ends_at=ends_at
        )
        return await manage.define_schedule(
            self.store,
            self.clock,
            actor(by),
            name,
            cron,
            await self._target(job_type),
            payload,
            timing=timing,
            options=cast(SubmitOptions, options),
        )

    async def schedules(self, *, after: str = "", limit: int | None = None) -> list[ScheduleInfo]:
        """List the schedules by name. With `limit`, a page: `after` is the last name of the previous one."""
        return [schedules.info(each) for each in await self.store.schedules(after=after, limit=limit)]

    async def get_schedule(self, name: str) -> ScheduleInfo:
        """Return the schedule with this name."""
        return await manage.get_schedule(self.store, name)

    async def unschedule(self, name: str, *, by: By = None) -> None:
        """Delete a schedule. The jobs it created remain."""
        await manage.drop_schedule(self.store, self.clock, actor(by), name)

    async def pause_schedule(self, name: str, *, by: By = None) -> ScheduleInfo:
        """Stop a schedule from creating jobs until it is resumed."""
        return await manage.pause_schedule(self.store, self.clock, actor(by), name)

    async def resume_schedule(self, name: str, *, by: By = None) -> ScheduleInfo:
        """Resume with the next tick from now; ticks missed during the pause are not made up for."""
        return await manage.resume_schedule(self.store, self.clock, actor(by), name)

    async def run_schedule(self, name: str, *, by: By = None, created_by: str | None = None) -> JobHandle:
        """Submit the job of a schedule now, in addition to its ticks. `created_by` is `by` if that is given, otherwise
        "schedule:" and the name."""
        who = actor(by)
        creator = check_text("created_by", created_by, limits.NAME_LENGTH_MAX) or (None if by is None else who.by)
        ran = await manage.run_schedule(self.store, self.clock, who, self.observers, name, creator)
        return self._handle(*ran, self.handlers.get(ran[0].job_type))

    async def backfill(
        self, name: str, from_: datetime, to: datetime, *, dry_run: bool = False, by: By = None
    ) -> Backfill:
        """Submit the job of each tick of a schedule from `from_` to `to` that has none: up to 1,000 ticks, all due now.
        The id of a job follows from its tick, so repeating the call submits none twice. `dry_run` only tells which."""
        return await manage.backfill(
            self.store, self.clock, actor(by), self.observers, name, from_, to, dry_run=dry_run
        )

    # Figures, check-up, retention

    async def stats(self, minutes: int = 60) -> Stats:
        """Return what happened in the last minutes, and how many jobs are in each state now."""
        return await manage.recent_stats(self.store, self.clock.now(), minutes)

    async def totals(self) -> list[TotalFigures]:
        """Return all-time totals by type, queue and outcome: numbers that only increase, for metrics."""
        return [stats.total_figures(each) for each in await self.store.totals()]

    async def check_up(self) -> list[Finding]:
        """Return what `backstay doctor` shows: each check, whether it passed, and what to do if not."""
        from backstay.ops import doctor  # a worker never needs it, and is measured by its memory

        return await doctor.check_up(self.store, self._files, self.clock, self._lease_seconds, manage.is_dead)

    async def waiting_alone(self, depths: Sequence[Depth] | None = None) -> int:
        """Count the pending jobs that must run alone, because they may have killed a worker: up to 1,000. They are
        looked for among `depths`, for callers that have them."""
        from backstay.ops import doctor

        return await doctor.alone(self.store, await self.store.depths() if depths is None else depths)

    async def purge(
        self, *, older_than: float | timedelta | None = None, job_types: list[str] | None = None, by: By = None
    ) -> int:
        """Archive ended jobs whose retention has expired now, and delete expired archive rows; return how many were
        archived. `older_than` replaces every retention. Active jobs are never touched."""
        return await retention_policy.purge_on_request(
            self.store, self.clock, actor(by), self._files, self._retention, older_than, job_types
        )

    # API keys and sessions

    async def create_key(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        queues: Sequence[str] = (),
        expires_in: float | timedelta | None = None,
        by: By = None,
        env: str = access_keys.ENV,
    ) -> CreatedKey:
        """Create a key for clients of the HTTP API. `created.text` is shown now and never again. Scopes are read,
        submit, work and admin, which includes the others; `queues` are patterns such as "mail*"."""
        return await access.create_key(
            self.store, self.clock, actor(by), name, scopes, queues=queues, expires_in=expires_in, env=env
        )

    async def api_keys(self) -> list[KeyInfo]:
        """List all keys, newest first, including expired and revoked ones; never their secrets."""
        return await access.api_keys(self.store, self.clock.now())

    async def check_key(self, text: str) -> KeyInfo | None:
        """Return the key with this text if it is valid, otherwise None. For routes of your own application."""
        return await access.check_key(self.store, self.clock.now(), text)

    async def revoke_key(self, key_id: str, *, by: By = None) -> KeyInfo:
        """Revoke a key, and the sessions opened with it; every server enforces this within five seconds."""
        return await access.revoke_key(self.store, self.clock, actor(by), key_id)

    async def remove_key(self, key_id: str, *, by: By = None) -> None:
        """Delete a revoked or expired key: it is no longer listed."""
        await access.remove_key(self.store, self.clock, actor(by), key_id)

    async def open_session(self, key: ApiKey) -> CreatedKey:
        """Create a session key for a browser that logged in with another key; delete expired sessions."""
        return await access.open_session(self.store, self.clock.now(), key)

    async def close_session(self, key_id: str) -> None:
        """Log out. Only a session's key is affected, never another key."""
        await access.close_session(self.store, key_id)

    # Audit trail

    @asynccontextmanager
    async def audited(
        self,
        action: str,
        target: str,
        *,
        by: By = None,
        via: str = "python",
        before: Any = None,
        remote: str | None = None,
    ) -> AsyncIterator[Audited]:
        """Write an audit entry for a change of your own; the methods of this class write theirs themselves. The entry
        is stored before the change, and updated when the outcome is known.

        async with app.audited("report.approve", "2026-11", by="ada") as entry:
            entry.after = {"approved": True}
        """
        who = by if isinstance(by, Actor) else Actor(actor(None).by if by is None else by, via, remote)
        async with audit.audited(self.store, self.clock, who, action, target, before) as entry:
            yield entry

    async def audit_trail(self, after: str | None = None, limit: int = 50) -> AuditTrail:
        """List changes, newest first; entries are kept for a year."""
        return await audit.audit_trail(self.store, after, limit)

    # Schema

    async def migrate(self) -> list[str]:
        """Create or update the schema; return the names of the migrations applied."""
        return await open_url(self.url).migrate()

    async def exists(self) -> bool:
        """Return whether there is a queue at the URL; True if the engine cannot tell. Unlike opening, this creates
        nothing."""
        return await open_url(self.url).exists()

    async def would_erase(self) -> dict[str, int] | None:
        """Return what `erase` would delete: the tables, and about how many items each has. None if it would refuse."""
        return await open_url(self.url).would_erase()

    async def erase(self) -> list[str]:
        """Delete the queue and everything in it permanently; return the names of the deleted tables."""
        return await open_url(self.url).erase()

    def migration_sql(self) -> str:
        """Return the schema's migrations as a script, for teams that apply schema changes themselves."""
        script = open_url(self.url).migration_sql()
        if script is None:
            raise ConfigurationError(f"{self.url} is migrated when it is opened: there is no SQL script for it")
        return script


def _check_schedule_options(options: Mapping[str, Any]) -> None:
    if unknown := options.keys() - ScheduleOptions.__annotations__.keys():
        raise InvalidOption(f"schedule has no option {', '.join(sorted(unknown))}")


_OF_RULE = frozenset({"cron", "cron_payload", *TimingOptions.__annotations__})


def _apart(name: str, options: JobOptions) -> tuple[HandlerOptions, dict[str, Any]]:
    """Return the options of a handler and those of its schedule."""
    of_handler = {each: value for each, value in options.items() if each not in _OF_RULE}
    of_schedule = {each: value for each, value in options.items() if each in _OF_RULE}
    if of_schedule and "cron" not in of_schedule:
        raise ConfigurationError(f"{name}: {', '.join(sorted(of_schedule))} needs cron=…, the rule of its schedule")
    return cast(HandlerOptions, of_handler), of_schedule


def _check_options(verb: str, name: str, options: Mapping[str, Any], known: Any) -> None:
    if not isinstance(name, str):
        raise ConfigurationError(f'write @app.{verb}("name"): a handler is registered under the name of its job type')
    if unknown := options.keys() - known.__annotations__.keys():
        names = ", ".join(sorted(known.__annotations__))
        raise ConfigurationError(f"{verb} has no option {', '.join(sorted(unknown))}; it has {names}")


async def _insert(store: Store, connection: Any, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
    return await _into(store, connection)(jobs, now)


def _into(store: Store, connection: Any) -> Insert:
    return store.insert if connection is None else partial(store.insert_in, connection)


def _place(answer: tuple[int, Inserted]) -> int:
    return answer[0]


def _of_one(rest: Sequence[SubmitOptions]) -> SubmitOptions:
    """The options of one job of many."""
    options = rest[0] if rest else SubmitOptions()
    if options and options.get("connection") is not None:
        raise InvalidOption("connection applies to all jobs or none: write submit_many(…, connection=…)")
    return options


def _memory(given: int | str | None) -> int | None:
    if given is not None and not memory.is_known():
        raise ConfigurationError("max_memory: this system does not tell how much memory a process uses")
    return checks.check_bytes("max_memory", given)


def _queues(given: Sequence[str] | None, handlers: Mapping[str, Handler]) -> tuple[str, ...]:
    if given is None:
        return tuple(sorted({"default", *(handler.queue for handler in handlers.values())}))
    if isinstance(given, str):
        raise ConfigurationError(f"queues={given!r}: give a list of names")
    return tuple(dict.fromkeys(check_name(each, "queue") for each in given))
