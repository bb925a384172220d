"""How tables and indexes are created: keys with their types, projections, and how they are billed. Pure.

An index that other programs query shows, beyond its keys, what changes only together with them, which costs nothing; or
whole jobs, if the URL says projection=all.
"""

from __future__ import annotations

from typing import Any

from backstay.engines.dynamodb.schema import INDEXES, Index, Table

NUMBERS = frozenset({"priority"})  # keys of indexes that are numbers


def definition(table: Table, name: str, *, provisioned: bool, subject: str, whole: bool) -> dict[str, Any]:
    """Return the body of CreateTable. `subject` is the attribute with a job's subject; with `whole`, promised indexes
    show all attributes."""
    indexes = list(INDEXES.values()) if table is Table.JOBS else []
    attributes = [each for index in indexes for each in attributes_of(index, subject)]
    attributes += [{"AttributeName": each, "AttributeType": "S"} for each in table.key_names]
    body: dict[str, Any] = {
        "TableName": name,
        "AttributeDefinitions": list({each["AttributeName"]: each for each in attributes}.values()),
        "KeySchema": key_schema(*table.key_names),
        **billing(provisioned, 10),
    }
    if indexes:
        body["GlobalSecondaryIndexes"] = [
            index_definition(index, provisioned=provisioned, subject=subject, whole=whole) for index in indexes
        ]
    return body


def index_definition(index: Index, *, provisioned: bool, subject: str, whole: bool) -> dict[str, Any]:
    body = {
        "IndexName": index.name,
        "KeySchema": key_schema(*(each["AttributeName"] for each in attributes_of(index, subject))),
        "Projection": _projection(index, subject, whole),
    }
    if provisioned:
        body["ProvisionedThroughput"] = {"ReadCapacityUnits": 5, "WriteCapacityUnits": 5}
    return body


def _projection(index: Index, subject: str, whole: bool) -> dict[str, Any]:
    if whole and index.promised:
        return {"ProjectionType": "ALL"}
    if not index.includes:
        return {"ProjectionType": "KEYS_ONLY"}
    return {"ProjectionType": "INCLUDE", "NonKeyAttributes": [_named(each, subject) for each in index.includes]}


def attributes_of(index: Index, subject: str) -> list[dict[str, str]]:
    """Return the keys of an index with their types."""
    return [
        {"AttributeName": _named(each, subject), "AttributeType": "N" if each in NUMBERS else "S"}
        for each in (index.hash, index.range)
    ]


def _named(name: str, subject: str) -> str:
    return subject if name == "subject" else name


def billing(provisioned: bool, units: int) -> dict[str, Any]:
    if not provisioned:
        return {"BillingMode": "PAY_PER_REQUEST"}
    return {
        "BillingMode": "PROVISIONED",
        "ProvisionedThroughput": {"ReadCapacityUnits": units, "WriteCapacityUnits": units},
    }


def key_schema(hash_name: str, range_name: str | None = None) -> list[dict[str, str]]:
    schema = [{"AttributeName": hash_name, "KeyType": "HASH"}]
    if range_name is not None:
        schema.append({"AttributeName": range_name, "KeyType": "RANGE"})
    return schema
