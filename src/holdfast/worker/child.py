"""The child side of process isolation: runs one job after another, told by its parent over a pipe.

Messages are JSON arrays. The child imports the handler by the name under which the parent's own
code defined it; nothing that was stored decides what is imported.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ctypes
import importlib
import logging
import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from holdfast import codec
from holdfast.context import BlockingContext, Context
from holdfast.effects import packed
from holdfast.errors import StoreError
from holdfast.handlers import Handler, registered
from holdfast.lifecycle import Effect
from holdfast.outcomes import Cancel, Discard, Retry, Snooze
from holdfast.store.types import ClaimedJob
from holdfast.worker import capture
from holdfast.worker.mistakes import clean, message, result_json, trace


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
    link = _Link(pipe)
    while (request := link.next_job()) is not None:
        link.send(*_run(handler, request, link))


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


def _run(handler: Handler, job: ClaimedJob, link: _Link) -> tuple[Any, ...]:
    started = time.monotonic()
    token = capture.current.set(link)
    try:
        payload = handler.decode(job.payload, job.payload_version)
        link.job = job
        if handler.is_async:
            context: Any = Context(_AsyncLink(link))
            value = asyncio.run(_call(handler, payload, context))
        else:
            context = BlockingContext(link)
            value = handler.function(payload, context) if handler.takes_context else handler.function(payload)
        return ("completed", result_json(value), time.monotonic() - started)
    except Retry as error:
        return ("retry", *_entry(error), error.after_micros)
    except Snooze as error:
        return ("snooze", error.for_micros, error.reason)
    except Cancel as error:
        return ("cancel", message(error))
    except Discard as error:
        return ("discard", *_entry(error))
    except BaseException as error:
        return ("raised", *_entry(error))
    finally:
        capture.current.reset(token)


async def _call(handler: Handler, payload: Any, context: Context) -> Any:
    return await (handler.function(payload, context) if handler.takes_context else handler.function(payload))


def _entry(error: BaseException) -> tuple[str, str, str]:
    return clean(type(error).__name__), message(error), trace(error)


class _Link:
    """The pipe, shared by the job's thread and the thread that listens to the parent."""

    def __init__(self, pipe: Connection) -> None:
        self.job: ClaimedJob = None  # type: ignore[assignment]  # set before any context exists
        self._pipe = pipe
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._answers: list[Any] = []
        self._answered = threading.Condition()
        self._jobs: list[ClaimedJob | None] = []
        self._stopped = False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                kind, value = codec.decode(self._pipe.recv_bytes())
            except (EOFError, OSError):
                os._exit(0)  # the parent is gone; so is the claim
            with self._answered:
                if kind == "job":
                    self._stopped = False
                    self._jobs.append(msgspec.convert(value, ClaimedJob))
                elif kind == "answer":
                    self._answers.append(value)
                elif kind == "stop":
                    self._stopped = True
                else:
                    self._jobs.append(None)
                self._answered.notify_all()

    def next_job(self) -> ClaimedJob | None:
        with self._answered:
            self._answered.wait_for(lambda: self._jobs)
            return self._jobs.pop(0)

    def send(self, *message: Any) -> None:
        with self._lock:
            self._pipe.send_bytes(codec.encode(message))

    def _ask(self, *question: Any) -> Any:
        with self._asking:  # one question at a time, so that answers find their askers
            self.send(*question)
            with self._answered:
                self._answered.wait_for(lambda: self._answers)
                answer = self._answers.pop(0)
        if "error" in answer:
            raise StoreError(answer["error"])
        return answer["value"]

    def progress(self, fraction: float, stage: str | None) -> None:
        self.send("progress", float(fraction), stage)

    def metric(self, name: str, value: float) -> None:
        self.send("metric", name, value)

    def say_log(self, created: float, level: str, text: str) -> None:
        self.send("log", created, level, text)

    def cancelled(self) -> bool:
        return self._stopped

    def effects(self, statements: list[Effect]) -> None:
        self.send("effects", [(statement, [packed(value) for value in values]) for statement, values in statements])

    def artifact(self, name: str, content: bytes) -> str:
        return str(self._ask("artifact", name, base64.b64encode(content).decode()))

    def step(self, name: str) -> str | None:
        return None if (answer := self._ask("step", name)) is None else str(answer)

    def record_step(self, name: str, answer: str) -> bool:
        return bool(self._ask("record_step", name, answer))


class _AsyncLink:
    """For `async def` handlers in a process: what waits does so in a thread."""

    def __init__(self, link: _Link) -> None:
        self.job = link.job
        self.progress = link.progress
        self.metric = link.metric
        self.cancelled = link.cancelled
        self.effects = link.effects
        self._link = link

    async def step(self, name: str) -> str | None:
        return await asyncio.to_thread(self._link.step, name)

    async def record_step(self, name: str, answer: str) -> bool:
        return await asyncio.to_thread(self._link.record_step, name, answer)

    async def artifact(self, name: str, content: bytes) -> str:
        return await asyncio.to_thread(self._link.artifact, name, content)


def _die_with_parent(parent: int) -> None:
    """Linux kills the child with its parent; elsewhere the closed pipe ends it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it died before the line above
        os._exit(0)
