"""The child side of process isolation: runs one job after another, as its parent asks over a pipe.

Messages are JSON arrays. The child imports the handler by the name under which the parent's own code defined it; stored
data never decides what is imported.
"""

from __future__ import annotations

import asyncio
import base64
import contextvars
import importlib
import itertools
import logging
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from multiprocessing.connection import Connection
from typing import Any, cast

import msgspec

from backstay import codec, errors, limits
from backstay.clock import Instant
from backstay.context import ITEM, BlockingContext, Context, batch_context
from backstay.core.dependencies import Awaits
from backstay.core.records import ClaimedJob, Effect, JobRecord, Page
from backstay.core.result_tables import ResultTable, RowOrigin, RowPage, RowQuery, StoredRow, Value
from backstay.core.step_values import packed, unpacked
from backstay.errors import BackstayError, ClaimLost, InvalidResult, ResultTooLarge, StoreError
from backstay.failure_rules import AS_USUAL, FailureRules
from backstay.files.local import PIECE_BYTES, AsyncSource, Bytes, Content, Source, content_of, kept_in_thread
from backstay.handlers import Handler, registered
from backstay.job import Ended, SleepUntil, Submitted, Waited, WaitForChildren, WaitForEvent, unwrapped
from backstay.lifespan import Lifespan, Lifespans, Resources, failed, no_state
from backstay.options import SubmitOptions
from backstay.outcomes import Cancel, Discard, Retry, Snooze
from backstay.worker import errors as worker_errors
from backstay.worker import factories, keeper, process
from backstay.worker.errors import is_error, message, one_each, trace
from backstay.worker.leftovers import Leftovers
from backstay.worker.spool import spooled

JSON_CHARACTER_BYTES_MAX = 6  # a control character: \u0001


class Call:
    """One call of the handler. Its contexts are closed once it has returned."""

    def __init__(self, name: str, kind: str, jobs: list[ClaimedJob]) -> None:
        self.name = name
        self.is_batch = kind == "batch"
        self.jobs = jobs
        self.is_over = False


class Pipe:
    """The connection to the parent, shared by the handler's threads and the thread that listens. Only this process may
    use it: a forked copy is refused."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._pid = os.getpid()
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._questions = itertools.count()
        self._replies: dict[int, Any] = {}  # by the number of the question: threads may ask at the same time
        self._calls: list[Call | None] = []
        self._current: Call | None = None
        os.register_at_fork(before=_hold_signals, after_in_parent=_release_signals, after_in_child=self._disown)
        threading.Thread(target=self._listen, name="backstay-listen", daemon=True).start()

    @property
    def is_copy(self) -> bool:
        return os.getpid() != self._pid

    def _disown(self) -> None:
        self._pipe.close()
        _own_signals()

    def _listen(self) -> None:
        while True:
            try:
                kind, call, *rest = codec.decode(self._pipe.recv_bytes())
            except (EOFError, OSError):
                os._exit(0)  # the parent is gone; so is the claim
            with self._changed:
                if kind == "reply":
                    if self._current is not None and self._current.name == call:
                        question, reply = rest
                        self._replies[question] = reply
                elif kind == "end":
                    self._calls.append(None)
                else:
                    self._calls.append(Call(call, kind, msgspec.convert(rest[0], list[ClaimedJob])))
                self._changed.notify_all()

    def next_call(self) -> Call | None:
        """Return the next call; None when there are no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._calls)
            self._current = self._calls.pop(0)
            return self._current

    def end(self, call: Call) -> None:
        """End a call: nothing more is sent for it, and nothing waits for a reply."""
        with self._sending, self._changed:
            call.is_over = True
            self._current = None
            self._replies.clear()
            self._changed.notify_all()

    def send(self, message: tuple[Any, ...]) -> None:
        """Send a message of the process itself, after a call."""
        with self._sending:
            self._pipe.send_bytes(codec.encode(message))

    def say(self, call: Call, job: ClaimedJob, *message: Any, question: int | None = None) -> None:
        self._send_of(call, ("say", call.name, question, job.job_id, job.attempt, *message))

    def _send_of(self, call: Call, message: tuple[Any, ...]) -> None:
        if self.is_copy:  # before any lock, which another thread may have held at the fork
            raise ClaimLost("a forked process cannot use the context: use it in the process of the handler itself")
        encoded = codec.encode(message)
        if len(encoded) > process.MESSAGE_BYTES_MAX:
            raise BackstayError(
                f"{len(encoded):,} bytes in one message from a handler's process; the limit is"
                f" {process.MESSAGE_BYTES_MAX:,}: use a file"
            )
        with self._sending:
            if call.is_over:
                raise _ended(call)
            self._pipe.send_bytes(encoded)

    def ask(self, call: Call, job: ClaimedJob, *message: Any) -> Any:
        question = next(self._questions)
        self.say(call, job, *message, question=question)
        with self._changed:
            self._changed.wait_for(lambda: question in self._replies or call.is_over)
            if call.is_over:
                raise _ended(call)
            reply = self._replies.pop(question)
        if "error" in reply:
            raise _error(reply["type"], reply["error"])
        return reply["value"]

    def send_log(self, call: Call, record: logging.LogRecord, text: str) -> None:
        item = getattr(record, ITEM, None)
        level, name = _one_line(record.levelname), _one_line(record.name)
        self._send_of(call, ("log", call.name, item, record.created, level, _storable(text), name, record.levelno))


def _ended(call: Call) -> ClaimLost:
    return ClaimLost(f"this run of job {call.jobs[0].job_id} has ended: its context cannot be used any more")


# Signals of what a handler forks: this process ignores some, its children must not

_IGNORED: dict[signal.Signals, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
_held = threading.local()


def _hold_signals() -> None:
    """Hold signals back until a forked process has its own handlers. Otherwise one that is told to end at once would
    ignore it."""
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)


def _release_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


def _own_signals() -> None:
    for number, usual in _IGNORED.items():
        if signal.getsignal(number) is keeper.ignore:
            signal.signal(number, usual)
    _release_signals()


def _one_line(name: str) -> str:
    """Return the name without line breaks, so that it cannot start a new line in a log."""
    name = codec.clean(name)
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in name)


def _storable(text: str) -> str:
    """Return as much of a line as the job's log stores, or less if escaping in JSON would make the message too large
    for the parent."""
    text = codec.clean(text, limit=limits.LOG_FILE_BYTES_MAX)[: limits.LOG_FILE_BYTES_MAX]
    room = process.MESSAGE_BYTES_MAX - limits.MIB  # for the rest of the message
    while len(text) * JSON_CHARACTER_BYTES_MAX > room and len(codec.encode(text)) > room:
        text = text[: len(text) // 2]
    return text


_current: contextvars.ContextVar[tuple[Pipe, Call] | None] = contextvars.ContextVar("backstay_call", default=None)


def _in_a_call() -> tuple[Pipe, Call] | None:
    """Return the call that the current code runs in, if its log lines go to the parent."""
    found = _current.get()
    return None if found is None or found[1].is_over or found[0].is_copy else found


class _ForwardHandler(logging.Handler):
    """Sends what a job logs to the parent, which stores it and also writes it to the worker's own log."""

    def emit(self, record: logging.LogRecord) -> None:
        if (found := _in_a_call()) is None:
            return
        pipe, call = found
        try:
            pipe.send_log(call, record, self.format(record))
        except Exception:
            self.handleError(record)


def _forward_logs() -> None:
    for each in logging.getLogger().handlers:  # of a program that sets up logging when it is imported
        if isinstance(each, logging.StreamHandler) and each.stream in (sys.stdout, sys.stderr):
            each.addFilter(lambda record: _in_a_call() is None)  # or each line would be written twice
    worker_errors.install(_ForwardHandler())
    logging.getLogger().setLevel(logging.INFO)


class Link:
    """The channel of one job: its messages name the call, the job's id and its attempt."""

    def __init__(self, pipe: Pipe, call: Call, job: ClaimedJob, handler: Handler, surroundings: Surroundings) -> None:
        self.job = job
        self.join_of = handler.join_of
        self._pipe = pipe
        self._call = call
        self._surroundings = surroundings

    @property
    def state(self) -> Any:
        return self._surroundings.state

    def _say(self, *message: Any) -> None:
        self._pipe.say(self._call, self.job, *message)

    def _ask(self, *question: Any) -> Any:
        return self._pipe.ask(self._call, self.job, *question)

    def progress(self, fraction: float, stage: str | None) -> None:
        self._say("progress", _number(fraction), None if stage is None else codec.clean(str(stage)))

    def metric(self, name: str, value: float) -> None:
        self._say("metric", codec.clean(str(name)), _number(value))

    def cancelled(self) -> bool:
        """Return whether the run should stop. A run that is told to stop is killed, so code that still asks has
        outlived it."""
        return self._call.is_over or self._pipe.is_copy

    def effects(self, statements: list[Effect]) -> None:
        self._say("effects", [(statement, [packed(value) for value in values]) for statement, values in statements])

    def refuse_rows(self, reason: str) -> None:
        self._say("refuse_rows", reason)

    def artifact(self, name: str, source: Source) -> str:
        return self.keep(name, content_of(name, source))

    def keep(self, name: str, content: Content) -> str:
        if isinstance(content, Bytes) and memoryview(content).nbytes <= PIECE_BYTES:
            return str(self._ask("artifact", name, base64.b64encode(content).decode()))
        with spooled(content) as path:
            return str(self._ask("artifact_file", name, path))

    def stream(self, entry: str) -> None:
        self._ask("stream", entry)

    def artifact_ref(self, name: str) -> dict[str, Any]:
        return cast("dict[str, Any]", self._ask("artifact_ref", name))

    def read_artifact(self, reference: dict[str, Any]) -> bytes:
        return base64.b64decode(self._ask("read_artifact", reference))

    def step(self, name: str) -> str | None:
        return None if (answer := self._ask("step", name)) is None else str(answer)

    def record_step(self, name: str, answer: str) -> bool:
        return bool(self._ask("record_step", name, answer))

    def sleep(self, name: str, micros: int) -> tuple[str, Instant] | None:
        return msgspec.convert(self._ask("sleep", name, micros), tuple[str, Instant] | None)

    def wait_for_event(self, name: str, key: str | None, timeout_micros: int | None, schema: str | None) -> Waited:
        return msgspec.convert(self._ask("wait_for_event", name, key, timeout_micros, schema), Waited)

    # Children

    def loaded_children(self) -> list[JobRecord]:
        return msgspec.convert(self._ask("loaded_children"), list[JobRecord])

    def large_result(self, record: JobRecord) -> str | None:
        return cast("str | None", self._ask("large_result", record.job_id))

    def submit(
        self, job_type: str | Handler, payload: Any, key: str | None, at_once: bool, options: SubmitOptions
    ) -> Submitted:
        name, text = (
            (job_type.name, job_type.encode(payload))
            if isinstance(job_type, Handler)
            else (job_type, codec.to_json(payload))
        )
        return msgspec.convert(self._ask("submit", name, text, key, at_once, packed_options(options)), Submitted)

    def children(self, after: str | None, named: int = 0) -> Page:
        return msgspec.convert(self._ask("children", after, named), Page)

    def ended(self, awaits: Awaits) -> Ended | None:
        return msgspec.convert(self._ask("ended", awaits), Ended | None)

    def upstream(self) -> list[JobRecord]:
        return msgspec.convert(self._ask("upstream"), list[JobRecord])

    # Result tables

    def put_rows(self, table: ResultTable, rows: Sequence[tuple[Value, ...]]) -> None:
        self._ask("put_rows", table, [[packed(value) for value in row] for row in rows])

    def rows(self, table: ResultTable, ask: RowQuery) -> RowPage:
        plain = msgspec.structs.replace(ask, key=None, after=None)
        return _page(self._ask("rows", table, plain, packed(ask.key), packed(ask.after)))

    def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
        return _page(self._ask("rows_by_subject", table, subject, after, limit))

    def latest(self, subject: str, job_type: str) -> str | None:
        return cast("str | None", self._ask("latest", subject, job_type))


def _number(value: float) -> str:
    """Return a number as text, because JSON has no NaN and no infinities; the parent treats these as for other
    handlers."""
    return repr(float(value))


class AsyncLink:
    """The channel of an `async def` handler in a child process: whatever waits does so in a thread."""

    def __init__(self, link: Link) -> None:
        self.job = link.job
        self.progress = link.progress
        self.metric = link.metric
        self.cancelled = link.cancelled
        self.effects = link.effects
        self.refuse_rows = link.refuse_rows
        self.join_of = link.join_of
        self.loaded_children = link.loaded_children
        self.large_result = link.large_result
        self._link = link

    @property
    def state(self) -> Any:
        return self._link.state

    async def stream(self, entry: str) -> None:
        await asyncio.to_thread(self._link.stream, entry)

    async def artifact_ref(self, name: str) -> dict[str, Any]:
        return await asyncio.to_thread(self._link.artifact_ref, name)

    async def read_artifact(self, reference: dict[str, Any]) -> bytes:
        return await asyncio.to_thread(self._link.read_artifact, reference)

    async def step(self, name: str) -> str | None:
        return await asyncio.to_thread(self._link.step, name)

    async def record_step(self, name: str, answer: str) -> bool:
        return await asyncio.to_thread(self._link.record_step, name, answer)

    async def sleep(self, name: str, micros: int) -> tuple[str, Instant] | None:
        return await asyncio.to_thread(self._link.sleep, name, micros)

    async def wait_for_event(
        self, name: str, key: str | None, timeout_micros: int | None, schema: str | None
    ) -> Waited:
        return await asyncio.to_thread(self._link.wait_for_event, name, key, timeout_micros, schema)

    async def artifact(self, name: str, source: AsyncSource) -> str:
        return await kept_in_thread(self._link.keep, name, source)

    async def submit(
        self, job_type: str | Handler, payload: Any, key: str | None, at_once: bool, options: SubmitOptions
    ) -> Submitted:
        return await asyncio.to_thread(self._link.submit, job_type, payload, key, at_once, options)

    async def children(self, after: str | None, named: int = 0) -> Page:
        return await asyncio.to_thread(self._link.children, after, named)

    async def ended(self, awaits: Awaits) -> Ended | None:
        return await asyncio.to_thread(self._link.ended, awaits)

    async def upstream(self) -> list[JobRecord]:
        return await asyncio.to_thread(self._link.upstream)

    async def put_rows(self, table: ResultTable, rows: Sequence[tuple[Value, ...]]) -> None:
        await asyncio.to_thread(self._link.put_rows, table, rows)

    async def rows(self, table: ResultTable, ask: RowQuery) -> RowPage:
        return await asyncio.to_thread(self._link.rows, table, ask)

    async def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
        return await asyncio.to_thread(self._link.rows_by_subject, table, subject, after, limit)

    async def latest(self, subject: str, job_type: str) -> str | None:
        return await asyncio.to_thread(self._link.latest, subject, job_type)


def packed_options(options: SubmitOptions) -> dict[str, Any]:
    """Return submit options in the form in which they cross the pipe: jobs as ids, times in a form that is restored."""
    plain: dict[str, Any] = {}
    for name, value in options.items():
        if name == "depends_on":
            refs = [value] if isinstance(value, str) or hasattr(value, "job_id") else list(cast("Iterable[Any]", value))
            value = [ref if isinstance(ref, str) else ref.job_id for ref in refs]
        elif name == "tags" and not isinstance(value, str):
            value = list(cast("Iterable[Any]", value))
        plain[name] = packed(value)
    return plain


def _page(answer: Any) -> RowPage:
    """Restore the values of rows that are not JSON."""
    return RowPage(
        tuple(_stored(row) for row in answer["items"]),
        answer["attempt"],
        unpacked(answer["next"]),  # type: ignore[arg-type]
    )


def _stored(row: Any) -> StoredRow:
    values = tuple(map(unpacked, row["values"]))
    return StoredRow(row["job_id"], row["created_at"], RowOrigin(**row["origin"]), values)  # type: ignore[arg-type]


def _error(kind: str, message: str) -> Exception:
    """Return the exception that the parent raised, as the same type if it is one of Backstay's."""
    known = getattr(errors, kind, StoreError)
    try:
        return cast(Exception, known(message))
    except TypeError:
        return StoreError(message)


class Surroundings:
    """What the handlers of this process run in: what the lifespan of their app has made here, and the event loop that
    belongs to it. It runs only while a handler does."""

    def __init__(self, lifespans: Lifespans | None) -> None:
        self._lifespan: Lifespan | None = None if lifespans is None else lifespans.lifespan
        self._runner: asyncio.Runner | None = None
        self._resources = Resources(lifespans)
        self._block: Any = None
        self._state: Any = None
        if self._lifespan is None:
            return
        try:
            block = self._lifespan.block()
            if not isinstance(block, AbstractAsyncContextManager):
                self._state, self._block = block.__enter__(), block
                return
        except BaseException as error:
            raise failed(self._lifespan, error) from error
        self._runner = asyncio.Runner()
        self._runner.run(self._resources.start())

    @property
    def state(self) -> Any:
        if self._lifespan is None:
            no_state()
        return self._state if self._runner is None else self._resources.state

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a handler. What it leaves on the loop is cancelled, as `asyncio.run` does."""
        if self._runner is None:
            return asyncio.run(coroutine)
        loop = self._runner.get_loop()
        others = asyncio.all_tasks(loop)
        with ThreadPoolExecutor() as executor:  # of this call: its threads end with it
            loop.set_default_executor(executor)
            try:
                return self._runner.run(coroutine, context=contextvars.copy_context())
            finally:
                self._runner.run(_cancel(asyncio.all_tasks(loop) - others))

    def end(self) -> None:
        if self._block is not None:
            self._block.__exit__(None, None, None)
        if self._runner is not None:
            self._runner.run(self._resources.end())
            self._runner.close()


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    found = list(tasks)
    for task in found:
        task.cancel()
    await asyncio.gather(*found, return_exceptions=True)


def main(
    connection: Connection, name: str, module: str, qualname: str, registered_in: str, factory: str | None = None
) -> None:
    for each in _IGNORED:
        signal.signal(each, keeper.ignore)  # the worker decides when this process ends
    try:
        handler = _find(name, module, qualname, registered_in, factory)
        surroundings = Surroundings(handler.lifespans)
    except BaseException as error:
        connection.send_bytes(codec.encode(("broken", f"{type(error).__name__}: {message(error)}")))
        return
    _forward_logs()
    connection.send_bytes(codec.encode(("ready", os.getpid())))
    pipe = Pipe(connection)
    while True:
        call = pipe.next_call()
        if call is None:
            surroundings.end()
            return
        leftovers = Leftovers()
        answers = _run(handler, call, pipe, surroundings)
        if pipe.is_copy:  # forked by the handler, and returned as if it were the process of the job
            os._exit(0)
        pipe.end(call)
        left = leftovers.end()
        for answer in answers:
            pipe.send(answer)
        pipe.send(("done", call.name, left))


def _find(name: str, module: str, qualname: str, registered_in: str, factory: str | None) -> Handler:
    """Import the module that registers the handler, then look the handler up. `factory`: the function that makes the
    app, if one does."""
    for each in (module, registered_in):
        if each != "__main__":
            importlib.import_module(each)
    own = "__mp_main__" if module == "__main__" else module
    handler = registered(name, own, qualname)
    if handler is None and factory is not None:
        global _app  # a handler is registered for as long as its app lives
        _app = factories.made(factory)
        handler = registered(name, own, qualname)
    if handler is None:
        raise LookupError(
            f"importing {registered_in} does not register {name!r} again: process isolation needs a handler that is"
            " registered when its module is imported, not inside a function"
        )
    return handler


_app: Any = None


def _run(handler: Handler, call: Call, pipe: Pipe, surroundings: Surroundings) -> list[tuple[Any, ...]]:
    """Run the handler. Return what to send at the end: an answer for each job, or one for the whole call."""
    token = _current.set((pipe, call))
    try:
        if handler.observers is None:
            return _answered(handler, call, pipe, surroundings)
        with handler.observers.continuing(call.jobs[0].traceparent):
            return _answered(handler, call, pipe, surroundings)
    finally:
        _current.reset(token)


def _answered(handler: Handler, call: Call, pipe: Pipe, surroundings: Surroundings) -> list[tuple[Any, ...]]:
    try:
        if call.is_batch:
            return [("answer", call.name, answer) for answer in _call_many(handler, call, pipe, surroundings)]
        [job] = call.jobs
        payload = handler.decode(job.payload, job.payload_version)
        value = _call(handler, payload, Link(pipe, call, job, handler, surroundings), surroundings)
        return [("answer", call.name, _completed(value))]
    except BaseException as error:
        return [("broke", call.name, _said(error, call.jobs[0].failures, handler.rules))]


def _completed(value: Any) -> tuple[Any, ...]:
    result = codec.result_json(value)
    size = len(result) if result.isascii() else len(result.encode())
    return ("completed", result) if size <= limits.RESULT_BYTES_MAX else ("too_large", size)


def _call(handler: Handler, payload: Any, link: Link, surroundings: Surroundings) -> Any:
    if handler.is_async:
        return surroundings.run(_awaited(handler, payload, Context(AsyncLink(link)), link.job.join))
    function, takes_context = handler.entry(link.job.join)
    return function(payload, BlockingContext(link)) if takes_context else function(payload)


async def _awaited(handler: Handler, payload: Any, context: Any, join: str | None = None) -> Any:
    function, takes_context = handler.entry(join)
    return await (function(payload, context) if takes_context else function(payload))


def _call_many(handler: Handler, call: Call, pipe: Pipe, surroundings: Surroundings) -> list[tuple[Any, ...]]:
    payloads = [handler.decode(job.payload, job.payload_version) for job in call.jobs]
    links = [Link(pipe, call, job, handler, surroundings) for job in call.jobs]
    if handler.is_async:
        context = batch_context(True, [AsyncLink(link) for link in links], links[0].cancelled)
        values = surroundings.run(_awaited(handler, payloads, context))
    else:
        context = batch_context(False, links, links[0].cancelled)
        function, takes_context = handler.entry(None)
        values = function(payloads, context) if takes_context else function(payloads)
    answers = one_each(values, len(call.jobs), handler.name)
    return [_answer(value, job.failures, handler.rules) for value, job in zip(answers, call.jobs, strict=True)]


def _answer(value: Any, failures: int, rules: FailureRules | None) -> tuple[Any, ...]:
    if is_error(value):
        return _said(value, failures, rules)
    try:
        return _completed(value)
    except (InvalidResult, ResultTooLarge) as error:
        return _said(error, failures, rules)


def _said(error: BaseException, failures: int = 0, rules: FailureRules | None = None) -> tuple[Any, ...]:
    """Return the message for an exception that the handler raised. Never raises, whatever the exception's own code
    does."""
    try:
        return _asked(error, failures, rules)
    except BaseException:  # of its __class__, or of a group's exceptions
        return ("raised", *_entry(error))


def _asked(error: BaseException, failures: int, rules: FailureRules | None) -> tuple[Any, ...]:
    match error := unwrapped(error):
        case Retry():
            return ("retry", *_entry(error), error.after_micros)
        case Snooze():
            return ("snooze", error.for_micros, None if error.reason is None else codec.clean(str(error.reason)))
        case Cancel():
            return ("cancel", message(error))
        case Discard() | ResultTooLarge():
            return ("discard", *_entry(error))
        case WaitForChildren():
            return ("wait", error.trigger_rule, error.on_failure, error.join)
        case SleepUntil():
            return ("sleep", error.name, error.until)
        case WaitForEvent():
            return ("wait_for_event", error.wait.stored, error.seen)
        case _:
            decided = AS_USUAL if rules is None else rules.decide(error, failures)
            if decided.discards:
                return ("discard", *_entry(error))
            if decided.after_micros is not None:
                return ("retry", *_entry(error), decided.after_micros)
            return ("raised", *_entry(error))


def _entry(error: BaseException) -> tuple[str, str, str]:
    return codec.clean(type(error).__name__), message(error), trace(error)
