"""`FarRun`: one attempt of a job at a remote worker, with the context of its handler and what that reports."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, assert_never, cast

import msgspec

from backstay import codec
from backstay.client.client import RemoteJob
from backstay.clock import MICROS, Clock, Instant
from backstay.context import JOB_LOGGER, BlockingDurableSteps, DurableSteps, State, stream_entry
from backstay.core import waits
from backstay.core.lifecycle import (
    Cancelled,
    Completed,
    Discarded,
    GivenBack,
    Outcome,
    Raised,
    RetryAsked,
    Sleeping,
    Snoozed,
    WaitingForChildren,
    WaitingForEvent,
)
from backstay.core.output import OutputBuffer, OutputPart
from backstay.core.records import ErrorEntry, Hold
from backstay.core.waits import Ending, EventWait, StepKind
from backstay.errors import ClaimLost
from backstay.handlers import Handler
from backstay.job import Waited
from backstay.lifespan import Resources
from backstay.limits import (
    KIB,
    METRICS_MAX,
    NAME_LENGTH_MAX,
    OUTPUT_REQUEST_ENTRIES_MAX,
    REASON_LENGTH_MAX,
    STAGE_LENGTH_MAX,
)
from backstay.worker import errors
from backstay.worker.encoder import Unencoded, at_once, encoded
from backstay.worker.errors import entry, outcome_of
from backstay.worker.executor import Deadlines, Threads
from backstay.worker.run import Execution, Named

LINES_MAX = 200  # log lines per request; the oldest are dropped if a handler logs more in a second
LINE_LENGTH_MAX = 16 * KIB  # of one log line, in characters …
LINES_LENGTH_MAX = 128 * KIB  # … and of all in a request: the server refuses larger ones
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


class Reporter:
    """Collects what a handler reports, within what the server accepts: no report may cost the job its result. A handler
    in a thread writes it, the thread of the link reads it."""

    def __init__(self, job: RemoteJob) -> None:
        self.job = job
        self._lock = threading.Lock()
        self._report = Report()
        self._is_over = False

    def metric(self, name: str, value: float) -> None:
        value = float(value)
        if not math.isfinite(value):
            self.line("WARNING", f"metric {name} is {value}, which cannot be stored")
            return
        name = codec.clean(str(name))[:NAME_LENGTH_MAX]
        with self._lock:
            self._check()
            if name in self._report.metrics or len(self._report.metrics) < METRICS_MAX:
                self._report.metrics[name] = value

    def progress(self, fraction: float, stage: str | None) -> None:
        fraction = min(1.0, max(0.0, float(fraction)))
        said = None if stage is None else codec.clean(str(stage))[:STAGE_LENGTH_MAX]
        with self._lock:
            self._check()
            self._report.progress = fraction
            self._report.stage = self._report.stage if said is None else said

    def line(self, level: str, message: str) -> None:
        text = codec.clean(message, limit=LINE_LENGTH_MAX)
        with self._lock:
            if self._is_over:  # it is in this process's log; logging never fails
                return
            self._report.logs.append({"level": level if level in _LEVELS else "INFO", "message": text})
            self._report.logs = _fitting(self._report.logs)

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
            now.logs = _fitting(report.logs + now.logs)

    def end(self) -> None:
        """End reporting: the handler has returned, and what it left behind can no longer report for it."""
        with self._lock:
            self._is_over = True

    def _check(self) -> None:
        if self._is_over:
            raise ClaimLost(f"this run of job {self.job.job_id} has ended: its context cannot be used any more")


class FarOutput:
    """What a handler has streamed and the server does not have yet. A handler appends to it, from any thread; the
    thread of the link sends it."""

    def __init__(self, job: RemoteJob) -> None:
        self._job = job
        self._lock = threading.Lock()
        self._room = threading.Event()
        self._room.set()
        self._buffer = OutputBuffer()
        self._hold = Hold(job.job_id, int(job.attempt), "")
        self._is_over = False

    def add(self, entry: str) -> bool:
        """Append an entry; return whether the handler should wait for room before the next one."""
        with self._lock:
            if self._is_over:
                raise ClaimLost(f"this run of job {self._job.job_id} has ended: its context cannot be used any more")
            self._buffer.add(entry)
            if self._buffer.is_full:
                self._room.clear()
            return self._buffer.is_full

    def wait(self, seconds: float) -> bool:
        """Wait for room; return whether there is some."""
        return self._room.wait(seconds)

    @property
    def has_room(self) -> bool:
        return self._room.is_set()

    def part(self) -> OutputPart | None:
        """Return what to send next: the same until it was answered."""
        with self._lock:
            return None if self._buffer.is_empty else self._buffer.part(self._hold, OUTPUT_REQUEST_ENTRIES_MAX)

    def answered(self, part: OutputPart) -> None:
        with self._lock:
            self._buffer.answered(part)
            if not self._buffer.is_full:
                self._room.set()

    def refuse(self, error: Exception) -> None:
        with self._lock:
            self._buffer.refuse(error)
            self._room.set()

    def end(self) -> None:
        """The handler has returned, and what it left behind can no longer stream for it."""
        with self._lock:
            self._is_over = True


def _fitting(lines: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the last lines that fit into one request."""
    length = 0
    for count, line in enumerate(reversed(lines)):
        length += len(line["message"])
        if count == LINES_MAX or length > LINES_LENGTH_MAX:
            return lines[len(lines) - count :]
    return lines


class _Context(Generic[State]):
    """The base of both contexts."""

    def __init__(self, run: FarRun) -> None:
        self._run = run

    @property
    def job(self) -> RemoteJob:
        """The job as it was claimed."""
        return self._run.job

    @property
    def job_id(self) -> str:
        return self.job.job_id

    @property
    def attempt(self) -> int:
        return int(self.job.attempt)

    @property
    def state(self) -> State:
        """What the function registered with `@worker.lifespan` has yielded."""
        return cast(State, self._run.resources.state)

    @property
    def log(self) -> logging.Logger:
        """Its lines are kept on the job, like those of any stdlib logger inside the handler."""
        return logging.getLogger(JOB_LOGGER)

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled, lost, has timed out or is to be given back: return as soon as you can."""
        return self._run.is_stopped or self._run.ended

    @property
    def idempotency_key(self) -> str:
        """The same for all attempts, on remote and local workers: pass it to services that ignore repeats."""
        return f"backstay-{self.job_id}"

    def metric(self, name: str, value: float) -> None:
        """Store a number with the job."""
        self._run.reporter.metric(name, value)


ROOM_SECONDS = 0.05  # between looks for room, while a handler streams faster than the server takes it


class FarSteps:
    """What a handler's steps, sleeps and events ask of the server."""

    def __init__(self, run: FarRun) -> None:
        self.run = run
        self._counts: dict[tuple[StepKind, str], int] = {}

    def recorded(self, found: dict[str, Any]) -> str | None:
        return codec.encode(found["answer"]).decode() if found["recorded"] else None

    def sleep_body(self, name: str, span: int) -> dict[str, Any]:
        return {"name": waits.nth(self._counts, StepKind.SLEEP, name), "seconds": span / MICROS}

    def slept(self, found: dict[str, Any]) -> tuple[str, Instant] | None:
        return None if found["over"] else (found["name"], 0)

    def event_body(self, name: str, key: str | None, timeout_micros: int | None, schema: str | None) -> dict[str, Any]:
        seconds = None if timeout_micros is None else timeout_micros / MICROS
        step = waits.nth(self._counts, StepKind.EVENT, name)
        return {"name": step, "event": name, "key": key, "seconds": seconds, "json_schema": schema}

    def waited(self, found: dict[str, Any], name: str, key: str | None) -> Waited:
        if not found["over"]:
            return Waited(found["name"], None, EventWait(name, found["name"], 0, key), found["seen"])
        return Waited(found["name"], Ending(found["event_id"], codec.encode(found["payload"]).decode()))


class AsyncFarSteps(FarSteps):
    """The channel of an `async def` handler."""

    async def _ask(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        return cast("dict[str, Any]", await asyncio.wrap_future(self.run.ask(verb, body)))

    async def step(self, name: str) -> str | None:
        return self.recorded(await self._ask("step", {"name": name}))

    async def record_step(self, name: str, answer: str) -> bool:
        await self._ask("step", {"name": name, "record": True, "answer": msgspec.Raw(answer.encode())})
        return True

    async def sleep(self, name: str, micros: int) -> tuple[str, Instant] | None:
        return self.slept(await self._ask("wait", self.sleep_body(name, micros)))

    async def wait_for_event(
        self, name: str, key: str | None, timeout_micros: int | None, schema: str | None
    ) -> Waited:
        body = self.event_body(name, key, timeout_micros, schema)
        return self.waited(await self._ask("wait", body), name, key)


class BlockingFarSteps(FarSteps):
    """The channel of a `def` handler."""

    def _ask(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        return cast("dict[str, Any]", self.run.ask(verb, body).result())

    def step(self, name: str) -> str | None:
        return self.recorded(self._ask("step", {"name": name}))

    def record_step(self, name: str, answer: str) -> bool:
        self._ask("step", {"name": name, "record": True, "answer": msgspec.Raw(answer.encode())})
        return True

    def sleep(self, name: str, micros: int) -> tuple[str, Instant] | None:
        return self.slept(self._ask("wait", self.sleep_body(name, micros)))

    def wait_for_event(self, name: str, key: str | None, timeout_micros: int | None, schema: str | None) -> Waited:
        return self.waited(self._ask("wait", self.event_body(name, key, timeout_micros, schema)), name, key)


class RemoteContext(_Context[State], DurableSteps):
    """The context of an `async def` handler."""

    def __init__(self, run: FarRun) -> None:
        super().__init__(run)
        self._channel = AsyncFarSteps(run)

    async def stream(self, value: Any) -> None:
        """Append a value to the output of the job, which others read while it runs; see backstay.Context.stream."""
        output = self._run.output
        if output.add(stream_entry(value)):
            while not output.has_room and not self.cancelled:
                await asyncio.to_thread(output.wait, ROOM_SECONDS)

    async def progress(self, fraction: float, *, stage: str | None = None) -> None:
        """Report progress, from 0 to 1. Sent about once a second."""
        self._run.reporter.progress(fraction, stage)


class BlockingRemoteContext(_Context[State], BlockingDurableSteps):
    """The context of a `def` handler, which runs in a thread."""

    def __init__(self, run: FarRun) -> None:
        super().__init__(run)
        self._channel = BlockingFarSteps(run)

    def stream(self, value: Any) -> None:
        """Append a value to the output of the job, which others read while it runs; see backstay.Context.stream."""
        output = self._run.output
        if output.add(stream_entry(value)):
            while not output.wait(ROOM_SECONDS) and not self.cancelled:
                pass

    def progress(self, fraction: float, *, stage: str | None = None) -> None:
        """Report progress, from 0 to 1. Sent about once a second."""
        self._run.reporter.progress(fraction, stage)


class End(msgspec.Struct, frozen=True):
    """How an attempt has ended, as it is reported to the server."""

    verb: str  # of the route
    body: dict[str, Any]  # without the token


class FarRun(Execution):
    """Its handler runs on the worker's event loop; the thread of the link holds its claim."""

    lost = False  # set by the link: the run no longer counts
    settling = False  # its outcome is known, and is being sent

    def __init__(
        self,
        handler: Handler,
        job: RemoteJob,
        token: str,
        clock: Clock,
        ask: Callable[[FarRun, str, dict[str, Any]], Future[Any]],
    ) -> None:
        self._ask = ask
        self.handler = handler
        self.job = job
        self.token = token
        self.timeout_micros = round(float(job.timeout_seconds) * MICROS)
        self.reporter = Reporter(job)
        self.output = FarOutput(job)
        self._clock = clock
        self.resources = Resources(None)  # those of its worker, once it begins
        self._context: Any = RemoteContext(self) if handler.is_async else BlockingRemoteContext(self)
        if not handler.is_async:
            self.cancelled = threading.Event()

    def ask(self, verb: str, body: dict[str, Any]) -> Future[Any]:
        """Send a request about this job. Any thread may call it."""
        return self._ask(self, verb, body)

    @property
    def claim(self) -> dict[str, str]:
        return {"job_id": self.job.job_id, "token": self.token}

    @property
    def attempt(self) -> int:
        return int(self.job.attempt)

    @property
    def is_over(self) -> bool:
        return self.settling or self.lost

    @property
    def jobs(self) -> Sequence[Named]:
        return (self.job,)

    @property
    def execution(self) -> Execution:
        return self

    def say_log(self, created: float | None, level: str, message: str, item: int | None = None) -> None:
        """Add a line that was logged anywhere in the handler."""
        self.reporter.line(level, message)

    def end_of_stopped(self) -> End:
        return end_of(self.stopped(self.attempt, self._clock.now()))

    async def end(self, deadlines: Deadlines, threads: Threads) -> End:
        """Run the handler. Never raises."""
        self.begun = True
        if self.is_stopped:
            self.ended = True
            return self.end_of_stopped()
        errors.current.set(self)  # in the task's own context: nothing to reset
        deadlines.watch(self)
        try:
            text = self.handler.stored_result(await self._call(threads))
            end = End("complete", {"result": msgspec.Raw(text.encode())})
        except asyncio.CancelledError as error:
            if _is_stopped(self) and self.task is not None:
                self.task.uncancel()  # continues, to report this
            end = end_of(Raised(entry(error, self.attempt, self._clock.now())))
        except BaseException as error:
            end = end_of(outcome_of(error, self.job, self._clock.now(), self.handler.rules))
        finally:
            self.ended = True
            self.reporter.end()
            self.output.end()
        return self.end_of_stopped() if _is_stopped(self) else end

    async def _call(self, threads: Threads) -> str:
        """Call the handler; return the result as JSON text."""
        payload = self.handler.decode(codec.encode(self.job.payload).decode(), self.job.payload_version)
        function, takes_context = self.handler.entry(None)
        arguments = (payload, self._context) if takes_context else (payload,)
        if self.handler.is_async:
            return await encoded(await function(*arguments))

        def call() -> str | Unencoded:
            return at_once(function(*arguments))

        found: str | Unencoded = await threads.run(contextvars.copy_context(), call)
        return found if isinstance(found, str) else await encoded(found)

    def __repr__(self) -> str:
        return f"<FarRun {self.title}>"


def _is_stopped(run: FarRun) -> bool:
    """Return whether a stop was requested. A function, because this can change at every await, and in a thread at any
    time."""
    return run.is_stopped


def end_of(outcome: Outcome) -> End:
    """Return how an outcome is reported to the server."""
    match outcome:
        case Completed(result):
            return End("complete", {"result": None if result is None else codec.decode(result)})
        case Raised(error):
            return End("fail", {"error": _error(error)})
        case RetryAsked(error, after_micros):
            after = {} if after_micros is None else {"retry_after": after_micros / MICROS}
            return End("fail", {"error": _error(error), **after})
        case Discarded(error):
            return End("fail", {"error": _error(error), "retry": False})
        case Snoozed(for_micros, reason):
            return End("outcome", {"outcome": "snooze", "seconds": for_micros / MICROS, **_because(reason)})
        case GivenBack(reason):
            return End("outcome", {"outcome": "give_back", **_because(reason)})
        case Cancelled(reason):
            return End("outcome", {"outcome": "cancel", **_because(reason)})
        case Sleeping(name):
            return End("outcome", {"outcome": "sleep", "name": name})
        case WaitingForEvent(awaits, seen):
            return End("outcome", {"outcome": "wait_for_event", "name": awaits.wait, "seen": seen})
        case WaitingForChildren():
            why = "a remote worker cannot wait for children: submit the next step with depends_on"
            return End("fail", {"error": {"type": "WaitForChildren", "message": why}, "retry": False})
        case _:
            assert_never(outcome)


def _because(reason: str | None) -> dict[str, str]:
    return {"reason": reason[:REASON_LENGTH_MAX]} if reason else {}


def _error(error: ErrorEntry) -> dict[str, str]:
    return {"type": codec.clean(error.type) or "Error", "message": error.message, "traceback": error.traceback}
