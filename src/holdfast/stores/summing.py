"""How totals are kept: whole hours of counters are added to sums, once, when nobody counts in them any more. A total is
the sums and the minutes that came after them, so that reading it stays cheap and dropping old minutes takes nothing
away. Pure."""

from __future__ import annotations

from holdfast.clock import MICROS, Instant
from holdfast.limits import COUNTERS_DAYS

HOUR = 3600 * MICROS
SPAN_MAX = 24 * HOUR  # added in one step: others get the store in between


def closed(now: Instant) -> Instant:
    """The end of what is added to no more. An hour is left to commits that are slow, and clocks that are late."""
    return now - now % HOUR - HOUR


def next_span(until: Instant, oldest: Instant | None, now: Instant) -> tuple[Instant, Instant] | None:
    """Which hours to add to the sums, that have all before `until`; `oldest` is the first minute after it that has
    something."""
    if oldest is None:
        return None
    start, end = max(until, oldest - oldest % HOUR), closed(now)
    return (start, min(end, start + SPAN_MAX)) if start < end else None


def droppable(until: Instant, now: Instant) -> Instant:
    """Minutes before this are over their time, and in the sums."""
    return min(until, now - COUNTERS_DAYS * 24 * HOUR)
