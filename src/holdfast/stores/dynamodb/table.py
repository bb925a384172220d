"""Single reads and writes of the two tables. What is refused on its condition raises Failed with what stands there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from holdfast import failpoints
from holdfast.errors import StoreBusy
from holdfast.stores.dynamodb import keys, writes
from holdfast.stores.dynamodb.asking import Ask, query
from holdfast.stores.dynamodb.counting import CounterLanes
from holdfast.stores.dynamodb.errors import Answer, Refused, Unanswered, answer, translate
from holdfast.stores.dynamodb.expressions import Condition, Placeholders
from holdfast.stores.dynamodb.layout import OWNER, Key, Table
from holdfast.stores.dynamodb.values import Item, decode, encode
from holdfast.stores.dynamodb.wire import Lane, Wire
from holdfast.stores.dynamodb.writes import Kind, Write

__all__ = ["Ask", "Failed", "Key", "Lane", "Table", "Tables"]

GETS_MAX = 100  # keys of a BatchGetItem
DELETES_MAX = 25  # requests of a BatchWriteItem
TOGETHER = 8  # batches under way at once
SECONDS = 8.0  # for a verb's read or write, below a third of the default lease
_derived = frozenset(keys.DERIVED)
_OPERATIONS = {Kind.PUT: "PutItem", Kind.UPDATE: "UpdateItem", Kind.DELETE: "DeleteItem"}


class Failed(Exception):
    """The condition of a write did not hold."""

    def __init__(self, item: Item | None) -> None:
        super().__init__("the condition of a write did not hold")
        self.item = item  # what stands there; None: nothing


class Patience:
    """Between tries of a batch of which a part was left: it ends where nothing gets through any more."""

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
    def __init__(self, wire: Wire, names: dict[Table, str], *, shards: int, shown: str) -> None:
        self.wire = wire
        self.names = names
        self.shards = shards
        self.shown = shown
        self.counters = CounterLanes(self)

    # Reading

    async def get(
        self, table: Table, keys: Sequence[Key], *, only: Sequence[str] = (), lane: Lane = Lane.USUAL
    ) -> list[Item | None]:
        """Consistent, in order; a key may be named twice."""
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
            "Key": encode(writes.key_item(table, key)),
            "ConsistentRead": True,
            **_projection(only),
        }
        reply = await self.call("GetItem", body, lane=lane)
        return bare(decode(reply["Item"])) if reply.get("Item") else None

    async def _get_batch(self, table: Table, batch: list[Key], only: Sequence[str], lane: Lane) -> dict[Key, Item]:
        name = self.names[table]
        names = tuple(dict.fromkeys((*table.key_names, *only))) if only else ()
        asked: dict[str, Any] = {
            "Keys": [encode(writes.key_item(table, key)) for key in batch],
            "ConsistentRead": True,
            **_projection(names),
        }
        found: dict[Key, Item] = {}
        patience = Patience(self.shown)
        while asked["Keys"]:
            reply = await self.call("BatchGetItem", {"RequestItems": {name: asked}}, lane=lane)
            for wired in reply.get("Responses", {}).get(name, ()):
                item = bare(decode(wired))
                found[writes.key_of(table, item)] = item
            asked["Keys"] = reply.get("UnprocessedKeys", {}).get(name, {}).get("Keys", [])
            await patience.pause(len(asked["Keys"]))
        return found

    async def ask(self, ask: Ask, *, lane: Lane = Lane.USUAL) -> AsyncIterator[Item]:
        """All that a Query finds, page after page. Rows of an index keep their index attributes."""
        async for reply in self._pages("Query", query(ask, self.names[ask.table]), lane):
            for wired in reply.get("Items", ()):
                yield decode(wired)

    async def count(self, ask: Ask, stop_at: int | None = None, *, lane: Lane = Lane.USUAL) -> int:
        body = {**query(ask, self.names[ask.table]), "Select": "COUNT"}
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
        """One page of a Query, and where the next one starts."""
        body = query(ask, self.names[ask.table])
        if start is not None:
            body["ExclusiveStartKey"] = encode(start)
        reply = await self.call("Query", body, lane=lane)
        last = reply.get("LastEvaluatedKey")
        return [decode(wired) for wired in reply.get("Items", ())], decode(last) if last else None

    async def scan(
        self, table: Table, *, start: Item | None = None, page: int | None = None, lane: Lane = Lane.IDLE
    ) -> tuple[list[Item], Item | None]:
        """One page of a consistent scan, and where the next one starts; jobs and records only."""
        body: dict[str, Any] = {"TableName": self.names[table], "ConsistentRead": True}
        if page is not None:
            body["Limit"] = page
        if start is not None:
            body["ExclusiveStartKey"] = encode(start)
        reply = await self.call("Scan", body, lane=lane)
        last = reply.get("LastEvaluatedKey")
        rows = [decode(wired) for wired in reply.get("Items", ())]
        return [row for row in rows if writes.key_of(table, row) != OWNER], decode(last) if last else None

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
        await self.update(writes.put(table, item, condition), lane=lane)

    async def update(self, write: Write, *, lane: Lane = Lane.USUAL, verb: str | None = None) -> None:
        """One write by itself. A refusal by an item that carries our own wid is an earlier try of this very write."""
        body = writes.wire(write, self.names[write.table], self.shards)
        if verb is not None:
            failpoints.hit_moment(verb, "uncommitted")
        try:
            await self.wire.persist(_OPERATIONS[write.kind], body, lane=lane, seconds=SECONDS)
        except Refused as refused:
            if answer(refused) is not Answer.CONDITION:
                raise translate(refused, self.shown, maybe_applied=True) from None
            item = None if refused.item is None else bare(refused.item)
            if item is None or write.wid is None or item.get("wid") != write.wid:
                raise Failed(item) from None
        except Unanswered as unanswered:
            raise translate(unanswered, self.shown, maybe_applied=unanswered.sent) from None
        if verb is not None:
            failpoints.hit_moment(verb, "committed")

    async def send(self, write: Write, *, returning: str, lane: Lane = Lane.USUAL) -> Item:
        """An update without a condition that answers with what it made."""
        body = writes.wire(write, self.names[write.table], self.shards) | {"ReturnValues": returning}
        reply = await self.call(_OPERATIONS[write.kind], body, lane=lane)
        return decode(reply.get("Attributes") or {})

    async def delete_many(self, table: Table, keys: Sequence[Key], *, lane: Lane = Lane.USUAL) -> None:
        requests = [{"DeleteRequest": {"Key": encode(writes.key_item(table, key))}} for key in dict.fromkeys(keys)]
        await self._write_batches(table, requests, lane)

    async def put_many(self, table: Table, items: Sequence[Item], *, lane: Lane = Lane.USUAL) -> None:
        """Without conditions, and not as one: for what means nothing before something else names it."""
        await self._write_batches(table, [{"PutRequest": {"Item": encode(item)}} for item in items], lane)

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
        """Until it is answered, or time is up; refusals are our own errors."""
        try:
            return await self.wire.persist(operation, body, lane=lane, seconds=seconds)
        except (Refused, Unanswered) as error:
            raise translate(error, self.shown) from None


def bare(item: Item) -> Item:
    """Without what only indexes read: nobody may take a derived attribute for the job's own."""
    return {name: value for name, value in item.items() if name not in _derived}


def _projection(names: Sequence[str]) -> dict[str, Any]:
    if not names:
        return {}
    holders = Placeholders()
    return {"ProjectionExpression": ", ".join(map(holders.name, names)), **holders.attributes()}
