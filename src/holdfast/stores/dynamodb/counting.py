"""Counters: each commit adds to items that only its own store writes, so that counting never waits for anybody."""

from __future__ import annotations

import contextlib
import heapq
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from holdfast.clock import MICROS, Instant
from holdfast.lifecycle import Counted, Kind
from holdfast.limits import COUNTERS_DAYS
from holdfast.store.types import Counter
from holdfast.stores.dynamodb import keys
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.writes import Write, update

if TYPE_CHECKING:
    from holdfast.stores.dynamodb.table import Tables

MINUTE = 60 * MICROS
HOUR = 60 * MINUTE
_SUMS = ("n", "ran", "waited")
Counts = Mapping[tuple[Kind, Counted], tuple[int, int, int]]


class CounterLane:
    """One writer's counters of one minute; lent to one commit at a time."""

    def __init__(self, store: str, number: int, now: Instant) -> None:
        self.writer = f"{store}{number}"
        self.slot = keys.slot(store)
        self.minute = now // MINUTE * MINUTE

    @property
    def hour(self) -> int:
        return self.minute // HOUR

    def writes(self, counts: Counts) -> list[Write]:
        partition = keys.counted(self.hour, self.slot)
        return [self._write(partition, kind, outcome, sums) for (kind, outcome), sums in counts.items()]

    def _write(self, partition: str, kind: Kind, outcome: Counted, sums: tuple[int, int, int]) -> Write:
        added = dict(zip(_SUMS, sums, strict=True))
        return update(
            Table.RECORDS, (partition, self._place(kind, outcome)), sets=self._names(kind, outcome), adds=added
        )

    def _place(self, kind: Kind, outcome: Counted) -> str:
        job_type, queue, priority = kind
        return f"{keys.at(self.minute)}|{self.writer}|{keys.joined(job_type, queue)}|{priority}|{outcome.value}"

    def _names(self, kind: Kind, outcome: Counted) -> Item:
        job_type, queue, priority = kind
        return {"minute": self.minute, "job_type": job_type, "queue": queue, "prio": priority, "what": outcome.value}

    def item(self, counter: Counter) -> Item:
        """A counter as it was elsewhere, whole."""
        kind = (counter.job_type, counter.queue, counter.priority)
        place = {"pk": keys.counted(self.hour, self.slot), "sk": self._place(kind, counter.outcome)}
        sums = dict(zip(_SUMS, (counter.count, counter.ran_micros, counter.waited_micros), strict=True))
        return {**place, **self._names(kind, counter.outcome), **sums}

    def hour_item(self) -> Item:
        """Readers ask first which hours have counters: a month is not three thousand queries then."""
        place = {"pk": keys.COUNT_HOURS, "sk": f"{self.hour:08d}|{self.slot}"}
        return {**place, "hour": self.hour, "slot": self.slot}


class CounterLanes:
    """A store's own names as a writer: as many as it has commits under way."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._name = secrets.token_hex(4)
        self._free: list[int] = []
        self._made = 0
        self._hours: set[tuple[int, int]] = set()

    @contextlib.asynccontextmanager
    async def lent(self, now: Instant, needed: bool) -> AsyncIterator[CounterLane]:
        if not needed:
            yield CounterLane(self._name, 0, now)
            return
        if self._free:
            number = heapq.heappop(self._free)
        else:
            number = self._made
            self._made += 1
        lane = CounterLane(self._name, number, now)
        try:
            await self._announce(lane)
            yield lane
        finally:
            heapq.heappush(self._free, number)

    async def _announce(self, lane: CounterLane) -> None:
        if (lane.hour, lane.slot) in self._hours:
            return
        await self._tables.put(Table.RECORDS, lane.hour_item())
        if len(self._hours) > 100:
            self._hours.clear()
        self._hours.add((lane.hour, lane.slot))


async def counters(tables: Tables, since: Instant, until: Instant) -> list[Counter]:
    """The minutes that begin in [since, until), summed over writers, oldest first."""
    if since >= until:
        return []
    sums: dict[tuple[Instant, str, str, int, str], tuple[int, int, int]] = {}
    for hour, slot in await hours(tables, max(0, since) // HOUR, until // HOUR):
        ask = Ask(
            table=Table.RECORDS,
            hash=keys.counted(hour, slot),
            above=keys.at(since),
            below=keys.at(until),
            consistent=True,
        )
        async for item in tables.ask(ask):
            place = (item["minute"], item["job_type"], item["queue"], item["prio"], item["what"])
            before = sums.get(place, (0, 0, 0))
            sums[place] = (before[0] + item["n"], before[1] + item["ran"], before[2] + item["waited"])
    return [
        Counter(minute, job_type, queue, priority, Counted(outcome), *sums[minute, job_type, queue, priority, outcome])
        for minute, job_type, queue, priority, outcome in sorted(sums)
    ]


async def hours(tables: Tables, first: int, last: int) -> list[tuple[int, int]]:
    ask = Ask(
        table=Table.RECORDS,
        hash=keys.COUNT_HOURS,
        above=f"{first:08d}",
        up_to=f"{last:08d}|{keys.HIGH}",
        consistent=True,
    )
    return [(item["hour"], item["slot"]) async for item in tables.ask(ask)]


async def drop_old(tables: Tables, now: Instant) -> None:
    """Counters over their time; their hour is forgotten last, so that a death in between loses nothing."""
    oldest = (now - COUNTERS_DAYS * 24 * HOUR) // HOUR
    for hour, slot in await hours(tables, 0, oldest - 1):
        ask = Ask(table=Table.RECORDS, hash=keys.counted(hour, slot), only=("pk", "sk"), consistent=True)
        found = [(item["pk"], item["sk"]) async for item in tables.ask(ask)]
        await tables.delete_many(Table.RECORDS, found)
        await tables.delete_many(Table.RECORDS, [(keys.COUNT_HOURS, f"{hour:08d}|{slot}")])
