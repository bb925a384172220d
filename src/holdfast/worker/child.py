"""The child side of process isolation: runs one job after another, told by its parent over a pipe.

Messages are JSON arrays. The child imports the handler by the name under which the parent's own
code defined it; nothing that was stored decides what is imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import logging
import os
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

from holdfast import codec
from holdfast.batch_context import batch_context
from holdfast.context import BlockingContext, Context
from holdfast.errors import InvalidResult
from holdfast.handlers import Handler, registered
from holdfast.offspring import WaitForChildren, unwrapped
from holdfast.outcomes import Cancel, Discard, Retry, Snooze
from holdfast.store.types import ClaimedJob
from holdfast.worker import capture
from holdfast.worker.links import AsyncLink, Link, Pipe
from holdfast.worker.mistakes import clean, message, one_each, result_json, trace


def main(pipe: Connection, parent: int, name: str, module: str, qualname: str, registered_in: str) -> None:
    _die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when a child ends
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        handler = _find(name, module, qualname, registered_in)
    except BaseException as error:
        pipe.send_bytes(codec.encode(("broken", f"{type(error).__name__}: {message(error)}")))
        return
    capture.install()
    logging.getLogger().setLevel(logging.INFO)
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
    token = capture.current.set(pipe)
    try:
        if isinstance(request, list):
            return ("answers", _call_many(handler, request, pipe))
        payload = handler.decode(request.payload, request.payload_version)
        value = _call(handler, payload, Link(pipe, request, 0, handler))
        return ("completed", result_json(value), time.monotonic() - started)
    except BaseException as error:
        return _said(error)
    finally:
        capture.current.reset(token)


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
        return ("completed", result_json(value), 0.0)
    except InvalidResult as error:
        return _said(error)


def _said(error: BaseException) -> tuple[Any, ...]:
    match error := unwrapped(error):
        case Retry():
            return ("retry", *_entry(error), error.after_micros)
        case Snooze():
            return ("snooze", error.for_micros, error.reason)
        case Cancel():
            return ("cancel", message(error))
        case Discard():
            return ("discard", *_entry(error))
        case WaitForChildren():
            return ("wait", error.trigger_rule, error.on_failure, error.join)
        case _:
            return ("raised", *_entry(error))


def _entry(error: BaseException) -> tuple[str, str, str]:
    return clean(type(error).__name__), message(error), trace(error)


def _die_with_parent(parent: int) -> None:
    """Linux kills the child with its parent; elsewhere the closed pipe ends it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it died before the line above
        os._exit(0)
