"""Exceptions that a handler raises to choose how its attempt ends: Retry, Snooze, Cancel, Discard."""

from __future__ import annotations

from datetime import timedelta

from backstay.clock import MICROS, micros
from backstay.errors import BackstayError
from backstay.limits import DELAY_SECONDS_MAX


class Directive(BackstayError):
    """The base class of the four below. They are outcomes, not program errors."""


class Retry(Directive):
    """Run again, after the given time or the handler's backoff. Counts as a failure."""

    def __init__(self, reason: str = "retry requested", *, after: float | timedelta | None = None) -> None:
        super().__init__(reason)
        self.after_micros = None if after is None else _bounded(after)


class Snooze(Directive):
    """Run again later. Costs no attempt; a job may snooze a hundred times."""

    def __init__(self, for_: float | timedelta, reason: str | None = None) -> None:
        super().__init__(reason or "snoozed")
        self.for_micros = _bounded(for_)
        self.reason = reason


class Cancel(Directive):
    """End as cancelled."""

    def __init__(self, reason: str = "cancelled by its handler") -> None:
        super().__init__(reason)


class Discard(Directive):
    """Fail for good now, regardless of the attempts left."""

    def __init__(self, reason: str = "discarded by its handler") -> None:
        super().__init__(reason)


def _bounded(span: float | timedelta) -> int:
    """Return a delay in microseconds, from zero up to DELAY_SECONDS_MAX."""
    return min(max(0, micros(span)), round(DELAY_SECONDS_MAX * MICROS))
