"""Many processes want the same jobs: each has one winner, and a claim costs the same however many others there are."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from backstay.clock import MICROS
from backstay.engines.dynamodb.store import DynamoStore
from backstay.testing.conformance.factories import NOW, claim_ids, record, submit, submit_many

STORES = 8
ROUNDS = 50


@pytest.fixture
async def rivals(store: DynamoStore, url: str) -> AsyncIterator[list[DynamoStore]]:
    opened = [DynamoStore(url) for _ in range(STORES)]
    await asyncio.gather(*(each.open() for each in opened))
    yield opened
    await asyncio.gather(*(each.close() for each in opened))


async def test_of_sixty_four_claimers_in_eight_processes_one_gets_each_job(
    store: DynamoStore, rivals: list[DynamoStore]
) -> None:
    for _ in range(ROUNDS):
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


async def test_a_claim_costs_the_same_however_many_jobs_of_others_are_there(
    store: DynamoStore, second_store: DynamoStore
) -> None:
    await submit_many(store, 90, job_type="foreign", priority=100)
    await submit_many(store, 90, queue="elsewhere", priority=100)
    await submit_many(store, 90, scheduled_for=NOW + 3600 * MICROS, priority=100)
    await submit(store)

    # The second one has heard of nothing: who has just been woken looks a little further.
    async with _calls(second_store) as first:
        assert len(await claim_ids(second_store, limit=10)) == 1
    async with _calls(second_store) as then:
        assert await claim_ids(second_store, limit=10) == []

    assert first == {"Query": 2, "GetItem": 1, "UpdateItem": 1}
    assert then == {"Query": 2}


@contextlib.asynccontextmanager
async def _calls(store: DynamoStore) -> AsyncIterator[Counter[str]]:
    """Those that are made meanwhile, once it is over."""
    assert store._session is not None
    meter = store._session.tables.wire.meter
    before, made = Counter(meter.calls), Counter[str]()
    yield made
    made.update(Counter(meter.calls) - before)


async def test_a_claim_begins_no_earlier_than_its_job_came_in_by_the_clock_of_another_host(store: DynamoStore) -> None:
    later = NOW + MICROS
    job_id = await submit(store, now=later, scheduled_for=later)

    assert await claim_ids(store) == [job_id]  # asked at NOW

    job = await record(store, job_id)
    assert job.started_at == later
    assert [event.at for event in job.history] == [later, later]
