"""What is said of a store in trouble: a line when that begins, one a minute while it lasts, one when it is over.

All loops of a worker meet the same outage, and try again and again: each of them would say so each time.
"""

from __future__ import annotations

import logging
import threading

from holdfast.clock import Clock
from holdfast.errors import ForkedStore, HoldfastError, StoreGone

AGAIN_SECONDS = 60.0
HOPELESS = (StoreGone, ForkedStore)  # no try will ever succeed


class Trouble:
    """One for all who try again on the same store. Any thread may call it."""

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._met: set[str] = set()  # what could not be done when it was last tried
        self._said: dict[type[Exception], float] = {}
        self._since = 0.0

    def met(self, what: str, error: Exception, *, soon: bool = True) -> None:
        """`what` failed, and is tried again: soon, or it is not waited for until all is well. An error that is none of
        ours is somebody's mistake, and shown whole."""
        now = self._clock.monotonic()
        kind = type(error)
        with self._lock:
            if not self._said:
                self._since = now
            if soon:
                self._met.add(what)
            if now - self._said.get(kind, float("-inf")) < AGAIN_SECONDS:
                return
            self._said[kind] = now
        if isinstance(error, HoldfastError):
            self._log.warning("%s failed, trying again: %s", what, error)
        else:
            self._log.error("%s failed, trying again", what, exc_info=error)

    def over(self, what: str) -> None:
        """`what` was done."""
        if not self._said:
            return
        with self._lock:
            self._met.discard(what)
            if self._met or not self._said:
                return
            self._said.clear()
            seconds = self._clock.monotonic() - self._since
        self._log.info("all is well again, after %.3g s", seconds)
