"""What a worker knows of each type it runs: how many, how many wait, how fast they end."""

from __future__ import annotations

from holdfast.clock import Clock
from holdfast.handlers import Handler
from holdfast.limits import PREFETCH_MAX, PREFETCH_SECONDS


class Pace:
    """How many jobs of a type this worker ends in a second: the measure of how far ahead it may claim them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()
        self.ended = 0
        self._per_second = 0.0

    def prefetch(self) -> int:
        now = self._clock.monotonic()
        span = now - self._since
        if span > 0.001:
            self._per_second = (self._per_second + self.ended / span) / 2
            self._since, self.ended = now, 0
        return min(PREFETCH_MAX, int(self._per_second * PREFETCH_SECONDS))

    def stalled(self) -> None:
        """What was claimed ahead had to be given back: nothing more is, until jobs end again."""
        self._since, self.ended, self._per_second = self._clock.monotonic(), 0, 0.0


class Lane:
    """The jobs of one type in this worker."""

    __slots__ = ("asked_at", "buffered", "busy", "handler", "hurried", "limit", "pace")

    def __init__(self, handler: Handler, pace: Pace) -> None:
        self.handler = handler
        self.limit = handler.concurrency
        self.pace = pace
        self.busy = 0
        self.buffered = 0  # claimed, each with a place of its own in line
        self.hurried = False  # the last claim brought some that may not wait for a slot
        self.asked_at = 0.0  # when it was last asked for, on the event loop's clock; 0: it is asked for next

    @property
    def goes_ahead(self) -> bool:
        """Whether its jobs may be claimed ahead of free slots: not where a death of this worker would be the end of
        them, see suspects.may_wait."""
        return self.handler.max_attempts > 1 and not self.hurried

    @property
    def is_full(self) -> bool:
        return self.limit is not None and self.busy >= self.limit

    @property
    def next_up(self) -> int:
        """Of those that wait here, how many would take a free slot: a full type leaves it to the others."""
        return self.buffered if self.limit is None else min(self.buffered, max(0, self.limit - self.busy))
