"""Gathering the jobs of a batch handler, until there are enough for a call or the first has waited for long enough."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from holdfast.batches import BatchHandler
from holdfast.limits import AHEAD_SECONDS_MAX
from holdfast.store.types import ClaimedJob
from holdfast.worker.items import Item
from holdfast.worker.lanes import Lane, Pace
from holdfast.worker.run import Run


class Turn:
    """A place in line for a call. Which jobs it is made for is decided when it is its turn: more may have come."""

    __slots__ = ("lane", "taken_at")

    def __init__(self, lane: BatchLane, taken_at: float) -> None:
        self.lane = lane
        self.taken_at = taken_at


class BatchLane(Lane):
    """The jobs of one batch type. `busy` and `limit` count calls.

    Here are those that share a call; one that is called alone stands in line by itself.
    """

    __slots__ = ("_due", "_fresh", "_line_up", "_loop", "_timer", "_turns", "max_size", "max_wait")

    def __init__(self, handler: BatchHandler, pace: Pace, line_up: Callable[[Turn], None]) -> None:
        super().__init__(handler, pace)
        self.max_size = handler.max_size
        self.max_wait = handler.max_wait_seconds
        self._line_up = line_up
        self._fresh: deque[Item] = deque()
        self._turns = 0  # in line
        self._due = False  # the oldest has waited for long enough
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def _calls(self) -> int:
        """How many calls those take that wait here."""
        return -(-len(self._fresh) // self.max_size)

    @property
    def next_up(self) -> int:
        """How many slots to keep free: for calls that are ready, and for one that will be in a moment. A slot is not
        kept for a batch that may take long to fill."""
        soon = self.buffered + (self._calls if self.max_wait <= AHEAD_SECONDS_MAX else self._ready)
        return soon if self.limit is None else min(soon, max(0, self.limit - self.busy))

    @property
    def _ready(self) -> int:
        return self._calls if self._due else len(self._fresh) // self.max_size

    def room(self, free: int, *, ahead: bool) -> int:
        """How many jobs may be claimed when so many slots are free: a batch for each, and one more ahead of them."""
        calls = free + self.next_up
        if self.limit is not None:
            calls = min(calls, max(0, self.limit - self.busy))
        batches = max(0, calls - self.buffered) + (1 if ahead else 0)
        return max(0, batches * self.max_size - len(self._fresh))

    def gather(self, job: ClaimedJob, token: str, now: float) -> Item:
        item = Item(job, self, token)
        item.taken_at = now
        self._fresh.append(item)
        return item

    def look(self, *, at_once: bool = False) -> None:
        """Line up for what is ready; the rest waits for more."""
        if self._fresh and (at_once or self.max_wait == 0):
            self._due = True
        while self._turns < self._ready:
            self._turns += 1
            self._line_up(Turn(self, self._loop.time()))
        if self._fresh and not self._due and self._timer is None:
            self._timer = self._loop.call_at(self._fresh[0].taken_at + self.max_wait, self._waited)

    def _waited(self) -> None:
        self._timer = None
        self._due = bool(self._fresh)
        self.look()

    def take(self) -> list[Item]:
        """The jobs of the next call; none where all were lost meanwhile. Whoever asks gives a turn back."""
        self._turns -= 1
        items = [self._fresh.popleft() for _ in range(min(self.max_size, len(self._fresh)))]
        self._reset_timer()
        self.look()
        return items

    def drop(self, run: Run) -> None:
        """Lost or cancelled while it waited."""
        if run in self._fresh:
            self._fresh.remove(run)  # type: ignore[arg-type]
        if not self._fresh:
            self._reset_timer()

    def empty(self) -> list[Item]:
        left = list(self._fresh)
        self._fresh.clear()
        self._reset_timer()
        return left

    def _reset_timer(self) -> None:
        self._due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
