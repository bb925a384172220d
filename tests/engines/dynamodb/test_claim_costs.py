"""What stands before the jobs that a claim may take makes it look further, not without end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backstay.engines.dynamodb import claim, fairness
from backstay.engines.dynamodb.store import DynamoStore
from backstay.errors import StoreBusy
from backstay.testing.conformance.factories import (
    NOW,
    SECOND,
    claim_ids,
    new_job,
    record,
    running,
    settle,
    submit,
    submit_many,
)

ONE = {"limit": 1, "slots": {"work": 1}}
OLD: dict[str, Any] = {**ONE, "versions": {"work": 1}}


def _queries(store: DynamoStore) -> int:
    assert store._session is not None
    return store._session.tables.wire.meter.calls["Query"]


class TestPayloadsThatAreTooNew:
    async def test_are_read_over_in_growing_pages(self, store: DynamoStore) -> None:
        for _ in range(4):
            await store.insert([new_job(payload_version=2) for _ in range(90)], NOW)
        old = await submit(store, priority=1)
        before = _queries(store)

        assert await claim_ids(store, **OLD) == [old]

        assert _queries(store) - before <= 6

    async def test_that_are_more_than_one_claim_reads_hide_nobody_for_good(
        self, store: DynamoStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(claim, "_PAGE_MAX", 16)
        monkeypatch.setattr(claim, "_READ_MAX", 30)
        await store.insert([new_job(payload_version=2) for _ in range(90)], NOW)
        old = await submit(store, priority=1)

        before = _queries(store)
        assert await claim_ids(store, **OLD) == []
        assert _queries(store) - before <= 6
        found = [await claim_ids(store, **OLD) for _ in range(8)]

        assert [old] in found
        urgent = await submit(store, priority=100)
        assert await claim_ids(store, **OLD) == [urgent]

    async def test_of_many_tenants_hide_nobody_for_good(
        self, store: DynamoStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fairness, "_PAGE", 10)
        monkeypatch.setattr(fairness, "_QUERIES_MAX", 2)
        await store.insert([new_job(payload_version=2, fairness_key=f"a{n}") for n in range(60)], NOW)
        old = await submit(store, fairness_key="z")

        before = _queries(store)
        assert await claim_ids(store, **OLD) == []
        assert _queries(store) - before <= 8

        assert [old] in [await claim_ids(store, **OLD) for _ in range(6)]


class TestJobsWhoseKeyIsFull:
    async def test_that_come_due_at_once_stand_in_nobody_s_way(self, store: DynamoStore) -> None:
        holder = await running(store, job_type="work", concurrency_key="gpu")
        later = [new_job(concurrency_key="gpu", priority=90, scheduled_for=NOW + SECOND) for _ in range(30)]
        await store.insert(later, NOW)
        plain = await submit(store)
        now = NOW + 2 * SECOND

        assert (await store.promote(now, 100)).count == 30

        assert {(await record(store, job.job_id)).parked for job in later} == {True}
        before = _queries(store)
        assert await claim_ids(store, now=now, **ONE) == [plain]
        assert _queries(store) - before <= 2
        await settle(store, holder.completes())
        assert len(await claim_ids(store, now=now)) == 1

    async def test_that_were_released_at_once_are_put_aside_in_growing_numbers(
        self, store: DynamoStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(claim, "CLAIM_ROUNDS_MAX", 4)
        await running(store, concurrency_key="gpu")
        parent = await running(store)
        await submit_many(store, 60, concurrency_key="gpu", priority=90, depends_on=(parent.job_id,))
        plain = await submit(store)
        await settle(store, parent.completes())

        assert await claim_ids(store, **ONE) == [plain]


async def test_a_claim_that_cannot_read_in_time_is_left_to_the_next_poll(
    store: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await submit(store)

    async def for_ever(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(claim, "SECONDS", 0.05)
        patched.setattr(claim, "propose", for_ever)
        with pytest.raises(StoreBusy):
            await claim_ids(store)

    assert await claim_ids(store) == [job_id]


async def test_a_job_with_a_narrower_limit_keeps_none_of_its_key_from_a_place_that_becomes_free(
    store: DynamoStore,
) -> None:
    wide: dict[str, Any] = {"concurrency_key": "gpu", "concurrency_limit": 3}
    holders = [await running(store, **wide) for _ in range(3)]
    await submit_many(store, 3, concurrency_key="gpu", concurrency_limit=1, priority=90)
    next_one = await submit(store, **wide)
    assert await claim_ids(store) == []

    await settle(store, holders[0].completes())

    assert await claim_ids(store) == [next_one]
