"""`ManualClock`, a clock that only a test advances, and a URL for a throwaway store."""

from __future__ import annotations

import os
import threading
from datetime import datetime, timedelta
from pathlib import Path

from backstay.clock import MICROS, Instant, SystemClock, micros, to_datetime, to_instant


class ManualClock:
    """`Backstay(url, clock=ManualClock(datetime(2030, 1, 1, tzinfo=UTC)))`. The default start is now.

    `advance` lets time pass, `set` jumps to a time, `moment` returns the current one.
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
        """The current time as a datetime."""
        return to_datetime(self.now())

    def advance(self, span: float | timedelta) -> None:
        """Let time pass: seconds or a timedelta."""
        passed = micros(span)
        if passed < 0:
            raise ValueError(f"advance({span!r}): time only moves forward; use set() to turn the clock back")
        with self._lock:
            self._now += passed
            self._passed += passed

    def set(self, moment: datetime) -> None:
        """Jump to a time. Forward, time passes; backward, the clock was set back, and no elapsed time shrinks."""
        instant = to_instant(moment)
        with self._lock:
            self._passed += max(0, instant - self._now)
            self._now = instant

    def __repr__(self) -> str:
        return f"ManualClock({self.moment.isoformat()})"


def throwaway_url(folder: str | os.PathLike[str], name: str = "jobs.db") -> str:
    """Return the URL of a queue in a temporary folder, such as pytest's tmp_path:
    `Backstay(throwaway_url(tmp_path))`."""
    return f"sqlite:///{Path(folder).absolute() / name}"
