"""The only module that reads a clock; also conversions of instants, and waiting with a time limit.

Everything else receives the time as an argument. An instant is an integer number of microseconds since the epoch, in
UTC: exact to compare, the same on every engine, and converted to a datetime only for display.

`within` replaces asyncio.wait_for, which before Python 3.12 swallows a cancellation that arrives together with the
result: a task that was cancelled would run forever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Protocol

from msgspec import Meta

Instant = int
Moment = Annotated[datetime, Meta(tz=True)]  # with a time zone, which JSON Schema calls date-time

MICROS = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Clock(Protocol):
    """The interface to time; tests use a manual clock instead."""

    def now(self) -> Instant:
        """Wall-clock time. May jump; only decides how soon something runs."""
        ...

    def monotonic(self) -> float:
        """Seconds that never decrease, for measuring durations inside this process."""
        ...


class SystemClock:
    """The clock of this machine."""

    __slots__ = ()

    def now(self) -> Instant:
        return time.time_ns() // 1000

    monotonic = staticmethod(time.monotonic)  # called for every commit


def to_instant(moment: datetime) -> Instant:
    """Convert a datetime. A naive one is rejected: guessing its time zone has lost more jobs than it has saved."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone: write datetime(..., tzinfo=UTC)")
    return (moment - _EPOCH) // _MICROSECOND


def to_datetime(instant: Instant) -> datetime:
    return _EPOCH + timedelta(microseconds=instant)


def seconds(span: float | timedelta) -> float:
    """Return a duration in seconds: a number means seconds wherever a timedelta is accepted."""
    return span.total_seconds() if isinstance(span, timedelta) else float(span)


def micros(span: float | timedelta) -> int:
    if isinstance(span, timedelta):
        return span // _MICROSECOND
    if not isinstance(span, int | float) or isinstance(span, bool):
        raise TypeError(f"{type(span).__name__} is not a duration")  # a text times a million would fill the memory
    return round(span * MICROS)


async def within(seconds: float | None, done: Awaitable[object]) -> bool:
    """Wait for an awaitable, at most this long; return whether it finished."""
    try:
        async with asyncio.timeout(seconds):
            await done
    except TimeoutError:
        return False
    return True
