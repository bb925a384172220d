"""Fairness keys: within a priority they take turns by weight, so that one's backlog does not starve another."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from holdfast.limits import FAIR_KEYS_MAX
from holdfast.store.conformance.factories import (
    NOW,
    claim_ids,
    new_job,
    record,
    request,
    submit,
    submit_many,
)
from holdfast.store.port import Store

BACKLOG = 2_000


async def _submit(store: Store, key: str | None, count: int, **changes: Any) -> list[str]:
    return await submit_many(store, count, fairness_key=key, **changes)


async def _turns(store: Store, count: int, *, limit: int = 10) -> Counter[str | None]:
    """Whose jobs the next `count` claims take, `limit` at a time."""
    keys: Counter[str | None] = Counter()
    while count > 0:
        jobs = await store.claim(request(limit=min(limit, count)), NOW)
        assert jobs
        count -= len(jobs)
        for job in await store.get([job.job_id for job in jobs]):
            assert job is not None
            keys[job.fairness_key] += 1
    return keys


class TestTurns:
    async def test_a_large_backlog_does_not_starve_another_key(self, store: Store) -> None:
        await _submit(store, "large", BACKLOG)
        await _submit(store, "small", 10)

        assert await _turns(store, 20) == {"large": 10, "small": 10}
        assert await _turns(store, 20) == {"large": 20}

    async def test_keys_of_equal_weight_get_equal_shares(self, store: Store) -> None:
        for key in ("a", "b", "c"):
            await _submit(store, key, 50)

        for limit in (1, 7, 30):
            turns = await _turns(store, 30, limit=limit)
            assert all(9 <= turns[key] <= 11 for key in "abc"), turns

    async def test_a_key_of_three_times_the_weight_gets_three_times_as_much(self, store: Store) -> None:
        await _submit(store, "heavy", 600, fairness_weight=3)
        await _submit(store, "light", 600)

        for limit in (1, 10, 100):
            turns = await _turns(store, 120, limit=limit)
            assert 86 <= turns["heavy"] <= 94, turns

    async def test_jobs_without_a_key_take_part_as_one(self, store: Store) -> None:
        await _submit(store, None, 100)
        for key in ("a", "b"):
            await _submit(store, key, 100)

        turns = await _turns(store, 60)

        assert all(19 <= turns[key] <= 21 for key in (None, "a", "b")), turns

    async def test_a_higher_priority_comes_first_whoevers_it_is(self, store: Store) -> None:
        await _submit(store, "a", 20)
        urgent = await _submit(store, "b", 20, priority=90)
        plain = await _submit(store, None, 5, priority=80)

        assert await claim_ids(store, limit=20) == urgent
        assert await claim_ids(store, limit=5) == plain
        assert await _turns(store, 20) == {"a": 20}

    async def test_the_jobs_of_a_key_keep_their_order(self, store: Store) -> None:
        late = [await submit(store, fairness_key="a", scheduled_for=NOW - 1) for _ in range(3)]
        early = [await submit(store, fairness_key="a", scheduled_for=NOW - 2) for _ in range(3)]
        await _submit(store, "b", 6)

        taken = [job_id for _ in range(6) for job_id in await claim_ids(store, limit=2)]

        assert [job_id for job_id in taken if job_id in {*late, *early}] == early + late

    async def test_who_comes_new_has_earned_nothing_before(self, store: Store) -> None:
        await _submit(store, "old", 200)
        await _turns(store, 100)
        await _submit(store, "new", 100)

        turns = await _turns(store, 20)

        assert 9 <= turns["new"] <= 11, turns

    async def test_an_absence_earns_nothing(self, store: Store) -> None:
        for key in ("a", "b"):
            await _submit(store, key, 10)
        await _turns(store, 20)
        await _submit(store, "a", 200)
        await _turns(store, 100)
        await store.release(NOW, 100)
        await _submit(store, "b", 100)

        turns = await _turns(store, 20)

        assert 9 <= turns["b"] <= 11, turns

    async def test_who_took_more_for_lack_of_others_owes_nothing(self, store: Store) -> None:
        await _submit(store, "a", 200)
        await _turns(store, 100)
        await _submit(store, "b", 100)
        await _turns(store, 20)

        turns = await _turns(store, 20)

        assert 9 <= turns["a"] <= 11, turns

    async def test_upkeep_changes_nobodys_turn(self, store: Store) -> None:
        await _submit(store, "heavy", 200, fairness_weight=3)
        await _submit(store, "light", 200)
        turns: Counter[str | None] = Counter()

        for _ in range(30):
            turns += await _turns(store, 4, limit=4)
            await store.release(NOW, 100)

        assert 84 <= turns["heavy"] <= 96, turns

    async def test_keys_whose_payloads_are_too_new_hide_no_other_however_many_they_are(self, store: Store) -> None:
        await store.insert(
            [new_job(fairness_key=f"a{i:05}", payload_version=2) for i in range(2 * FAIR_KEYS_MAX + 1)], NOW
        )
        [readable] = await _submit(store, "b", 1)

        assert await claim_ids(store, versions={"work": 1}) == [readable]

    async def test_turns_are_taken_over_all_claimers(self, store: Store, second_store: Store) -> None:
        await _submit(store, "a", 100)
        await _submit(store, "b", 100)

        taken = await asyncio.gather(*(claim_ids((store, second_store)[i % 2], limit=5) for i in range(12)))

        ids = [job_id for claim in taken for job_id in claim]
        keys = Counter([(await record(store, job_id)).fairness_key for job_id in ids])
        assert len(set(ids)) == 60
        assert 27 <= keys["a"] <= 33, keys

    async def test_every_job_gets_its_turn_once(self, store: Store) -> None:
        ids = [
            job_id
            for i, key in enumerate(("a", "b", None, "c"))
            for job_id in await _submit(store, key, 10 + i, priority=40 + i % 2 * 10, fairness_weight=1 + i)
        ]

        taken: list[str] = []
        while claimed := await claim_ids(store, limit=7):
            assert len(claimed) <= 7
            taken += claimed

        assert sorted(taken) == sorted(ids)

    async def test_slots_limit_and_other_types_hold_as_ever(self, store: Store) -> None:
        await _submit(store, "a", 10)
        await _submit(store, "b", 10)
        await submit_many(store, 10, job_type="plain", priority=90)

        jobs = await store.claim(request(slots={"work": 3, "plain": 4}, limit=6), NOW)

        assert Counter(job.job_type for job in jobs) == {"plain": 4, "work": 2}
        jobs = await store.claim(request(slots={"work": 3, "plain": 0}), NOW)
        assert len(jobs) == 3

    async def test_a_key_that_is_full_or_spent_leaves_its_turns_to_others(self, store: Store) -> None:
        await _submit(store, "a", 10, concurrency_key="gpu", concurrency_limit=1)
        await _submit(store, "b", 10)

        taken: list[str] = []
        for _ in range(10):
            taken += await claim_ids(store, limit=2)

        keys = Counter([(await record(store, job_id)).fairness_key for job_id in taken])
        assert keys == {"a": 1, "b": 10}
