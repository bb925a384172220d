"""claim: in order, within what was asked for, each job to one claimer, and no key over its limit."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from holdfast.lifecycle import Event, Status, cancel, reprioritise
from holdfast.store.conformance.factories import (
    HOUR,
    NOW,
    Claim,
    claim_ids,
    claim_one,
    new_job,
    record,
    request,
    running,
    settle,
    submit,
    submit_many,
)
from holdfast.store.port import Store
from holdfast.store.types import Hold, Note, Verdict


class TestClaim:
    async def test_a_claim_hands_out_everything_a_worker_needs(self, store: Store) -> None:
        parent = await submit(store, job_type="parent")
        job = new_job(payload='{"n":1}', subject="s", parent_job_id=parent, priority=7)
        await store.insert([job], NOW)

        [claimed] = await store.claim(request(lease_micros=HOUR), NOW + 5)

        assert (claimed.job_id, claimed.job_type, claimed.queue) == (job.job_id, "work", "default")
        assert (claimed.payload, claimed.priority, claimed.subject) == ('{"n":1}', 7, "s")
        assert (claimed.attempt, claimed.version, claimed.failures, claimed.max_attempts) == (1, 2, 0, 3)
        assert (claimed.snoozes, claimed.give_backs, claimed.timeout_micros) == (0, 0, HOUR)
        assert (claimed.created_at, claimed.scheduled_for, claimed.lease_expires_at) == (
            NOW,
            NOW,
            NOW + 5 + HOUR,
        )
        assert (claimed.parent_job_id, claimed.root_job_id, claimed.logs) == (parent, parent, None)

    async def test_a_claim_is_on_the_record_and_in_its_history(self, store: Store) -> None:
        job_id = await submit(store)

        await store.claim(request(worker_id="w", worker_version="7"), NOW + 5)

        stored = await record(store, job_id)
        assert (stored.status, stored.attempt, stored.version) == (Status.PROCESSING, 1, 2)
        assert (stored.worker_id, stored.worker_version) == ("w", "7")
        assert (stored.started_at, stored.lease_expires_at) == (NOW + 5, NOW + 5 + HOUR)
        event = stored.history[-1]
        assert (event.version, event.at, event.event, event.attempt, event.by) == (
            2,
            NOW + 5,
            Event.CLAIM,
            1,
            "w",
        )
        assert (event.source, event.target) == (Status.PENDING, Status.PROCESSING)

    async def test_the_highest_priority_comes_first_then_the_longest_due_then_the_lowest_id(self, store: Store) -> None:
        jobs = [new_job(priority=i % 3, scheduled_for=NOW - i % 5 // 2) for i in range(24)]
        await store.insert(random.Random(1).sample(jobs, len(jobs)), NOW)
        jobs.sort(key=lambda job: (-job.priority, job.scheduled_for, job.job_id))

        one_by_one = [(await claim_ids(store, limit=1))[0] for _ in range(3)]
        rest = await claim_ids(store)

        assert one_by_one + rest == [job.job_id for job in jobs]

    async def test_the_order_holds_over_types_and_queues(self, store: Store) -> None:
        jobs = [
            new_job(priority=100 - i, job_type="ab"[i % 2], queue="xy"[i // 2 % 2], job_stage=str(i)) for i in range(12)
        ]
        await store.insert(random.Random(2).sample(jobs, len(jobs)), NOW)

        claimed = await claim_ids(store, queues=("x", "y"), slots={"a": 9, "b": 9}, limit=7)

        assert claimed == [job.job_id for job in jobs[:7]]

    async def test_a_claim_takes_no_more_than_its_limit(self, store: Store) -> None:
        ids = await submit_many(store, 5)

        assert await claim_ids(store, limit=3) == ids[:3]
        assert await claim_ids(store, limit=0) == []
        assert await claim_ids(store, limit=3) == ids[3:]

    async def test_a_claim_takes_no_more_of_a_type_than_its_slots(self, store: Store) -> None:
        await submit_many(store, 5, job_type="a", priority=90)
        await submit_many(store, 5, job_type="b")

        jobs = await store.claim(request(slots={"a": 2, "b": 3}, limit=100), NOW)

        assert [job.job_type for job in jobs] == ["a", "a", "b", "b", "b"]

    async def test_slots_of_a_type_count_over_all_queues(self, store: Store) -> None:
        for queue in ("x", "y"):
            await submit_many(store, 3, queue=queue)

        assert len(await claim_ids(store, queues=("x", "y"), slots={"work": 4})) == 4

    async def test_a_type_without_slots_is_not_touched(self, store: Store) -> None:
        foreign = await submit_many(store, 3, job_type="foreign", priority=100)
        full = await submit(store, job_type="full", priority=100)
        own = await submit(store)

        assert await claim_ids(store, slots={"work": 9, "full": 0}) == [own]

        for job_id in [*foreign, full]:
            assert (await record(store, job_id)).version == 1

    async def test_a_queue_that_was_not_asked_for_is_not_touched(self, store: Store) -> None:
        other = await submit(store, queue="other")

        assert await claim_ids(store) == []
        assert (await record(store, other)).status is Status.PENDING

    async def test_a_job_for_later_is_not_claimed_before_it_is_promoted(self, store: Store) -> None:
        await submit(store, scheduled_for=NOW + 1)

        assert await claim_ids(store) == []

    async def test_a_claimed_job_is_not_claimed_again(self, store: Store) -> None:
        await submit(store)

        assert len(await claim_ids(store)) == 1
        assert await claim_ids(store) == []

    async def test_a_repeated_request_answers_with_what_it_took(self, store: Store) -> None:
        await submit_many(store, 5)
        asked = request(limit=3)
        first = await store.claim(asked, NOW)

        again = await store.claim(request(limit=3, token=asked.token, repeat=True), NOW)

        assert again == first
        assert len(await claim_ids(store)) == 2

    async def test_a_repeat_without_slots_only_answers(self, store: Store) -> None:
        await submit_many(store, 3)
        asked = request(limit=2)
        first = await store.claim(asked, NOW)

        only_ask = request(limit=0, slots={}, token=asked.token, repeat=True)
        assert await store.claim(only_ask, NOW) == first
        assert await store.claim(request(limit=0, slots={}, repeat=True), NOW) == []
        assert (await store.counts())["pending"] == 1

    async def test_a_repeat_whose_first_try_never_arrived_claims(self, store: Store) -> None:
        await running(store)
        job_id = await submit(store)

        assert await claim_ids(store, repeat=True) == [job_id]

    async def test_a_repeat_does_not_answer_with_what_is_lost(self, store: Store) -> None:
        await submit_many(store, 2)
        asked = request()
        first, second = await store.claim(asked, NOW)
        await settle(store, cancel(await record(store, first.job_id), by=None, reason=None))

        assert await claim_ids(store, token=asked.token, repeat=True) == [second.job_id]

    async def test_concurrent_claimers_get_different_jobs(self, store: Store, second_store: Store) -> None:
        ids = await submit_many(store, 60)

        taken = await asyncio.gather(*(claim_ids((store, second_store)[i % 2], limit=7) for i in range(12)))

        assert sorted(job_id for claim in taken for job_id in claim) == sorted(ids)

    async def test_attempt_and_version_grow_by_one_with_each_claim(self, store: Store) -> None:
        claim = await running(store)
        for attempt in range(1, 4):
            assert (claim.job.attempt, claim.job.version) == (attempt, 2 * attempt)
            await settle(store, claim.gives_back())
            claim = await claim_one(store, claim.job_id, slots={claim.job.job_type: 1})

    async def test_a_later_attempt_sees_the_logs_of_the_one_before(self, store: Store) -> None:
        claim = await running(store)
        assert await store.note([Note(claim.hold, logs='["hello"]')], NOW) == [Verdict.APPLIED]
        await settle(store, claim.gives_back())

        again = await claim_one(store, claim.job_id, slots={claim.job.job_type: 1})

        assert again.job.logs == '["hello"]'


class TestConcurrencyKeys:
    async def test_a_key_is_never_over_its_limit_and_all_its_jobs_get_in(self, store: Store) -> None:
        await submit_many(store, 9, concurrency_key="gpu", concurrency_limit=2)
        holders: list[Claim] = []
        done = 0
        while done < 9:
            asked = request(limit=5)
            holders += [Claim(job, asked.token) for job in await store.claim(asked, NOW)]
            assert 1 <= len(holders) <= 2
            await settle(store, holders.pop(0).completes())
            done += 1

        assert (await store.counts())["completed"] == 9

    async def test_keys_do_not_limit_one_another(self, store: Store) -> None:
        for key in ("a", "b", "c"):
            await submit_many(store, 2, concurrency_key=key)

        assert len(await claim_ids(store)) == 3

    async def test_a_full_key_does_not_hide_the_jobs_behind_it(self, store: Store) -> None:
        await submit_many(store, 30, concurrency_key="gpu", priority=100)
        plain = await submit(store)
        await claim_ids(store, limit=1)

        assert await claim_ids(store, limit=1) == [plain]

    async def test_jobs_of_a_full_key_that_become_due_together_do_not_hide_others_for_long(self, store: Store) -> None:
        await running(store, concurrency_key="gpu")
        await submit_many(store, 30, concurrency_key="gpu", priority=100, scheduled_for=NOW + 1)
        await store.promote(NOW + 1, 100)
        plain = await submit(store)

        assert [plain] in [await claim_ids(store, limit=1) for _ in range(4)]

    @pytest.mark.parametrize("leave", ["completes", "fails", "snoozes"])
    async def test_whoever_leaves_lets_the_next_one_in(self, store: Store, leave: str) -> None:
        holder = await running(store, concurrency_key="gpu", priority=1)
        waiting = await submit(store, concurrency_key="gpu", priority=99)
        assert await claim_ids(store) == []

        await settle(store, getattr(holder, leave)())

        assert await claim_ids(store) == [waiting]

    async def test_a_job_that_is_given_back_competes_for_its_key_again(self, store: Store) -> None:
        holder = await running(store, concurrency_key="gpu", job_type="work")
        await submit(store, concurrency_key="gpu")

        await settle(store, holder.gives_back())

        assert len(await claim_ids(store)) == 1

    async def test_a_job_that_nobody_runs_does_not_keep_the_room_of_its_key_from_other_types(
        self, store: Store
    ) -> None:
        await submit(store, concurrency_key="gpu", job_type="foreign")
        own = await submit(store, concurrency_key="gpu")

        assert await claim_ids(store) == [own]

    async def test_of_one_key_with_several_limits_each_job_keeps_to_its_own(self, store: Store) -> None:
        wide: dict[str, Any] = {"concurrency_key": "gpu", "concurrency_limit": 6}
        narrow: dict[str, Any] = {"concurrency_key": "gpu", "concurrency_limit": 2}
        holders = [await running(store, **wide) for _ in range(3)]
        waiting = [await submit(store, **narrow, priority=60), await submit(store, **narrow, priority=40)]
        taken = [await submit(store, **wide), await submit(store, **wide)]

        found = await claim_ids(store) + await claim_ids(store)
        assert sorted(found) == sorted(taken)

        await settle(store, *(holder.completes() for holder in holders))
        assert await claim_ids(store) == []
        assert await store.statuses(waiting) == [Status.PENDING] * 2

    async def test_a_key_without_a_limit_limits_nothing(self, store: Store) -> None:
        await submit_many(store, 3, concurrency_key="gpu", concurrency_limit=None)

        assert len(await claim_ids(store)) == 3

    async def test_a_cancelled_holder_lets_the_next_one_in(self, store: Store) -> None:
        holder = await running(store, concurrency_key="gpu")
        waiting = await submit(store, concurrency_key="gpu")

        await settle(store, cancel(await record(store, holder.job_id), by=None, reason=None))

        assert await claim_ids(store) == [waiting]

    async def test_a_cancelled_job_that_had_not_begun_makes_room(self, store: Store) -> None:
        first, second = await submit_many(store, 2, concurrency_key="gpu")

        await settle(store, cancel(await record(store, first), by=None, reason=None))

        assert await claim_ids(store) == [second]

    async def test_the_next_one_in_is_the_first_in_order(self, store: Store) -> None:
        holder = await running(store, concurrency_key="gpu")
        await submit(store, concurrency_key="gpu", priority=10)
        high = await submit(store, concurrency_key="gpu", priority=90)

        await settle(store, holder.completes())

        assert await claim_ids(store) == [high]

    async def test_a_less_urgent_job_that_could_start_keeps_no_urgent_one_out(self, store: Store) -> None:
        low = await submit(store, concurrency_key="gpu", priority=10)
        high = await submit(store, concurrency_key="gpu", priority=90)

        holder = await claim_one(store, high)
        assert await claim_ids(store) == []
        await settle(store, holder.completes())

        assert await claim_ids(store) == [low]

    async def test_a_less_urgent_job_that_is_given_back_keeps_no_urgent_one_out(self, store: Store) -> None:
        await submit(store, concurrency_key="gpu", priority=10)
        holder = await claim_one(store)
        high = await submit(store, concurrency_key="gpu", priority=90)

        await settle(store, holder.gives_back())

        assert await claim_ids(store) == [high]

    async def test_one_that_is_made_urgent_while_it_is_kept_out_comes_first(self, store: Store) -> None:
        _, second = await submit_many(store, 2, concurrency_key="gpu")

        await settle(store, reprioritise(await record(store, second), priority=90, by=None, reason=None))

        assert await claim_ids(store) == [second]

    async def test_a_job_for_later_does_not_overfill_its_key(self, store: Store) -> None:
        holder = await running(store, concurrency_key="gpu")
        later = await submit(store, concurrency_key="gpu", scheduled_for=NOW + 1)
        await store.promote(NOW + 1, 10)
        assert await claim_ids(store, now=NOW + 1) == []

        await settle(store, holder.completes())

        assert await claim_ids(store, now=NOW + 1) == [later]

    async def test_concurrent_claimers_do_not_overfill_a_key(self, store: Store, second_store: Store) -> None:
        await submit_many(store, 20, concurrency_key="gpu", concurrency_limit=3)

        taken = await asyncio.gather(*(claim_ids((store, second_store)[i % 2], limit=2) for i in range(10)))

        assert sum(len(claim) for claim in taken) == 3

    async def test_an_extension_does_not_count_twice(self, store: Store) -> None:
        holder = await running(store, concurrency_key="gpu", concurrency_limit=2)
        await store.extend([Hold(holder.job_id, 1, holder.token)], NOW + 2 * HOUR, NOW)
        other = await submit(store, concurrency_key="gpu", concurrency_limit=2)

        assert await claim_ids(store) == [other]
