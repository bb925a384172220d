"""`Stop`: how a process that runs jobs hears signals and comes to its end, whatever its event loop does.

The first signal stops claiming, and running jobs may finish within the grace. The second stops them now, the third ends
the process at once.
"""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from backstay import posix

log = logging.getLogger("backstay.worker")
FAILED = 1  # the exit status of a process that had to be ended
STOPPING = (signal.SIGTERM, signal.SIGINT)
_unmasked = threading.local()


@functools.cache  # once in a process: a second pair would find the signals masked, and leave them so
def _let_children_have_their_own_signals() -> None:
    """Restore the usual signal handlers in a child that a handler forks, and block signals until then. The child shares
    the pipe that tells this process of signals: one sent to the child would otherwise stop the worker."""

    def mask() -> None:
        _unmasked.signals = posix.block_signals(STOPPING)

    def unmask() -> None:
        posix.restore_signals(_unmasked.signals)

    def forget() -> None:
        if Stop.current is not None:
            signal.set_wakeup_fd(-1)
            for number in STOPPING:
                signal.signal(number, signal.SIG_DFL)
        unmask()

    posix.at_fork(before=mask, after_in_parent=unmask, after_in_child=forget)


SAME_SIGNAL_SECONDS = 0.5  # a service manager tells the whole group, and a parent passes it on: that is one signal
BLOCKED_SECONDS = 3.0  # beyond the grace, before a process whose event loop is blocked ends all the same …
STOP_SECONDS = 30.0  # … and one whose event loop runs, but does not come to an end
ABANDON_SECONDS = 3.0  # to give jobs back without the event loop
PULSE_SECONDS = 1.0  # between signs of life to a supervisor
SILENT_LEASES = 3  # without one, before the supervisor replaces the process …
SILENT_SECONDS_MIN = 10.0  # … and no less: a busy machine is not a dead worker
_BY_HAND = 0x80  # of a byte that Python wrote: the C handler of a signal wrote none, or not here
_LEAVE, _PARENT = b"\0", b"\x7f"
_STDERR = 2


class Watched(Protocol):
    """A worker on the same event loop."""

    def on_dead_loop(self, call: Callable[[], None]) -> None: ...

    def is_blocked(self) -> bool: ...

    def abandon(self, seconds: float) -> None: ...


class Stop:
    """Receives signals in a thread of its own, counts them, and treats the end of a supervising parent as the first
    one.

    A handler that blocks the event loop must not keep the process from hearing signals, nor from ending. Python runs
    its part of a signal handler in the main thread, which may be blocked. The C part writes the signal's number to a
    socket at once, and the thread reads it there. If C code holds the interpreter lock, so that the thread cannot run
    either, `faulthandler` ends the process."""

    current: Stop | None = None

    def __init__(self, grace_seconds: float, pulse: int | None = None) -> None:
        """Call this in the main thread. `pulse`: a file descriptor that gets a sign of life each second, for a
        supervisor."""
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        self._grace_seconds = grace_seconds
        self._loop = asyncio.get_running_loop()
        self._workers: list[Watched] = []
        self._signals = 0  # that count
        self._last_at = float("-inf")
        self._ends_at = self._ends_at_last = float("inf")
        self._by_python = self._by_c = 0
        self._theirs, self._ours = socket.socketpair()
        self._ours.setblocking(False)
        self._patience_seconds = 0.0
        self._pulse = pulse
        self._before = {number: signal.signal(number, self._heard) for number in STOPPING}
        self._wakeup_before = self.listen()
        Stop.current = self
        _let_children_have_their_own_signals()
        self._thread = threading.Thread(target=self._hear, name="backstay-signals", daemon=True)
        self._thread.start()

    def listen(self) -> int:
        """Receive signals here, even if a loop that has started meanwhile took them over. Return the file descriptor
        that got them before."""
        return signal.set_wakeup_fd(self._ours.fileno(), warn_on_full_buffer=False)

    def parent_is_gone(self) -> None:
        """Count the end of the parent as the first signal; from any thread."""
        self._tell(_PARENT)

    def close(self) -> None:
        """Restore what signals did before; in the main thread."""
        Stop.current = None
        signal.set_wakeup_fd(-1 if self._loop.is_closed() else self._wakeup_before)  # which may be the loop's
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._ends_at = self._ends_at_last = float("inf")
        self._ours.shutdown(socket.SHUT_RDWR)  # the thread hears it, even where a forked child holds a copy
        self._thread.join()
        self._ours.close()
        self._theirs.close()
        faulthandler.cancel_dump_traceback_later()

    def watch(self, workers: Iterable[Watched], lease_seconds: float) -> None:
        """End the process if a handler of these workers blocks the event loop for good."""
        self._workers = list(workers)
        self._patience_seconds = max(SILENT_SECONDS_MIN, SILENT_LEASES * lease_seconds)
        for worker in self._workers:
            worker.on_dead_loop(lambda: self._tell(_LEAVE))

    @property
    def _is_blocked(self) -> bool:
        return any(worker.is_blocked() for worker in self._workers)

    def _heard(self, number: int, frame: object) -> None:
        """Handle a signal in the main thread, once it gets to run."""
        self._by_python += 1
        self._end_without_threads()  # at once: what the main thread does next may keep the thread from running
        if self._by_python > self._by_c:
            self._tell(bytes([number | _BY_HAND]))
        if self._is_blocked:
            time.sleep(0.1)  # C code that holds the interpreter lock, and looks for signals: the thread gets its turn

    def _end_without_threads(self) -> None:
        """Arm a timer that ends the process unless the thread, which calls this repeatedly, disarms it in time."""
        left = self._ends_at - time.monotonic()
        if left == float("inf"):  # the thread has not heard yet
            left = self._grace_seconds + BLOCKED_SECONDS
        # A descriptor, not `sys.stderr`: that may be anything, or nothing.
        faulthandler.dump_traceback_later(max(0.0, left) + ABANDON_SECONDS + 1, exit=True, file=_STDERR)

    def _tell(self, what: bytes) -> None:
        with suppress(OSError):  # full: it has enough to hear; or closed
            self._ours.send(what)

    def _call(self, what: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(what)

    # In the thread

    def _hear(self) -> None:
        while True:
            if self._pulse is not None and self._patience_seconds:
                with suppress(OSError):  # the supervisor is gone: `watch_parent` knows
                    os.write(self._pulse, f"{self._patience_seconds:g}\n".encode())
            left = max(0.0, self._ends_at - time.monotonic())
            if self._signals:
                self._end_without_threads()
            if select.select([self._theirs], [], [], min(left, PULSE_SECONDS))[0]:
                said = self._theirs.recv(64)
                if not said:
                    return
                for byte in said:
                    self._said(byte)
            elif time.monotonic() >= self._ends_at:
                if self._is_blocked or time.monotonic() >= self._ends_at_last:
                    self._leave()
                self._ends_at = min(self._ends_at + PULSE_SECONDS, self._ends_at_last)

    def _said(self, byte: int) -> None:
        if not byte:
            log.critical("a handler has blocked the event loop beyond its timeout: this process ends with status 1")
            self._leave()
        if not byte & _BY_HAND:
            self._by_c += 1
        number = byte & ~_BY_HAND
        if byte == _PARENT[0]:
            self._signalled("the end of the supervisor")
        elif number in STOPPING:
            self._signalled(signal.Signals(number).name)

    def _signalled(self, what: str) -> None:
        now = time.monotonic()
        if now - self._last_at < SAME_SIGNAL_SECONDS:
            return
        self._last_at = now
        self._signals += 1
        if self._signals > 2:
            os._exit(FAILED)
        grace = self._grace_seconds if self._signals == 1 else 0.0
        self._ends_at, self._ends_at_last = now + grace + BLOCKED_SECONDS, now + grace + STOP_SECONDS
        if self._signals == 1:
            log.info("%s: taking no new jobs; running jobs may finish. Send it again to stop them now", what)
            self._call(self.asked.set)
        else:
            log.warning("%s: stopping running jobs and giving them back", what)
            self._call(self.hurried.set)

    def _leave(self) -> None:
        if self._signals:
            log.error(
                "the event loop %s: giving back all jobs, and ending with status 1",
                "is blocked" if self._is_blocked else "does not come to an end",
            )
        for worker in self._workers:
            worker.abandon(ABANDON_SECONDS / len(self._workers))
        with suppress(Exception):
            sys.stderr.flush()
        os._exit(FAILED)
