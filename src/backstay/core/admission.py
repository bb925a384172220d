"""The bucket behind a rate limit. Pure.

A bucket is one number: the instant at which it would be full again. Every start moves it forward by one share of the
span; a job may start as long as that leaves the bucket within one span of now.
"""

from __future__ import annotations

import re

from backstay.clock import MICROS, Instant
from backstay.core.records import Rate
from backstay.errors import InvalidOption

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_RATE = re.compile(r"(\d{1,9})/(\d{1,6})?(s|m|h|d)")


def parse(text: str | Rate | None) -> Rate | None:
    """Parse a rate such as 10/s, 100/m, 5/30s or 1000/h."""
    if text is None or isinstance(text, Rate):
        return text
    found = _RATE.fullmatch(text.replace(" ", "")) if isinstance(text, str) else None
    if found is None or int(found[1]) == 0 or int(found[2] or 1) == 0:
        raise InvalidOption(f'rate={text!r:.60}: write "10/s", "100/m", "5/30s", "1000/h"')
    return Rate(int(found[1]), int(found[2] or 1) * _UNITS[found[3]] * MICROS)


def room(rate: Rate, full_at: Instant, now: Instant) -> int:
    """Return how many jobs may start now."""
    spent = min(max(full_at - now, 0), rate.micros)  # a clock that jumped can leave more than a span
    return (rate.micros - spent) * rate.count // rate.micros


def take(rate: Rate, full_at: Instant, now: Instant, starts: int) -> Instant:
    """Return when the bucket is full again after this many starts."""
    full_at = min(max(full_at, now), now + rate.micros)
    return full_at + -(-starts * rate.micros // rate.count)


def due_at(rate: Rate, full_at: Instant, now: Instant) -> Instant:
    """Return when the next job may start."""
    share = -(-rate.micros // rate.count)
    return max(now, min(full_at, now + rate.micros) + share - rate.micros)
