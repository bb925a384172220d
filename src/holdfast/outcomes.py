"""What a handler can raise to say how its attempt shall end."""

from __future__ import annotations

from datetime import timedelta

from holdfast.clock import MICROS, micros
from holdfast.errors import HoldfastError
from holdfast.limits import DELAY_SECONDS_MAX


class Directive(HoldfastError):
    """The root of the four below. They are answers, not failures of the program."""


class Retry(Directive):
    """Run again, after the given time or the handler's backoff. Counts as a failure."""

    def __init__(self, reason: str = "retry asked for", *, after: float | timedelta | None = None) -> None:
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
    """End as failed now, whatever attempts are left."""

    def __init__(self, reason: str = "discarded by its handler") -> None:
        super().__init__(reason)


def _bounded(span: float | timedelta) -> int:
    """Not before now, and not so late that no clock reaches it."""
    return min(max(0, micros(span)), round(DELAY_SECONDS_MAX * MICROS))
