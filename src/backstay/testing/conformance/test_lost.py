"""Conformance: jobs whose worker was lost, which of them a claim brings, and those that run alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backstay.core.lifecycle import rescue
from backstay.core.port import Store
from backstay.core.records import Lost
from backstay.core.states import Status
from backstay.testing.conformance.factories import (
    HOUR,
    NOW,
    claim_ids,
    claim_one,
    quiet,
    record,
    request,
    retry_by_hand,
    settle,
    submit,
    submit_many,
)
from backstay.testing.conformance.test_limits import PAUSE

LATER = NOW + HOUR


async def lose(store: Store, *job_ids: str) -> None:
    """A worker takes jobs of the type `work`, however suspected, and is lost with them."""
    taken: set[str] = set()
    for lost in (Lost.SHARED, Lost.ALONE):
        taken |= set(await claim_ids(store, lease_micros=0, queues=("default", "other"), lost=lost))
    assert taken >= set(job_ids)
    for claim in await store.expired(NOW, 1000):
        await settle(store, rescue(claim, lease=claim.lease_expires_at, now=NOW, reason="died", by="w2"))
    await store.promote(NOW, 1000)


async def one_that_runs_alone(store: Store, **changes: Any) -> str:
    job_id = await submit(store, max_attempts=9, **changes)
    await lose(store, job_id)
    await lose(store, job_id)
    return job_id


class TestLostJobs:
    async def test_a_job_that_was_lost_once_is_claimed_with_the_others_unless_they_are_to_be_left_out(
        self, store: Store
    ) -> None:
        lost = await submit(store, max_attempts=9)
        await lose(store, lost)
        other = await submit(store, max_attempts=9)
        assert (await record(store, lost)).suspicion == 1

        assert await claim_ids(store, lost=Lost.ALONE) == []
        assert await claim_ids(store, limit=1, lost=Lost.NONE) == [other]
        assert await claim_ids(store, lost=Lost.NONE) == []
        [claimed] = await store.claim(request(), NOW)
        assert (claimed.job_id, claimed.suspicion) == (lost, 1)

    async def test_one_that_must_run_alone_is_claimed_only_by_a_worker_that_asks_for_it(self, store: Store) -> None:
        alone = await one_that_runs_alone(store)
        others = await submit_many(store, 2)

        assert await claim_ids(store, lost=Lost.SHARED) == others
        claim = request(lost=Lost.ALONE, limit=1)
        [claimed] = await store.claim(claim, NOW)
        assert (claimed.job_id, claimed.suspicion, claimed.attempt) == (alone, 2, 3)
        assert [job.job_id for job in await store.claim(claim, NOW)] == []
        repeat = request(lost=Lost.ALONE, limit=1, token=claim.token, repeat=True)
        assert [job.job_id for job in await store.claim(repeat, NOW)] == [alone]

    async def test_a_job_with_one_attempt_left_runs_alone_after_its_first_loss(self, store: Store) -> None:
        job_id = await submit(store, max_attempts=2)
        await lose(store, job_id)
        assert await claim_ids(store) == []
        assert await claim_ids(store, lost=Lost.ALONE) == [job_id]

    async def test_many_that_run_alone_hide_no_other_and_come_in_the_order_of_claims(self, store: Store) -> None:
        alone = await submit_many(store, 30, max_attempts=2)
        urgent = await submit(store, max_attempts=2, priority=90)
        await lose(store, urgent, *alone)
        ordinary = await submit_many(store, 3)

        assert await claim_ids(store, limit=10) == ordinary
        assert await claim_ids(store, limit=5, lost=Lost.ALONE) == [urgent, *alone[:4]]
        assert await claim_ids(store, slots={"work": 2}, lost=Lost.ALONE) == alone[4:6]

    @pytest.mark.parametrize("end", ["fails", "snoozes"])
    async def test_an_attempt_that_ends_otherwise_clears_it(self, store: Store, end: str) -> None:
        alone = await one_that_runs_alone(store)
        claim = await claim_one(store, alone, lost=Lost.ALONE)
        await settle(store, getattr(claim, end)())
        await store.promote(LATER * 2, 10)
        assert (await record(store, alone)).suspicion == 0
        assert await claim_ids(store) == [alone]

    async def test_one_that_is_given_back_still_runs_alone(self, store: Store) -> None:
        alone = await one_that_runs_alone(store)
        claim = await claim_one(store, alone, lost=Lost.ALONE)
        await settle(store, claim.gives_back())
        assert await claim_ids(store) == []
        assert await claim_ids(store, lost=Lost.ALONE) == [alone]

    async def test_a_dead_letter_that_is_retried_counts_as_lost_once(self, store: Store) -> None:
        job_id = await submit(store, max_attempts=2)
        await lose(store, job_id)
        await lose(store, job_id)
        assert (await record(store, job_id)).status is Status.FAILED
        await retry_by_hand(store, job_id)
        assert (await record(store, job_id)).suspicion == 1
        assert await claim_ids(store) == [job_id]

    async def test_a_job_that_ran_alone_and_completed_is_not_suspected_when_it_runs_again(self, store: Store) -> None:
        alone = await one_that_runs_alone(store)
        await settle(store, (await claim_one(store, alone, lost=Lost.ALONE)).completes())
        await retry_by_hand(store, alone)
        assert (await record(store, alone)).suspicion == 0
        assert await claim_ids(store) == [alone]

    async def test_its_concurrency_key_holds_for_it_too(self, store: Store) -> None:
        keyed: dict[str, Any] = {"concurrency_key": "k", "concurrency_limit": 1}
        alone = await one_that_runs_alone(store, **keyed)
        urgent = await submit(store, priority=90, **keyed)
        holder = await claim_one(store, urgent)

        assert await claim_ids(store, lost=Lost.ALONE) == []
        await settle(store, holder.completes())
        await quiet(store)
        assert await claim_ids(store, lost=Lost.ALONE) == [alone]

    async def test_it_takes_no_turn_from_other_fairness_keys(self, store: Store) -> None:
        alone = await one_that_runs_alone(store, fairness_key="a")
        others = [await submit(store, fairness_key=key) for key in ("a", "b")]

        assert sorted(await claim_ids(store)) == sorted(others)
        assert await claim_ids(store, lost=Lost.ALONE) == [alone]

    async def test_a_look_counts_those_that_could_be_claimed(self, store: Store) -> None:
        asked = request(slots={"work": 1, "else": 1})
        assert await store.wait_alone(asked) == {}
        alone = await one_that_runs_alone(store, payload_version=3)
        assert await store.wait_alone(asked) == {"work": 1}
        assert await store.wait_alone(request(queues=("other",))) == {}
        assert await store.wait_alone(request(slots={"else": 1})) == {}
        assert await store.wait_alone(request(versions={"work": 2})) == {}
        assert await store.wait_alone(request(versions={"work": 3})) == {"work": 1}
        assert await claim_ids(store, lost=Lost.ALONE, versions={"work": 2}) == []
        assert await claim_ids(store, lost=Lost.ALONE, versions={"work": 3}) == [alone]
        assert await store.wait_alone(asked) == {}

    async def test_in_a_paused_queue_none_is_claimed(self, store: Store) -> None:
        alone = await one_that_runs_alone(store, queue="other")
        await store.change_queue("other", PAUSE, NOW)
        queues = ("default", "other")
        assert await claim_ids(store, lost=Lost.ALONE, queues=queues) == []
        assert (await record(store, alone)).status is Status.PENDING

    async def test_of_two_workers_that_ask_at_once_one_gets_it(self, store: Store, second_store: Store) -> None:
        alone = await one_that_runs_alone(store)
        answers = await asyncio.gather(
            *(claim_ids(each, lost=Lost.ALONE, limit=1) for each in (store, second_store, store, second_store))
        )
        assert sorted(answers) == [[], [], [], [alone]]
