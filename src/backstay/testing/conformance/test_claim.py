"""Conformance: claim order, concurrency keys, fairness keys, position in line, payload versions."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from backstay.core.lifecycle import cancel, reprioritise
from backstay.core.port import Store
from backstay.core.records import Hold, Note, Rate, Verdict
from backstay.core.states import Event, Status
from backstay.limits import FAIR_KEYS_MAX
from backstay.testing.conformance.factories import (
    HOUR,
    NOW,
    Claim,
    claim_ids,
    claim_one,
    in_state,
    new_job,
    record,
    request,
    retry_by_hand,
    running,
    settle,
    submit,
    submit_many,
)


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

    async def test_each_job_of_a_key_keeps_to_its_own_limit(self, store: Store) -> None:
        await submit(store, concurrency_key="gpu", concurrency_limit=1)
        urgent = await submit(store, concurrency_key="gpu", concurrency_limit=9, priority=90)

        assert await claim_ids(store) == [urgent]

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

    @pytest.mark.parametrize("by_hand", [False, True])
    async def test_one_that_comes_back_keeps_out_none_that_was_due_before_it(self, store: Store, by_hand: bool) -> None:
        ids = await submit_many(store, 4, concurrency_key="gpu")
        others = await submit_many(store, 3, now=NOW + 1, scheduled_for=NOW + 1)
        first = await claim_one(store, ids[0])
        await settle(store, first.ends_as(Status.FAILED) if by_hand else first.fails())
        second = await claim_one(store, ids[1])
        later = NOW + HOUR
        if by_hand:
            await retry_by_hand(store, ids[0], now=later)
        else:
            assert (await store.promote(later, 10)).count == 1
        await settle(store, second.completes(now=later), now=later)

        order = []
        for _ in range(6):
            claim = await claim_one(store, now=later)
            await settle(store, claim.completes(now=later), now=later)
            order.append(claim.job_id)

        assert order == [*ids[2:], *others, ids[0]]

    async def test_a_new_job_that_was_due_before_one_that_could_start_comes_first(self, store: Store) -> None:
        late = await submit(store, concurrency_key="gpu")
        early = await submit(store, concurrency_key="gpu", scheduled_for=NOW - HOUR)

        claim = await claim_one(store, early)
        assert await claim_ids(store) == []
        await settle(store, claim.completes())

        assert await claim_ids(store) == [late]

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


BACKLOG = 2_000


async def _submit(store: Store, key: str | None, count: int, **changes: Any) -> list[str]:
    return await submit_many(store, count, fairness_key=key, **changes)


async def _turns(store: Store, count: int, *, limit: int = 10) -> Counter[str | None]:
    """Return the keys of the jobs that the next `count` claims take, `limit` at a time."""
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
        await submit_many(store, 3, priority=90, fairness_key=tenants[-1])  # without a key

        assert [await store.ahead(job_id, 9) for job_id in ids[1:]] == [1, 2, 3, 4]
        assert await store.ahead(ids[-1], 2) == 2

    async def test_those_that_a_key_holds_back_are_not_ahead_of_others(self, store: Store) -> None:
        await submit_many(store, 3, concurrency_key="gpu", priority=90)
        await submit_many(store, 3, rate_key="api", rate=Rate(1, HOUR), priority=90)
        last = await submit(store)

        assert await store.ahead(last, 9) == 2  # one of each key, the one that may start

    async def test_jobs_of_other_lanes_count_if_a_worker_claims_them_first(self, store: Store) -> None:
        await submit_many(store, 3, job_type="other", priority=90)
        await submit_many(store, 2, job_type="other", queue="elsewhere", priority=50, scheduled_for=NOW - 5)
        ours = await submit(store, priority=50)
        await submit_many(store, 4, job_type="other", priority=10)
        queue = (await record(store, ours)).queue
        lanes = [(queue, "other"), ("elsewhere", "other"), (queue, "none")]

        assert await store.ahead_in(ours, lanes, 9) == [3, 2, 0]
        assert await store.ahead_in(ours, lanes, 2) == [2, 2, 0]
        assert await store.ahead_in(ours, [], 9) == []

        later = await submit(store, scheduled_for=NOW + HOUR)
        assert await store.ahead_in(later, lanes, 9) == [0, 0, 0]

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


KEYS: list[dict[str, Any]] = [
    {},
    {"fairness_key": "tenant"},
    {"concurrency_key": "gpu"},
    {"rate_key": "api", "rate": Rate(1, HOUR)},
]


class TestPayloadVersions:
    @pytest.mark.parametrize("changes", KEYS, ids=str)
    async def test_a_payload_that_is_newer_is_left_to_others(self, store: Store, changes: dict[str, Any]) -> None:
        job_id = await submit(store, payload_version=3, **changes)
        before = await record(store, job_id)

        assert await claim_ids(store, versions={"work": 2}) == []
        assert await record(store, job_id) == before

        assert await claim_ids(store, versions={"work": 3}) == [job_id]

    @pytest.mark.parametrize("version", [1, 2])
    async def test_an_older_or_equal_one_is_taken_and_says_its_version(self, store: Store, version: int) -> None:
        job_id = await submit(store, payload_version=version)

        claim = await claim_one(store, job_id, versions={"work": 2})

        assert claim.job.payload_version == version

    async def test_of_a_type_that_is_not_named_any_version_is_taken(self, store: Store) -> None:
        ids = [await submit(store, payload_version=version) for version in (1, 9)]

        assert await claim_ids(store, versions={"other": 1}) == ids

    async def test_each_type_has_its_own(self, store: Store) -> None:
        await submit(store, job_type="a", payload_version=2)
        taken = await submit(store, job_type="b", payload_version=2)

        assert await claim_ids(store, slots={"a": 9, "b": 9}, versions={"a": 1, "b": 2}) == [taken]

    @pytest.mark.parametrize("changes", KEYS, ids=str)
    async def test_one_that_is_too_new_does_not_hide_those_behind_it(
        self, store: Store, changes: dict[str, Any]
    ) -> None:
        await submit_many(store, 3, payload_version=2, priority=90, **changes)
        readable = await submit(store, **changes)

        assert [readable] in [await claim_ids(store, limit=1, versions={"work": 1}) for _ in range(4)]

    async def test_one_that_is_given_back_is_left_to_those_who_read_it(self, store: Store) -> None:
        job_id = await submit(store, payload_version=2)
        claim = await claim_one(store, job_id)
        await settle(store, claim.gives_back())

        assert await claim_ids(store, versions={"work": 1}) == []
        assert (await record(store, job_id)).status is Status.PENDING
        [again] = await store.claim(request(versions={"work": 2}), NOW)
        assert (again.job_id, again.attempt) == (job_id, 2)
