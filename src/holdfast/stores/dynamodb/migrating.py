"""Making the tables, and looking whether they can keep the promises."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any, NoReturn

from holdfast.clock import SystemClock
from holdfast.errors import ConfigurationError, SchemaMismatch, StoreGone, StoreUnsafe
from holdfast.stores.dynamodb import ddl, keys
from holdfast.stores.dynamodb import tables as result_tables
from holdfast.stores.dynamodb.errors import Refused, translate
from holdfast.stores.dynamodb.expressions import absent, below, equals
from holdfast.stores.dynamodb.layout import (
    INDEXES,
    OWNER,
    SCHEMA,
    SCHEMA_NAMES,
    Index,
    Table,
    attributes_of,
    definition,
    index_definition,
)
from holdfast.stores.dynamodb.table import Failed, Tables
from holdfast.stores.dynamodb.values import Item, decode, encode
from holdfast.stores.dynamodb.writes import key_item, update

log = logging.getLogger("holdfast.stores.dynamodb")


async def check(tables: Tables) -> bool:
    """Whether the tables are there and this release's; refuse what cannot keep the promises."""
    if not all(await asyncio.gather(*(_is_ours(tables, table) for table in Table))):
        return False
    [schema] = await tables.get(Table.RECORDS, [keys.SCHEMA_KEY])
    if schema is None or schema["number"] < SCHEMA:
        return False
    if schema["number"] > SCHEMA:
        raise SchemaMismatch(
            f"{tables.shown} has the schema of a later release ({schema['number']}, this one knows {SCHEMA}):"
            " install that release"
        )
    if schema["shards"] < tables.shards:
        _refuse_shards(tables, schema)
    tables.shards = schema["shards"]  # more than the URL says, maybe: jobs lie in all of them
    await _bind(tables)
    return True


async def exists(tables: Tables) -> bool:
    """Whether a queue was made here; one that is half made is none yet."""
    try:
        [schema] = await tables.get(Table.RECORDS, [keys.SCHEMA_KEY])
    except StoreGone:
        return False
    return schema is not None


async def _is_ours(tables: Tables, table: Table) -> bool:
    """Whether it is there, and as it has to be; who may not ask has to take it on trust."""
    try:
        found = await ddl.describe(tables, tables.names[table])
    except Refused as refused:
        if refused.code != "AccessDeniedException":
            raise translate(refused, tables.shown) from None
        log.warning("%s may not be described: nothing is known of replicas and indexes", tables.names[table])
        return True
    if found is None:
        return False
    _refuse_unsafe(tables, table, found)
    return True


def _refuse_unsafe(tables: Tables, table: Table, described: dict[str, Any]) -> None:
    name = tables.names[table]
    if described.get("Replicas"):
        raise StoreUnsafe(
            f"{name} is a global table: conditions hold in one region only, and a job could run in two;"
            " remove its replicas"
        )
    schema = [each["AttributeName"] for each in described.get("KeySchema", ())]
    if schema != list(table.key_names):
        raise StoreUnsafe(f"{name} is a table of another program: choose another prefix")


def _refuse_shards(tables: Tables, schema: Item) -> NoReturn:
    raise SchemaMismatch(
        f"{tables.shown} was made for {schema['shards']} shards and is opened with {tables.shards}:"
        " run holdfast migrate with this URL first, so that every process looks everywhere"
    )


async def _bind(tables: Tables) -> None:
    """The jobs' table belongs to one queue: two of them would each see the other's jobs, without what lies beside."""
    mine = tables.names[Table.RECORDS]
    name = tables.names[Table.JOBS]
    body = {"TableName": name, "Key": encode(key_item(Table.JOBS, OWNER)), "ConsistentRead": True}
    reply = await tables.call("GetItem", body)
    found = decode(reply["Item"]) if reply.get("Item") else None
    if found is None:
        try:
            await tables.update(
                update(Table.JOBS, OWNER, sets={"records": mine}, condition=absent("job_id") | equals("records", mine))
            )
            return
        except Failed as failed:
            found = failed.item or {}
    if found.get("records") != mine:
        raise ConfigurationError(
            f"{name} holds the jobs of another queue, whose other table is {found.get('records')}: choose another"
            " table= for this prefix, or open the queue by its own"
        )


async def migrate(tables: Tables, *, provisioned: bool) -> list[str]:
    """Make what is missing; a half-made set is completed by the next call, and nothing is used before the schema's
    number is there."""
    made = False
    for table in Table:
        made |= await _make(tables, table, provisioned)
    for table in Table:
        found = await ddl.active(tables, tables.names[table])
        _refuse_unsafe(tables, table, found)
        if table is Table.JOBS:
            made |= await _complete(tables, found, provisioned)
    await _bind(tables)
    [before] = await tables.get(Table.RECORDS, [keys.SCHEMA_KEY])
    if before is not None and before["number"] > SCHEMA:
        raise SchemaMismatch(f"{tables.shown} has the schema of a later release: install that one")
    fresh = before is None or before["number"] < SCHEMA
    raised = before is not None and before["shards"] < tables.shards
    if fresh or raised:
        await _sign(tables, before)
    done = list(SCHEMA_NAMES) if fresh else ["indexes"] * made
    return done + [f"shards={tables.shards}"] * raised


async def _sign(tables: Tables, before: Item | None) -> None:
    pk, sk = keys.SCHEMA_KEY
    item: Item = {"pk": pk, "sk": sk, "place": str(uuid.uuid4()), "created_at": SystemClock().now(), **(before or {})}
    item |= {
        "number": SCHEMA,
        "names": list(SCHEMA_NAMES),
        "shards": max(tables.shards, (before or {}).get("shards", 1)),
    }
    place = {"pk": keys.PLACE_KEY[0], "sk": keys.PLACE_KEY[1], "place": item["place"], "shards": item["shards"]}
    if before is not None:  # processes that run must look into new shards before anyone who opens puts a job there
        await tables.put(Table.RECORDS, place)
    condition = absent("pk") | below("number", SCHEMA) | (equals("number", SCHEMA) & below("shards", item["shards"]))
    try:
        await tables.put(Table.RECORDS, item, condition)
    except Failed:
        return  # another was faster, with the same
    await tables.put(Table.RECORDS, place)


async def _make(tables: Tables, table: Table, provisioned: bool) -> bool:
    if await ddl.described(tables, tables.names[table]) is not None:
        return False
    body = definition(table, tables.names[table], provisioned=provisioned)
    return await ddl.run(tables, "CreateTable", body)


async def _complete(tables: Tables, described: dict[str, Any], provisioned: bool) -> bool:
    """Indexes that this release wants and an earlier one did not know, one by one: DynamoDB makes one at once."""
    there = {each["IndexName"] for each in described.get("GlobalSecondaryIndexes", ())}
    missing: list[Index] = [index for name, index in INDEXES.items() if name not in there]
    for index in missing:
        body = {
            "TableName": tables.names[Table.JOBS],
            "AttributeDefinitions": attributes_of(index),
            "GlobalSecondaryIndexUpdates": [{"Create": index_definition(index, provisioned=provisioned)}],
        }
        await ddl.run(tables, "UpdateTable", body)
        await ddl.active(tables, tables.names[Table.JOBS])
    return bool(missing)


async def would_erase(tables: Tables) -> dict[str, int]:
    """The tables that `erase` would delete, and about how many items each has."""
    names = list(tables.names.values())
    there = {name: found for name in names if (found := await ddl.described(tables, name)) is not None}
    if tables.names[Table.RECORDS] in there:
        for name in await result_tables.names(tables):
            there[name] = await ddl.described(tables, name) or {}
    return {name: found.get("ItemCount", 0) for name, found in there.items()}


async def erase(tables: Tables) -> list[str]:
    """Delete the tables with all that is in them, those of results too; the names of those that were there."""
    there = [name for name in tables.names.values() if await ddl.described(tables, name) is not None]
    if tables.names[Table.RECORDS] in there:
        there += await result_tables.names(tables)
    for name in there:
        await ddl.run(tables, "DeleteTable", {"TableName": name})
    for name in there:
        await ddl.gone(tables, name)
    return there
