"""`RemoteWorker`: claims, runs and settles jobs over HTTP; the context and run of its handlers.

    claim (long poll, repeated by request_id) ─▶ run ─▶ complete │ fail │ outcome (repeated by token)
                      heartbeats every third of the lease keep the claims; progress is sent about once a second

A server outage loses no job: claims and settlements are sent again until they are answered. If that takes longer than
the lease, another worker has the job by then, and this one is told that its claim is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, MutableMapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar, assert_never
from urllib.parse import quote

import msgspec

from backstay import codec, limits
from backstay.client.client import Client, RemoteJob
from backstay.client.http import NotRegistered
from backstay.clock import MICROS, Clock, SystemClock, seconds, within
from backstay.core.lifecycle import (
    Cancelled,
    Completed,
    Discarded,
    GivenBack,
    Outcome,
    Raised,
    RetryAsked,
    Snoozed,
    WaitingForChildren,
)
from backstay.core.records import ErrorEntry
from backstay.core.workers import renewal_seconds
from backstay.errors import BackstayError, ClaimLost, ConfigurationError, JobNotFound, StoreBusy, StoreUnavailable
from backstay.handlers import Handler
from backstay.limits import METRICS_MAX
from backstay.worker.errors import entry, outcome_of

LINES_MAX = 200  # log lines per request; the oldest are dropped if a handler logs more in a second
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class Report(msgspec.Struct):
    """What a handler has reported and the server has not received yet."""

    progress: float | None = None
    stage: str | None = None
    metrics: dict[str, float] = {}
    logs: list[dict[str, str]] = []

    @property
    def is_empty(self) -> bool:
        return self.progress is None and self.stage is None and not self.metrics and not self.logs

    def fields(self) -> dict[str, Any]:
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value not in (None, {}, [])}


class _Reporter:
    """The base of both contexts. A handler in a thread writes it, the event loop reads it."""

    def __init__(self, job: RemoteJob) -> None:
        self.job = job
        self.log = _JobLog(self)
        self._lock = threading.Lock()
        self._report = Report()
        self._stopped = threading.Event()

    @property
    def job_id(self) -> str:
        return self.job.job_id

    @property
    def attempt(self) -> int:
        return int(self.job.attempt)

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled, lost or is to be given back: return as soon as you can."""
        return self._stopped.is_set()

    @property
    def idempotency_key(self) -> str:
        """The same for all attempts, on remote and local workers: pass it to services that ignore repeats."""
        return f"backstay-{self.job_id}"

    def metric(self, name: str, value: float) -> None:
        """Store a number with the job."""
        with self._lock:
            if name in self._report.metrics or len(self._report.metrics) < METRICS_MAX:
                self._report.metrics[name] = float(value)

    def say_progress(self, fraction: float, stage: str | None) -> None:
        with self._lock:
            self._report.progress = min(1.0, max(0.0, float(fraction)))
            self._report.stage = self._report.stage if stage is None else str(stage)

    def say_line(self, level: str, message: str) -> None:
        with self._lock:
            self._report.logs.append({"level": level if level in _LEVELS else "INFO", "message": message})
            del self._report.logs[:-LINES_MAX]

    def take(self) -> Report:
        """Return what is to be sent; from here on it counts as sent."""
        with self._lock:
            report, self._report = self._report, Report()
            return report

    def put_back(self, report: Report) -> None:
        """Restore a report that did not arrive; newer values take precedence."""
        with self._lock:
            now = self._report
            now.progress = report.progress if now.progress is None else now.progress
            now.stage = report.stage if now.stage is None else now.stage
            now.metrics = report.metrics | now.metrics
            now.logs = (report.logs + now.logs)[-LINES_MAX:]

    def stop(self) -> None:
        self._stopped.set()


class RemoteContext(_Reporter):
    """The context of an `async def` handler."""

    async def progress(self, fraction: float, *, stage: str | None = None) -> None:
        """Report progress, from 0 to 1. Sent about once a second."""
        self.say_progress(fraction, stage)


class BlockingRemoteContext(_Reporter):
    """The context of a `def` handler, which runs in a thread."""

    def progress(self, fraction: float, *, stage: str | None = None) -> None:
        """Report progress, from 0 to 1. Sent about once a second."""
        self.say_progress(fraction, stage)


class _JobLog(logging.LoggerAdapter[logging.Logger]):
    """`ctx.log.info(…)`: writes to this process's log, and to the job's."""

    def __init__(self, reporter: _Reporter) -> None:
        super().__init__(logging.getLogger("backstay.job"), {})
        self._reporter = reporter

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs

    def isEnabledFor(self, level: int) -> bool:
        return level >= logging.INFO or super().isEnabledFor(level)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            text = str(msg) % args if args else str(msg)
            self._reporter.say_line(logging.getLevelName(level), text)
            self.logger.log(level, msg, *args, **kwargs)


STOPPED = "its worker is stopping"
End = tuple[str, dict[str, Any]]  # the verb of the route, and the body without the token


class FarRun:
    def __init__(self, handler: Handler, job: RemoteJob, token: str, clock: Clock, threads: Executor) -> None:
        self.handler = handler
        self.job = job
        self.token = token
        self.context = RemoteContext(job) if handler.is_async else BlockingRemoteContext(job)
        self.task: asyncio.Task[None] | None = None
        self.is_lost = False  # set by the server: the run no longer counts
        self.is_stopping = False
        self._clock = clock
        self._threads = threads
        self._is_inside = False  # the handler

    @property
    def claim(self) -> dict[str, str]:
        return {"job_id": self.job.job_id, "token": self.token}

    def stop(self) -> None:
        """Ask the handler to stop: at its next await, or when it checks ctx.cancelled."""
        self.context.stop()
        if self._is_inside and self.handler.is_async and self.task is not None:
            self.task.cancel()

    async def end(self) -> End:
        """Run the handler. Never raises, except CancelledError if the claim is lost."""
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
            return "complete", {"result": msgspec.Raw(codec.result_json(value).encode())}
        except asyncio.CancelledError as error:
            if self.is_lost:
                raise
            if self.is_stopping and (task := asyncio.current_task()) is not None:
                task.uncancel()  # continues, to report this
                return settlement_of(GivenBack(STOPPED))
            return settlement_of(Raised(entry(error, attempt, now())))
        except BaseException as error:
            if isinstance(error, TimeoutError) and limit.expired():
                self.context.stop()
                return settlement_of(
                    Raised(ErrorEntry(attempt, now(), "JobTimeout", f"ran longer than its timeout of {seconds:g} s"))
                )
            return settlement_of(outcome_of(error, attempt, now()))

    async def _call(self) -> Any:
        handler, job = self.handler, self.job
        payload = handler.decode(codec.encode(job.payload).decode(), job.payload_version)
        arguments = (payload, self.context) if handler.takes_context else (payload,)
        if handler.is_async:
            return await handler.function(*arguments)
        inside = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._threads, inside.run, handler.function, *arguments)


def settlement_of(outcome: Outcome) -> End:
    """Return how an outcome is reported to the server."""
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
            why = "a remote worker cannot wait for children: submit the next step with depends_on"
            return "fail", {"error": {"type": "WaitForChildren", "message": why}, "retry": False}
        case _:
            assert_never(outcome)


def _error(error: ErrorEntry) -> dict[str, str]:
    return {"type": error.type, "message": error.message, "traceback": error.traceback}


log = logging.getLogger("backstay.worker")
WAIT_SECONDS = 25.0  # duration of one long poll
SAY_SECONDS = 1.0  # between reports of progress
STOP_SECONDS = 5.0  # how long a handler may take to stop after the grace period
AGAIN_SECONDS = 1.0  # before a request without a response is repeated
T = TypeVar("T")
_AWAY = (StoreUnavailable, StoreBusy)


class FarHandler(Handler):
    contexts = ("RemoteContext", "BlockingRemoteContext")


class RemoteWorker:
    """`async with RemoteWorker(client) as worker: await worker.join()`, or `await worker.run()`."""

    def __init__(
        self,
        client: Client,
        *,
        worker_id: str | None = None,
        queues: Sequence[str] = ("default",),
        concurrency: int = limits.CONCURRENCY,
        version: str = "0",
        grace: float | timedelta = limits.GRACE_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        if isinstance(queues, str):
            raise ConfigurationError(f"queues={queues!r}: give a list of names")
        self.worker_id = worker_id or f"{_host()}:{os.getpid()}:{secrets.token_hex(3)}"
        self.handlers: dict[str, FarHandler] = {}
        self.failure: BackstayError | None = None  # why it stopped by itself
        self._client = client
        self._queues = list(queues)
        self._concurrency = concurrency
        self._version = version
        self._grace_seconds = seconds(grace)
        self._clock = clock or SystemClock()
        self._lease_seconds = limits.LEASE_SECONDS
        self._runs: dict[str, FarRun] = {}
        self._changed = asyncio.Event()  # a slot is free, or the worker stops
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._threads = ThreadPoolExecutor(concurrency, "backstay-remote")  # creates threads only when needed

    def job(self, name: str, *, limit: int | None = None, version: int = 1) -> Callable[[Callable[..., Any]], Handler]:
        """Register the handler of a job type: `@worker.job("embedding")` on a function of (payload, ctx). `limit`: how
        many run at once."""

        def register(target: Callable[..., Any]) -> Handler:
            if name in self.handlers:
                raise ConfigurationError(f"{name!r} already has a handler")
            self.handlers[name] = FarHandler(name, target, concurrency=limit, version=version)
            return self.handlers[name]

        return register

    # Starting and stopping

    async def __aenter__(self) -> RemoteWorker:
        if not self.handlers:
            raise ConfigurationError("this worker has no handlers: register one with @worker.job before it starts")
        await self._register()
        self._tasks = [asyncio.create_task(work) for work in (self._claim(), self._beat(), self._say())]
        log.info("remote worker %s started: queues %s", self.worker_id, ", ".join(self._queues))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def run(self) -> None:
        """Work until SIGTERM or SIGINT, or `stop`: the main loop of a process that does nothing else. Raises the error
        that made it stop on its own."""
        with _stopped_by_signals(self._stopping.set):
            async with self:
                await self.join()
        if self.failure is not None:
            raise self.failure

    async def join(self) -> None:
        """Wait until the worker has stopped."""
        await self._stopping.wait()

    async def stop(self) -> None:
        """Stop claiming, let running jobs finish or, after the grace period, give them back; then sign off."""
        self._stopping.set()
        self._changed.set()
        claiming, others = self._tasks[:1], self._tasks[1:]
        await asyncio.gather(*claiming, return_exceptions=True)
        await within(self._grace_seconds, self._finished())
        for run in self._runs.values():
            run.is_stopping = True
            run.stop()
        await within(STOP_SECONDS, self._finished())
        for run in list(self._runs.values()):  # threads that do not end
            await self._settle(run, settlement_of(GivenBack(STOPPED)))
            run.is_lost = True
        self._threads.shutdown(wait=False)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        with contextlib.suppress(BackstayError):
            await self._client.requests.send("POST", self._path("heartbeat"), {"state": "stopped"}, tries=1)
        log.info("remote worker %s stopped", self.worker_id)

    async def _finished(self) -> None:
        while tasks := [run.task for run in self._runs.values() if run.task is not None]:
            await asyncio.wait(tasks)

    async def _register(self) -> None:
        described = {name: handler.describe(self._clock.now()) for name, handler in self.handlers.items()}
        limited = {name: each.concurrency for name, each in self.handlers.items() if each.concurrency is not None}
        found = await self._client.requests.send(
            "POST",
            "/workers/register",
            {
                "worker_id": self.worker_id,
                "job_types": list(self.handlers),
                "queues": self._queues,
                "version": self._version,
                "concurrency": self._concurrency,
                "limits": limited,
                "versions": {name: handler.version for name, handler in self.handlers.items()},
                "schemas": {
                    name: codec.decode(each.payload_schema)
                    for name, each in described.items()
                    if each.payload_schema is not None and each.payload_schema != "{}"
                },
            },
        )
        self._lease_seconds = float(found["lease_seconds"])

    # Claiming

    async def _claim(self) -> None:
        try:
            await self._claim_on()
        except BackstayError as error:  # for example, a revoked key: repeating does not help
            self.failure = error
            log.critical("remote worker %s is stopping: %s", self.worker_id, error)
            self._stopping.set()

    async def _claim_on(self) -> None:
        while not self._stopping.is_set():
            self._changed.clear()
            free = self._concurrency - len(self._runs)
            if free <= 0:
                await self._changed.wait()
                continue
            taken = await self._taken(min(free, limits.REMOTE_CLAIMS_MAX))
            for each in taken:
                self._start(each)

    async def _taken(self, limit: int) -> list[dict[str, Any]]:
        """Return the response to one claim, with as many tries as it takes: the same request_id gets the same jobs."""
        request_id = secrets.token_hex(16)
        while not self._stopping.is_set():
            try:
                if (taken := await self._unless_stopping(self._ask(request_id, limit, WAIT_SECONDS))) is not None:
                    return taken
            except NotRegistered:
                await self._register()
            except _AWAY as error:
                log.warning("could not claim jobs, trying again: %s", error)
                await within(AGAIN_SECONDS, self._stopping.wait())
        try:
            return await self._ask(request_id, 0, 0.0)  # returns what the last try claimed, and nothing else
        except BackstayError:
            return []  # it is claimed again once its lease has expired

    async def _ask(self, request_id: str, limit: int, wait_seconds: float) -> list[dict[str, Any]]:
        body = {"limit": limit, "wait_seconds": wait_seconds, "request_id": request_id}
        timeout = wait_seconds + limits.LEASE_SECONDS / 6
        return list(await self._client.requests.send("POST", self._path("claim"), body, timeout=timeout, tries=1))

    async def _unless_stopping(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of the awaitable; None if this worker stops first."""
        working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            working.cancel()
            stopping.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)

    def _start(self, taken: dict[str, Any]) -> None:
        job = RemoteJob(taken["job"])
        run = FarRun(self.handlers[job.job_type], job, taken["token"], self._clock, self._threads)
        if (before := self._runs.get(job.job_id)) is not None:  # cancelled and run again before this worker knew
            before.is_lost = True
            before.stop()
        self._runs[job.job_id] = run
        run.task = asyncio.create_task(self._work(run))

    async def _work(self, run: FarRun) -> None:
        try:
            if self._stopping.is_set():
                await self._settle(run, settlement_of(GivenBack(STOPPED)))
            else:
                await self._settle(run, await run.end())
        except asyncio.CancelledError:
            if not run.is_lost:
                raise
        finally:
            if self._runs.get(run.job.job_id) is run:
                del self._runs[run.job.job_id]
            self._changed.set()

    async def _settle(self, run: FarRun, end: End) -> None:
        """Repeat a settlement until the server has answered. If the server rejects its content, the job fails."""
        verb, body = end
        last_report = run.context.take()
        last_report.progress = last_report.stage = None
        sent = {"token": run.token, **{name: value for name, value in body.items() if value is not None}}
        sent |= last_report.fields()
        while not run.is_lost:
            try:
                await self._client.requests.send("POST", f"/jobs/{run.job.job_id}/{verb}", sent)
                return
            except (ClaimLost, JobNotFound) as error:
                log.warning("the outcome of job %s was rejected: %s", run.job.job_id, error)
                return
            except _AWAY as error:
                log.warning("job %s has ended; sending its outcome again: %s", run.job.job_id, error)
                await asyncio.sleep(AGAIN_SECONDS)
            except BackstayError as error:
                if verb == "fail":
                    log.error("giving up on job %s, its lease will expire: %s", run.job.job_id, error)
                    return
                failure = entry(error, run.context.attempt, self._clock.now())
                verb, body = settlement_of(Discarded(failure))
                sent = {"token": run.token, **body}

    # Keeping

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(renewal_seconds(self._lease_seconds))
            await self._attempt(self._heartbeat())

    async def _heartbeat(self) -> None:
        runs = list(self._runs.values())
        body = {
            "jobs": [run.claim for run in runs],
            "state": "stopping" if self._stopping.is_set() else "working",
        }
        try:
            answer = await self._client.requests.send(
                "POST",
                self._path("heartbeat"),
                body,
                timeout=max(1.0, renewal_seconds(self._lease_seconds)),
                tries=2,
            )
        except NotRegistered:
            await self._register()
            return
        gone = {*answer["lost"], *answer["cancelled"]}
        for run in runs:
            if run.job.job_id in gone and self._runs.get(run.job.job_id) is run:
                why = "was cancelled" if run.job.job_id in answer["cancelled"] else "now belongs to another worker"
                log.warning("job %s %s: telling its handler to stop", run.job.job_id, why)
                run.is_lost = True
                run.stop()

    async def _say(self) -> None:
        while True:
            await asyncio.sleep(SAY_SECONDS)
            for run in list(self._runs.values()):
                if not run.is_lost:
                    await self._attempt(self._report(run))

    async def _report(self, run: FarRun) -> None:
        news = run.context.take()
        if news.is_empty:
            return
        body = {"token": run.token, **news.fields()}
        try:
            await self._client.requests.send("POST", f"/jobs/{run.job.job_id}/progress", body, tries=1)
        except _AWAY:
            run.context.put_back(news)
            raise

    async def _attempt(self, work: Coroutine[Any, Any, Any]) -> None:
        """Make a bookkeeping request: if it fails, the jobs continue, and it is repeated later."""
        try:
            await work
        except BackstayError as error:
            log.warning("worker %s: %s", self.worker_id, error)

    def _path(self, verb: str) -> str:
        return f"/workers/{quote(self.worker_id, safe='')}/{verb}"


@contextlib.contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """The first signal asks the worker to stop; the next has its default effect."""
    loop = asyncio.get_running_loop()
    caught = []
    for each in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not in a thread, not on Windows
            loop.add_signal_handler(each, stop)
            caught.append(each)
    try:
        yield
    finally:
        for each in caught:
            loop.remove_signal_handler(each)


def _host() -> str:
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in socket.gethostname())
    return name[:60] or "host"
