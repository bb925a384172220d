"""`Link`: the connection of a remote worker to its server, on a thread and an event loop of its own.

    claim (long poll, repeated by request_id) ─▶ the worker's loop ─▶ complete │ fail │ outcome (repeated by token)
                      heartbeats every third of the lease keep the claims; progress is sent about once a second

A handler that blocks the worker's event loop keeps none of this from happening: claims are kept, signals are heard, and
the watchdog gives back the jobs that cannot continue.

A server outage loses no job: claims and settlements are sent again until they are answered. If that takes longer than
the lease, another worker has the job by then, and this one is told that its claim is lost.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from backstay import codec, limits
from backstay.client.client import RemoteJob
from backstay.client.http import NotRegistered, Requests
from backstay.client.run import End, FarRun, end_of
from backstay.clock import MICROS, Clock, within
from backstay.core.lifecycle import Discarded, GivenBack, Outcome
from backstay.core.records import BlockedLoop
from backstay.core.workers import renewal_seconds
from backstay.errors import (
    BackstayError,
    ClaimLost,
    ConfigurationError,
    JobNotFound,
    NotOpen,
    SchemaMismatch,
    StoreError,
)
from backstay.handlers import Handler
from backstay.ops.wait import Trouble
from backstay.worker.errors import entry
from backstay.worker.pulse import LOOK_SECONDS, Pulse
from backstay.worker.run import LOST
from backstay.worker.watchdog import Releaser, Watchdog

log = logging.getLogger("backstay.worker")
WAIT_SECONDS = 25.0  # duration of one long poll
SAY_SECONDS = 1.0  # between reports of progress
AGAIN_SECONDS = 1.0  # before a request without a response is repeated
BYE_SECONDS = 5.0  # for signing off
STUCK_MAX = 100  # handlers that a heartbeat names
T = TypeVar("T")
# The server, its store or something between is not ready: none of it is the fault of a job, and all of it passes.
AWAY = (StoreError, SchemaMismatch, NotOpen)


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker tells the server about itself."""

    worker_id: str
    handlers: Mapping[str, Handler]
    queues: Sequence[str]
    concurrency: int
    version: str

    def body(self, now: int) -> dict[str, Any]:
        described = {name: handler.describe(now) for name, handler in self.handlers.items()}
        return {
            "worker_id": self.worker_id,
            "job_types": list(self.handlers),
            "queues": list(self.queues),
            "version": self.version,
            "concurrency": self.concurrency,
            "limits": {name: each.concurrency for name, each in self.handlers.items() if each.concurrency is not None},
            "versions": {name: handler.version for name, handler in self.handlers.items()},
            "schemas": {
                name: codec.decode(each.payload_schema)
                for name, each in described.items()
                if each.payload_schema is not None and each.payload_schema != "{}"
            },
            "sensitive": {name: list(each.sensitive) for name, each in described.items() if each.sensitive},
        }


class OnLoop(msgspec.Struct, frozen=True):
    """What the link calls on the worker's event loop."""

    begin: Callable[[FarRun], None]
    lose: Callable[[FarRun], None]
    fail: Callable[[BackstayError], None]  # the worker must stop


class Link(Releaser[FarRun]):
    """Only its own thread changes it. Methods that other threads may call say so."""

    def __init__(
        self, registration: Registration, requests: Requests, clock: Clock, pulse: Pulse, on_loop: OnLoop
    ) -> None:
        self.lease_seconds = limits.LEASE_SECONDS
        self._registration = registration
        self._requests = requests
        self._beats = requests.another()  # so that no heartbeat waits for a connection
        self._clock = clock
        self._pulse = pulse
        self._on_loop = on_loop
        self._main = asyncio.get_running_loop()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="backstay-link", daemon=True)
        self._trouble = Trouble(log, clock)
        self._watchdog: Watchdog[FarRun] | None = None
        self._held: dict[str, FarRun] = {}  # claims that are ours
        self._occupied: set[FarRun] = set()  # slots: from the claim until the handler has let go and all is settled
        self._changed = asyncio.Event()  # a slot is free, the worker stops, or its loop runs again
        self._stopping = asyncio.Event()
        self._halted = asyncio.Event()  # no claim begins, and one under way ends: stopping, or the loop is blocked
        self._quiet = asyncio.Event()  # no claim is under way
        self._quiet.set()
        self._beating = asyncio.Lock()
        self._has_left = False
        self._tasks: list[asyncio.Task[None]] = []
        self._settlements: set[asyncio.Task[None]] = set()
        self.on_dead: Callable[[], None] | None = None

    # Called from the worker's event loop

    async def open(self) -> None:
        """Register and start claiming."""
        self._thread.start()
        try:
            await self._do(self._open())
        except BaseException:
            await self._do(self._disconnect())
            await self._end()
            raise

    async def stop_claiming(self) -> None:
        """Stop claiming. When this returns, no further job starts."""
        await self._do(self._stop_claiming())

    async def drained(self) -> None:
        """Wait until everything that has ended is settled."""
        await self._do(self._drained())

    async def close(self) -> None:
        """Sign off and end the thread."""
        try:
            await self._do(self._close())
        finally:
            await self._end()

    def ended(self, run: FarRun, end: End) -> None:
        """Settle a run whose handler has returned."""
        self._call(self._ended, run, end)

    def ask(self, run: FarRun, verb: str, body: dict[str, Any]) -> Future[Any]:
        """Send a request of a handler about its job. Any thread may call it."""
        path = f"/jobs/{run.job.job_id}/{verb}"
        return self._submit(self._requests.send("POST", path, {"token": run.token, **body}))

    def settle_unfinished(self, run: FarRun, end: End) -> None:
        """Settle a run whose handler does not stop. It keeps its slot."""
        self._call(self._settle_soon, run, end)

    async def _end(self) -> None:
        self._call(self._loop.stop)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    async def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._submit(work))

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _call(self, call: Callable[..., object], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the link is closed
            self._loop.call_soon_threadsafe(call, *arguments)

    # Called from any thread

    def abandon(self, seconds: float) -> None:
        """Give back all jobs without the worker's event loop, because the process ends."""
        try:
            self._submit(self._abandon()).result(seconds)
        except Exception as error:  # their leases expire
            log.warning("could not give back all jobs: %s", str(error) or type(error).__name__)

    # The thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _open(self) -> None:
        await self._register()
        self._watchdog = Watchdog(self._clock, self.lease_seconds, self._pulse, self, self._trouble)
        self._watchdog.on_dead = self._is_dead
        self._tasks = [
            asyncio.create_task(work)
            for work in (self._claim(), self._beat(), self._say(), self._stream(), self._watch())
        ]

    def _is_dead(self) -> None:
        if self.on_dead is not None:
            self.on_dead()

    async def _stop_claiming(self) -> None:
        self._stopping.set()
        self._halted.set()
        self._changed.set()
        await asyncio.gather(*self._tasks[:1], return_exceptions=True)
        await self._attempt("sending a heartbeat", self._heartbeat())  # others should not count on this worker

    async def _drained(self) -> None:
        while self._settlements:
            await asyncio.wait(self._settlements)

    async def _close(self) -> None:
        self._stopping.set()
        for task in (*self._tasks, *self._settlements):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._settlements, return_exceptions=True)
        await self._bye()
        await self._disconnect()

    async def _disconnect(self) -> None:
        await self._beats.close()
        await self._requests.close()

    async def _bye(self) -> None:
        self._has_left = True
        await within(BYE_SECONDS, self._no_heartbeat())  # one that arrives later would enter the worker again
        with suppress(BackstayError):
            await self._beats.send("POST", self._path("heartbeat"), {"state": "stopped"}, timeout=BYE_SECONDS, tries=1)

    async def _no_heartbeat(self) -> None:
        async with self._beating:
            pass

    async def _abandon(self) -> None:
        if self._watchdog is not None:
            await self._watchdog.abandon()
        await self._bye()

    async def _register(self) -> None:
        body = self._registration.body(self._clock.now())
        found = await self._requests.send("POST", "/workers/register", body)
        self.lease_seconds = float(found["lease_seconds"])

    async def _attempt(self, what: str, work: Awaitable[object]) -> None:
        """Make a bookkeeping request: if it fails, the jobs continue, and it is repeated later."""
        try:
            await work
        except Exception as error:
            self._trouble.met(what, error)
        else:
            self._trouble.over(what)

    def _path(self, verb: str) -> str:
        return f"/workers/{quote(self._registration.worker_id, safe='')}/{verb}"

    def _tell(self, call: Callable[..., object], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the worker's loop is closed
            self._main.call_soon_threadsafe(call, *arguments)

    # Claiming

    async def _claim(self) -> None:
        try:
            await self._claim_on()
        except Exception as error:  # for example, a revoked key: repeating does not help
            log.critical("remote worker %s is stopping: %s", self._registration.worker_id, error)
            failure = error if isinstance(error, BackstayError) else BackstayError(f"{type(error).__name__}: {error}")
            self._tell(self._on_loop.fail, failure)

    async def _claim_on(self) -> None:
        while not self._stopping.is_set():
            self._changed.clear()
            free = self._registration.concurrency - len(self._occupied)
            if free <= 0 or self._halted.is_set():
                await self._changed.wait()
                continue
            self._quiet.clear()
            try:
                for each in await self._taken(min(free, limits.REMOTE_CLAIMS_MAX)):
                    self._start(each)
            finally:
                self._quiet.set()

    async def _taken(self, limit: int) -> list[dict[str, Any]]:
        """Return the response to one claim, with as many tries as it takes: the same request_id gets the same jobs."""
        request_id = secrets.token_hex(16)
        while not self._halted.is_set():
            try:
                taken = await self._unless_halted(self._ask(request_id, limit, WAIT_SECONDS))
                self._trouble.over("claiming")
                if taken is not None:
                    return taken
            except NotRegistered as error:
                self._trouble.met("claiming", error)
                await self._pause()
                await self._register_again()
            except AWAY as error:
                self._trouble.met("claiming", error)
                await self._pause()
        try:
            return await self._ask(request_id, 0, 0.0)  # returns what the last try claimed, and nothing else
        except BackstayError:
            return []  # it is claimed again once its lease has expired

    async def _pause(self) -> None:
        await within(random.uniform(0.5, 1.0) * AGAIN_SECONDS, self._halted.wait())

    async def _register_again(self) -> None:
        """Register again after the server has forgotten this worker, which was silent for too long. Raises errors that
        no retry would change."""
        try:
            await self._register()
        except AWAY as error:
            self._trouble.met("registering", error)

    async def _ask(self, request_id: str, limit: int, wait_seconds: float) -> list[dict[str, Any]]:
        body = {"limit": limit, "wait_seconds": wait_seconds, "request_id": request_id}
        timeout = wait_seconds + limits.LEASE_SECONDS / 6
        return list(await self._requests.send("POST", self._path("claim"), body, timeout=timeout, tries=1))

    async def _unless_halted(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of the awaitable; None if claiming is halted first."""
        working, halted = asyncio.ensure_future(work), asyncio.ensure_future(self._halted.wait())
        try:
            await asyncio.wait({working, halted}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            working.cancel()
            halted.cancel()
            await asyncio.gather(working, halted, return_exceptions=True)

    def _start(self, taken: dict[str, Any]) -> None:
        job = RemoteJob(taken["job"])
        run = FarRun(self._registration.handlers[job.job_type], job, taken["token"], self._clock, self.ask)
        if (before := self._held.get(job.job_id)) is not None:  # cancelled and run again before this worker knew
            self._lose(before)
        self._held[job.job_id] = run
        self._occupied.add(run)
        self._tell(self._on_loop.begin, run)

    # Settling

    def _ended(self, run: FarRun, end: End) -> None:
        if run.is_over:  # settled without its handler, which has let go now; or not ours any more
            if run.lost or run not in self._held.values():
                self._free(run)
            return
        self._settle_soon(run, end)

    def _settle_soon(self, run: FarRun, end: End) -> None:
        if run.is_over:
            return
        run.settling = True
        task = asyncio.create_task(self._settle_run(run, end))
        self._settlements.add(task)
        task.add_done_callback(self._settlements.discard)

    async def _settle_run(self, run: FarRun, end: End) -> None:
        try:
            await self._settle(run, end)
        finally:
            self._forget(run)
            if run.ended or not run.begun:
                self._free(run)

    def _forget(self, run: FarRun) -> None:
        if self._held.get(run.job.job_id) is run:
            del self._held[run.job.job_id]

    def _free(self, run: FarRun) -> None:
        self._occupied.discard(run)
        self._changed.set()

    async def _settle(self, run: FarRun, end: End) -> None:
        """Repeat a settlement until the server has answered. What it does not accept is left out, and if that is the
        outcome itself, the job fails."""
        last_report = run.reporter.take()
        last_report.progress = last_report.stage = None
        reported = last_report.fields()
        end = await self._after_output(run, end)
        while not run.lost:
            try:
                await self._send_end(run, end, reported)
                return
            except (ClaimLost, JobNotFound) as error:
                log.warning("the outcome of job %s was rejected: %s", run.job.job_id, error)
                return
            except AWAY as error:
                self._trouble.met("settling", error)
                await asyncio.sleep(random.uniform(0.5, 1.0) * AGAIN_SECONDS)
            except BackstayError as error:
                if reported:
                    log.warning("the last report of job %s was refused: %s", run.job.job_id, error)
                    reported = {}
                elif end.verb == "fail" or isinstance(error, ConfigurationError):
                    log.error("giving up on job %s, its lease will expire: %s", run.job.job_id, error)
                    return
                else:
                    end = end_of(Discarded(entry(error, run.attempt, self._clock.now())))

    async def _after_output(self, run: FarRun, end: End) -> End:
        """Return the outcome, once all output is stored; if the server refuses some of it, that is the outcome."""
        try:
            await self._flush_output(run)
        except (ClaimLost, JobNotFound):
            pass  # the outcome will be rejected too
        except BackstayError as error:
            if end.verb == "complete":
                return end_of(Discarded(entry(error, run.attempt, self._clock.now())))
        return end

    async def _send_end(self, run: FarRun, end: End, reported: Mapping[str, Any] | None = None) -> None:
        body = {"token": run.token, **end.body, **(reported or {})}
        sent = {name: value for name, value in body.items() if value is not None}
        await self._requests.send("POST", f"/jobs/{run.job.job_id}/{end.verb}", sent)
        self._trouble.over("settling")

    # Keeping

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(renewal_seconds(self.lease_seconds))
            await self._attempt("sending a heartbeat", self._heartbeat())

    async def _heartbeat(self) -> None:
        async with self._beating:
            if not self._has_left:
                await self._beat_once()

    async def _beat_once(self) -> None:
        runs = list(self._held.values())
        stuck = [run.job.job_id for run in self._occupied.difference(runs) if run.begun]
        body = {
            "jobs": [run.claim for run in runs],
            "state": "stopping" if self._stopping.is_set() else "working",
            **({"stuck": stuck[:STUCK_MAX]} if stuck else {}),
            **self._blocked(),
        }
        try:
            answer = await self._send_heartbeat(body)
        except NotRegistered:
            await self._register()
            answer = await self._send_heartbeat(body)
        gone = {*answer["lost"], *answer["cancelled"]}
        for run in runs:
            if run.job.job_id in gone and self._held.get(run.job.job_id) is run and not run.settling:
                why = "was cancelled" if run.job.job_id in answer["cancelled"] else "now belongs to another worker"
                log.warning("job %s %s: telling its handler to stop", run.job.job_id, why)
                self._lose(run)

    async def _send_heartbeat(self, body: dict[str, Any]) -> Any:
        timeout = max(1.0, renewal_seconds(self.lease_seconds))
        return await self._beats.send("POST", self._path("heartbeat"), body, timeout=timeout, tries=2)

    def _blocked(self) -> dict[str, Any]:
        blocked: BlockedLoop | None = None if self._watchdog is None else self._watchdog.blocked
        if blocked is None:
            return {}
        said = {
            "seconds": max(0.0, (self._clock.now() - blocked.since) / MICROS),
            "job_type": blocked.job_type,
            "job_id": blocked.job_id,
            "where": blocked.where,
        }
        return {"blocked": {name: value for name, value in said.items() if value is not None}}

    def _lose(self, run: FarRun) -> None:
        run.lost = True
        self._forget(run)
        if run.ended:
            self._free(run)
        self._tell(self._on_loop.lose, run)

    async def _say(self) -> None:
        while True:
            await asyncio.sleep(SAY_SECONDS)
            for run in list(self._held.values()):
                if not run.is_over:
                    await self._attempt("reporting progress", self._report(run))

    async def _stream(self) -> None:
        while True:
            await asyncio.sleep(limits.OUTPUT_INTERVAL_SECONDS)
            for run in list(self._held.values()):
                if not run.is_over:
                    await self._attempt("sending output", self._send_output(run))

    async def _send_output(self, run: FarRun) -> None:
        """Send what a handler has streamed. What the server refuses is told to the handler with its next entry."""
        while (part := run.output.part()) is not None:
            body = {"token": run.token, "first": part.first, "entries": [msgspec.Raw(e.encode()) for e in part.entries]}
            try:
                await self._requests.send("POST", f"/jobs/{run.job.job_id}/output", body, tries=1)
            except AWAY:
                raise
            except BackstayError as error:
                run.output.refuse(error)
                raise
            run.output.answered(part)

    async def _flush_output(self, run: FarRun) -> None:
        """Send the rest before the outcome, which readers take for the end. Raises what the server refuses."""
        while not run.lost:
            try:
                await self._send_output(run)
                return
            except AWAY as error:
                self._trouble.met("sending output", error)
                await asyncio.sleep(random.uniform(0.5, 1.0) * AGAIN_SECONDS)

    async def _report(self, run: FarRun) -> None:
        news = run.reporter.take()
        if news.is_empty:
            return
        body = {"token": run.token, **news.fields()}
        try:
            await self._requests.send("POST", f"/jobs/{run.job.job_id}/progress", body, tries=1)
        except AWAY:
            run.reporter.put_back(news)
            raise
        except (ClaimLost, JobNotFound):
            pass  # the next heartbeat tells

    # While a handler blocks the event loop of the worker

    async def _watch(self) -> None:
        assert self._watchdog is not None  # noqa: S101 - it was made before this task
        while True:
            before = self._loop.time()
            await asyncio.sleep(LOOK_SECONDS)
            stood_still = max(0.0, self._loop.time() - before - LOOK_SECONDS)
            try:
                if await self._watchdog.look(stood_still):
                    self._changed.set()
                    await self._attempt("sending a heartbeat", self._heartbeat())
            except Exception as error:
                self._trouble.met("watching the event loop", error)

    async def held(self) -> list[FarRun]:
        """Stop claiming, because nothing could start now, and return the runs that are held."""
        self._halted.set()
        await self._quiet.wait()
        return [run for run in self._held.values() if not run.settling]

    async def release(self, outcomes: Mapping[FarRun, Outcome]) -> None:
        for run in outcomes:
            run.lost = True
            run.stop_reason = run.stop_reason or LOST
            if run.cancelled is not None:
                run.cancelled.set()
            self._tell(self._on_loop.lose, run)  # once it runs again
        sent = await asyncio.gather(
            *(self._release_one(run, outcome) for run, outcome in outcomes.items()), return_exceptions=True
        )
        if errors := [each for each in sent if isinstance(each, BaseException)]:
            raise errors[0]

    async def _release_one(self, run: FarRun, outcome: Outcome) -> None:
        end = end_of(outcome)
        with suppress(ClaimLost, JobNotFound):
            await self._send_end(run, end)
            log.warning("%s: %s", run.title, end.body.get("reason") or end.body["error"]["message"])
        self._forget(run)
        if not run.begun:
            self._free(run)

    async def release_unread(self, outcome: GivenBack) -> None:
        """Return at once: claims are read on this thread, so none is unread."""

    async def settle_decided(self) -> None:
        await self._drained()

    def forget(self) -> None:
        if self._halted.is_set() and not self._stopping.is_set():
            self._halted.clear()
            self._changed.set()
