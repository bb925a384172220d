"""A fork waits until no thread of ours is inside SQLite: the locks that one holds there would be held for ever in the
child, and its first call of SQLite would hang."""

from __future__ import annotations

import os
import threading
from weakref import WeakSet

WAIT_SECONDS = 2.0  # per thread: who waits for another process's write lock may be inside for longer


class _Gate(threading.local):
    """A lock for each thread, which costs it nothing to take: only a fork ever asks for the lock of another."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        with _registering:
            _locks.add(self.lock)


_registering = threading.Lock()
_locks: WeakSet[threading.Lock] = WeakSet()
_gate = _Gate()
_one_fork = threading.Lock()
_taken: list[threading.Lock] = []


def inside() -> threading.Lock:
    """`with inside():` around every use of a connection."""
    return _gate.lock


def _before() -> None:
    own = _gate.lock  # first: a thread that has none yet registers it now
    _one_fork.acquire()
    _registering.acquire()
    for lock in tuple(_locks):
        if lock is not own and lock.acquire(timeout=WAIT_SECONDS):
            _taken.append(lock)


def _after() -> None:
    while _taken:
        _taken.pop().release()
    _registering.release()
    _one_fork.release()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
