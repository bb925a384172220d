"""ahead: how many a claim would take before a job."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.lifecycle import Status, reprioritise
from holdfast.store.conformance.factories import (
    HOUR,
    NOW,
    claim_one,
    in_state,
    record,
    settle,
    submit,
    submit_many,
)
from holdfast.store.port import Store
from holdfast.store.types import Rate


class TestAhead:
    async def test_it_counts_those_that_a_claim_takes_before_it(self, store: Store) -> None:
        ids = await submit_many(store, 3)
        urgent = await submit(store, priority=90)
        older = await submit(store, scheduled_for=NOW - 1)

        assert [await store.ahead(job_id, 9) for job_id in (urgent, older, *ids)] == [0, 1, 2, 3, 4]

    async def test_it_counts_no_further_than_it_is_told(self, store: Store) -> None:
        ids = await submit_many(store, 7)

        assert await store.ahead(ids[-1], 5) == 5

    async def test_a_claimed_one_is_no_longer_ahead_and_a_new_priority_changes_it(self, store: Store) -> None:
        first, second, third = await submit_many(store, 3)
        await claim_one(store, first)
        assert await store.ahead(third, 9) == 1

        await settle(store, reprioritise(await record(store, third), priority=99, by=None, reason=None))

        assert [await store.ahead(job_id, 9) for job_id in (third, second)] == [0, 1]

    async def test_other_queues_and_types_are_other_lines(self, store: Store) -> None:
        await submit(store, queue="other")
        await submit(store, job_type="other")

        assert await store.ahead(await submit(store), 9) == 0

    @pytest.mark.parametrize(
        "changes",
        [{"concurrency_key": "gpu"}, {"rate_key": "api", "rate": Rate(1, HOUR)}],
        ids=["a concurrency key", "a rate key"],
    )
    @pytest.mark.parametrize("tenants", [(None,) * 5, ("a",) * 5, ("a", "a", "a", "b", "a")], ids=str)
    async def test_of_one_that_a_key_holds_back_those_of_the_key_are_counted_that_come_before_it(
        self, store: Store, changes: dict[str, Any], tenants: tuple[str | None, ...]
    ) -> None:
        ids = [await submit(store, fairness_key=tenant, **changes) for tenant in tenants]
        await submit_many(store, 3, priority=90, fairness_key=tenants[-1])  # of no such key

        assert [await store.ahead(job_id, 9) for job_id in ids[1:]] == [1, 2, 3, 4]
        assert await store.ahead(ids[-1], 2) == 2

    async def test_those_that_a_key_holds_back_are_not_ahead_of_others(self, store: Store) -> None:
        await submit_many(store, 3, concurrency_key="gpu", priority=90)
        await submit_many(store, 3, rate_key="api", rate=Rate(1, HOUR), priority=90)
        last = await submit(store)

        assert await store.ahead(last, 9) == 2  # of each key the one that may start

    async def test_other_fairness_keys_take_turns_and_are_not_ahead(self, store: Store) -> None:
        await submit_many(store, 5, fairness_key="a")
        first, second = await submit_many(store, 2, fairness_key="b")

        assert [await store.ahead(job_id, 9) for job_id in (first, second)] == [0, 1]

    @pytest.mark.parametrize("state", sorted(set(Status) - {Status.PENDING}))
    async def test_nothing_is_ahead_of_what_does_not_stand_in_line(self, store: Store, state: Status) -> None:
        job = await in_state(store, state)
        await submit_many(store, 3)

        assert await store.ahead(job.job_id, 9) == 0

    async def test_nothing_is_ahead_of_what_is_not_there(self, store: Store) -> None:
        assert await store.ahead("01890000-0000-7000-8000-000000000000", 9) == 0
