"""`RemoteWorker`: runs the jobs of a server on its event loop; `Link` is its connection to the server."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

from backstay import limits
from backstay.client.client import Client
from backstay.client.http import Requests
from backstay.client.link import AGAIN_SECONDS, AWAY, Link, OnLoop, Registration
from backstay.client.run import FarRun
from backstay.clock import Clock, SystemClock, seconds, within
from backstay.errors import BackstayError, ConfigurationError
from backstay.handlers import Handler
from backstay.lifespan import Lifespans, Make, Resources
from backstay.middleware import Layer, M, Middleware
from backstay.worker import errors
from backstay.worker.executor import Deadlines, Threads
from backstay.worker.pulse import STALL_SECONDS, Pulse
from backstay.worker.run import LOST, SHUT_DOWN, TIMED_OUT, Execution
from backstay.worker.stop import Stop

log = logging.getLogger("backstay.worker")
F = TypeVar("F", bound=Make)
STOP_SECONDS = 5.0  # how long a handler may take to stop, before its job is settled without it


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
        if not 1 <= concurrency <= limits.HEARTBEAT_JOBS_MAX:
            raise ConfigurationError(
                f"concurrency={concurrency}: a remote worker runs 1 to {limits.HEARTBEAT_JOBS_MAX:,} jobs at a time"
                " (HEARTBEAT_JOBS_MAX)"
            )
        self.worker_id = worker_id or f"{_host()}:{os.getpid()}:{secrets.token_hex(3)}"
        self.handlers: dict[str, FarHandler] = {}
        self._lifespans = Lifespans()
        self._layers: list[Layer] = []
        self._resources = Resources(self._lifespans)
        self.failure: BackstayError | None = None  # why it stopped by itself
        self._requests: Requests = client.requests
        self._queues = list(queues)
        self._concurrency = concurrency
        self._version = version
        self._grace_seconds = seconds(grace)
        self._clock = clock or SystemClock()
        self._runs: set[FarRun] = set()  # whose handlers have not let go
        self._threads = Threads()
        self._stopped = asyncio.Event()  # or is about to be
        self._hurried = asyncio.Event()
        self._shutdown: asyncio.Task[None] | None = None
        self._on_dead: Callable[[], None] | None = None
        self._link: Link | None = None
        self._pulse: Pulse | None = None
        self._deadlines: Deadlines | None = None

    def job(
        self, name: str, *, limit: int | None = None, version: int = 1, middleware: Sequence[Middleware] = ()
    ) -> Callable[[Callable[..., Any]], Handler]:
        """Register the handler of a job type: `@worker.job("embedding")` on a function of (payload, ctx). `limit`: how
        many run at once. `middleware`: functions that wrap each run; see Backstay.middleware."""

        def register(target: Callable[..., Any]) -> Handler:
            if name in self.handlers:
                raise ConfigurationError(f"{name!r} already has a handler")
            handler = FarHandler(name, target, concurrency=limit, version=version, middleware=middleware)
            handler.check_middleware(self._layers)
            handler.wrap(self._layers)
            self.handlers[name] = handler
            return handler

        return register

    def lifespan(self, target: F) -> F:
        """Register a function with one `yield`, async or plain, as `@worker.lifespan`: it runs once, before the first
        claim, and what it yields is `ctx.state`. What comes after the yield runs behind the last job."""
        self._lifespans.register(target)
        return target

    def middleware(self, target: M) -> M:
        """Register a function that wraps every run of every handler, as `@worker.middleware`; see
        Backstay.middleware."""
        layer = Layer(target)
        for handler in self.handlers.values():
            handler.check_middleware([layer])
        self._layers.append(layer)
        for handler in self.handlers.values():
            handler.wrap(self._layers)
        return target

    # Starting and stopping

    async def __aenter__(self) -> RemoteWorker:
        if not self.handlers:
            raise ConfigurationError("this worker has no handlers: register one with @worker.job before it starts")
        await self._resources.start()  # before the server hears of this worker
        self._pulse = Pulse(lambda: list(self._runs))
        self._deadlines = Deadlines(lambda: list(self._runs), self._stop_run, self._pulse)
        registration = Registration(
            worker_id=self.worker_id,
            handlers=self.handlers,
            queues=self._queues,
            concurrency=self._concurrency,
            version=self._version,
        )
        on_loop = OnLoop(begin=self._begin, lose=self._lose, fail=self._fail)
        link = Link(registration, self._requests.another(), self._clock, self._pulse, on_loop)
        link.on_dead = self._is_dead
        errors.install()
        self._pulse.start()
        try:
            await link.open()
        except BaseException:
            self._pulse.stop()
            errors.remove()
            await asyncio.shield(self._resources.end())
            raise
        self._link = link
        log.info("remote worker %s started: queues %s", self.worker_id, ", ".join(self._queues))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def run(self) -> None:
        """Work until SIGTERM or SIGINT, or `stop`: the main loop of a process that does nothing else. Waits for a
        server that is not there yet. A second signal stops running jobs now, a third ends the process, and so does a
        handler that blocks the event loop beyond its timeout. Raises the error that made the worker stop by itself."""
        async with self._signals() as stop:
            if not await self._started(stop):
                return
            try:
                await self._first_of(self.join(), stop)
                stopping = asyncio.ensure_future(self.stop())
                if stop is not None:
                    await asyncio.wait(
                        {stopping, hurried := asyncio.ensure_future(stop.hurried.wait())},
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    hurried.cancel()
                    if not stopping.done():
                        self.hurry()
                await stopping
            finally:
                await self.stop()
        if self.failure is not None:
            raise self.failure

    @asynccontextmanager
    async def _signals(self) -> AsyncIterator[Stop | None]:
        """Handle signals; None outside the main thread, the only one that receives them."""
        if threading.current_thread() is not threading.main_thread():
            yield None
            return
        stop = Stop(self._grace_seconds)
        try:
            yield stop
        finally:
            stop.close()

    async def _started(self, stop: Stop | None) -> bool:
        """Return whether the worker started before it was told to stop."""
        is_said = False
        while stop is None or not stop.asked.is_set():
            try:
                await self.__aenter__()
            except AWAY as error:
                if not is_said:
                    log.warning("waiting for the server: %s", error)
                is_said = True
                await self._first_of(asyncio.sleep(AGAIN_SECONDS), stop)
                continue
            if stop is not None and self._link is not None:
                stop.watch([self], self._link.lease_seconds)
            return True
        return False

    async def _first_of(self, work: Any, stop: Stop | None) -> None:
        waits = [asyncio.ensure_future(work)]
        if stop is not None:
            waits.append(asyncio.ensure_future(stop.asked.wait()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def join(self) -> None:
        """Wait until the worker stops."""
        await self._stopped.wait()

    async def stop(self) -> None:
        """Stop claiming, let running jobs finish or, after the grace period, give them back; then sign off."""
        self._stopped.set()
        if self._shutdown is None:
            self._shutdown = asyncio.get_running_loop().create_task(self._shut_down())
        await asyncio.shield(self._shutdown)  # every caller waits for the same end

    def hurry(self) -> None:
        """While stopping: do not wait for the grace period to end; stop running jobs and give them back now."""
        self._hurried.set()

    async def _shut_down(self) -> None:
        if self._link is None or self._pulse is None or self._deadlines is None:
            return
        await self._link.stop_claiming()
        await within(self._grace_seconds, self._finished_or_hurried())
        for run in list(self._runs):
            self._stop_run(run, SHUT_DOWN)
        await within(STOP_SECONDS, self._finished())
        for run in list(self._runs):
            self._abandon(run)
        await within(STOP_SECONDS, self._link.drained())
        self._deadlines.close()
        await self._link.close()
        self._pulse.stop()
        await self._resources.end()
        self._threads.close()
        errors.remove()
        if self._runs:
            left = ", ".join(run.title for run in list(self._runs)[:10])
            log.warning("remote worker %s stopped, but these handlers are still running: %s", self.worker_id, left)
        log.info("remote worker %s stopped", self.worker_id)

    async def _finished(self) -> None:
        """Wait until every handler that can be stopped has returned."""
        while tasks := [run.task for run in self._runs if run.task is not None and not run.is_over]:
            await asyncio.wait(tasks, timeout=0.1)  # one that is settled meanwhile is not waited for

    async def _finished_or_hurried(self) -> None:
        waits = [asyncio.ensure_future(each) for each in (self._finished(), self._hurried.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    # What a process needs that has to end, whatever its event loop does

    def on_dead_loop(self, call: Callable[[], None]) -> None:
        """Set the function that is called, in another thread, once a handler has blocked the event loop beyond its
        timeout and all other jobs are given back."""
        self._on_dead = call

    def is_blocked(self) -> bool:
        """Whether the event loop is late; from any thread."""
        return self._pulse is not None and self._pulse.late() > STALL_SECONDS

    def abandon(self, seconds: float) -> None:
        """Give back all jobs without the event loop, from another thread, right before the process ends."""
        if self._link is not None:
            self._link.abandon(seconds)

    def _is_dead(self) -> None:
        if self._on_dead is not None:
            self._on_dead()

    # Runs; the link calls these on the event loop

    def _begin(self, run: FarRun) -> None:
        if run.is_over:  # given back before it could begin
            return
        if self._stopped.is_set():
            run.stop(SHUT_DOWN)
        self._runs.add(run)
        run.resources = self._resources
        run.task = asyncio.get_running_loop().create_task(self._work(run), name=run.job.job_id)

    def _lose(self, run: FarRun) -> None:
        if run in self._runs:
            self._stop_run(run, LOST)

    def _fail(self, error: BackstayError) -> None:
        self.failure = error
        self._stopped.set()

    async def _work(self, run: FarRun) -> None:
        if self._link is None or self._deadlines is None:  # they are there while anything runs
            return
        end = run.end_of_stopped()
        try:
            end = await run.end(self._deadlines, self._threads)
        finally:
            self._runs.discard(run)
            self._link.ended(run, end)

    def _stop_run(self, execution: Execution, reason: str) -> None:
        """Stop a handler, at its timeout or because its claim is over. One that does not return keeps its slot."""
        assert isinstance(execution, FarRun)  # noqa: S101 - there are no others here
        if execution.is_over and reason is not LOST:
            return
        execution.stop(reason)
        if execution.cancelled is None:
            asyncio.get_running_loop().call_later(STOP_SECONDS, self._abandon, execution)
        elif reason is TIMED_OUT:
            self._abandon(execution)

    def _abandon(self, run: FarRun) -> None:
        """Settle a job without its handler, which does not end."""
        if run.is_over or run.ended or self._link is None:
            return
        log.warning("%s does not stop: its slot stays occupied until its handler returns", run.title)
        self._link.settle_unfinished(run, run.end_of_stopped())


def _host() -> str:
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in socket.gethostname())
    return name[:60] or "host"
