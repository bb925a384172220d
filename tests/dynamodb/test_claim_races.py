"""Many processes want the same jobs: each has one winner, and a claim costs the same however many others there are."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from holdfast.store.conformance.factories import claim_ids, record, submit, submit_many
from holdfast.stores.dynamodb import DynamoStore

STORES = 8


@pytest.fixture
async def rivals(store: DynamoStore, url: str) -> AsyncIterator[list[DynamoStore]]:
    opened = [DynamoStore(url) for _ in range(STORES)]
    await asyncio.gather(*(each.open() for each in opened))
    yield opened
    await asyncio.gather(*(each.close() for each in opened))


async def test_of_sixty_four_claimers_in_eight_processes_one_gets_each_job(
    store: DynamoStore, rivals: list[DynamoStore]
) -> None:
    for _ in range(5):
        job_id = await submit(store)

        taken = await asyncio.gather(*(claim_ids(rivals[i % STORES], worker_id=f"w{i}", limit=1) for i in range(64)))

        assert [each for each in taken if each] == [[job_id]]
        assert (await record(store, job_id)).attempt == 1


async def test_eight_processes_that_empty_one_lane_take_each_job_once(
    store: DynamoStore, rivals: list[DynamoStore]
) -> None:
    ids = await submit_many(store, 120)
    taken: list[str] = []

    async def drain(each: DynamoStore) -> None:
        while found := await claim_ids(each, limit=6):
            taken.extend(found)

    await asyncio.gather(*map(drain, rivals))
    await drain(store)

    assert sorted(taken) == sorted(ids)


async def test_a_claim_costs_the_same_however_many_jobs_of_others_are_there(store: DynamoStore) -> None:
    await submit_many(store, 90, job_type="foreign", priority=100)
    await submit_many(store, 90, queue="elsewhere", priority=100)
    await submit(store)
    assert store._ground is not None
    meter = store._ground.tables.wire.meter
    before = Counter(meter.calls)

    assert len(await claim_ids(store, limit=10)) == 1
    assert Counter(meter.calls) - before == {"Query": 2, "GetItem": 1, "UpdateItem": 1}

    before = Counter(meter.calls)
    assert await claim_ids(store, limit=10) == []
    assert Counter(meter.calls) - before == {"Query": 2}
