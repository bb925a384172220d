"""The table of jobs as those know it who had one before: its name, its key, its four indexes and their capacity."""

from __future__ import annotations

from typing import Any

import pytest

from backstay import Backstay
from backstay.engines.dynamodb.store import DynamoStore
from tests.support.servers.dynamodb import DynamoDB


@pytest.fixture(scope="module")
def url(dynamodb: DynamoDB) -> str:
    return dynamodb.url("layout", table="DelphiJobQueue", billing="provisioned")


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


async def test_the_four_indexes_have_the_names_that_they_had(described: dict[str, Any]) -> None:
    known = {"StatusCreatedIndex", "ConversationIndex", "JobTypeIndex", "WorkerStatusIndex"}
    assert known <= {index["IndexName"] for index in described["GlobalSecondaryIndexes"]}


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
