"""A worker that reaches its queue over HTTP alone.

    claim (long poll, repeated by request_id) ─▶ run ─▶ complete │ fail │ outcome (repeated by token)
                      heartbeats at a third of the lease keep what runs; progress goes about once a second

A server that is away costs no job: claims and settlements are sent again until they are answered, and what takes
longer than the lease is somebody else's by then, of which this worker is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import quote

from holdfast import codec, limits
from holdfast.client.client import Client
from holdfast.client.records import RemoteJob
from holdfast.client.requesting import NotRegistered
from holdfast.client.running import STOPPED, End, FarRun, said
from holdfast.clock import Clock, SystemClock, seconds
from holdfast.errors import (
    ClaimLost,
    ConfigurationError,
    HoldfastError,
    JobNotFound,
    StoreBusy,
    StoreUnavailable,
)
from holdfast.handlers import Handler
from holdfast.lifecycle import Discarded, GivenBack
from holdfast.waits import within
from holdfast.worker.mistakes import entry

log = logging.getLogger("holdfast.worker")
WAIT_SECONDS = 25.0  # of one long poll
SAY_SECONDS = 1.0  # between reports of progress
STOP_SECONDS = 5.0  # how long a handler may take to let go once its grace is over
AGAIN_SECONDS = 1.0  # before what a server did not answer is sent again
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
        self.failure: HoldfastError | None = None  # why it stopped by itself
        self._client = client
        self._queues = list(queues)
        self._concurrency = concurrency
        self._version = version
        self._grace_seconds = seconds(grace)
        self._clock = clock or SystemClock()
        self._lease_seconds = limits.LEASE_SECONDS
        self._runs: dict[str, FarRun] = {}
        self._changed = asyncio.Event()  # a slot is free, or it stops
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._threads = ThreadPoolExecutor(concurrency, "holdfast-remote")  # makes a thread only where it needs one

    def job(self, name: str, *, limit: int | None = None, version: int = 1) -> Callable[[Callable[..., Any]], Handler]:
        """Register the handler of a job type: `@worker.job("embedding")` on a function of (payload, ctx). `limit`: how
        many of them at once."""

        def register(target: Callable[..., Any]) -> Handler:
            if name in self.handlers:
                raise ConfigurationError(f"{name!r} has a handler already")
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
        """The life of a process that does nothing else: until SIGTERM or SIGINT, or `stop`. What made it stop by itself
        is raised."""
        with _told_by_signals(self._stopping.set):
            async with self:
                await self.join()
        if self.failure is not None:
            raise self.failure

    async def join(self) -> None:
        await self._stopping.wait()

    async def stop(self) -> None:
        """Take no more, let what runs finish or, after the grace, give it back; then sign off."""
        self._stopping.set()
        self._changed.set()
        claiming, others = self._tasks[:1], self._tasks[1:]
        await asyncio.gather(*claiming, return_exceptions=True)
        await within(self._grace_seconds, self._finished())
        for run in self._runs.values():
            run.is_stopping = True
            run.stop()
        await within(STOP_SECONDS, self._finished())
        for run in list(self._runs.values()):  # threads that do not let go
            await self._settle(run, said(GivenBack(STOPPED)))
            run.is_lost = True
        self._threads.shutdown(wait=False)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        with contextlib.suppress(HoldfastError):
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
        except HoldfastError as error:  # a key that was revoked, say: no repeat helps
            self.failure = error
            log.critical("remote worker %s stops: %s", self.worker_id, error)
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
        """The answer to one claim, however often it takes: the same request_id gets the same jobs."""
        request_id = secrets.token_hex(16)
        while not self._stopping.is_set():
            try:
                if (taken := await self._unless_stopping(self._ask(request_id, limit, WAIT_SECONDS))) is not None:
                    return taken
            except NotRegistered:
                await self._register()
            except _AWAY as error:
                log.warning("claiming failed, trying again: %s", error)
                await within(AGAIN_SECONDS, self._stopping.wait())
        try:
            return await self._ask(request_id, 0, 0.0)  # what the last one took meanwhile, and nothing else
        except HoldfastError:
            return []  # it comes back with its lease

    async def _ask(self, request_id: str, limit: int, wait_seconds: float) -> list[dict[str, Any]]:
        body = {"limit": limit, "wait_seconds": wait_seconds, "request_id": request_id}
        timeout = wait_seconds + limits.LEASE_SECONDS / 6
        return list(await self._client.requests.send("POST", self._path("claim"), body, timeout=timeout, tries=1))

    async def _unless_stopping(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What it gives; None where this worker stops before it does."""
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
        if (before := self._runs.get(job.job_id)) is not None:  # cancelled and run again before we heard of it
            before.is_lost = True
            before.stop()
        self._runs[job.job_id] = run
        run.task = asyncio.create_task(self._work(run))

    async def _work(self, run: FarRun) -> None:
        try:
            if self._stopping.is_set():
                await self._settle(run, said(GivenBack(STOPPED)))
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
        """Until the server has answered. What it refuses for what it is, is a failure of the job."""
        verb, body = end
        said_last = run.context.take()
        said_last.progress = said_last.stage = None
        sent = {"token": run.token, **{name: value for name, value in body.items() if value is not None}}
        sent |= said_last.fields()
        while not run.is_lost:
            try:
                await self._client.requests.send("POST", f"/jobs/{run.job.job_id}/{verb}", sent)
                return
            except (ClaimLost, JobNotFound) as error:
                log.warning("the outcome of job %s was refused: %s", run.job.job_id, error)
                return
            except _AWAY as error:
                log.warning("job %s has ended; its outcome is sent again: %s", run.job.job_id, error)
                await asyncio.sleep(AGAIN_SECONDS)
            except HoldfastError as error:
                if verb == "fail":
                    log.error("job %s is let go, its lease runs out: %s", run.job.job_id, error)
                    return
                failure = entry(error, run.context.attempt, self._clock.now())
                verb, body = said(Discarded(failure))
                sent = {"token": run.token, **body}

    # Keeping

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            await self._attempt(self._heartbeat())

    async def _heartbeat(self) -> None:
        runs = list(self._runs.values())
        body = {
            "jobs": [run.claim for run in runs],
            "state": "stopping" if self._stopping.is_set() else "working",
        }
        try:
            answer = await self._client.requests.send(
                "POST", self._path("heartbeat"), body, timeout=max(1.0, self._lease_seconds / 3), tries=2
            )
        except NotRegistered:
            await self._register()
            return
        gone = {*answer["lost"], *answer["cancelled"]}
        for run in runs:
            if run.job.job_id in gone and self._runs.get(run.job.job_id) is run:
                why = "was cancelled" if run.job.job_id in answer["cancelled"] else "is another's by now"
                log.warning("job %s %s: its handler is told to stop", run.job.job_id, why)
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
        """Bookkeeping: where it fails, the jobs go on, and it is done again later."""
        try:
            await work
        except HoldfastError as error:
            log.warning("worker %s: %s", self.worker_id, error)

    def _path(self, verb: str) -> str:
        return f"/workers/{quote(self.worker_id, safe='')}/{verb}"


@contextlib.contextmanager
def _told_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """The first asks to stop; the next does what it does without us."""
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
