"""Daemon threads for blocking handlers. The standard pool would make an exiting process wait for a stuck handler."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_Work = tuple[contextvars.Context, Callable[[], Any], asyncio.Future[Any], asyncio.AbstractEventLoop]


class Threads:
    def __init__(self) -> None:
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._idle = 0
        self._count = 0
        self._lock = threading.Lock()

    def run(self, context: contextvars.Context, call: Callable[[], Any]) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            if self._idle == 0:
                self._count += 1
                threading.Thread(target=self._work, name=f"holdfast-job-{self._count}", daemon=True).start()
            else:
                self._idle -= 1
        self._queue.put((context, call, future, loop))
        return future

    def close(self) -> None:
        for _ in range(self._count):
            self._queue.put(None)

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            context, call, future, loop = work
            try:
                value, error = context.run(call), None
            except BaseException as raised:
                value, error = None, raised
            with self._lock:
                self._idle += 1
            try:
                loop.call_soon_threadsafe(_resolve, future, value, error)
            except RuntimeError:
                return  # the loop is gone
            del work, context, call, future, value, error


def _resolve(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    elif isinstance(error, StopIteration):
        future.set_exception(RuntimeError("the handler raised StopIteration"))
    else:
        future.set_exception(error)
