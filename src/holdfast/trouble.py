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
        self._met: dict[str, type[Exception]] = {}  # by what cannot be done now
        self._said: dict[type[Exception], float] = {}
        self._since = 0.0

    def met(self, what: str, error: Exception) -> None:
        """`what` failed, and is tried again. An error that is none of ours is somebody's mistake, and shown whole."""
        now = self._clock.monotonic()
        kind = type(error)
        with self._lock:
            if not self._met:
                self._since = now
            self._met[what] = kind
            if now - self._said.get(kind, float("-inf")) < AGAIN_SECONDS:
                return
            self._said[kind] = now
        if isinstance(error, HoldfastError):
            self._log.warning("%s failed, trying again: %s", what, error)
        else:
            self._log.error("%s failed, trying again", what, exc_info=error)

    def over(self, what: str) -> None:
        """`what` was done."""
        if not self._met:
            return
        with self._lock:
            if self._met.pop(what, None) is None or self._met:
                return
            self._said.clear()
            seconds = self._clock.monotonic() - self._since
        self._log.info("all is well again, after %.3g s", seconds)
