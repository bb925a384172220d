"""Finds what a handler leaves behind in its process: threads, processes, signal handlers and timers.

A process with leftovers is not used for another job: they would run in the middle of it.
"""

from __future__ import annotations

import signal
import sys
import threading
import time

from backstay.worker import keeper

_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
THREAD_SECONDS = 0.2  # for threads that are about to end: what joins them may return a moment before


class Leftovers:
    """What a handler leaves behind. Created before the handler is called, and asked when it has returned."""

    def __init__(self) -> None:
        self._threads = _threads()
        self._signals = _signals()
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def end(self) -> str | None:
        """Stop timers and kill processes; return a description of what there was. Threads can only be detected."""
        found = []
        if any(signal.setitimer(timer, 0)[0] for timer in _TIMERS):
            found.append("an armed timer")
        if killed := keeper.end_children(_helpers()):
            found.append("a process" if killed == 1 else f"{killed} processes")
        if threads := self._new_threads():
            found.append(f"a thread ({_name(threads[0])})" if len(threads) == 1 else f"{len(threads)} threads")
        signals = _signals()
        changed = [number for number, handler in signals.items() if self._signals.get(number) != handler]
        if changed:
            found.append(f"a handler of {signal.Signals(changed[0]).name}")
        if signal.pthread_sigmask(signal.SIG_BLOCK, ()) != self._mask:
            found.append("blocked signals")
        return " and ".join(found) or None

    def _new_threads(self) -> list[int]:
        patience = time.monotonic() + THREAD_SECONDS
        while (new := list(_threads() - self._threads)) and time.monotonic() < patience:
            time.sleep(0.001)
        return new


def _threads() -> set[int]:
    """Return all threads that run Python, including those that the threading module does not know."""
    return set(sys._current_frames())


def _name(thread: int) -> str:
    return next((each.name for each in threading.enumerate() if each.ident == thread), "without a name")


def _signals() -> dict[int, object]:
    return {number: signal.getsignal(number) for number in signal.valid_signals() if number < signal.SIGRTMIN}


def _helpers() -> set[int]:
    """Return the helper processes of multiprocessing, which serve all its later uses in this process. A fork server
    with children is not one of them: its children belong to the handler."""
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    pids = {getattr(tracker, "_pid", None)}
    server_pid = getattr(server, "_forkserver_pid", None)
    if server_pid is not None and not keeper.children(server_pid):
        pids.add(server_pid)
    return {pid for pid in pids if pid is not None}
