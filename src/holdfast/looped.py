"""Something async for those who block: it lives on an event loop in a thread of its own, and calls wait there."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, Protocol, Self, TypeVar

from holdfast.errors import ForkedStore, NotOpen

T = TypeVar("T")


class _Opened(Protocol):
    def __aenter__(self) -> Coroutine[Any, Any, Any]: ...

    def __aexit__(self, *exc: object) -> Coroutine[Any, Any, None]: ...


class Looped:
    def __init__(self, opened: _Opened) -> None:
        self._opened = opened
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._entered = 0
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        if os.getpid() != self._pid:  # forked: what the parent has opened is the parent's, its lock and loop too
            self._lock, self._entered, self._loop, self._thread = threading.Lock(), 0, None, None
            self._pid = os.getpid()
        with self._lock:
            self._entered += 1
            if self._entered > 1:
                return self
            self._start_loop()
            try:
                self._call(self._opened.__aenter__())
            except BaseException:
                self._entered = 0
                self._stop_loop()
                raise
        return self

    def __exit__(self, *exc: object) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._entered -= 1
            if self._entered:
                return
            try:
                self._call(self._opened.__aexit__(None, None, None))
            finally:
                self._stop_loop()

    def _start_loop(self) -> None:
        loop = asyncio.new_event_loop()
        self._loop = loop
        self._pid = os.getpid()
        self._thread = threading.Thread(target=_run_loop, args=(loop,), name="holdfast-sync", daemon=True)
        self._thread.start()

    def _stop_loop(self) -> None:
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._loop is not None and os.getpid() != self._pid:  # the thread that would answer is not in this process
            coroutine.close()
            raise ForkedStore("this app was opened before fork(): open it in the child process, after the fork")
        if self._loop is None:
            coroutine.close()
            raise NotOpen("the app is not open: use it inside `with app:`")
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise NotOpen("a blocking call on the event loop would wait for itself: use it from another thread")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except (KeyboardInterrupt, concurrent.futures.CancelledError):
            future.cancel()
            raise


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
