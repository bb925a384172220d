"""Figures for the pages: counters over a time window, and current job counts by status.

Past slots stay in memory: seven days of minutes are read once, newest first, and after that only what is new. Engines
count jobs by walking an index, which takes longer the more jobs there are: the dashboard limits the share of time it
spends on counting. Pages do not wait for either: they show what is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

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
    """Totals for some jobs over some time."""

    __slots__ = ("attempts", "counts", "ran", "ran_micros", "waited", "waited_micros")

    def __init__(self) -> None:
        self.counts = dict.fromkeys(Counted, 0)
        self.ran = [0] * BUCKETS  # attempts by run time, and by wait time
        self.waited = [0] * BUCKETS
        self.attempts = self.ran_micros = self.waited_micros = 0

    def add(self, counter: Counter) -> None:
        self.counts[counter.outcome] += counter.count
        if counter.outcome is Counted.REUSED:
            self.attempts -= counter.count  # also counted as completed, but without an attempt
        if counter.outcome in _ATTEMPTS:
            self.attempts += counter.count
            self.ran_micros += counter.ran_micros
            self.waited_micros += counter.waited_micros
        for bucket, count in counter.buckets:
            ran, waited = spans_of(bucket)
            self.ran[ran] += count
            self.waited[waited] += count

    def merge(self, other: Sums) -> None:
        for outcome, count in other.counts.items():
            self.counts[outcome] += count
        for place in range(BUCKETS):
            self.ran[place] += other.ran[place]
            self.waited[place] += other.waited[place]
        self.attempts += other.attempts
        self.ran_micros += other.ran_micros
        self.waited_micros += other.waited_micros

    @property
    def submitted(self) -> int:
        return self.counts[Counted.SUBMITTED]

    @property
    def completed(self) -> int:
        return self.counts[Counted.COMPLETED]

    @property
    def failed(self) -> int:
        return self.counts[Counted.FAILED]

    @property
    def retried(self) -> int:
        return self.counts[Counted.RETRIED]

    @property
    def cancelled(self) -> int:
        return self.counts[Counted.CANCELLED]

    @property
    def failing(self) -> float | None:
        """The share of attempts that failed, retried or not."""
        bad = self.failed + self.retried
        return bad / (bad + self.completed) if bad + self.completed else None

    @property
    def average_seconds(self) -> float | None:
        return self.ran_micros / self.attempts / MICROS if self.attempts > 0 else None


Kind = tuple[str, str]  # queue and type
Slot = Mapping[Kind, Sums]


def divided(counters: Iterable[Counter], starts: Sequence[Instant], slot_seconds: int) -> dict[Instant, Slot]:
    """Counters grouped by slot; a slot in which nothing happened is empty."""
    width = slot_seconds * MICROS
    slots: dict[Instant, dict[Kind, Sums]] = {start: {} for start in starts}
    for counter in counters:
        slot = slots.get(counter.minute - counter.minute % width)
        if slot is not None:
            kind = (counter.queue, counter.job_type)
            if kind not in slot:
                slot[kind] = Sums()
            slot[kind].add(counter)
    return dict(slots)


def summed(slot: Slot, sees: Callable[[str], bool]) -> Sums:
    """The total of a slot over the visible queues."""
    total = Sums()
    for (queue, _), sums in slot.items():
        if sees(queue):
            total.merge(sums)
    return total


def by_kind(slots: Iterable[Slot], sees: Callable[[str], bool]) -> list[tuple[Kind, Sums]]:
    """Totals per queue and type, busiest first."""
    found: dict[Kind, Sums] = {}
    for slot in slots:
        for kind, sums in slot.items():
            if sees(kind[0]):
                found.setdefault(kind, Sums()).merge(sums)
    return sorted(found.items(), key=lambda each: (-sum(each[1].counts.values()), each[0]))


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
WAIT_SECONDS = 0.2  # for a read, before the page shows what is there
_THREAD_FROM = 2_000  # this many counters are added up in a thread, so as not to block other requests


@dataclass(frozen=True, slots=True)
class Past:
    slots: Sequence[tuple[Instant, Slot]]  # oldest first
    is_complete: bool  # False: some are still being read and look empty


class History:
    """One per server: simultaneous requests share one read."""

    def __init__(self, app: Backstay) -> None:
        self._app = app
        self._known: dict[str, dict[Instant, Slot]] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}

    async def read(self, window: Window) -> Past:
        task = self._reading.get(window.name)
        if task is None or task.done():
            task = self._reading[window.name] = asyncio.get_running_loop().create_task(self._read(window))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        done, _ = await asyncio.wait({task}, timeout=WAIT_SECONDS)
        if done:
            task.result()
        known = self._known.get(window.name, {})
        starts = window.starts(self._app.clock.now())
        return Past([(start, known.get(start, {})) for start in starts], is_complete=bool(done))

    async def _read(self, window: Window) -> None:
        now, width = self._app.clock.now(), window.slot_seconds * MICROS
        starts = window.starts(now)
        before = self._known.get(window.name, {})
        over = now - OPEN_SECONDS * MICROS - width
        known = self._known[window.name] = {start: before[start] for start in starts if start in before}
        missing = [start for start in starts if start not in known or start > over]
        per_part = max(1, PART_SECONDS // window.slot_seconds)
        while missing:
            part, missing = missing[-per_part:], missing[:-per_part]
            counters = await self._app.counters(part[0], part[-1] + width)
            if len(counters) < _THREAD_FROM:
                known.update(divided(counters, part, window.slot_seconds))
            else:
                known.update(await asyncio.to_thread(divided, counters, part, window.slot_seconds))


REST = 8  # a count is not repeated for this many times as long as it took
WAIT_SECONDS = 0.2  # for a count; after that the previous one is shown, if any
DEAD_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Standing:
    counts: dict[str, int]
    depths: Sequence[Depth]
    dead: Sequence[DeadGroup]


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
        return await self._app.counters(self._since, span(self._app.clock.now(), 1)[1])

    async def _count(self) -> Standing:
        began = self._app.clock.monotonic()
        app = self._app
        self._since = span(self._app.clock.now(), 1)[0]
        self._mark = await self._marked()
        self._last = Standing(await app.counts(), await app.depths(), await app.dead(DEAD_SHOWN))
        ended = self._app.clock.monotonic()
        self._took, self._rests_until = ended - began, ended + REST * (ended - began)
        return self._last


def _ignore_error(count: asyncio.Task[Standing]) -> None:
    """No request waits for this count any more, so its error needs no report."""
    if not count.cancelled():
        count.exception()
