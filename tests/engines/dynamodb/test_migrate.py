"""Tables are made once, completed where something is missing, and refused where they could not keep the promises."""

from __future__ import annotations

import asyncio

import pytest

from backstay.engines.dynamodb import migrate, schema
from backstay.engines.dynamodb.definition import definition
from backstay.engines.dynamodb.schema import INDEXES, Table
from backstay.engines.dynamodb.store import DynamoStore
from backstay.engines.dynamodb.table import Tables
from backstay.errors import ConfigurationError, SchemaMismatch, StoreGone, StoreUnsafe
from tests.support.servers.dynamodb import DynamoDB


@pytest.fixture
def url(dynamodb: DynamoDB) -> str:
    return dynamodb.url()


async def _opens(url: str) -> None:
    store = DynamoStore(url)
    await store.open()
    await store.close()


async def test_opening_makes_what_is_not_there(url: str, tables: Tables) -> None:
    await _opens(url)

    assert await migrate.check(tables)
    assert await DynamoStore(url).migrate() == []


async def test_many_who_open_at_once_make_them_together(url: str) -> None:
    await asyncio.gather(*(_opens(url) for _ in range(4)))

    assert await DynamoStore(url).migrate() == []


async def test_a_half_made_set_is_completed(url: str, tables: Tables) -> None:
    name = tables.names[Table.JOBS]
    body = definition(Table.JOBS, name, provisioned=False, subject="subject", whole=False)
    body["GlobalSecondaryIndexes"] = body["GlobalSecondaryIndexes"][:2]
    used = {each["AttributeName"] for index in body["GlobalSecondaryIndexes"] for each in index["KeySchema"]}
    body["AttributeDefinitions"] = [
        each for each in body["AttributeDefinitions"] if each["AttributeName"] in used | {"job_id"}
    ]
    await tables.call("CreateTable", body)

    assert await DynamoStore(url).migrate() == ["0001_tables"]

    described = await tables.call("DescribeTable", {"TableName": name})
    assert {each["IndexName"] for each in described["Table"]["GlobalSecondaryIndexes"]} == set(INDEXES)


async def test_an_index_that_shows_less_than_is_read_from_it_is_refused(url: str, tables: Tables) -> None:
    body = definition(Table.JOBS, tables.names[Table.JOBS], provisioned=False, subject="subject", whole=False)
    for index in body["GlobalSecondaryIndexes"]:
        if index["IndexName"] == "JobTypeIndex":
            index["Projection"] = {"ProjectionType": "KEYS_ONLY"}
    await tables.call("CreateTable", body)

    with pytest.raises(SchemaMismatch, match="JobTypeIndex does not show created_at, scheduled_for, subject: delete"):
        await DynamoStore(url).migrate()


async def test_tables_of_a_later_release_are_left_alone(url: str, tables: Tables) -> None:
    await DynamoStore(url).migrate()
    pk, sk = schema.SCHEMA_KEY
    await tables.put(Table.RECORDS, {"pk": pk, "sk": sk, "number": 99, "shards": 1})

    with pytest.raises(SchemaMismatch, match="later release"):
        await DynamoStore(url).open()
    with pytest.raises(SchemaMismatch, match="later release"):
        await DynamoStore(url).migrate()


async def test_more_shards_are_used_only_after_a_migration(dynamodb: DynamoDB, url: str) -> None:
    await _opens(url)
    more = f"{url}&shards=4"

    with pytest.raises(SchemaMismatch, match="backstay migrate"):
        await DynamoStore(more).open()
    await DynamoStore(more).migrate()

    await _opens(more)


async def test_a_table_of_another_program_is_refused(url: str, tables: Tables) -> None:
    body = {
        "TableName": tables.names[Table.JOBS],
        "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
        "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
        "BillingMode": "PAY_PER_REQUEST",
    }
    await tables.call("CreateTable", body)

    with pytest.raises(StoreUnsafe, match="another program"):
        await DynamoStore(url).open()


async def test_capacity_may_be_provisioned(dynamodb: DynamoDB) -> None:
    store = DynamoStore(dynamodb.url(billing="provisioned"))
    await store.migrate()
    tables = store._tables()

    described = await tables.call("DescribeTable", {"TableName": tables.names[Table.JOBS]})

    assert described["Table"]["ProvisionedThroughput"]["WriteCapacityUnits"] == 10
    await tables.wire.close()


async def test_tables_that_vanish_under_an_open_store_are_missed(url: str) -> None:
    store = DynamoStore(url)
    await store.open()
    assert len(await store.erase()) == 2

    with pytest.raises(StoreGone, match="backstay migrate"):
        await store.get(["0198d0c2-6c1e-7001-8a3b-1f2e3d4c5b6a"])
    await store.close()
    assert await DynamoStore(url).erase() == []


async def test_two_queues_cannot_share_the_table_of_jobs(dynamodb: DynamoDB, url: str, tables: Tables) -> None:
    await _opens(url)
    other = dynamodb.url(table=tables.names[Table.JOBS])

    for _ in range(2):
        with pytest.raises(ConfigurationError, match=f"holds the jobs of another queue.*{tables.names[Table.RECORDS]}"):
            await DynamoStore(other).migrate()
        with pytest.raises(ConfigurationError, match="holds the jobs of another queue"):
            await DynamoStore(other).open()
    await _opens(url)


async def test_the_mark_of_the_table_of_jobs_is_no_job(url: str) -> None:
    store = DynamoStore(url)
    await store.open()

    assert await store.get(["backstay", "backstay", "none"]) == [None, None, None]
    assert await store.statuses(["backstay"]) == [None]
    assert sum((await store.counts()).values()) == 0
    await store.close()
