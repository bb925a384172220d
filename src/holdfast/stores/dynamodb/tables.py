"""Result tables: which there are, and how each is made. Their rows lie in tables of their own, named like the fields of
the model, so that another program reads them as they are.

A definition is written once its table can be used, and only grows; whoever finds it may use the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.errors import ConfigurationError, SchemaMismatch
from holdfast.store.tables import ColumnKind, ResultTable
from holdfast.stores import declaring
from holdfast.stores.dynamodb import ddl, items, keys
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.expressions import equals
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Table, billing
from holdfast.stores.dynamodb.table import Failed, Tables
from holdfast.stores.dynamodb.values import Item

SUBJECT_INDEX = "ConversationIndex"
_definition = msgspec.json.Decoder(ResultTable)


async def declare(ground: Ground, tables: Sequence[ResultTable]) -> list[str]:
    return [table.name for table in tables if await _declare(ground, table)]


async def _declare(ground: Ground, table: ResultTable) -> bool:
    while True:
        [item] = await ground.tables.get(Table.RECORDS, [keys.result_table(table.name)])
        stored = None if item is None else _definition.decode(item["definition"])
        wanted = declaring.declared(stored, table)
        if stored == wanted:
            return False
        if stored is None:
            declaring.refuse_too_many(len(await result_tables(ground)), table.name)
        await _make(ground.tables, wanted, ground.tables.wire.address.provisioned)
        if await _write(ground.tables, wanted, item):
            return True


async def _write(tables: Tables, table: ResultTable, before: Item | None) -> bool:
    """False: another was faster, perhaps with more columns."""
    pk, sk = keys.result_table(table.name)
    text = msgspec.json.encode(table).decode()
    item = {"pk": pk, "sk": sk, "definition": text, "wid": items.new_wid()}
    try:
        await tables.put(Table.RECORDS, item, equals("definition", None if before is None else before["definition"]))
    except Failed:
        return False
    return True


async def result_tables(ground: Ground) -> list[ResultTable]:
    return await _all(ground.tables)


async def _all(tables: Tables) -> list[ResultTable]:
    ask = Ask(table=Table.RECORDS, hash=keys.RESULTS, consistent=True)
    return [_definition.decode(row["definition"]) async for row in tables.ask(ask)]


async def names(tables: Tables) -> list[str]:
    """Of the tables in which rows lie."""
    return [name_of(tables, each.name) for each in await _all(tables)]


async def find(ground: Ground, table: ResultTable) -> ResultTable | None:
    """As it is stored. What was read before is good enough as long as it has all that is asked for."""
    known = ground.result_tables.get(table.name)
    if known is not None and not declaring.missing(known, table):
        return known
    [item] = await ground.tables.get(Table.RECORDS, [keys.result_table(table.name)])
    if item is None:
        return None
    found = ground.result_tables[table.name] = _definition.decode(item["definition"])
    return found


def name_of(tables: Tables, table: str) -> str:
    """Of the table in which its rows lie."""
    name = f"{tables.wire.address.prefix}_{table}"
    if name in tables.names.values():
        raise ConfigurationError(f"result table {table}: on DynamoDB {name} is Holdfast's own; choose another name")
    return name


# Making


async def _make(tables: Tables, table: ResultTable, provisioned: bool) -> None:
    name = name_of(tables, table.name)
    found = await ddl.described(tables, name)
    if found is None:
        await ddl.run(tables, "CreateTable", _body(name, table, provisioned=provisioned))
    found = await ddl.active(tables, name)
    _refuse_other(name, table, found)
    there = {each["IndexName"] for each in found.get("GlobalSecondaryIndexes", ())}
    if table.subject_index and SUBJECT_INDEX not in there:
        index = {"Create": _index(table, provisioned=provisioned)}
        body = {
            "TableName": name,
            "AttributeDefinitions": _attributes(table),
            "GlobalSecondaryIndexUpdates": [index],
        }
        await ddl.run(tables, "UpdateTable", body)
        await ddl.active(tables, name)


def _refuse_other(name: str, table: ResultTable, found: ddl.Described) -> None:
    schema = [each["AttributeName"] for each in found["KeySchema"]]
    kinds = {each["AttributeName"]: each["AttributeType"] for each in found["AttributeDefinitions"]}
    if schema != ["job_id", table.key] or kinds[table.key] != key_kind(table):
        raise SchemaMismatch(
            f"{name} is there already with the key {', '.join(schema)}, and {table.name} is declared with job_id,"
            f" {table.key}: give the result table another name"
        )


def _body(name: str, table: ResultTable, *, provisioned: bool) -> dict[str, Any]:
    body = {
        "TableName": name,
        "AttributeDefinitions": _attributes(table),
        "KeySchema": _schema("job_id", table.key),
        **billing(provisioned, 10),
    }
    if table.subject_index:
        body["GlobalSecondaryIndexes"] = [_index(table, provisioned=provisioned)]
    return body


def _index(table: ResultTable, *, provisioned: bool) -> dict[str, Any]:
    """Keys alone: a row with a vector of 1,000 dimensions should not be written twice."""
    index: dict[str, Any] = {
        "IndexName": SUBJECT_INDEX,
        "KeySchema": _schema(table.subject or "", "created_at"),
        "Projection": {"ProjectionType": "KEYS_ONLY"},
    }
    if provisioned:
        index["ProvisionedThroughput"] = {"ReadCapacityUnits": 5, "WriteCapacityUnits": 5}
    return index


def _attributes(table: ResultTable) -> list[dict[str, str]]:
    kinds = {"job_id": "S", table.key: key_kind(table)}
    if table.subject_index and table.subject is not None:
        kinds |= {table.subject: kinds.get(table.subject, "S"), "created_at": "S"}
    return [{"AttributeName": name, "AttributeType": kind} for name, kind in kinds.items()]


def _schema(hash_name: str, range_name: str) -> list[dict[str, str]]:
    return [{"AttributeName": hash_name, "KeyType": "HASH"}, {"AttributeName": range_name, "KeyType": "RANGE"}]


def key_kind(table: ResultTable) -> str:
    kind = next(column.kind for column in table.columns if column.name == table.key)
    return "N" if kind is ColumnKind.INTEGER else "S"
