"""change_queue and queues: a paused queue gives no jobs, a limited one takes no more than it may."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.errors import QueueFull
from holdfast.lifecycle import Status
from holdfast.store.conformance.factories import (
    HOUR,
    NOW,
    claim_ids,
    claim_one,
    completed,
    new_job,
    record,
    request,
    running,
    settle,
    status,
    submit,
    submit_many,
)
from holdfast.store.port import Store
from holdfast.store.types import QueueChange, QueueRow, Rate, Verdict

PAUSE = QueueChange(paused=True, by="me", reason="the printer is on fire")
RESUME = QueueChange(paused=False)


async def _limit(store: Store, limit: int, queue: str = "default") -> None:
    await store.change_queue(queue, QueueChange(max_pending=limit), NOW)


class TestQueues:
    async def test_at_first_nothing_is_said_of_any_queue(self, store: Store) -> None:
        await submit(store)

        assert await store.queues() == []

    async def test_what_was_said_is_answered_and_kept(self, store: Store, second_store: Store) -> None:
        paused = QueueRow(
            name="a", paused_at=NOW + 5, paused_by="me", pause_reason="the printer is on fire", max_pending=7
        )

        assert (await store.change_queue("a", QueueChange(max_pending=7), NOW)).max_pending == 7
        assert await store.change_queue("a", PAUSE, NOW + 5) == paused
        await store.change_queue("b", QueueChange(max_pending=9), NOW)

        for each in (store, second_store):
            rows = {row.name: row for row in await each.queues()}
            assert rows == {"a": paused, "b": QueueRow(name="b", max_pending=9)}

    async def test_a_change_leaves_what_it_does_not_name(self, store: Store) -> None:
        await store.change_queue("a", PAUSE, NOW)
        await store.change_queue("a", QueueChange(max_pending=3), NOW)

        assert await store.change_queue("a", RESUME, NOW) == QueueRow(name="a", max_pending=3)
        await store.change_queue("a", PAUSE, NOW)
        row = await store.change_queue("a", QueueChange(max_pending=0), NOW)

        assert (row.paused_by, row.max_pending) == ("me", None)

    async def test_a_queue_of_which_nothing_is_left_to_say_is_not_listed(self, store: Store) -> None:
        await store.change_queue("a", PAUSE, NOW)
        await store.change_queue("b", QueueChange(max_pending=3), NOW)

        await store.change_queue("a", RESUME, NOW)
        await store.change_queue("b", QueueChange(max_pending=0), NOW)

        assert await store.queues() == []

    async def test_pausing_what_is_paused_keeps_who_did_it_and_when(self, store: Store) -> None:
        first = await store.change_queue("a", PAUSE, NOW)

        assert await store.change_queue("a", QueueChange(paused=True, by="you"), NOW + 5) == first


class TestPause:
    async def test_a_paused_queue_gives_no_jobs_and_the_others_do(self, store: Store, second_store: Store) -> None:
        await submit(store, queue="x", priority=90)
        other = await submit(store, queue="y")

        await store.change_queue("x", PAUSE, NOW)

        assert await claim_ids(second_store, queues=("x",)) == []
        assert await claim_ids(second_store, queues=("x", "y")) == [other]

    async def test_a_resumed_queue_gives_its_jobs_in_order(self, store: Store) -> None:
        await store.change_queue("default", PAUSE, NOW)
        ids = await submit_many(store, 3)

        await store.change_queue("default", RESUME, NOW)

        assert await claim_ids(store) == ids

    async def test_a_paused_queue_still_takes_jobs(self, store: Store) -> None:
        await store.change_queue("default", PAUSE, NOW)

        assert await status(store, await submit(store)) is Status.PENDING
        assert await status(store, await submit(store, scheduled_for=NOW + 1)) is Status.SCHEDULED
        assert (await store.promote(NOW + 1, 10)).count == 1

    async def test_what_runs_goes_on_and_ends(self, store: Store) -> None:
        one, other = await running(store), await running(store)
        await store.change_queue("default", PAUSE, NOW)

        assert await store.extend([one.hold], NOW + 2 * HOUR, NOW) == [Verdict.APPLIED]
        await settle(store, one.completes(), other.gives_back())

        assert await claim_ids(store, slots={other.job.job_type: 1}) == []

    async def test_a_claim_whose_answer_was_lost_is_answered_again(self, store: Store) -> None:
        await submit(store)
        asked = request()
        first = await store.claim(asked, NOW)
        await store.change_queue("default", PAUSE, NOW)

        assert await store.claim(request(token=asked.token, repeat=True), NOW) == first

    async def test_a_claim_that_begins_once_the_pause_is_acknowledged_takes_nothing(
        self, store: Store, second_store: Store
    ) -> None:
        await submit_many(store, 40)
        acknowledged = False
        late: list[str] = []

        async def claim_again_and_again(each: Store) -> None:
            for _ in range(10):
                was_paused = acknowledged
                taken = await claim_ids(each, limit=1)
                late.extend(taken if was_paused else [])

        async def pause() -> None:
            nonlocal acknowledged
            await store.change_queue("default", PAUSE, NOW)
            acknowledged = True

        await asyncio.gather(claim_again_and_again(store), claim_again_and_again(second_store), pause())

        assert late == []
        assert await claim_ids(second_store) == []

    async def test_a_paused_queue_spends_nothing_of_a_rate(self, store: Store) -> None:
        await submit_many(store, 2, rate_key="api", rate=Rate(1, HOUR))
        await store.change_queue("default", PAUSE, NOW)

        assert await claim_ids(store) == []
        await store.change_queue("default", RESUME, NOW)

        assert len(await claim_ids(store)) == 1


class TestMaxPending:
    @pytest.mark.parametrize("changes", [{}, {"dedup_key": "k"}], ids=["plain", "special"])
    async def test_a_full_queue_refuses_and_stores_nothing(self, store: Store, changes: dict[str, Any]) -> None:
        await _limit(store, 2)
        await submit_many(store, 2)
        refused = new_job(**changes)

        with pytest.raises(QueueFull) as caught:
            await store.insert([refused], NOW)

        assert caught.value.queue == "default"
        assert await store.get([refused.job_id]) == [None]
        assert (await store.counts())["pending"] == 2

    @pytest.mark.parametrize("special", [False, True], ids=["plain", "special"])
    async def test_a_batch_is_taken_whole_or_not_at_all(self, store: Store, special: bool) -> None:
        await _limit(store, 3)
        batch = [new_job(**({"dedup_key": f"{i}"} if special else {})) for i in range(4)]

        with pytest.raises(QueueFull):
            await store.insert(batch, NOW)
        assert sum((await store.counts()).values()) == 0

        await store.insert(batch[:3], NOW)
        assert (await store.counts())["pending"] == 3

    async def test_a_batch_for_two_queues_of_which_one_is_full_stores_none(self, store: Store) -> None:
        await _limit(store, 1, "full")

        with pytest.raises(QueueFull):
            await store.insert([new_job(queue="free"), new_job(queue="full"), new_job(queue="full")], NOW)

        assert sum((await store.counts()).values()) == 0

    async def test_jobs_for_later_do_not_count(self, store: Store) -> None:
        await _limit(store, 1)

        await submit_many(store, 3, scheduled_for=NOW + HOUR)
        await submit(store)
        await submit(store, scheduled_for=NOW + HOUR)

        assert (await store.counts())["scheduled"] == 4

    async def test_jobs_that_wait_for_others_or_are_done_at_once_do_not_count(self, store: Store) -> None:
        await completed(store, job_type="embed", content_hash="h")
        await _limit(store, 1)
        parent = await submit(store)

        waiting = await submit(store, depends_on=(parent,))
        reused = await submit(store, job_type="embed", content_hash="h", reuse_since=0)

        assert await store.statuses([waiting, reused]) == [Status.WAITING, Status.COMPLETED]

    async def test_a_claimed_job_makes_room(self, store: Store) -> None:
        await _limit(store, 1)
        await submit(store)
        await claim_one(store)

        await submit(store)

        with pytest.raises(QueueFull):
            await submit(store)

    async def test_other_queues_and_a_lifted_limit_know_none(self, store: Store) -> None:
        await _limit(store, 1)
        await submit(store)

        await submit_many(store, 5, queue="other")
        await _limit(store, 0)
        await submit_many(store, 5)

        assert (await store.counts())["pending"] == 11

    async def test_every_pending_job_counts_whatever_its_type_priority_or_keys(self, store: Store) -> None:
        await _limit(store, 4)
        await submit(store, job_type="other", priority=1)
        await submit(store, fairness_key="tenant")
        await submit_many(store, 2, concurrency_key="gpu")

        with pytest.raises(QueueFull):
            await submit(store)

    async def test_a_limit_below_what_waits_refuses_only_what_comes(self, store: Store) -> None:
        ids = await submit_many(store, 5)

        await _limit(store, 2)

        with pytest.raises(QueueFull):
            await submit(store)
        assert await claim_ids(store) == ids

    async def test_what_is_inside_comes_back_although_the_queue_is_full(self, store: Store) -> None:
        claim = await running(store)
        await _limit(store, 1)
        await submit(store)

        await settle(store, claim.gives_back())

        assert (await record(store, claim.job_id)).status is Status.PENDING

    async def test_a_repeated_submit_is_answered_although_the_queue_is_full(self, store: Store) -> None:
        await _limit(store, 1)
        job = new_job(own_id=True, dedup_key="k")
        await store.insert([job], NOW)

        [by_id] = await store.insert([job], NOW)
        [by_key] = await store.insert([new_job(dedup_key="k")], NOW)

        assert (by_id.job_id, by_key.job_id) == (job.job_id, job.job_id)

    async def test_a_full_queue_harms_only_those_who_submit_to_it(self, store: Store) -> None:
        await _limit(store, 1, "full")
        await submit(store, queue="full")

        answers = await asyncio.gather(
            *(submit(store, queue="full" if i % 4 == 0 else "free") for i in range(16)), return_exceptions=True
        )

        assert [isinstance(answer, QueueFull) for answer in answers] == [i % 4 == 0 for i in range(16)]
        assert (await store.counts())["pending"] == 13

    async def test_many_who_submit_at_once_do_not_overfill_it(self, store: Store, second_store: Store) -> None:
        await _limit(store, 5)

        answers = await asyncio.gather(
            *(submit((store, second_store)[i % 2]) for i in range(20)), return_exceptions=True
        )

        assert sum(isinstance(answer, QueueFull) for answer in answers) == 15
        assert (await store.counts())["pending"] == 5
