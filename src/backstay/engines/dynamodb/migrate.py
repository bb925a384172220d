"""Creates and upgrades the DynamoDB tables, and checks that they can keep the guarantees."""

from __future__ import annotations

import logging
import uuid
from typing import Any, NoReturn

from backstay.clock import SystemClock
from backstay.engines.dynamodb import ownership, results
from backstay.engines.dynamodb import schema as dynamodb_schema
from backstay.engines.dynamodb import table as dynamodb_table
from backstay.engines.dynamodb.definition import attributes_of, definition, index_definition
from backstay.engines.dynamodb.expressions import absent, below, equals
from backstay.engines.dynamodb.schema import (
    INDEXES,
    SCHEMA,
    SCHEMA_NAMES,
    Index,
    Item,
    Table,
)
from backstay.engines.dynamodb.table import Failed, Tables
from backstay.engines.dynamodb.transport import Refused, translate
from backstay.errors import SchemaMismatch, StoreGone, StoreUnsafe

log = logging.getLogger("backstay.engines.dynamodb")


async def check(tables: Tables) -> bool:
    """Return whether the tables exist and match this release; refuse tables that cannot keep the guarantees."""
    if not await _is_ours(tables, Table.RECORDS):
        return False
    try:
        [schema] = await tables.get(Table.RECORDS, [dynamodb_schema.SCHEMA_KEY])
    except StoreGone:  # it is being created
        return False
    if schema is None or not ownership.is_schema(schema) or schema["number"] < SCHEMA:
        return False
    if schema["number"] == SCHEMA:
        ownership.adopt(tables, schema)
        if not await _is_ours(tables, Table.JOBS):
            return False
    if schema["number"] > SCHEMA:
        raise SchemaMismatch(
            f"{tables.shown} has the schema of a later release ({schema['number']}, this one knows {SCHEMA}):"
            " install that release"
        )
    if schema["shards"] < tables.shards:
        _refuse_shards(tables, schema)
    tables.shards = schema["shards"]  # perhaps more than in the URL: jobs are in all of them
    await ownership.bind(tables)
    return True


async def exists(tables: Tables) -> bool:
    """Return whether there is a queue; one that is only half created does not count."""
    if not await _is_ours(tables, Table.RECORDS):
        return False
    try:
        [schema] = await tables.get(Table.RECORDS, [dynamodb_schema.SCHEMA_KEY])
    except StoreGone:
        return False
    return ownership.is_schema(schema)


async def _is_ours(tables: Tables, table: Table) -> bool:
    """Return whether a table exists and has the right form; without permission to describe it, this is assumed."""
    try:
        found = await dynamodb_table.describe(tables, tables.names[table])
    except Refused as refused:
        if refused.code != "AccessDeniedException":
            raise translate(refused, tables.shown) from None
        log.warning("not allowed to describe %s: its replicas and indexes were not checked", tables.names[table])
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
    ownership.refuse_other_form(name, table, described, tables.form.subject)
    if table is Table.JOBS:
        ownership.refuse_slimmer_indexes(name, described, tables.form)


def _refuse_shards(tables: Tables, schema: Item) -> NoReturn:
    raise SchemaMismatch(
        f"{tables.shown} was made for {schema['shards']} shards and is opened with {tables.shards}:"
        " run backstay migrate with this URL first, so that every process looks everywhere"
    )


async def migrate(tables: Tables, *, provisioned: bool) -> list[str]:
    """Create what is missing. The next call completes an interrupted one, and nothing is used before the schema number
    is written."""
    await ownership.refuse_foreign(tables)
    made = False
    for table in Table:
        made |= await _make(tables, table, provisioned)
    for table in Table:
        found = await dynamodb_table.active(tables, tables.names[table])
        _refuse_unsafe(tables, table, found)
        if table is Table.JOBS:
            made |= await _complete(tables, found, provisioned)
    await ownership.bind(tables)
    [before] = await tables.get(Table.RECORDS, [dynamodb_schema.SCHEMA_KEY])
    if before is not None and before["number"] > SCHEMA:
        raise SchemaMismatch(f"{tables.shown} has the schema of a later release: install that one")
    fresh = before is None or before["number"] < SCHEMA
    raised = before is not None and before["shards"] < tables.shards
    if fresh or raised:
        await _sign(tables, before)
    done = list(SCHEMA_NAMES) if fresh else ["indexes"] * made
    return done + [f"shards={tables.shards}"] * raised


async def _sign(tables: Tables, before: Item | None) -> None:
    pk, sk = dynamodb_schema.SCHEMA_KEY
    item: Item = {"pk": pk, "sk": sk, "place": str(uuid.uuid4()), "created_at": SystemClock().now(), **(before or {})}
    item |= {
        "number": SCHEMA,
        "names": list(SCHEMA_NAMES),
        "shards": max(tables.shards, (before or {}).get("shards", 1)),
        "subject": tables.form.subject,
        "capitals": tables.form.capitals,
    }
    place = {
        "pk": dynamodb_schema.PLACE_KEY[0],
        "sk": dynamodb_schema.PLACE_KEY[1],
        "place": item["place"],
        "shards": item["shards"],
    }
    if before is not None:  # running processes must read new shards before a newly opened store writes a job there
        await tables.put(Table.RECORDS, place)
    condition = absent("pk") | below("number", SCHEMA) | (equals("number", SCHEMA) & below("shards", item["shards"]))
    try:
        await tables.put(Table.RECORDS, item, condition)
    except Failed:
        return  # another process did the same first
    await tables.put(Table.RECORDS, place)


async def _make(tables: Tables, table: Table, provisioned: bool) -> bool:
    if await dynamodb_table.described(tables, tables.names[table]) is not None:
        return False
    subject, whole = tables.form.subject, tables.wire.address.whole
    body = definition(table, tables.names[table], provisioned=provisioned, subject=subject, whole=whole)
    return await dynamodb_table.run(tables, "CreateTable", body)


async def _complete(tables: Tables, described: dict[str, Any], provisioned: bool) -> bool:
    """Create indexes that an earlier release did not have, one by one: DynamoDB creates only one at a time."""
    there = {each["IndexName"] for each in described.get("GlobalSecondaryIndexes", ())}
    missing: list[Index] = [index for name, index in INDEXES.items() if name not in there]
    subject, whole = tables.form.subject, tables.wire.address.whole
    for index in missing:
        made = index_definition(index, provisioned=provisioned, subject=subject, whole=whole)
        body = {
            "TableName": tables.names[Table.JOBS],
            "AttributeDefinitions": attributes_of(index, subject),
            "GlobalSecondaryIndexUpdates": [{"Create": made}],
        }
        await dynamodb_table.run(tables, "UpdateTable", body)
        await dynamodb_table.active(tables, tables.names[Table.JOBS])
    return bool(missing)


async def would_erase(tables: Tables) -> dict[str, int]:
    """Return the tables that `erase` would delete, and about how many items each has."""
    there = await _erasable(tables)
    return {name: found.get("ItemCount", 0) for name, found in there.items()}


async def erase(tables: Tables) -> list[str]:
    """Delete all tables, including result tables; return the names of those that existed."""
    there = list(await _erasable(tables))
    for name in there:
        await dynamodb_table.run(tables, "DeleteTable", {"TableName": name})
    for name in there:
        await dynamodb_table.gone(tables, name)
    return there


async def _erasable(tables: Tables) -> dict[str, dynamodb_table.Described]:
    """Return the tables of this queue, those that say which others there are last: an interrupted `erase` can be
    repeated."""
    own = await ownership.refuse_foreign(tables)
    found: dict[str, dynamodb_table.Described] = {}
    if Table.RECORDS in own:
        for name in await results.names(tables):
            if (described := await dynamodb_table.described(tables, name)) is not None:
                found[name] = described
    for table in (Table.JOBS, Table.RECORDS):
        if table in own:
            found[tables.names[table]] = own[table]
    return found
