"""`Pulse`: the beat of the worker's event loop. It tells how late the loop is, and which handler blocks it.

The loop beats by a timer of its own. Another thread looks at it during a stall, and knows a handler by the task that
the loop is in; after a stall, the time that it took is added to the timeouts of the others.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable
from typing import Any

from backstay.clock import SystemClock
from backstay.worker import errors
from backstay.worker.run import Execution

log = logging.getLogger("backstay.worker")
BEAT_SECONDS = 0.5  # between beats of the event loop
LOOK_SECONDS = 0.25  # between looks at it: two that find the same task know who blocks it
STALL_SECONDS = 1.0  # an event loop that is late by more than this was blocked
ADVICE = 'make it a plain `def`, which runs in a thread, or give it isolation="process"'
WHERE_LENGTH_MAX = 300
_LIBRARIES = tuple({sysconfig.get_path(each) for each in ("stdlib", "purelib", "platlib")})
_LOOPS = ("asyncio/runners.py", "asyncio/base_events.py")  # what is outside of these has only started the loop
_CLOCK = SystemClock()  # the loop is blocked in real time, whatever the clock of a test says


class Pulse:
    """The beat of an event loop. The loop beats; any thread may ask how late it is."""

    def __init__(self, executions: Callable[[], Iterable[Execution]]) -> None:
        self._executions = executions
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._beat_at = _CLOCK.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self.blocked_by: Execution | None = None  # during the stall that is under way, or ended last; None: unknown
        self._seen: object = None  # the task that the last look found, in the same stall

    def start(self) -> None:
        self._beat_at = _CLOCK.monotonic()
        self._beat()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        self.check()
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)

    def check(self) -> None:
        """Called on the event loop. Adds the duration of a stall to the other runs' deadlines: a timeout measures a
        handler's own work."""
        late = self.late()
        self._beat_at = _CLOCK.monotonic()
        if late > STALL_SECONDS:
            blocked_by = self.blocked_by
            for execution in self._executions():
                if execution is not blocked_by:
                    execution.deadline += late
            if blocked_by is not None:
                log.warning("the event loop was blocked for %.1f s by %s; %s", late, blocked_by.title, ADVICE)
            else:
                log.warning("the event loop stood still for %.1f s", late)
        self.blocked_by = self._seen = None

    def late(self) -> float:
        """Return how many seconds the loop is late; from any thread."""
        return max(0.0, _CLOCK.monotonic() - self._beat_at - BEAT_SECONDS)

    # From the other thread, during a stall

    def look(self) -> None:
        """Find out which handler blocks the loop. A single look may catch a task that is just about to end."""
        task = asyncio.current_task(self._loop)
        if task is not None and task is self._seen:
            found = _run_of(task)
            self.blocked_by = found if isinstance(found, Execution) else None
        self._seen = task

    def where(self) -> str | None:
        """Return the line of code that the loop's thread is executing: in the program, if possible, not in a library
        that it called."""
        innermost = frame = sys._current_frames().get(self._thread_id)
        while frame is not None and (file := frame.f_code.co_filename).startswith(_LIBRARIES):
            frame = None if file.endswith(_LOOPS) else frame.f_back
        if (found := frame or innermost) is None:
            return None
        return f"{found.f_code.co_filename}:{found.f_lineno} in {found.f_code.co_name}"[-WHERE_LENGTH_MAX:]


def _run_of(task: asyncio.Task[Any]) -> object:
    """Return the run that a task works for. Tasks that a handler starts inherit its context."""
    if sys.version_info >= (3, 12):
        return task.get_context().get(errors.current)
    contexts = (each for each in gc.get_referents(task) if isinstance(each, contextvars.Context))
    return next((found for each in contexts if (found := each.get(errors.current)) is not None), None)
