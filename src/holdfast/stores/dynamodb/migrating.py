"""Making the tables, and looking whether they can keep the promises."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any, NoReturn

from holdfast.clock import SystemClock
from holdfast.errors import SchemaMismatch, StoreError, StoreUnavailable, StoreUnsafe
from holdfast.stores.dynamodb import keys
from holdfast.stores.dynamodb.errors import Answer, Refused, Unanswered, answer, translate
from holdfast.stores.dynamodb.expressions import absent, below, equals
from holdfast.stores.dynamodb.layout import (
    INDEXES,
    SCHEMA,
    SCHEMA_NAMES,
    Index,
    Table,
    attributes_of,
    definition,
    index_definition,
)
from holdfast.stores.dynamodb.table import Failed, Lane, Tables
from holdfast.stores.dynamodb.values import Item

log = logging.getLogger("holdfast.stores.dynamodb")

ACTIVE_SECONDS = 600.0  # an index of a large table takes its time
LOOK_SECONDS = 0.25  # between looks at a table that is being made, at first
LOOK_SECONDS_MAX = 5.0
DDL_SECONDS = 30.0


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
    return True


async def _is_ours(tables: Tables, table: Table) -> bool:
    """Whether it is there, and as it has to be; who may not ask has to take it on trust."""
    try:
        described = await _describe(tables, table)
    except Refused as refused:
        if refused.code != "AccessDeniedException":
            raise translate(refused, tables.shown) from None
        log.warning("%s may not be described: nothing is known of replicas and indexes", tables.names[table])
        return True
    if described is None:
        return False
    _refuse_unsafe(tables, table, described)
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


async def migrate(tables: Tables, *, provisioned: bool) -> list[str]:
    """Make what is missing; a half-made set is completed by the next call, and nothing is used before the schema's
    number is there."""
    made = False
    for table in Table:
        made |= await _make(tables, table, provisioned)
    for table in Table:
        described = await _active(tables, table)
        _refuse_unsafe(tables, table, described)
        if table is Table.JOBS:
            made |= await _complete(tables, described, provisioned)
    [before] = await tables.get(Table.RECORDS, [keys.SCHEMA_KEY])
    if before is not None and before["number"] > SCHEMA:
        raise SchemaMismatch(f"{tables.shown} has the schema of a later release: install that one")
    fresh = before is None or before["number"] < SCHEMA
    if fresh or (before is not None and before["shards"] < tables.shards):
        await _sign(tables, before)
    return list(SCHEMA_NAMES) if fresh else (["indexes"] if made else [])


async def _sign(tables: Tables, before: Item | None) -> None:
    pk, sk = keys.SCHEMA_KEY
    item: Item = {"pk": pk, "sk": sk, "place": str(uuid.uuid4()), "created_at": SystemClock().now(), **(before or {})}
    item |= {
        "number": SCHEMA,
        "names": list(SCHEMA_NAMES),
        "shards": max(tables.shards, (before or {}).get("shards", 1)),
    }
    condition = absent("pk") | below("number", SCHEMA) | (equals("number", SCHEMA) & below("shards", item["shards"]))
    try:
        await tables.put(Table.RECORDS, item, condition)
    except Failed:
        return  # another was faster, with the same


async def _make(tables: Tables, table: Table, provisioned: bool) -> bool:
    if await _described(tables, table) is not None:
        return False
    body = definition(table, tables.names[table], provisioned=provisioned)
    return await _ddl(tables, "CreateTable", body)


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
        await _ddl(tables, "UpdateTable", body)
        await _active(tables, Table.JOBS)
    return bool(missing)


async def erase(tables: Tables) -> list[str]:
    """Delete the tables with all that is in them; the names of those that were there."""
    gone = []
    for table in Table:
        name = tables.names[table]
        if await _described(tables, table) is None:
            continue
        await _ddl(tables, "DeleteTable", {"TableName": name})
        gone.append(name)
    for table in Table:
        await _until(tables, table, lambda described: described is None)
    return gone


async def _ddl(tables: Tables, operation: str, body: dict[str, Any]) -> bool:
    """False: someone else is at it."""
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


async def _active(tables: Tables, table: Table) -> dict[str, Any]:
    described = await _until(tables, table, _is_active)
    if described is None:
        raise StoreError(f"{tables.names[table]} vanished while it was made")
    return described


def _is_active(described: dict[str, Any] | None) -> bool:
    if described is None or described.get("TableStatus") != "ACTIVE":
        return False
    return all(each.get("IndexStatus") == "ACTIVE" for each in described.get("GlobalSecondaryIndexes", ()))


async def _until(tables: Tables, table: Table, is_so: Any) -> dict[str, Any] | None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ACTIVE_SECONDS
    pause = LOOK_SECONDS
    while True:
        described = await _described(tables, table)
        if is_so(described):
            return described
        if loop.time() > deadline:
            raise StoreUnavailable(f"{tables.names[table]} is not ready after ten minutes: run holdfast migrate again")
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, LOOK_SECONDS_MAX)


async def _described(tables: Tables, table: Table) -> dict[str, Any] | None:
    try:
        return await _describe(tables, table)
    except Refused as refused:
        raise translate(refused, tables.shown) from None


async def _describe(tables: Tables, table: Table) -> dict[str, Any] | None:
    """None: there is no such table."""
    body = {"TableName": tables.names[table]}
    try:
        reply = await tables.wire.persist("DescribeTable", body, lane=Lane.USUAL, seconds=8.0)
    except Refused as refused:
        if answer(refused) is Answer.GONE:
            return None
        raise
    except Unanswered as unanswered:
        raise translate(unanswered, tables.shown) from None
    described: dict[str, Any] = reply["Table"]
    return described
