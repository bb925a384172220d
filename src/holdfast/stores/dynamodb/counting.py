"""Counters: each commit adds to items that only its own store writes, so that counting never waits for anybody."""

from __future__ import annotations

import contextlib
import heapq
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from holdfast.clock import MICROS, Instant
from holdfast.counted import NO_BUCKET
from holdfast.lifecycle import Counted, Kind
from holdfast.store.counters import Buckets, Counter
from holdfast.stores.dynamodb import keys
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.writes import Write, update

if TYPE_CHECKING:
    from holdfast.stores.dynamodb.table import Tables

MINUTE = 60 * MICROS
HOUR = 60 * MINUTE
_NUMBERS = ("n", "ran", "waited")
_BUCKET = re.compile(r"b\d+")


class Sums(dict[str, int]):
    """What is added to an item: n, ran, waited, and b<number> for each bucket."""

    def add(self, other: Mapping[str, int]) -> None:
        for name, number in other.items():
            self[name] = self.get(name, 0) + number

    @property
    def buckets(self) -> Buckets:
        return tuple(sorted((int(name[1:]), number) for name, number in self.items() if name[0] == "b"))


Counts = Mapping[tuple[Kind, Counted], Sums]


def sums(n: int, ran: int, waited: int, buckets: Buckets) -> Sums:
    found = Sums(n=n, ran=ran, waited=waited)
    found.update((f"b{bucket}", number) for bucket, number in buckets if bucket != NO_BUCKET)
    return found


def sums_of(item: Item) -> Sums:
    return Sums({name: value for name, value in item.items() if name in _NUMBERS or _BUCKET.fullmatch(name)})


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
        return [self._write(partition, kind, outcome, added) for (kind, outcome), added in counts.items()]

    def _write(self, partition: str, kind: Kind, outcome: Counted, added: Sums) -> Write:
        place = (partition, self._place(kind, outcome))
        return update(Table.RECORDS, place, sets=self._names(kind, outcome), adds=added)

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
        numbers = sums(counter.count, counter.ran_micros, counter.waited_micros, counter.buckets)
        return {**place, **self._names(kind, counter.outcome), **numbers}

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
    found: dict[tuple[Instant, str, str, int, str], Sums] = {}
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
            found.setdefault(place, Sums()).add(sums_of(item))
    return [
        Counter(minute, job_type, queue, priority, Counted(what), each["n"], each["ran"], each["waited"], each.buckets)
        for (minute, job_type, queue, priority, what), each in sorted(found.items())
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


async def drop_before(tables: Tables, instant: Instant) -> None:
    """Counters over their time; their hour is forgotten last, so that a death in between loses nothing."""
    oldest = instant // HOUR
    for hour, slot in await hours(tables, 0, oldest - 1):
        ask = Ask(table=Table.RECORDS, hash=keys.counted(hour, slot), only=("pk", "sk"), consistent=True)
        found = [(item["pk"], item["sk"]) async for item in tables.ask(ask)]
        await tables.delete_many(Table.RECORDS, found)
        await tables.delete_many(Table.RECORDS, [(keys.COUNT_HOURS, f"{hour:08d}|{slot}")])
