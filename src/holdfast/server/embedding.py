"""Inside another application: its lifespan opens ours, and its server's end is the end of our streams.

A server that is told to stop waits for its connections, and only then for the lifespan: a dashboard that someone has
open would hold it up for ever. So the signals that stop it are passed on to the gates of the app first.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from holdfast.app import Holdfast
from holdfast.server.gate import Gate

_gates: WeakKeyDictionary[Holdfast, WeakSet[Gate]] = WeakKeyDictionary()


def remember(app: Holdfast, gate: Gate) -> None:
    _gates.setdefault(app, WeakSet()).add(gate)


def opened(
    app: Holdfast, worker: bool, worker_options: Mapping[str, Any]
) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        with _streams_end_first(app):
            async with app, app.worker(**worker_options) if worker else app.chores("server"):
                yield

    return lifespan


@contextlib.contextmanager
def _streams_end_first(app: Holdfast) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    loop = asyncio.get_running_loop()
    wrapped: dict[signal.Signals, Any] = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)
        if callable(before) and before is not signal.default_int_handler:
            wrapped[number] = before
            signal.signal(number, _passed_on(before, loop, app))
    try:
        yield
    finally:
        for number, before in wrapped.items():
            signal.signal(number, before)


def _passed_on(
    before: Callable[[int, FrameType | None], Any], loop: asyncio.AbstractEventLoop, app: Holdfast
) -> Callable[[int, FrameType | None], None]:
    def heard(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(_end_streams, app)
        before(number, frame)

    return heard


def _end_streams(app: Holdfast) -> None:
    for gate in _gates.get(app, ()):
        gate.end_streams()
