"""Tables of other programs are refused by opening, migrate and delete, and left as they were."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.core.result_tables import Column, ColumnKind, ResultTable
from backstay.engines.dynamodb.definition import definition
from backstay.engines.dynamodb.schema import Table
from backstay.engines.dynamodb.store import DynamoStore
from backstay.engines.dynamodb.table import Tables
from backstay.errors import ConfigurationError, StoreUnsafe
from tests.support.servers.dynamodb import DynamoDB

DELPHI = {
    "StatusCreatedIndex": ("status", "created_at"),
    "ConversationIndex": ("conversation_id", "created_at"),
    "JobTypeIndex": ("job_type", "priority"),
    "WorkerStatusIndex": ("worker_id", "status"),
}
WORDS = ResultTable(
    name="words",
    key="word",
    columns=(Column("word", ColumnKind.TEXT), Column("about", ColumnKind.TEXT)),
    subject="about",
    subject_index=True,
)


@pytest.fixture
def url(dynamodb: DynamoDB) -> str:
    return dynamodb.url()


async def create(tables: Tables, name: str, *key: str, **indexes: tuple[str, str]) -> None:
    names = dict.fromkeys([*key, *(part for parts in indexes.values() for part in parts)])
    body: dict[str, Any] = {
        "TableName": name,
        "AttributeDefinitions": [
            {"AttributeName": each, "AttributeType": "N" if each == "priority" else "S"} for each in names
        ],
        "KeySchema": _key(key),
        "BillingMode": "PAY_PER_REQUEST",
    }
    if indexes:
        body["GlobalSecondaryIndexes"] = [
            {"IndexName": index, "KeySchema": _key(parts), "Projection": {"ProjectionType": "ALL"}}
            for index, parts in indexes.items()
        ]
    await tables.call("CreateTable", body)


def _key(names: tuple[str, ...]) -> list[dict[str, str]]:
    return [{"AttributeName": each, "KeyType": kind} for each, kind in zip(names, ("HASH", "RANGE"), strict=False)]


async def put(tables: Tables, name: str, **item: str) -> None:
    await tables.call("PutItem", {"TableName": name, "Item": {each: {"S": value} for each, value in item.items()}})


async def everything(tables: Tables, prefix: str) -> dict[str, tuple[list[Any], list[str]]]:
    """The items and indexes of every table whose name begins so."""
    found = {}
    for name in (await tables.call("ListTables", {"ExclusiveStartTableName": prefix}))["TableNames"]:
        if name.startswith(prefix):
            described = (await tables.call("DescribeTable", {"TableName": name}))["Table"]
            indexes = sorted(each["IndexName"] for each in described.get("GlobalSecondaryIndexes", ()))
            found[name] = ((await tables.call("Scan", {"TableName": name}))["Items"], indexes)
    return found


async def refuses(url: str, tables: Tables, error: type[Exception], match: str) -> None:
    """Every way in, and nothing has changed."""
    prefix = tables.wire.address.prefix
    before = await everything(tables, prefix)
    for way_in in (DynamoStore.open, DynamoStore.migrate, DynamoStore.would_erase, DynamoStore.erase):
        with pytest.raises(error, match=match):
            await way_in(DynamoStore(url))
    assert await everything(tables, prefix) == before


async def test_a_table_with_indexes_of_our_names_and_other_keys_is_refused(url: str, tables: Tables) -> None:
    await create(tables, tables.names[Table.JOBS], "job_id", **DELPHI)

    await refuses(url, tables, StoreUnsafe, r"its index \w+ is .*; choose another prefix or table=")


async def test_an_index_with_our_names_and_other_types_is_refused(url: str, tables: Tables) -> None:
    body = definition(Table.JOBS, tables.names[Table.JOBS], provisioned=False, subject="subject", whole=False)
    for each in body["AttributeDefinitions"]:
        if each["AttributeName"] == "priority":
            each["AttributeType"] = "S"
    await tables.call("CreateTable", body)

    await refuses(
        url, tables, StoreUnsafe, r"JobTypeIndex is job_type \(S\), priority \(S\), not job_type \(S\), priority \(N\)"
    )


async def test_a_table_with_our_key_and_items_of_others_is_refused(url: str, tables: Tables) -> None:
    await create(tables, tables.names[Table.JOBS], "job_id")
    await put(tables, tables.names[Table.JOBS], job_id="1", status="PENDING")

    await refuses(url, tables, StoreUnsafe, "it has items")


async def test_records_with_our_key_and_items_of_others_are_refused(url: str, tables: Tables) -> None:
    await create(tables, tables.names[Table.RECORDS], "pk", "sk")
    await put(tables, tables.names[Table.RECORDS], pk="user", sk="1")

    await refuses(url, tables, StoreUnsafe, "it has items")


async def test_a_queue_whose_url_names_a_foreign_table_for_its_jobs_does_not_adopt_it(url: str, tables: Tables) -> None:
    await DynamoStore(url).migrate()
    other = f"{tables.wire.address.prefix}_theirs"
    await create(tables, other, "job_id")
    await put(tables, other, job_id="1")

    await refuses(f"{url}&table={other}", tables, StoreUnsafe, "it has items")


async def test_the_jobs_of_another_queue_are_not_deleted_with_this_one(
    dynamodb: DynamoDB, url: str, tables: Tables
) -> None:
    await DynamoStore(url).migrate()
    other = dynamodb.url(table=tables.names[Table.JOBS])

    await refuses(other, tables, ConfigurationError, "holds the jobs of another queue")


async def test_empty_tables_that_an_administrator_created_are_used(url: str, tables: Tables) -> None:
    for table in Table:
        await create(tables, tables.names[table], *table.key_names)

    assert await DynamoStore(url).migrate() == ["0001_tables"]
    assert len(await DynamoStore(url).erase()) == 2


async def test_a_result_table_of_another_program_is_refused(url: str, tables: Tables) -> None:
    store = DynamoStore(url)
    await store.open()
    name = f"{tables.wire.address.prefix}_words"
    await create(tables, name, "job_id", "word")
    await put(tables, name, job_id="1", word="theirs")
    before = await everything(tables, name)

    with pytest.raises(StoreUnsafe, match=r"_words belongs to another program .*another name"):
        await store.declare([WORDS])

    assert await everything(tables, name) == before
    assert name not in await store.would_erase()
    await store.close()


async def test_a_result_table_whose_index_has_another_key_is_refused(url: str, tables: Tables) -> None:
    store = DynamoStore(url)
    await store.open()
    name = f"{tables.wire.address.prefix}_words"
    await create(tables, name, "job_id", "word", ConversationIndex=("conversation_id", "created_at"))

    with pytest.raises(StoreUnsafe, match="ConversationIndex is conversation_id"):
        await store.declare([WORDS])
    await store.close()


async def test_a_result_table_that_is_in_use_is_declared_again(url: str, tables: Tables) -> None:
    store = DynamoStore(url)
    await store.open()
    await store.declare([WORDS])
    await put(tables, f"{tables.wire.address.prefix}_words", job_id="1", word="ours")
    more = ResultTable(
        name="words",
        key="word",
        columns=(*WORDS.columns, Column("more", ColumnKind.TEXT)),
        subject="about",
        subject_index=True,
    )

    assert await store.declare([more]) == ["words"]
    await store.close()
