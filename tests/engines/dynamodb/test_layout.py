"""The table of jobs as those know it who had one before: its name, its key, its four indexes and their capacity."""

from __future__ import annotations

from typing import Any

import pytest

from backstay import Backstay
from backstay.engines.dynamodb import read
from backstay.engines.dynamodb.store import DynamoStore
from backstay.errors import InvalidOption
from tests.support.servers.dynamodb import DynamoDB


@pytest.fixture(scope="module")
def url(dynamodb: DynamoDB) -> str:
    return dynamodb.url("layout", table="DelphiJobQueue", billing="provisioned", subject="conversation_id")


@pytest.fixture
async def described(url: str) -> dict[str, Any]:
    store = DynamoStore(url)
    await store.migrate()
    tables = store._tables()
    answer = await tables.call("DescribeTable", {"TableName": "DelphiJobQueue"})
    await tables.wire.close()
    return answer["Table"]


def units(described: dict[str, Any]) -> tuple[int, int]:
    capacity = described["ProvisionedThroughput"]
    return capacity["ReadCapacityUnits"], capacity["WriteCapacityUnits"]


async def test_the_table_has_the_name_that_was_given_and_the_job_id_as_its_key(described: dict[str, Any]) -> None:
    assert described["TableName"] == "DelphiJobQueue"
    assert described["KeySchema"] == [{"AttributeName": "job_id", "KeyType": "HASH"}]
    assert {"AttributeName": "job_id", "AttributeType": "S"} in described["AttributeDefinitions"]


async def test_the_four_indexes_have_the_names_keys_and_types_that_they_had(described: dict[str, Any]) -> None:
    kinds = {each["AttributeName"]: each["AttributeType"] for each in described["AttributeDefinitions"]}
    found = {
        index["IndexName"]: {
            each["KeyType"]: (each["AttributeName"], kinds[each["AttributeName"]]) for each in index["KeySchema"]
        }
        for index in described["GlobalSecondaryIndexes"]
    }
    assert found["StatusCreatedIndex"] == {"HASH": ("status", "S"), "RANGE": ("created_at", "S")}
    assert found["ConversationIndex"] == {"HASH": ("conversation_id", "S"), "RANGE": ("created_at", "S")}
    assert found["JobTypeIndex"] == {"HASH": ("job_type", "S"), "RANGE": ("priority", "N")}
    assert found["WorkerStatusIndex"] == {"HASH": ("worker_id", "S"), "RANGE": ("status", "S")}


async def test_capacity_is_10_units_for_the_table_and_5_for_each_index(described: dict[str, Any]) -> None:
    assert units(described) == (10, 10)
    assert {units(index) for index in described["GlobalSecondaryIndexes"]} == {(5, 5)}


async def test_each_index_finds_what_it_found_in_its_order(url: str) -> None:
    app = Backstay(url)

    @app.job("PCA")
    async def pca(payload: int) -> None: ...

    async with app:
        low, high, other = [
            (await pca.submit(number, subject=subject, priority=priority)).job_id
            for number, (subject, priority) in enumerate([("19305", 10), ("19305", 90), ("36324", 50)])
        ]
        assert [job.job_id for job in await app.find(status="pending")] == [other, high, low]  # the newest first
        assert [job.job_id for job in await app.find(subject="19305")] == [high, low]
        assert [job.job_id for job in await app.find(job_type="PCA", order="priority")] == [high, other, low]
        async with app.worker() as worker:
            for job_id in (low, high, other):
                await app.result(job_id, timeout=20)
        found = await app.find(worker=worker.worker_id, status="completed")
        assert {job.job_id for job in found} == {low, high, other}
        assert await app.find(worker=worker.worker_id, status="processing") == []


async def test_a_search_by_priority_that_would_sort_too_many_jobs_is_refused(
    dynamodb: DynamoDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "TIED_MAX", 3)
    app = Backstay(dynamodb.url())

    @app.job("PCA")
    async def pca(payload: int) -> None: ...

    async with app:
        await app.submit_many([("PCA", number) for number in range(3)])
        assert len(await app.find(job_type="PCA", order="priority")) == 3
        await pca.submit(3)
        with pytest.raises(InvalidOption, match=r"more than 3 jobs of this type have the priority 50"):
            await app.find(job_type="PCA", order="priority")
