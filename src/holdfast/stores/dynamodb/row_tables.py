"""Single reads and writes of the tables in which rows of results lie."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from holdfast.store.tables import ResultTable, Value
from holdfast.stores.dynamodb.errors import Answer, Refused, Unanswered, answer, translate
from holdfast.stores.dynamodb.expressions import Condition, Placeholders
from holdfast.stores.dynamodb.table import DELETES_MAX, GETS_MAX, SECONDS, Patience, Tables
from holdfast.stores.dynamodb.tables import SUBJECT_INDEX, name_of
from holdfast.stores.dynamodb.values import Item, decode, encode
from holdfast.stores.dynamodb.wire import Lane

RowKey = tuple[str, Value]  # job_id, and the table's own key


class RowAsk(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one job by key, or of one subject by time."""

    job_id: str | None = None
    subject: str | None = None
    after: Value = None  # beyond this key
    since: str | None = None  # from this time on
    where: Condition | None = None
    page: int | None = None
    only_keys: bool = False


async def put(tables: Tables, table: ResultTable, item: Item, condition: Condition) -> Item | None:
    """None: it is in; else what stands there and is in the way."""
    holders = Placeholders()
    body: dict[str, Any] = {
        "TableName": name_of(tables, table.name),
        "Item": encode(item),
        "ConditionExpression": holders.condition(condition),
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    try:
        await tables.wire.persist("PutItem", {**body, **holders.attributes()}, lane=Lane.USUAL, seconds=SECONDS)
    except Refused as refused:
        if answer(refused) is not Answer.CONDITION:
            raise translate(refused, tables.shown, maybe_applied=True) from None
        return refused.item or {}
    except Unanswered as unanswered:
        raise translate(unanswered, tables.shown, maybe_applied=unanswered.sent) from None
    return None


async def get(tables: Tables, table: ResultTable, places: Sequence[RowKey]) -> dict[RowKey, Item]:
    """Consistent."""
    name = name_of(tables, table.name)
    found: dict[RowKey, Item] = {}
    for start in range(0, len(places), GETS_MAX):
        wanted = [encode(_key(table, place)) for place in places[start : start + GETS_MAX]]
        patience = Patience(tables.shown)
        while wanted:
            body = {"RequestItems": {name: {"Keys": wanted, "ConsistentRead": True}}}
            reply = await tables.call("BatchGetItem", body)
            for wired in reply.get("Responses", {}).get(name, ()):
                item = decode(wired)
                found[item["job_id"], item[table.key]] = item
            wanted = reply.get("UnprocessedKeys", {}).get(name, {}).get("Keys", [])
            await patience.pause(len(wanted))
    return found


async def ask(tables: Tables, table: ResultTable, ask: RowAsk) -> AsyncIterator[Item]:
    body = _query(name_of(tables, table.name), table, ask)
    while True:
        reply = await tables.call("Query", body)
        for wired in reply.get("Items", ()):
            yield decode(wired)
        if not reply.get("LastEvaluatedKey"):
            return
        body = {**body, "ExclusiveStartKey": reply["LastEvaluatedKey"]}


def _query(name: str, table: ResultTable, ask: RowAsk) -> dict[str, Any]:
    holders = Placeholders()
    body: dict[str, Any] = {"TableName": name}
    if ask.job_id is not None:
        text = f"{holders.name('job_id')} = {holders.value(ask.job_id)}"
        if ask.after is not None:
            text += f" AND {holders.name(table.key)} > {holders.value(ask.after)}"
        body["ConsistentRead"] = True
    else:
        text = f"{holders.name(table.subject or '')} = {holders.value(ask.subject)}"
        if ask.since is not None:
            text += f" AND {holders.name('created_at')} >= {holders.value(ask.since)}"
        body["IndexName"] = SUBJECT_INDEX
    body["KeyConditionExpression"] = text
    if ask.where is not None:
        body["FilterExpression"] = holders.condition(ask.where)
    if ask.only_keys:
        body["ProjectionExpression"] = ", ".join(map(holders.name, ("job_id", table.key)))
    if ask.page is not None:
        body["Limit"] = ask.page
    return {**body, **holders.attributes()}


async def delete(tables: Tables, table: ResultTable, places: Sequence[RowKey]) -> None:
    await _write(tables, table, [{"DeleteRequest": {"Key": encode(_key(table, place))}} for place in places])


async def put_many(tables: Tables, table: ResultTable, rows: Sequence[Item]) -> None:
    """Over whatever is there, and not as one: for rows that nobody reads before something else says so."""
    await _write(tables, table, [{"PutRequest": {"Item": encode(row)}} for row in rows])


async def _write(tables: Tables, table: ResultTable, requests: list[dict[str, Any]]) -> None:
    name = name_of(tables, table.name)
    batches = [requests[start : start + DELETES_MAX] for start in range(0, len(requests), DELETES_MAX)]
    turn = asyncio.Semaphore(8)

    async def one(batch: list[dict[str, Any]]) -> None:
        patience = Patience(tables.shown)
        async with turn:
            while batch:
                reply = await tables.call("BatchWriteItem", {"RequestItems": {name: batch}}, lane=Lane.IDLE)
                batch = reply.get("UnprocessedItems", {}).get(name, [])
                await patience.pause(len(batch))

    await asyncio.gather(*map(one, batches))


def _key(table: ResultTable, place: RowKey) -> Item:
    return {"job_id": place[0], table.key: place[1]}
