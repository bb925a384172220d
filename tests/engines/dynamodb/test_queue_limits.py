"""A queue's limit is kept although the index that shows its jobs is late, and a large batch comes little by little."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Sequence

import pytest

from backstay import failpoints
from backstay.core.records import NewJob, QueueChange
from backstay.engines.dynamodb import admission, schema
from backstay.engines.dynamodb.expressions import Ask
from backstay.engines.dynamodb.outbox import GRACE_MICROS
from backstay.engines.dynamodb.schema import Item, Table
from backstay.engines.dynamodb.store import DynamoStore
from backstay.errors import QueueFull
from backstay.testing.conformance.factories import NOW, claim_ids, new_job, submit_many
from tests.support.servers.dynamo_proxy import DynamoProxy
from tests.support.servers.dynamodb import DynamoDB

BATCH = 100  # more than one commit takes


@pytest.fixture(scope="module")
def line(dynamodb: DynamoDB) -> Iterator[DynamoProxy]:
    with DynamoProxy(dynamodb.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def url(dynamodb: DynamoDB, line: DynamoProxy) -> str:
    return dynamodb.url(f"r_{secrets.token_hex(4)}").replace(f":{dynamodb.port}", f":{line.port}")


@pytest.fixture(autouse=True)
def healed(line: DynamoProxy) -> Iterator[None]:
    yield
    line.heal()
    failpoints.switch("")


async def _limit(store: DynamoStore, limit: int) -> None:
    await store.change_queue("default", QueueChange(max_pending=limit), NOW)


async def _accepted(store: DynamoStore, jobs: Sequence[NewJob], now: int = NOW) -> int:
    try:
        return len(await store.insert(jobs, now))
    except QueueFull:
        return 0


async def _records(store: DynamoStore) -> list[Item]:
    assert store._session is not None
    ask = Ask(table=Table.RECORDS, hash=schema.queue_gate("default")[0], begins="given|", consistent=True)
    return [record async for record in store._session.tables.ask(ask)]


async def test_what_a_late_index_does_not_show_takes_room(
    store: DynamoStore, second_store: DynamoStore, line: DynamoProxy
) -> None:
    await _limit(store, 5)
    line.stale(60)

    accepted = [await _accepted((store, second_store)[i % 2], [new_job()]) for i in range(12)]

    assert accepted == [1] * 5 + [0] * 7
    line.heal()
    assert (await store.counts())["pending"] == 5


async def test_what_left_before_the_index_showed_it_takes_none(store: DynamoStore, line: DynamoProxy) -> None:
    await _limit(store, 5)
    await submit_many(store, 3)
    assert len(await claim_ids(store)) == 3
    line.stale(60)

    assert await _accepted(store, [new_job() for _ in range(5)]) == 5


async def test_of_large_batches_that_come_at_once_only_those_are_accepted_that_fit(
    store: DynamoStore, second_store: DynamoStore
) -> None:
    await _limit(store, 2 * BATCH + 50)

    accepted = await asyncio.gather(
        *(_accepted((store, second_store)[i % 2], [new_job() for _ in range(BATCH)]) for i in range(4))
    )

    assert sorted(accepted) == [0, 0, BATCH, BATCH]
    assert (await store.counts())["pending"] == 2 * BATCH
    assert await _accepted(store, [new_job() for _ in range(50)]) == 50


async def test_a_batch_that_is_accepted_and_not_stored_yet_takes_its_room(store: DynamoStore) -> None:
    await _limit(store, BATCH + 50)
    failpoints.switch("journal.between=raise")
    with pytest.raises(failpoints.FailpointReached):
        await store.insert([new_job() for _ in range(BATCH)], NOW)
    failpoints.switch("")
    much_later = NOW + 10 * admission.LATE_MICROS

    assert await _accepted(store, [new_job() for _ in range(51)], much_later) == 0
    await store.release(NOW + GRACE_MICROS, 1_000)
    assert await _accepted(store, [new_job() for _ in range(50)], much_later) == 50


async def test_what_is_written_down_of_it_goes_when_the_index_has_caught_up(store: DynamoStore) -> None:
    await _limit(store, 1_000)
    for _ in range(4):
        await _accepted(store, [new_job()])
    assert len(await _records(store)) == 4

    await _accepted(store, [new_job()], NOW + 2 * admission.LATE_MICROS)

    assert len(await _records(store)) == 1
