"""Words that people read: numbers that agree with what they count, and times."""

from __future__ import annotations

from datetime import datetime


def count(number: int, what: str) -> str:
    """1 job, 2 jobs, 1,204 jobs."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def span(seconds: float) -> str:
    """A length of time, as short as it can be said: 350 ms, 12 s, 5 min, 2 h 30 min, 3 d."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes and hours < 10 else f"{hours} h"
    return f"{hours // 24} d"


def away(moment: datetime, now: datetime) -> str:
    """How far a moment is from now: 3 s ago, in 5 min."""
    seconds = (moment - now).total_seconds()
    if abs(seconds) < 1:
        return "just now" if seconds <= 0 else "now"
    return f"in {span(seconds)}" if seconds > 0 else f"{span(-seconds)} ago"


def utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d} UTC"
