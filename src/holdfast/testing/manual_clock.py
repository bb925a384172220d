"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

from holdfast.clock import MICROS, Instant, SystemClock, micros, to_datetime, to_instant


class ManualClock:
    """`Holdfast(url, clock=ManualClock(datetime(2030, 1, 1, tzinfo=UTC)))`. Without a start it begins now.

    `advance` lets time pass, `set` goes to a moment, `moment` says which it is.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._now = SystemClock().now() if start is None else to_instant(start)
        self._passed = 0  # microseconds; never goes back
        self._lock = threading.Lock()  # the lease keeper reads from a thread of its own

    def now(self) -> Instant:
        with self._lock:
            return self._now

    def monotonic(self) -> float:
        with self._lock:
            return self._passed / MICROS

    @property
    def moment(self) -> datetime:
        """The same as now(), for people."""
        return to_datetime(self.now())

    def advance(self, span: float | timedelta) -> None:
        """Let time pass: seconds or a timedelta."""
        passed = micros(span)
        if passed < 0:
            raise ValueError(f"advance({span!r}): time passes forward; set() turns the clock back")
        with self._lock:
            self._now += passed
            self._passed += passed

    def set(self, moment: datetime) -> None:
        """Go to a moment. Forward, time passes; back, somebody turned the clock, and no span gets shorter."""
        instant = to_instant(moment)
        with self._lock:
            self._passed += max(0, instant - self._now)
            self._now = instant

    def __repr__(self) -> str:
        return f"ManualClock({self.moment.isoformat()})"
