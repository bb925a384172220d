"""The only module that reads a clock. Everything else is told the time.

An instant is a whole number of microseconds since the epoch, in UTC: exact to compare, the same on every
engine, and a datetime only where a person sees it.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

Instant = int

MICROS = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Clock(Protocol):
    """What the system asks of time; tests put a manual clock in its place."""

    def now(self) -> Instant:
        """Wall-clock time. May jump; only decides how soon something runs."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, for measuring spans inside this process."""
        ...


class SystemClock:
    """The clock of this machine."""

    __slots__ = ()

    def now(self) -> Instant:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()


def to_instant(moment: datetime) -> Instant:
    """A naive datetime is refused: guessing its zone has lost more jobs than it has saved."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone: write datetime(..., tzinfo=UTC)")
    return (moment - _EPOCH) // _MICROSECOND


def to_datetime(instant: Instant) -> datetime:
    return _EPOCH + timedelta(microseconds=instant)


def seconds(span: float | timedelta) -> float:
    """A number means seconds wherever a timedelta is taken."""
    return span.total_seconds() if isinstance(span, timedelta) else float(span)


def micros(span: float | timedelta) -> int:
    if isinstance(span, timedelta):
        return span // _MICROSECOND
    if not isinstance(span, int | float) or isinstance(span, bool):
        raise TypeError(f"{type(span).__name__} is no length of time")  # a text times a million would fill the memory
    return round(span * MICROS)
