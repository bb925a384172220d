"""Single reads and writes of the two tables, counters, and creating, changing and deleting tables.

A write whose condition fails raises Failed with the item that is there. Each commit adds to counter items that only its
own store writes, so that counting never waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec

from backstay import failpoints
from backstay.clock import MICROS, Instant
from backstay.core.records import Buckets, Counter, Kind
from backstay.core.states import NO_BUCKET, Counted
from backstay.engines.dynamodb import expressions, schema
from backstay.engines.dynamodb.attributes import Form
from backstay.engines.dynamodb.expressions import Ask, Condition, Placeholders, Write, query, update
from backstay.engines.dynamodb.expressions import Kind as WriteKind
from backstay.engines.dynamodb.schema import OWNER, Item, Key, Table, Wired, decode, encode
from backstay.engines.dynamodb.transport import Answer, Lane, Refused, Unanswered, Wire, answer, translate
from backstay.errors import StoreBusy, StoreError, StoreUnavailable

MINUTE = 60 * MICROS
HOUR = 60 * MINUTE
_NUMBERS = ("n", "ran", "waited")
_BUCKET = re.compile(r"b\d+")


class Sums(dict[str, int]):
    """Numbers to add to an item: n, ran, waited, and b<number> for each bucket."""

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
    """One writer's counters of one minute; used by one commit at a time."""

    def __init__(self, store: str, number: int, now: Instant) -> None:
        self.writer = f"{store}{number}"
        self.slot = schema.slot(store)
        self.minute = now // MINUTE * MINUTE

    @property
    def hour(self) -> int:
        return self.minute // HOUR

    def writes(self, counts: Counts) -> list[Write]:
        partition = schema.counted(self.hour, self.slot)
        return [self._write(partition, kind, outcome, added) for (kind, outcome), added in counts.items()]

    def _write(self, partition: str, kind: Kind, outcome: Counted, added: Sums) -> Write:
        place = (partition, self._place(kind, outcome))
        return update(Table.RECORDS, place, sets=self._names(kind, outcome), adds=added)

    def _place(self, kind: Kind, outcome: Counted) -> str:
        job_type, queue, priority = kind
        return f"{schema.at(self.minute)}|{self.writer}|{schema.joined(job_type, queue)}|{priority}|{outcome.value}"

    def _names(self, kind: Kind, outcome: Counted) -> Item:
        job_type, queue, priority = kind
        return {"minute": self.minute, "job_type": job_type, "queue": queue, "prio": priority, "what": outcome.value}

    def item(self, counter: Counter) -> Item:
        """Return the item of a restored counter."""
        kind = (counter.job_type, counter.queue, counter.priority)
        place = {"pk": schema.counted(self.hour, self.slot), "sk": self._place(kind, counter.outcome)}
        numbers = sums(counter.count, counter.ran_micros, counter.waited_micros, counter.buckets)
        return {**place, **self._names(kind, counter.outcome), **numbers}

    def hour_item(self) -> Item:
        """Return the item that lists an hour with counters, so that reading a month does not take three thousand
        queries."""
        place = {"pk": schema.COUNT_HOURS, "sk": f"{self.hour:08d}|{self.slot}"}
        return {**place, "hour": self.hour, "slot": self.slot}


class CounterLanes:
    """The writer names of a store: as many as it has concurrent commits."""

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


async def counters(
    tables: Tables, since: Instant, until: Instant, width: int | None = None, kinds: bool = True
) -> list[Counter]:
    """Return the minutes that begin in [since, until), summed over writers, oldest first."""
    if since >= until:
        return []
    found: dict[tuple[Instant, str, str, int, str], Sums] = {}
    for hour, slot in await hours(tables, max(0, since) // HOUR, until // HOUR):
        ask = Ask(
            table=Table.RECORDS,
            hash=schema.counted(hour, slot),
            above=schema.at(since),
            below=schema.at(until),
            consistent=True,
        )
        async for item in tables.ask(ask):
            at = item["minute"] if width is None else since + (item["minute"] - since) // width * width
            kind = (item["job_type"], item["queue"]) if kinds else ("", "")
            place = (at, *kind, item["prio"], item["what"])
            found.setdefault(place, Sums()).add(sums_of(item))
    return [
        Counter(minute, job_type, queue, priority, Counted(what), each["n"], each["ran"], each["waited"], each.buckets)
        for (minute, job_type, queue, priority, what), each in sorted(found.items())
    ]


async def hours(tables: Tables, first: int, last: int) -> list[tuple[int, int]]:
    ask = Ask(
        table=Table.RECORDS,
        hash=schema.COUNT_HOURS,
        above=f"{first:08d}",
        up_to=f"{last:08d}|{schema.HIGH}",
        consistent=True,
    )
    return [(item["hour"], item["slot"]) async for item in tables.ask(ask)]


async def drop_before(tables: Tables, instant: Instant) -> None:
    """Delete expired counters; the entry of their hour is deleted last, so that a crash in between loses nothing."""
    oldest = instant // HOUR
    for hour, slot in await hours(tables, 0, oldest - 1):
        ask = Ask(table=Table.RECORDS, hash=schema.counted(hour, slot), only=("pk", "sk"), consistent=True)
        found = [(item["pk"], item["sk"]) async for item in tables.ask(ask)]
        await tables.delete_many(Table.RECORDS, found)
        await tables.delete_many(Table.RECORDS, [(schema.COUNT_HOURS, f"{hour:08d}|{slot}")])


GETS_MAX = 100  # keys per BatchGetItem
DELETES_MAX = 25  # requests per BatchWriteItem
TOGETHER = 8  # concurrent batches
SECONDS = 8.0  # for a verb's read or write, below a third of the default lease
_derived = frozenset(schema.DERIVED)
_OPERATIONS = {WriteKind.PUT: "PutItem", WriteKind.UPDATE: "UpdateItem", WriteKind.DELETE: "DeleteItem"}


class Failed(Exception):
    """The condition of a write did not hold."""

    def __init__(self, item: Item | None) -> None:
        super().__init__("the condition of a write did not hold")
        self.item = item  # the existing item; None if there is none


class Patience:
    """Waits between tries of a partly processed batch; raises if no more progress is made."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._seconds = 0.02
        self._left: int | None = None
        self._deadline = asyncio.get_running_loop().time() + SECONDS

    async def pause(self, left: int) -> None:
        if not left:
            return
        now = asyncio.get_running_loop().time()
        if self._left is None or left < self._left:
            self._deadline = now + SECONDS
        elif now + self._seconds >= self._deadline:
            raise StoreBusy(f"{self._shown} is throttled: raise the tables' capacity, or use more shards")
        self._left = left
        await asyncio.sleep(self._seconds)
        self._seconds = min(self._seconds * 2, 1.0)


class Tables:
    def __init__(self, wire: Wire, names: dict[Table, str], *, form: Form, shown: str) -> None:
        self.wire = wire
        self.names = names
        self.form = form
        self.shown = shown
        self.counters = CounterLanes(self)

    @property
    def shards(self) -> int:
        return self.form.shards

    @shards.setter
    def shards(self, shards: int) -> None:
        self.form.shards = shards

    def item(self, table: Table, wired: Mapping[str, Any]) -> Item:
        """Return what was stored: of a job its fields, and its index attributes."""
        return self.fields(table, decode(wired))

    def fields(self, table: Table, attributes: Item) -> Item:
        return self.form.read(attributes) if table is Table.JOBS else attributes

    def _wired(self, table: Table, item: Item) -> Wired:
        stored = self.form.stored(item, item["job_id"]) if table is Table.JOBS else item
        return encode(stored)

    def _projection(self, table: Table, names: Sequence[str]) -> dict[str, Any]:
        if not names:
            return {}
        holders = Placeholders(self.form if table is Table.JOBS else None)
        return {"ProjectionExpression": ", ".join(map(holders.name, names)), **holders.attributes()}

    # Reading

    async def get(
        self, table: Table, keys: Sequence[Key], *, only: Sequence[str] = (), lane: Lane = Lane.USUAL
    ) -> list[Item | None]:
        """Read items consistently, in order; a key may occur twice."""
        wanted = [key for key in dict.fromkeys(keys) if key != OWNER]
        if not wanted:
            return [None] * len(keys)
        batches = [wanted[i : i + GETS_MAX] for i in range(0, len(wanted), GETS_MAX)]
        found: dict[Key, Item] = {}
        if len(wanted) == 1:
            item = await self._get_one(table, wanted[0], only, lane)
            return [item if key == wanted[0] else None for key in keys]
        for start in range(0, len(batches), TOGETHER):
            group = batches[start : start + TOGETHER]
            for each in await asyncio.gather(*(self._get_batch(table, batch, only, lane) for batch in group)):
                found.update(each)
        return [found.get(key) for key in keys]

    async def _get_one(self, table: Table, key: Key, only: Sequence[str], lane: Lane) -> Item | None:
        body: dict[str, Any] = {
            "TableName": self.names[table],
            "Key": encode(expressions.key_item(table, key)),
            "ConsistentRead": True,
            **self._projection(table, only),
        }
        reply = await self.call("GetItem", body, lane=lane)
        return bare(self.item(table, reply["Item"])) if reply.get("Item") else None

    async def _get_batch(self, table: Table, batch: list[Key], only: Sequence[str], lane: Lane) -> dict[Key, Item]:
        name = self.names[table]
        names = tuple(dict.fromkeys((*table.key_names, *only))) if only else ()
        asked: dict[str, Any] = {
            "Keys": [encode(expressions.key_item(table, key)) for key in batch],
            "ConsistentRead": True,
            **self._projection(table, names),
        }
        found: dict[Key, Item] = {}
        patience = Patience(self.shown)
        while asked["Keys"]:
            reply = await self.call("BatchGetItem", {"RequestItems": {name: asked}}, lane=lane)
            for wired in reply.get("Responses", {}).get(name, ()):
                item = bare(self.item(table, wired))
                found[expressions.key_of(table, item)] = item
            asked["Keys"] = reply.get("UnprocessedKeys", {}).get(name, {}).get("Keys", [])
            await patience.pause(len(asked["Keys"]))
        return found

    async def ask(self, ask: Ask, *, lane: Lane = Lane.USUAL) -> AsyncIterator[Item]:
        """Yield all results of a Query, page by page. Rows of an index keep their index attributes."""
        async for reply in self._pages("Query", self._query(ask), lane):
            for wired in reply.get("Items", ()):
                yield self.item(ask.table, wired)

    async def first(self, ask: Ask, limit: int | None, *, lane: Lane = Lane.USUAL) -> list[Item]:
        """Return the first results of a Query without a condition; all of them without a limit."""
        found: list[Item] = []
        if limit is not None and limit < 1:
            return found
        async for item in self.ask(msgspec.structs.replace(ask, page=limit), lane=lane):
            found.append(item)
            if len(found) == limit:
                break
        return found

    async def count(self, ask: Ask, stop_at: int | None = None, *, lane: Lane = Lane.USUAL) -> int:
        body = {**self._query(ask), "Select": "COUNT"}
        total = 0
        if stop_at is not None and ask.where is None:
            body["Limit"] = max(1, stop_at)
        async for reply in self._pages("Query", body, lane):
            total += reply["Count"]
            if stop_at is not None and total >= stop_at:
                return stop_at
        return total

    async def page(
        self, ask: Ask, start: Item | None = None, *, lane: Lane = Lane.USUAL
    ) -> tuple[list[Item], Item | None]:
        """Return one page of a Query, and where the next one starts."""
        body = self._query(ask)
        if start is not None:
            body["ExclusiveStartKey"] = self._wired(ask.table, start)
        reply = await self.call("Query", body, lane=lane)
        last = reply.get("LastEvaluatedKey")
        rows = [self.item(ask.table, wired) for wired in reply.get("Items", ())]
        return rows, self.item(ask.table, last) if last else None

    def _query(self, ask: Ask) -> dict[str, Any]:
        return query(ask, self.names[ask.table], self.form)

    async def scan(
        self, table: Table, *, start: Item | None = None, page: int | None = None, lane: Lane = Lane.IDLE
    ) -> tuple[list[Item], Item | None]:
        """Return one page of a consistent scan, and where the next one starts; jobs and records only."""
        body: dict[str, Any] = {"TableName": self.names[table], "ConsistentRead": True}
        if page is not None:
            body["Limit"] = page
        if start is not None:
            body["ExclusiveStartKey"] = encode(start)
        reply = await self.call("Scan", body, lane=lane)
        last = reply.get("LastEvaluatedKey")
        rows = [self.item(table, wired) for wired in reply.get("Items", ())]
        return [row for row in rows if expressions.key_of(table, row) != OWNER], decode(last) if last else None

    async def _pages(self, operation: str, body: dict[str, Any], lane: Lane) -> AsyncIterator[dict[str, Any]]:
        while True:
            reply = await self.call(operation, body, lane=lane)
            yield reply
            if not reply.get("LastEvaluatedKey"):
                return
            body = {**body, "ExclusiveStartKey": reply["LastEvaluatedKey"]}

    # Writing

    async def put(
        self, table: Table, item: Item, condition: Condition | None = None, *, lane: Lane = Lane.USUAL
    ) -> None:
        await self.update(expressions.put(table, item, condition), lane=lane)

    async def update(self, write: Write, *, lane: Lane = Lane.USUAL, verb: str | None = None) -> None:
        """Send a single write. If the refusing item has our own wid, an earlier try of this write was applied."""
        body = expressions.wire(write, self.names[write.table], self.form)
        if verb is not None:
            failpoints.hit_moment(verb, "uncommitted")
        try:
            await self.wire.persist(_OPERATIONS[write.kind], body, lane=lane, seconds=SECONDS)
        except Refused as refused:
            if answer(refused) is not Answer.CONDITION:
                raise translate(refused, self.shown, maybe_applied=True) from None
            item = None if refused.item is None else bare(self.fields(write.table, refused.item))
            if item is None or write.wid is None or item.get("wid") != write.wid:
                raise Failed(item) from None
        except Unanswered as unanswered:
            raise translate(unanswered, self.shown, maybe_applied=unanswered.sent) from None
        if verb is not None:
            failpoints.hit_moment(verb, "committed")

    async def send(self, write: Write, *, returning: str, lane: Lane = Lane.USUAL) -> Item:
        """Send an update without a condition; return the new item."""
        body = expressions.wire(write, self.names[write.table], self.form) | {"ReturnValues": returning}
        reply = await self.call(_OPERATIONS[write.kind], body, lane=lane)
        return self.item(write.table, reply.get("Attributes") or {})

    async def delete_many(self, table: Table, keys: Sequence[Key], *, lane: Lane = Lane.USUAL) -> None:
        requests = [{"DeleteRequest": {"Key": encode(expressions.key_item(table, key))}} for key in dict.fromkeys(keys)]
        await self._write_batches(table, requests, lane)

    async def put_many(self, table: Table, items: Sequence[Item], *, lane: Lane = Lane.USUAL) -> None:
        """Store items unconditionally and not atomically: for items that mean nothing until another one names them."""
        await self._write_batches(table, [{"PutRequest": {"Item": self._wired(table, item)}} for item in items], lane)

    async def _write_batches(self, table: Table, requests: list[dict[str, Any]], lane: Lane) -> None:
        batches = [requests[i : i + DELETES_MAX] for i in range(0, len(requests), DELETES_MAX)]
        for start in range(0, len(batches), TOGETHER):
            group = batches[start : start + TOGETHER]
            await asyncio.gather(*(self._write_batch(table, batch, lane) for batch in group))

    async def _write_batch(self, table: Table, batch: list[dict[str, Any]], lane: Lane) -> None:
        name = self.names[table]
        patience = Patience(self.shown)
        while batch:
            reply = await self.call("BatchWriteItem", {"RequestItems": {name: batch}}, lane=lane)
            batch = reply.get("UnprocessedItems", {}).get(name, [])
            await patience.pause(len(batch))

    async def call(
        self, operation: str, body: dict[str, Any], *, lane: Lane = Lane.USUAL, seconds: float = SECONDS
    ) -> dict[str, Any]:
        """Send a request until it is answered or time is up; refusals become our own errors."""
        try:
            return await self.wire.persist(operation, body, lane=lane, seconds=seconds)
        except (Refused, Unanswered) as error:
            raise translate(error, self.shown) from None


def bare(item: Item) -> Item:
    """Return the item without index attributes, which are derived and not fields of the job."""
    return {name: value for name, value in item.items() if name not in _derived}


ACTIVE_SECONDS = 600.0  # creating an index on a large table takes long
LOOK_SECONDS = 0.25  # between checks of a table that is being created, at first
LOOK_SECONDS_MAX = 5.0
DDL_SECONDS = 30.0

Described = dict[str, Any]


async def run(tables: Tables, operation: str, body: dict[str, Any]) -> bool:
    """Run a table operation; return False if another process is running one."""
    try:
        await tables.wire.persist(operation, body, lane=Lane.USUAL, seconds=DDL_SECONDS)
    except Refused as refused:
        if answer(refused) is Answer.IN_USE:
            return False
        if operation == "DeleteTable" and answer(refused) is Answer.GONE:
            return False
        raise translate(refused, tables.shown) from None
    except Unanswered as unanswered:
        raise translate(unanswered, tables.shown) from None
    return True


async def active(tables: Tables, name: str) -> Described:
    """Return the table once it can be used."""
    found = await _until(tables, name, _is_active)
    if found is None:
        raise StoreError(f"{name} vanished while it was being created")
    return found


async def gone(tables: Tables, name: str) -> None:
    await _until(tables, name, lambda found: found is None)


def _is_active(found: Described | None) -> bool:
    if found is None or found.get("TableStatus") != "ACTIVE":
        return False
    return all(each.get("IndexStatus") == "ACTIVE" for each in found.get("GlobalSecondaryIndexes", ()))


async def _until(tables: Tables, name: str, is_so: Callable[[Described | None], bool]) -> Described | None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ACTIVE_SECONDS
    pause = LOOK_SECONDS
    while True:
        found = await described(tables, name)
        if is_so(found):
            return found
        if loop.time() > deadline:
            raise StoreUnavailable(f"{name} is still not ready after ten minutes: run backstay migrate again")
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, LOOK_SECONDS_MAX)


async def described(tables: Tables, name: str) -> Described | None:
    """Return the description of a table; None if it does not exist."""
    try:
        return await describe(tables, name)
    except Refused as refused:
        raise translate(refused, tables.shown) from None


async def describe(tables: Tables, name: str) -> Described | None:
    """The same, but raises if permission is missing."""
    try:
        reply = await tables.wire.persist("DescribeTable", {"TableName": name}, lane=Lane.USUAL, seconds=8.0)
    except Refused as refused:
        if answer(refused) is Answer.GONE:
            return None
        raise
    except Unanswered as unanswered:
        raise translate(unanswered, tables.shown) from None
    found: Described = reply["Table"]
    return found
