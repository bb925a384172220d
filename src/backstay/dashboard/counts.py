"""Figures for the pages: counters over a time window, and current job counts by status.

Past slots stay in memory: seven days of minutes are read once, newest first, and after that only what is new. Engines
count jobs by walking an index, which takes longer the more jobs there are: the dashboard limits the share of time it
spends on counting. Pages do not wait for either: they show what is there.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from backstay.app import Backstay
from backstay.clock import MICROS, Instant
from backstay.core.records import Counter, DeadGroup, Depth
from backstay.core.states import BOUNDS, BUCKETS, Counted, spans_of
from backstay.core.stats import span

_ATTEMPTS = (Counted.COMPLETED, Counted.FAILED, Counted.RETRIED)


@dataclass(frozen=True, slots=True)
class Window:
    """A time range to choose from, and the width of its slots."""

    name: str
    says: str
    in_words: str  # after "last"
    seconds: int
    slot_seconds: int

    @property
    def slots(self) -> int:
        return self.seconds // self.slot_seconds

    def starts(self, now: Instant) -> list[Instant]:
        """The start of each slot; the last is the current one."""
        width = self.slot_seconds * MICROS
        last = now - now % width
        return [last - back * width for back in range(self.slots - 1, -1, -1)]


WINDOWS = {
    window.name: window
    for window in (
        Window("1h", "1 h", "hour", 3_600, 60),
        Window("24h", "24 h", "24 hours", 86_400, 900),
        Window("7d", "7 d", "7 days", 604_800, 7_200),
    )
}


class Sums:
    """Totals for some jobs over some time. There may be a hundred thousand of these: only what is not 0 is kept."""

    __slots__ = ("_buckets", "attempts", "counts", "events", "ran_micros", "waited_micros")

    def __init__(self) -> None:
        self.counts: dict[Counted, int] = {}
        self._buckets: dict[int, int] = {}
        self.events = self.attempts = self.ran_micros = self.waited_micros = 0

    def add(self, counter: Counter) -> None:
        outcome, count = counter.outcome, counter.count
        self.counts[outcome] = self.counts.get(outcome, 0) + count
        self.events += count
        if outcome is Counted.REUSED:
            self.attempts -= count  # also counted as completed, but without an attempt
        if outcome in _ATTEMPTS:
            self.attempts += count
            self.ran_micros += counter.ran_micros
            self.waited_micros += counter.waited_micros
        for bucket, attempts in counter.buckets:
            self._buckets[bucket] = self._buckets.get(bucket, 0) + attempts

    def merge(self, other: Sums) -> None:
        for outcome, count in other.counts.items():
            self.counts[outcome] = self.counts.get(outcome, 0) + count
        for bucket, attempts in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + attempts
        self.events += other.events
        self.attempts += other.attempts
        self.ran_micros += other.ran_micros
        self.waited_micros += other.waited_micros

    @property
    def ran(self) -> list[int]:
        """Attempts by run time."""
        return self._by(0)

    @property
    def waited(self) -> list[int]:
        """Attempts by wait time."""
        return self._by(1)

    def _by(self, which: int) -> list[int]:
        found = [0] * BUCKETS
        for bucket, attempts in self._buckets.items():
            found[spans_of(bucket)[which]] += attempts
        return found

    @property
    def submitted(self) -> int:
        return self.counts.get(Counted.SUBMITTED, 0)

    @property
    def completed(self) -> int:
        return self.counts.get(Counted.COMPLETED, 0)

    @property
    def failed(self) -> int:
        return self.counts.get(Counted.FAILED, 0)

    @property
    def retried(self) -> int:
        return self.counts.get(Counted.RETRIED, 0)

    @property
    def cancelled(self) -> int:
        return self.counts.get(Counted.CANCELLED, 0)

    @property
    def failing(self) -> float | None:
        """The share of attempts that failed, retried or not."""
        bad = self.failed + self.retried
        return bad / (bad + self.completed) if bad + self.completed else None

    @property
    def average_seconds(self) -> float | None:
        return self.ran_micros / self.attempts / MICROS if self.attempts > 0 else None


Kind = tuple[str, str]  # queue and type


class Slot(dict[Kind, Sums]):
    """What happened in a slot, by queue and type."""

    @cached_property
    def total(self) -> Sums:
        return summed(self, lambda _: True)


_NOTHING = Slot()


def divided(counters: Iterable[Counter], starts: Sequence[Instant], slot_seconds: int) -> dict[Instant, Slot]:
    """Counters grouped by slot; a slot in which nothing happened is empty."""
    width = slot_seconds * MICROS
    slots = {start: Slot() for start in starts}
    for counter in counters:
        slot = slots.get(counter.minute - counter.minute % width)
        if slot is not None:
            kind = (counter.queue, counter.job_type)
            if kind not in slot:
                slot[kind] = Sums()
            slot[kind].add(counter)
    for slot in slots.values():
        slot.total  # noqa: B018 - computed here, where it may take its time
    return slots


def summed(slot: Slot, sees: Callable[[str], bool]) -> Sums:
    """The total of a slot over the visible queues."""
    total = Sums()
    for (queue, _), sums in slot.items():
        if sees(queue):
            total.merge(sums)
    return total


def events_of(slots: Iterable[Slot]) -> dict[Kind, int]:
    """How much happened in all slots, by queue and type."""
    events: dict[Kind, int] = {}
    for slot in slots:
        for kind, sums in slot.items():
            events[kind] = events.get(kind, 0) + sums.events
    return events


def busiest(
    slots: Sequence[Slot], events: Mapping[Kind, int], sees: Callable[[str], bool], limit: int
) -> tuple[list[tuple[Kind, Sums]], int]:
    """Totals of the busiest queues and types, by `events_of` the slots, and how many there are in all."""
    kinds = [kind for kind in events if sees(kind[0])]
    found = []
    for kind in heapq.nsmallest(limit, kinds, key=lambda each: (-events[each], each)):
        total = Sums()
        for slot in slots:
            if kind in slot:
                total.merge(slot[kind])
        found.append((kind, total))
    return found, len(kinds)


def percentile(buckets: Sequence[int], share: float) -> float | None:
    """The percentile in seconds, as precise as the buckets allow. The last bucket has no upper bound, so its lower
    bound is used."""
    total = sum(buckets)
    if not total:
        return None
    wanted, passed = share * total, 0
    for place, count in enumerate(buckets):
        if count and passed + count >= wanted:
            lower = BOUNDS[place - 1] if place else 0.0
            upper = BOUNDS[place] if place < len(BOUNDS) else lower
            return lower + (upper - lower) * (wanted - passed) / count
        passed += count
    return BOUNDS[-1]


OPEN_SECONDS = 600  # a slot is read again for this long after its end: commits may be slow and clocks late
PART_SECONDS = 43_200  # of counters per read
WAIT_SECONDS = 0.2  # for a read or a count, before the page shows what is there
REST = 8  # what takes long is not repeated for this many times as long as it took
_MANY = 2_000  # counters that are added up in a thread, so as not to block other requests, and not read all the time


@dataclass(frozen=True, slots=True)
class Past:
    slots: Sequence[tuple[Instant, Slot]]  # oldest first
    events: Mapping[Kind, int]  # in all of them
    is_complete: bool  # False: some are still being read and look empty
    again_seconds: float = 0.0  # until newer figures can be had; 0: these are the newest


class _Reading:
    """What is known of a window."""

    def __init__(self) -> None:
        self.known: dict[Instant, Slot] = {}
        self.events: dict[Kind, int] = {}  # of these; added up once, not for each request
        self.task: asyncio.Task[None] | None = None
        self.is_complete = False
        self.rests_until = float("-inf")


class History:
    """One per server: simultaneous requests share one read."""

    def __init__(self, app: Backstay) -> None:
        self._app = app
        self._readings: dict[str, _Reading] = {}

    async def read(self, window: Window) -> Past:
        reading = self._readings.setdefault(window.name, _Reading())
        rests = reading.rests_until - self._app.clock.monotonic()
        if reading.is_complete and rests > 0:
            return self._past(window, reading, True, rests)
        if reading.task is None or reading.task.done():
            reading.task = asyncio.get_running_loop().create_task(self._read(window, reading))
            reading.task.add_done_callback(lambda done: done.cancelled() or done.exception())
        done, _ = await asyncio.wait({reading.task}, timeout=WAIT_SECONDS)
        if done:
            reading.task.result()
        return self._past(window, reading, bool(done), 0.0)

    def _past(self, window: Window, reading: _Reading, is_complete: bool, again_seconds: float) -> Past:
        starts = window.starts(self._app.clock.now())
        slots = [(start, reading.known.get(start, _NOTHING)) for start in starts]
        return Past(slots, reading.events, is_complete or reading.is_complete, again_seconds)

    async def _read(self, window: Window, reading: _Reading) -> None:
        began = self._app.clock.monotonic()
        now, width = self._app.clock.now(), window.slot_seconds * MICROS
        starts = window.starts(now)
        over = now - OPEN_SECONDS * MICROS - width
        reading.known = known = {start: reading.known[start] for start in starts if start in reading.known}
        missing = [start for start in starts if start not in known or start > over]
        per_part = max(1, PART_SECONDS // window.slot_seconds)
        number = 0
        while missing:
            part, missing = missing[-per_part:], missing[:-per_part]
            counters = await self._app.counters(part[0], part[-1] + width, width=width)
            number += len(counters)
            if len(counters) < _MANY:
                known.update(divided(counters, part, window.slot_seconds))
            else:
                known.update(await asyncio.to_thread(divided, counters, part, window.slot_seconds))
            if sum(map(len, known.values())) < _MANY:
                reading.events = events_of(known.values())
            else:
                reading.events = await asyncio.to_thread(events_of, tuple(known.values()))
        reading.is_complete = True
        ended = self._app.clock.monotonic()
        if number >= _MANY:
            reading.rests_until = ended + REST * (ended - began)


DEAD_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Standing:
    counts: dict[str, int]
    depths: Sequence[Depth]
    dead: Sequence[DeadGroup]
    alone: int = 0  # jobs that wait to run alone


@dataclass(frozen=True, slots=True)
class Taken:
    """A count, and when to ask again."""

    standing: Standing | None  # None: the first count is still running
    again_seconds: float  # until a newer count is available; 0: nothing is known to have changed

    @property
    def depths(self) -> Sequence[Depth]:
        return () if self.standing is None else self.standing.depths


class Census:
    """One per server: simultaneous requests share one count."""

    def __init__(self, app: Backstay) -> None:
        self._app = app
        self._last: Standing | None = None
        self._took = self._rests_until = 0.0  # seconds
        self._counting: asyncio.Task[Standing] | None = None
        self._since = 0  # the minute of the last count, and the counters from then on as it began
        self._mark: list[Counter] = []

    async def latest(self) -> Taken:
        rests = self._rests_until - self._app.clock.monotonic()
        if self._last is not None and rests > 0:
            return Taken(self._last, rests if await self._marked() != self._mark else 0.0)
        if self._counting is None or self._counting.done():
            self._counting = asyncio.get_running_loop().create_task(self._count())
            self._counting.add_done_callback(_ignore_error)
        if self._last is not None and self._took > WAIT_SECONDS:
            return Taken(self._last, self._took)
        done, _ = await asyncio.wait({self._counting}, timeout=WAIT_SECONDS)
        return Taken(self._counting.result(), 0.0) if done else Taken(self._last, WAIT_SECONDS)

    async def _marked(self) -> list[Counter]:
        """A cheap way to tell whether jobs were submitted or finished."""
        return await self._app.counters(self._since, span(self._app.clock.now(), 1)[1], kinds=False)

    async def _count(self) -> Standing:
        began = self._app.clock.monotonic()
        app = self._app
        self._since = span(self._app.clock.now(), 1)[0]
        self._mark = await self._marked()
        depths = await app.depths()
        self._last = Standing(await app.counts(), depths, await app.dead(DEAD_SHOWN), await app.waiting_alone(depths))
        ended = self._app.clock.monotonic()
        self._took, self._rests_until = ended - began, ended + REST * (ended - began)
        return self._last


def _ignore_error(count: asyncio.Task[Standing]) -> None:
    """No request waits for this count any more, so its error needs no report."""
    if not count.cancelled():
        count.exception()
