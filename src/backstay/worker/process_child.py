"""The child side of process isolation: runs one job after another, as its parent asks over a pipe.

Messages are JSON arrays. The child imports the handler by the name under which the parent's own code defined it; stored
data never decides what is imported.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import contextvars
import ctypes
import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Any, cast

import msgspec

from backstay import codec, errors, limits
from backstay.context import ITEM, BlockingContext, Context, batch_context
from backstay.core.dependencies import Awaits
from backstay.core.records import ClaimedJob, Effect, JobRecord, Page
from backstay.core.result_tables import ResultTable, RowOrigin, RowPage, RowQuery, StoredRow, Value
from backstay.core.step_values import packed, unpacked
from backstay.errors import InvalidResult, StoreError
from backstay.files.local import PIECE_BYTES, AsyncSource, Bytes, Content, Source, content_of, kept_in_thread
from backstay.handlers import Handler, registered
from backstay.job import Ended, Submitted, WaitForChildren, unwrapped
from backstay.options import SubmitOptions
from backstay.outcomes import Cancel, Discard, Retry, Snooze
from backstay.worker import errors as worker_errors
from backstay.worker import process
from backstay.worker.errors import message, one_each, trace
from backstay.worker.spool import spooled

JSON_CHARACTER_BYTES_MAX = 6  # a control character: \u0001


class Pipe:
    """The way to the parent, shared by the job's thread and the thread that listens."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._answers: list[Any] = []
        self._answered = threading.Condition()
        self._requests: list[ClaimedJob | list[ClaimedJob] | None] = []
        self._stopped = False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                kind, value = codec.decode(self._pipe.recv_bytes())
            except (EOFError, OSError):
                os._exit(0)  # the parent is gone; so is the claim
            with self._answered:
                match kind:
                    case "job":
                        self._stopped = False
                        self._requests.append(msgspec.convert(value, ClaimedJob))
                    case "batch":
                        self._stopped = False
                        self._requests.append(msgspec.convert(value, list[ClaimedJob]))
                    case "answer":
                        self._answers.append(value)
                    case "stop":
                        self._stopped = True
                    case _:
                        self._requests.append(None)
                self._answered.notify_all()

    def next_request(self) -> ClaimedJob | list[ClaimedJob] | None:
        with self._answered:
            self._answered.wait_for(lambda: self._requests)
            return self._requests.pop(0)

    def send(self, *message: Any) -> None:
        with self._lock:
            self._pipe.send_bytes(codec.encode(message))

    def ask(self, *question: Any) -> Any:
        with self._asking:  # one question at a time, so that answers find their askers
            self.send(*question)
            with self._answered:
                self._answered.wait_for(lambda: self._answers)
                answer = self._answers.pop(0)
        if "error" in answer:
            raise _error(answer["type"], answer["error"])
        return answer["value"]

    def stopped(self) -> bool:
        return self._stopped

    def send_log(self, record: logging.LogRecord, text: str) -> None:
        item = getattr(record, ITEM, None)
        level, name = _one_line(record.levelname), _one_line(record.name)
        self.send("log", record.created, level, _storable(text), item, name, record.levelno)


def _one_line(name: str) -> str:
    """A name that cannot begin a new line in a log."""
    name = codec.clean(name)
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in name)


def _storable(text: str) -> str:
    """As much of a line as the job's log stores; less where JSON, which escapes some characters, would make a message
    of it that the parent refuses."""
    text = codec.clean(text, limit=limits.LOG_FILE_BYTES_MAX)[: limits.LOG_FILE_BYTES_MAX]
    room = process.MESSAGE_BYTES_MAX - limits.MIB  # for the rest of the message
    while len(text) * JSON_CHARACTER_BYTES_MAX > room and len(codec.encode(text)) > room:
        text = text[: len(text) // 2]
    return text


_current: contextvars.ContextVar[Pipe | None] = contextvars.ContextVar("backstay_pipe", default=None)


class _ForwardHandler(logging.Handler):
    """Sends what a job logs to the parent, which stores it and writes it to the worker's own log."""

    def emit(self, record: logging.LogRecord) -> None:
        pipe = _current.get()
        if pipe is None:
            return
        try:
            pipe.send_log(record, self.format(record))
        except Exception:
            self.handleError(record)


def _forward_logs() -> None:
    for each in logging.getLogger().handlers:  # of a program that sets up logging when it is imported
        if isinstance(each, logging.StreamHandler) and each.stream in (sys.stdout, sys.stderr):
            each.addFilter(lambda record: _current.get() is None)  # or each line would be written twice
    worker_errors.install(_ForwardHandler())
    logging.getLogger().setLevel(logging.INFO)


class Link:
    """The channel of one job: its messages begin with its number."""

    def __init__(self, pipe: Pipe, job: ClaimedJob, number: int, handler: Handler) -> None:
        self.job = job
        self.join_of = handler.join_of
        self._pipe = pipe
        self._number = number

    def _ask(self, *question: Any) -> Any:
        return self._pipe.ask(self._number, *question)

    def progress(self, fraction: float, stage: str | None) -> None:
        self._pipe.send(self._number, "progress", _number(fraction), None if stage is None else codec.clean(str(stage)))

    def metric(self, name: str, value: float) -> None:
        self._pipe.send(self._number, "metric", codec.clean(str(name)), _number(value))

    def cancelled(self) -> bool:
        return self._pipe.stopped()

    def effects(self, statements: list[Effect]) -> None:
        packed_up = [(statement, [packed(value) for value in values]) for statement, values in statements]
        self._pipe.send(self._number, "effects", packed_up)

    def refuse_rows(self, reason: str) -> None:
        self._pipe.send(self._number, "refuse_rows", reason)

    def artifact(self, name: str, source: Source) -> str:
        return self.keep(name, content_of(name, source))

    def keep(self, name: str, content: Content) -> str:
        if isinstance(content, Bytes) and memoryview(content).nbytes <= PIECE_BYTES:
            return str(self._ask("artifact", name, base64.b64encode(content).decode()))
        with spooled(content) as path:
            return str(self._ask("artifact_file", name, path))

    def step(self, name: str) -> str | None:
        return None if (answer := self._ask("step", name)) is None else str(answer)

    def record_step(self, name: str, answer: str) -> bool:
        return bool(self._ask("record_step", name, answer))

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
        return msgspec.convert(self._ask("ended", str(awaits)), Ended | None)

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
    """As text, because JSON has no NaN and no infinities: the parent treats them as it does for other handlers."""
    return repr(float(value))


class AsyncLink:
    """For `async def` handlers in a process: what waits does so in a thread."""

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

    async def step(self, name: str) -> str | None:
        return await asyncio.to_thread(self._link.step, name)

    async def record_step(self, name: str, answer: str) -> bool:
        return await asyncio.to_thread(self._link.record_step, name, answer)

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
    """Options of a child as they cross a pipe: jobs as their ids, times as what they are."""
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
    """Rows with their values that are not JSON restored."""
    return RowPage(
        tuple(_stored(row) for row in answer["items"]),
        answer["attempt"],
        unpacked(answer["next"]),  # type: ignore[arg-type]
    )


def _stored(row: Any) -> StoredRow:
    values = tuple(map(unpacked, row["values"]))
    return StoredRow(row["job_id"], row["created_at"], RowOrigin(**row["origin"]), values)  # type: ignore[arg-type]


def _error(kind: str, message: str) -> Exception:
    """As the parent raised it, as far as that is one of ours."""
    known = getattr(errors, kind, StoreError)
    try:
        return cast(Exception, known(message))
    except TypeError:
        return StoreError(message)


def main(pipe: Connection, parent: int, name: str, module: str, qualname: str, registered_in: str) -> None:
    _die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when a child ends
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        handler = _find(name, module, qualname, registered_in)
    except BaseException as error:
        pipe.send_bytes(codec.encode(("broken", f"{type(error).__name__}: {message(error)}")))
        return
    _forward_logs()
    pipe.send_bytes(codec.encode(("ready",)))
    parent_side = Pipe(pipe)
    while (request := parent_side.next_request()) is not None:
        parent_side.send(*_run(handler, request, parent_side))


def _find(name: str, module: str, qualname: str, registered_in: str) -> Handler:
    """Import what registers the handler, then take it from the register."""
    for each in (module, registered_in):
        if each != "__main__":
            importlib.import_module(each)
    own = "__mp_main__" if module == "__main__" else module
    handler = registered(name, own, qualname)
    if handler is None:
        raise LookupError(
            f"importing {registered_in} does not register {name!r} again: process isolation needs a handler that is"
            " registered when its module is imported, not inside a function"
        )
    return handler


def _run(handler: Handler, request: ClaimedJob | list[ClaimedJob], pipe: Pipe) -> tuple[Any, ...]:
    job = request[0] if isinstance(request, list) else request
    if handler.observers is None:
        return _answered(handler, request, pipe)
    with handler.observers.continuing(job.traceparent):
        return _answered(handler, request, pipe)


def _answered(handler: Handler, request: ClaimedJob | list[ClaimedJob], pipe: Pipe) -> tuple[Any, ...]:
    started = time.monotonic()
    token = _current.set(pipe)
    try:
        if isinstance(request, list):
            return ("answers", _call_many(handler, request, pipe))
        payload = handler.decode(request.payload, request.payload_version)
        value = _call(handler, payload, Link(pipe, request, 0, handler))
        return ("completed", codec.result_json(value), time.monotonic() - started)
    except BaseException as error:
        return _said(error)
    finally:
        _current.reset(token)


def _call(handler: Handler, payload: Any, link: Link) -> Any:
    if handler.is_async:
        return asyncio.run(_awaited(handler, payload, Context(AsyncLink(link)), link.job.join))
    function, takes_context = handler.entry(link.job.join)
    return function(payload, BlockingContext(link)) if takes_context else function(payload)


async def _awaited(handler: Handler, payload: Any, context: Any, join: str | None = None) -> Any:
    function, takes_context = handler.entry(join)
    return await (function(payload, context) if takes_context else function(payload))


def _call_many(handler: Handler, jobs: list[ClaimedJob], pipe: Pipe) -> list[tuple[Any, ...]]:
    payloads = [handler.decode(job.payload, job.payload_version) for job in jobs]
    links = [Link(pipe, job, number, handler) for number, job in enumerate(jobs)]
    if handler.is_async:
        context = batch_context(True, [AsyncLink(link) for link in links], pipe.stopped)
        values = asyncio.run(_awaited(handler, payloads, context))
    else:
        context = batch_context(False, links, pipe.stopped)
        values = handler.function(payloads, context) if handler.takes_context else handler.function(payloads)
    return [_answer(value) for value in one_each(values, len(jobs), handler.name)]


def _answer(value: Any) -> tuple[Any, ...]:
    if isinstance(value, BaseException):
        return _said(value)
    try:
        return ("completed", codec.result_json(value), 0.0)
    except InvalidResult as error:
        return _said(error)


def _said(error: BaseException) -> tuple[Any, ...]:
    match error := unwrapped(error):
        case Retry():
            return ("retry", *_entry(error), error.after_micros)
        case Snooze():
            return ("snooze", error.for_micros, None if error.reason is None else codec.clean(str(error.reason)))
        case Cancel():
            return ("cancel", message(error))
        case Discard():
            return ("discard", *_entry(error))
        case WaitForChildren():
            return ("wait", error.trigger_rule, error.on_failure, error.join)
        case _:
            return ("raised", *_entry(error))


def _entry(error: BaseException) -> tuple[str, str, str]:
    return codec.clean(type(error).__name__), message(error), trace(error)


def _die_with_parent(parent: int) -> None:
    """Linux kills the child with its parent; elsewhere the closed pipe ends it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it died before the line above
        os._exit(0)
