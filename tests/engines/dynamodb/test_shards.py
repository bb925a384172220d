"""With several shards the order is rough, and everything else as ever: no job is out of sight in any of them."""

from __future__ import annotations

import secrets
from collections import Counter

import pytest

from backstay.core.records import Query
from backstay.core.states import Status
from backstay.engines.dynamodb import schema
from backstay.engines.dynamodb.store import DynamoStore
from backstay.testing.conformance.factories import (
    DAY,
    HOUR,
    NOW,
    a_policy,
    claim_ids,
    completed,
    new_job,
    record,
    request,
    retire,
    submit_many,
)
from tests.support.servers.dynamodb import DynamoDB

JOBS = 20


@pytest.fixture(scope="module")
def url(dynamodb: DynamoDB) -> str:
    return dynamodb.url(f"s_{secrets.token_hex(4)}", shards="4")


async def test_who_opens_with_fewer_shards_sees_every_job_all_the_same(store: DynamoStore, dynamodb: DynamoDB) -> None:
    ids = await submit_many(store, JOBS)
    prefix = store.address.prefix

    old = DynamoStore(dynamodb.url(prefix))
    await old.open()
    assert (await old.counts())["pending"] == JOBS
    assert set(await claim_ids(old, limit=JOBS)) == set(ids)
    await old.close()


async def test_who_was_open_before_shards_were_raised_sees_every_job(dynamodb: DynamoDB) -> None:
    prefix = f"r_{secrets.token_hex(4)}"
    before, reader = DynamoStore(dynamodb.url(prefix)), DynamoStore(dynamodb.url(prefix, wake="false"))
    await before.open()
    await reader.open()
    after = DynamoStore(dynamodb.url(prefix, shards="4"))
    await after.migrate()
    await after.open()

    ids = await submit_many(after, JOBS)

    assert sorted(await claim_ids(before, limit=JOBS // 2) + await claim_ids(before)) == sorted(ids)
    assert len(await before.expired(NOW + HOUR, 100)) == JOBS
    reader._open().board._state = None  # a second later
    assert (await reader.counts())["processing"] == JOBS
    for store in (before, reader, after):
        await store.close()


async def test_every_job_is_claimed_once(store: DynamoStore) -> None:
    ids = await submit_many(store, JOBS)

    taken: list[str] = []
    while claimed := await claim_ids(store, limit=3):
        taken += claimed

    assert sorted(taken) == sorted(ids)


async def test_one_claim_gets_as_many_as_there_are(store: DynamoStore) -> None:
    ids = await submit_many(store, JOBS)

    assert sorted(await claim_ids(store)) == sorted(ids)


async def test_the_most_urgent_of_a_shard_come_first(store: DynamoStore) -> None:
    await store.insert([new_job(priority=i) for i in range(JOBS)], NOW)

    jobs = await store.claim(request(), NOW)

    assert Counter(job.priority for job in jobs) == Counter(range(JOBS))


async def test_due_jobs_are_promoted_the_longest_due_first(store: DynamoStore) -> None:
    await store.insert([new_job(scheduled_for=NOW + 1 + i) for i in range(JOBS)], NOW)

    first = await store.promote(NOW + 5, 100)
    second = await store.promote(NOW + HOUR, 10)

    assert (first.count, first.next_due_at) == (5, NOW + 6)
    assert (second.count, second.next_due_at) == (10, NOW + 16)


async def test_claims_that_ran_out_are_found_the_oldest_first(store: DynamoStore) -> None:
    await submit_many(store, JOBS)
    for age in range(4):
        await store.claim(request(limit=5, lease_micros=-age), NOW)

    expired = await store.expired(NOW, 100)

    assert len(expired) == JOBS
    assert [each.lease_expires_at for each in expired] == sorted(each.lease_expires_at for each in expired)


async def test_fairness_keys_take_turns_wherever_they_lie(store: DynamoStore) -> None:
    for key in ("a", "b", "c", "d", "e"):
        await submit_many(store, 10, fairness_key=key)

    taken = await claim_ids(store, limit=25)

    keys = Counter([(await record(store, job_id)).fairness_key for job_id in taken])
    assert keys == dict.fromkeys("abcde", 5)


async def test_all_are_counted_found_and_retired(store: DynamoStore) -> None:
    ids = [await completed(store) for _ in range(6)]

    assert (await store.counts())["completed"] == 6
    found = (await store.find(Query())).items
    assert [job.job_id for job in found] == list(reversed(ids))
    assert await retire(store, a_policy(0, 0, 0), now=NOW + DAY, limit=2) == 6


async def test_what_retention_left_is_found_and_goes_wherever_it_lies(store: DynamoStore) -> None:
    ids = [await completed(store) for _ in range(8)]
    assert store._session is not None
    assert len({schema.archive("clean", job_id, store._session.shards) for job_id in ids}) > 1
    await retire(store, a_policy(0, 0, 0), now=NOW + DAY)
    assert await store.statuses(ids) == [Status.COMPLETED] * 8

    await retire(store, a_policy(0, 0, 0, archive=DAY), now=NOW + 3 * DAY)

    assert await store.statuses(ids) == [None] * 8
