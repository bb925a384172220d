"""Whose a DynamoDB table is: one of another program is refused before anything in it is changed or deleted.

Ours are marked: the jobs' table by the owner item, which names the records' table; the records' table by the schema
item; a result table by its definition among the records. A table without its mark is used only if it is empty and has
the keys that we would give it: an interrupted migration, or an administrator, has created it.
"""

from __future__ import annotations

from typing import Any

from backstay.engines.dynamodb import schema
from backstay.engines.dynamodb import table as dynamodb_table
from backstay.engines.dynamodb.attributes import SUBJECT, Form
from backstay.engines.dynamodb.definition import attributes_of
from backstay.engines.dynamodb.expressions import absent, equals, key_item, update
from backstay.engines.dynamodb.schema import INDEXES, OWNER, Item, Table, decode, encode
from backstay.engines.dynamodb.table import Described, Failed, Tables
from backstay.errors import ConfigurationError, SchemaMismatch, StoreUnsafe

_ELSEWHERE = "choose another prefix or table= in the URL"


def refuse_other_form(name: str, table: Table, described: Described, subject: str) -> None:
    """Refuse a table whose keys, or those of an index with a name of ours, are not the ones that we use."""
    kinds = {each["AttributeName"]: each["AttributeType"] for each in described.get("AttributeDefinitions", ())}
    found = key_of(described)
    if found != table.key_names or any(kinds.get(each, "S") != "S" for each in found):
        raise foreign(name, f"its key is {_shown(found, kinds)}")
    if table is Table.JOBS:
        refuse_other_indexes(name, described, {each.name: attributes_of(each, subject) for each in INDEXES.values()})


def refuse_other_indexes(
    name: str, described: Described, wanted: dict[str, list[dict[str, str]]], what_to_do: str = _ELSEWHERE
) -> None:
    """Refuse a table with an index that has a wanted name and another key."""
    kinds = {each["AttributeName"]: each["AttributeType"] for each in described.get("AttributeDefinitions", ())}
    for index in described.get("GlobalSecondaryIndexes", ()):
        attributes = wanted.get(index["IndexName"])
        if attributes is None:
            continue
        found = key_of(index)
        ours = {each["AttributeName"]: each["AttributeType"] for each in attributes}
        if found != tuple(ours) or any(kinds.get(each, kind) != kind for each, kind in ours.items()):
            raise foreign(
                name,
                f"the key of its index {index['IndexName']} is {_shown(found, kinds)}, not {_shown(tuple(ours), ours)}",
                what_to_do,
            )


def refuse_slimmer_indexes(name: str, described: Described, form: Form) -> None:
    """Refuse an index, perhaps of a template, that does not show what we read from it."""
    for index in described.get("GlobalSecondaryIndexes", ()):
        wanted, projection = INDEXES.get(index["IndexName"]), index["Projection"]
        if wanted is None or projection["ProjectionType"] == "ALL":
            continue
        shown = {*projection.get("NonKeyAttributes", ()), *key_of(described), *key_of(index)}
        if missing := sorted({form.name(each) for each in wanted.includes} - shown):
            raise SchemaMismatch(
                f"{name}: the index {wanted.name} does not show {', '.join(missing)}: delete the index and run"
                " backstay migrate, which creates it"
            )


def key_of(described: dict[str, Any]) -> tuple[str, ...]:
    parts = sorted(described.get("KeySchema", ()), key=lambda each: str(each["KeyType"]))  # HASH, RANGE
    return tuple(each["AttributeName"] for each in parts)


def _shown(names: tuple[str, ...], kinds: dict[str, str]) -> str:
    return ", ".join(f"{each} ({kinds.get(each, 'S')})" for each in names)


def foreign(name: str, why: str, what_to_do: str = _ELSEWHERE) -> StoreUnsafe:
    return StoreUnsafe(f"{name} belongs to another program ({why}): nothing in it was changed; {what_to_do}")


async def refuse_other_contents(tables: Tables, table: Table) -> None:
    """Refuse a table that has items but not our mark, and the jobs' table of another queue."""
    # The items first: a process that migrates at the same time writes its mark before anything else.
    used = await has_items(tables, tables.names[table])
    if table is Table.JOBS:
        owner = await _owner(tables)
        if owner is not None:
            _refuse_other_queue(tables, owner)
        elif used:
            raise foreign(tables.names[table], "it has items, and none of them says that this queue made it")
    elif used and not is_schema(await _schema(tables)):
        raise foreign(tables.names[table], "it has items, and none of them is the schema of a queue")


async def has_items(tables: Tables, name: str) -> bool:
    """Return whether a table has items. Its described number of items may be six hours old."""
    reply = await tables.call("Scan", {"TableName": name, "Limit": 1, "ConsistentRead": True})
    return bool(reply.get("Items") or reply.get("LastEvaluatedKey"))


async def _schema(tables: Tables) -> Item | None:
    [found] = await tables.get(Table.RECORDS, [schema.SCHEMA_KEY])
    return found


def is_schema(item: Item | None) -> bool:
    return item is not None and isinstance(item.get("number"), int) and isinstance(item.get("shards"), int)


async def _owner(tables: Tables) -> Item | None:
    body = {
        "TableName": tables.names[Table.JOBS],
        "Key": encode(key_item(Table.JOBS, OWNER)),
        "ConsistentRead": True,
    }
    reply = await tables.call("GetItem", body)
    return decode(reply["Item"]) if reply.get("Item") else None


def _refuse_other_queue(tables: Tables, owner: Item) -> None:
    if owner.get("records") != tables.names[Table.RECORDS]:
        raise ConfigurationError(
            f"{tables.names[Table.JOBS]} holds the jobs of another queue, whose other table is {owner.get('records')}:"
            " choose another table= for this prefix, or open the queue by its own"
        )


async def bind(tables: Tables) -> None:
    """Bind the jobs' table to its records' table: two queues on one table would each see the other's jobs without their
    records."""
    mine = tables.names[Table.RECORDS]
    owner = await _owner(tables)
    if owner is None:
        await refuse_other_contents(tables, Table.JOBS)
        try:
            await tables.update(
                update(Table.JOBS, OWNER, sets={"records": mine}, condition=absent("job_id") | equals("records", mine))
            )
            return
        except Failed as failed:
            owner = failed.item or {}
    _refuse_other_queue(tables, owner)


async def refuse_foreign(tables: Tables) -> dict[Table, Described]:
    """Refuse tables of other programs; return the descriptions of those that exist."""
    found = {}
    for table in (Table.RECORDS, Table.JOBS):  # the records say how the jobs are stored
        described = await dynamodb_table.described(tables, tables.names[table])
        if described is not None:
            refuse_other_form(tables.names[table], table, described, tables.form.subject)
            if described.get("TableStatus") in ("ACTIVE", "UPDATING"):  # else it is being created, and empty
                await refuse_other_contents(tables, table)
                if table is Table.RECORDS:
                    adopt(tables, await _schema(tables))
            found[table] = described
    return found


def adopt(tables: Tables, stored: Item | None) -> None:
    """Store jobs as the table has them; refuse a URL that says otherwise."""
    if stored is None:
        return
    address, form = tables.wire.address, tables.form
    subject, capitals = stored.get("subject", SUBJECT), bool(stored.get("capitals", False))
    if address.subject not in (None, subject):
        raise SchemaMismatch(
            f"{tables.shown} stores the subject of a job as {subject}, and the URL says subject={address.subject}:"
            " leave it out of the URL, or transfer the queue to tables with another prefix"
        )
    if address.capitals not in (None, capitals):
        raise SchemaMismatch(
            f"{tables.shown} stores states in {'capitals' if capitals else 'small letters'}, and the URL says"
            f" status={'upper' if address.capitals else 'lower'}: leave it out of the URL, or transfer the queue to"
            " tables with another prefix"
        )
    form.subject, form.capitals = subject, capitals
