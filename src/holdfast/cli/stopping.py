"""How a command that runs for long is told to stop, and made to end."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from holdfast.cli import supervisor
from holdfast.cli.exits import Exit

log = logging.getLogger("holdfast.worker")
SAME_SIGNAL_SECONDS = 0.5  # a service manager tells the whole group, and a parent passes it on: that is one signal


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed: a tenth more jobs per second."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def first_of(task: asyncio.Future[Any], event: asyncio.Event) -> None:
    waits = asyncio.ensure_future(event.wait())
    await asyncio.wait({task, waits}, return_when=asyncio.FIRST_COMPLETED)
    waits.cancel()


_STOPPING = (signal.SIGTERM, signal.SIGINT)
_unmasked = threading.local()


@functools.cache  # once in a process: a second pair would find the signals masked, and leave them so
def _let_children_have_their_own_signals() -> None:
    """A child that a handler forks shares the pipe that tells this process of signals: one sent to the child would stop
    the worker. It gets the usual ones back, and until then hears none."""

    def mask() -> None:
        _unmasked.signals = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)

    def unmask() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _unmasked.signals)

    def forget() -> None:
        signal.set_wakeup_fd(-1)
        for number in _STOPPING:
            signal.signal(number, signal.SIG_DFL)
        unmask()

    os.register_at_fork(before=mask, after_in_parent=unmask, after_in_child=forget)


class Stop:
    """Counts the signals, and takes the end of a supervising parent for the first one."""

    def __init__(self, grace_seconds: float) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        self._last_at = float("-inf")
        loop = asyncio.get_running_loop()
        for number in _STOPPING:
            loop.add_signal_handler(number, self._signalled, number)
        _let_children_have_their_own_signals()
        supervisor.watch_parent(lambda: loop.call_soon_threadsafe(self.asked.set), grace_seconds)

    def _signalled(self, number: signal.Signals) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._last_at < SAME_SIGNAL_SECONDS:
            return
        self._last_at = now
        if not self.asked.is_set():
            log.info("%s: no new jobs; what runs may finish. Once more stops it at once", number.name)
            self.asked.set()
        elif not self.hurried.is_set():
            log.warning("%s: what runs is stopped and given back", number.name)
            self.hurried.set()
        else:
            os._exit(Exit.FAILED)


def leave_within(seconds: float, code: int) -> None:
    """A handler that ignores its cancellation, or a thread that hangs, must not keep a stopped worker alive."""

    def leave() -> None:
        sys.stderr.flush()
        os._exit(code)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()
