"""A claim that asks for many queues and types asks for those that have pending jobs, not for each pair."""

from __future__ import annotations

import random
from typing import Any

import pytest

from backstay.core.records import ClaimRequest
from backstay.engines.dynamodb import lanes
from backstay.engines.dynamodb.store import DynamoStore
from backstay.testing.conformance.factories import NOW, SECOND, new_job, request, submit

TYPES = [f"type-{number:03}" for number in range(200)]
QUEUES = [f"queue-{number:03}" for number in range(200)]


def all_of_them(**said: Any) -> ClaimRequest:
    return request(**{"queues": tuple(QUEUES), "slots": dict.fromkeys(TYPES, 1), "limit": 1, **said})


def _queries(store: DynamoStore) -> int:
    assert store._session is not None
    return store._session.tables.wire.meter.calls["Query"]


async def _claimed(store: DynamoStore, **said: Any) -> tuple[list[str], int]:
    """The ids of the jobs, and how many queries it took."""
    before = _queries(store)
    found = await store.claim(all_of_them(**said), NOW)
    return [job.job_id for job in found], _queries(store) - before


async def test_a_poll_that_finds_nothing_is_one_query_besides_that_of_the_board(store: DynamoStore) -> None:
    assert await _claimed(store) == ([], 2)


async def test_a_job_in_one_of_forty_thousand_pairs_is_found_at_once(store: DynamoStore) -> None:
    job_id = await submit(store, job_type=TYPES[77], queue=QUEUES[123])
    assert await _claimed(store) == ([job_id], 3)


async def test_the_jobs_of_others_are_jumped_over(store: DynamoStore) -> None:
    for queue in ("a", QUEUES[5], "queue-100a", "z"):
        await store.insert([new_job(job_type="foreign", queue=queue) for _ in range(40)], NOW)
    await store.insert([new_job(job_type=TYPES[3], queue="of-others") for _ in range(40)], NOW)
    job_id = await submit(store, job_type=TYPES[77], queue=QUEUES[123])

    claimed, queries = await _claimed(store)

    assert claimed == [job_id]
    assert queries < 15


async def test_jobs_of_all_lanes_come_in_their_order(store: DynamoStore) -> None:
    shuffled = random.Random(7)
    jobs = [
        new_job(
            job_type=shuffled.choice(TYPES),
            queue=shuffled.choice(QUEUES),
            priority=shuffled.choice((10, 50, 90)),
            scheduled_for=NOW - shuffled.randrange(9) * SECOND,
        )
        for _ in range(60)
    ]
    await store.insert(jobs, NOW)
    in_order = [job.job_id for job in sorted(jobs, key=lambda job: (-job.priority, job.scheduled_for, job.job_id))]

    claimed, _ = await _claimed(store, limit=20, slots=dict.fromkeys(TYPES, 20))

    assert claimed == in_order[:20]


async def test_a_type_without_room_hides_no_other(store: DynamoStore) -> None:
    """Its lanes all have earlier jobs."""
    await store.insert([new_job(job_type=TYPES[0], queue=queue, priority=90) for queue in QUEUES[:60]], NOW)
    others = [new_job(job_type=TYPES[number], queue=QUEUES[0]) for number in (1, 2, 3)]
    await store.insert(others, NOW)

    claimed, _ = await _claimed(store, limit=4)

    assert len(claimed) == 4 and {job.job_id for job in others} <= set(claimed)


async def test_jobs_that_are_too_new_hide_no_other(store: DynamoStore) -> None:
    await store.insert(
        [new_job(job_type=TYPES[0], queue=queue, priority=90, payload_version=2) for queue in QUEUES[:60]], NOW
    )
    job_id = await submit(store, job_type=TYPES[1], queue=QUEUES[0])

    assert (await _claimed(store, versions=dict.fromkeys(TYPES, 1)))[0] == [job_id]


async def test_of_more_lanes_than_a_claim_looks_at_none_is_left_out_for_good(
    store: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "_LANES_MAX", 2)
    monkeypatch.setattr(lanes, "_PAGE", 1)
    jobs = [new_job(job_type=TYPES[number], queue=QUEUES[number]) for number in range(0, 200, 5)]
    await store.insert(jobs, NOW)

    claimed: set[str] = set()
    for _ in range(200):
        found, queries = await _claimed(store, limit=3)
        assert queries <= 40
        claimed.update(found)

    assert claimed == {job.job_id for job in jobs}
