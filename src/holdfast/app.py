"""Holdfast, the application object: handlers, submitting, reading and changing jobs, workers."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypedDict, Unpack

import msgspec
import pydantic

from holdfast import retention as retaining
from holdfast import settings, words
from holdfast.batches import BatchHandler, BatchOptions
from holdfast.changing import Changing
from holdfast.checks import check_name
from holdfast.clock import Clock, SystemClock, micros, seconds
from holdfast.errors import ConfigurationError, NotOpen, StoreMoved
from holdfast.files import Files
from holdfast.granting import Granting
from holdfast.handlers import Handler, HandlerOptions, JobHandler
from holdfast.job import JobHandle
from holdfast.observing import Observer
from holdfast.observing import observers as observing
from holdfast.operating import Operating
from holdfast.reading import Page, Reading
from holdfast.results.face import Results, declare_tables
from holdfast.retention import Retention
from holdfast.store.moves import INTO, is_closed, refusal
from holdfast.store.port import Store
from holdfast.store.types import JobType
from holdfast.stores import open_files, open_url
from holdfast.submission import JobRef, SubmitOptions
from holdfast.submitting import Submission, Submitting
from holdfast.waiting import Waiting
from holdfast.worker import Worker
from holdfast.worker.chores import Chores
from holdfast.worker.run import Run
from holdfast.worker.worker import WorkerSettings
from holdfast.workflows.pipelines import Pipeline
from holdfast.workflows.stages import Stage

log = logging.getLogger("holdfast")


class BoundHandler(Handler):
    """A handler of one app: `await daily_summary.submit(payload)`."""

    app: Holdfast

    async def submit(self, payload: Any, **options: Unpack[SubmitOptions]) -> JobHandle:
        return await self.app.submit(self, payload, **options)


class BoundBatchHandler(BatchHandler, BoundHandler):
    """A batch handler of one app. Its jobs are submitted one by one, or with submit_many."""


Target = Callable[..., Any] | type[JobHandler[Any]]


class WorkerOptions(TypedDict, total=False):
    """The keyword options of worker."""

    concurrency: int | None
    queues: Sequence[str] | None
    lease: float | timedelta | None
    poll_interval: float | timedelta | None
    grace: float | timedelta | None
    job_types: Sequence[str] | None


class Holdfast(Submitting, Reading, Results, Changing, Operating, Granting):
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
        self.url = settings.url(url)
        self.handlers: dict[str, BoundHandler] = {}
        self.clock: Clock = clock or SystemClock()
        self.observers = observing.of_app(observers)
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
        # What is wrong with them is an error here, not at the first use.
        store = settings.used("url", url, lambda: open_url(self.url))
        settings.used("artifacts", artifacts, lambda: open_files(self.url, store, self._artifacts))
        poll = None if poll_interval is None else seconds(poll_interval)
        self._poll_seconds = settings.poll_interval(poll, store.poll_seconds)

    # Handlers

    def job(self, name: str, **options: Unpack[HandlerOptions]) -> Callable[[Target], BoundHandler]:
        """Register a function (or a JobHandler class) as the handler of a job type."""
        _check_options("job", name, options, HandlerOptions)
        return lambda target: self._register(BoundHandler(name, target, **options))

    def batch_job(self, name: str, **options: Unpack[BatchOptions]) -> Callable[[Target], BoundBatchHandler]:
        """Register a function of a list of payloads as the handler of a job type: one call for up to `max_size` jobs,
        an answer or an exception for each."""
        _check_options("batch_job", name, options, BatchOptions)

        def register(target: Target) -> BoundBatchHandler:
            handler = BoundBatchHandler(name, target, **options)
            self._register(handler)
            return handler

        return register

    def pipeline(
        self,
        name: str,
        stages: Sequence[Stage],
        *,
        options: type[pydantic.BaseModel] | None = None,
        **handler_options: Unpack[HandlerOptions],
    ) -> Pipeline:
        """Declare a graph of stages as one job type, which takes `{"stages": [{"stage": "PCA", "config": {…}}, …]}`.

        `options` is a model for further fields of its payload; the other options are those of @app.job, for its root.
        """
        _check_options("pipeline", name, handler_options, HandlerOptions)
        pipeline = Pipeline(self, name, stages, options, self.handlers)
        return pipeline.registered(self.job(name, **handler_options)(pipeline.function()))

    def _register(self, handler: BoundHandler) -> BoundHandler:
        if handler.name in self.handlers:
            raise ConfigurationError(f"{handler.name!r} has a handler already: {self.handlers[handler.name]!r}")
        handler.app = self
        handler.observers = self.observers
        self.handlers[handler.name] = handler
        return handler

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
            if await _takes_changes(store) and self.handlers:
                await self._announce(store)
                await declare_tables(store, self.handlers.values())
        except BaseException:
            self._entered = 0
            await asyncio.shield(store.close())
            raise
        self._store, self._waiting = store, Waiting(store)
        self._files = open_files(self.url, store, self._artifacts)
        if self._purge_on_start:
            try:
                if moved := await self.purge():
                    log.info("retention moved %s to the archive", words.count(moved, "job"))
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

    async def would_erase(self) -> dict[str, int] | None:
        """What `erase` would delete: the tables, and about how many items each has. None: it would refuse."""
        look = getattr(open_url(self.url), "would_erase", None)
        return None if look is None else dict(await look())

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
    def location(self) -> str:
        """Where the queue is, as people may read it: with the region that the environment names, without a password."""
        return open_url(self.url).location

    @property
    def store(self) -> Store:
        if self._store is None:
            raise NotOpen("the app is not open: use it inside `async with app:`")
        return self._store

    @property
    def is_open(self) -> bool:
        return self._store is not None

    @property
    def files(self) -> Files | None:
        """Where logs, large results and artifacts are kept, while the app is open; None: this store has no place."""
        return self._files

    @property
    def lease_seconds(self) -> float:
        return self._lease_seconds

    @property
    def poll_seconds(self) -> float:
        return self._poll_seconds

    # Working

    def chores(self, name: str) -> Chores:
        """What workers do beside running jobs, under this name: `async with app.chores("server"): …`"""
        return Chores(
            self.store,
            self.clock,
            self._files,
            name=name,
            lease_seconds=self._lease_seconds,
            poll_seconds=self._poll_seconds,
            keep=self._retention,
            observers=self.observers,
        )

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
            self._target,
            WorkerSettings(
                queues=_queues(options.get("queues"), handlers),
                concurrency=settings.concurrency(options.get("concurrency")),
                lease_seconds=self._lease_seconds if lease is None else settings.lease(seconds(lease)),
                poll_seconds=self._poll_seconds if poll is None else settings.poll_interval(seconds(poll)),
                claim_limit=self._claim_limit,
                grace_seconds=settings.grace(None if grace is None else seconds(grace)),
                keep=self._retention,
                version=_release(),
            ),
            self.observers,
        )

    def _chosen(self, job_types: Sequence[str] | None) -> dict[str, BoundHandler]:
        if not self.handlers:
            raise ConfigurationError("this app has no handlers: register one with @app.job before starting a worker")
        if job_types is None:
            return self.handlers
        if missing := [name for name in job_types if name not in self.handlers]:
            raise ConfigurationError(f"no handler for {', '.join(missing)}")
        return {name: self.handlers[name] for name in job_types}


def _check_options(verb: str, name: str, options: Mapping[str, Any], known: Any) -> None:
    if not isinstance(name, str):
        raise ConfigurationError(f'write @app.{verb}("name"): a handler is registered under the name of its job type')
    if unknown := options.keys() - known.__annotations__.keys():
        names = ", ".join(sorted(known.__annotations__))
        raise ConfigurationError(f"{verb} has no option {', '.join(sorted(unknown))}; it has {names}")


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


async def _takes_changes(store: Store) -> bool:
    """Not where the queue has moved away: there it can still be read. One that is being moved into serves nobody."""
    state = await store.moving()
    if state is None or not is_closed(state):
        return True
    if state.role == INTO:
        raise StoreMoved(refusal(state))
    log.warning("%s", refusal(state))
    return False


def _differs(ours: JobType, stored: JobType | None) -> bool:
    if stored is None:
        return True
    if stored.version > ours.version:
        return False  # older code beside newer, in the middle of a deploy: what the newer has announced stands
    fresh = ours.last_seen - stored.last_seen < micros(timedelta(hours=1))
    return not fresh or msgspec.structs.replace(ours, last_seen=stored.last_seen) != stored


__all__ = ["BoundBatchHandler", "BoundHandler", "Holdfast", "JobRef", "Page", "Submission"]
