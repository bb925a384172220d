"""Rate keys: so many starts in a span and no more, over all claimers; the others come back when it is their time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.lifecycle import cancel, reprioritise
from holdfast.store.conformance.factories import (
    DAY,
    HOUR,
    NOW,
    SECOND,
    Claim,
    claim_again,
    claim_ids,
    claim_one,
    new_job,
    record,
    request,
    settle,
    submit,
    submit_many,
)
from holdfast.store.conformance.listening import Ear
from holdfast.store.port import Store
from holdfast.store.types import Rate, Signal

SPAN = 60 * SECOND
RATE = Rate(3, SPAN)
SHARE = SPAN // RATE.count


async def _submit(store: Store, count: int, key: str = "api", **changes: Any) -> list[str]:
    said: dict[str, Any] = {"rate_key": key, "rate": RATE}
    return await submit_many(store, count, **(said | changes))


async def _starts(store: Store, now: int, **changes: Any) -> list[str]:
    """What starts at `now`, after those who may have been let back in."""
    await store.promote(now, 100)
    return await claim_ids(store, now=now, **changes)


class TestRates:
    async def test_no_more_than_the_rate_start_at_once(self, store: Store) -> None:
        ids = await _submit(store, 10)

        assert await claim_ids(store) == ids[:3]
        assert await claim_ids(store) == []

    async def test_jobs_that_become_due_together_start_no_faster(self, store: Store) -> None:
        ids = await _submit(store, 10, scheduled_for=NOW + 1)

        assert await _starts(store, NOW + 1) == ids[:3]
        assert await _starts(store, NOW + 1) == []

    async def test_many_claimers_together_start_no_more(self, store: Store, second_store: Store) -> None:
        await _submit(store, 20)

        taken = await asyncio.gather(*(claim_ids((store, second_store)[i % 2], limit=2) for i in range(10)))

        assert sum(len(claim) for claim in taken) == 3

    async def test_a_key_counts_over_types_and_queues(self, store: Store) -> None:
        for job_type, queue in (("a", "x"), ("b", "x"), ("a", "y"), ("b", "y")):
            await _submit(store, 2, job_type=job_type, queue=queue)

        assert len(await claim_ids(store, queues=("x", "y"), slots={"a": 9, "b": 9})) == 3
        assert await claim_ids(store, queues=("x", "y"), slots={"a": 9, "b": 9}) == []

    async def test_keys_do_not_limit_one_another(self, store: Store) -> None:
        for key in ("a", "b"):
            await _submit(store, 5, key)

        assert len(await claim_ids(store)) == 6

    async def test_a_spent_key_does_not_hide_the_jobs_behind_it(self, store: Store) -> None:
        await _submit(store, 30, priority=100)
        plain = await submit(store)
        await claim_ids(store, limit=3)

        assert [plain] in [await claim_ids(store, limit=1) for _ in range(4)]

    async def test_the_bucket_refills_evenly(self, store: Store) -> None:
        await _submit(store, 9)
        await claim_ids(store)

        for i in range(1, 4):
            assert await _starts(store, NOW + i * SHARE - 1) == []
            assert len(await _starts(store, NOW + i * SHARE)) == 1

    async def test_after_a_whole_span_the_whole_rate_may_start(self, store: Store) -> None:
        await _submit(store, 20)
        await claim_ids(store)

        assert len(await _starts(store, NOW + 5 * SPAN)) == 3

    async def test_a_promotion_says_when_the_next_may_start_and_all_get_their_turn(self, store: Store) -> None:
        await _submit(store, 20)
        now, started = NOW, len(await claim_ids(store))
        for _ in range(100):
            due = (await store.promote(now, 100)).next_due_at
            if due is None:
                break
            assert now < due <= now + SPAN
            now = due
            started += len(await _starts(store, now))
            assert started <= RATE.count + (now - NOW) // SHARE

        assert started == 20
        assert now - NOW == (20 - RATE.count) * SHARE

    async def test_a_promotion_that_can_let_in_nobody_does_not_ask_to_be_called_at_once(self, store: Store) -> None:
        await _submit(store, 10)

        for _ in range(3):
            due = (await store.promote(NOW, 100)).next_due_at

        assert due is None or due > NOW

    async def test_who_promotes_is_told_when_starts_hold_others_back(self, store: Store) -> None:
        await _submit(store, 10)
        ear = Ear(store, Signal.DUE)

        await claim_ids(store)
        await ear.heard()

        assert (await store.promote(NOW, 100)).next_due_at == NOW + SHARE
        ear.stop()

    async def test_those_held_back_come_by_priority(self, store: Store) -> None:
        await _submit(store, 3)
        await claim_ids(store)
        low = await _submit(store, 2, priority=10)
        high = await _submit(store, 2, priority=90)

        order = [await _starts(store, NOW + i * SHARE) for i in range(1, 5)]

        assert order == [[each] for each in (*high, *low)]

    async def test_a_less_urgent_job_that_could_start_keeps_no_urgent_one_waiting(self, store: Store) -> None:
        low = await _submit(store, 3, priority=10)
        high = await _submit(store, 2, priority=90)

        assert [await claim_ids(store, limit=1) for _ in range(3)] == [[each] for each in (*high, low[0])]
        assert await _starts(store, NOW + SHARE) == [low[1]]

    async def test_one_that_is_made_urgent_while_it_is_held_back_comes_first(self, store: Store) -> None:
        ids = await _submit(store, 4)

        await settle(store, reprioritise(await record(store, ids[3]), priority=90, by=None, reason=None))

        assert await _starts(store, NOW, limit=1) == [ids[3]]

    async def test_under_one_key_each_rate_counts_for_itself(self, store: Store) -> None:
        slow, *_ = await submit_many(store, 3, job_type="slow", rate_key="api", rate=Rate(1, HOUR))
        quick = await _submit(store, 5)
        slots = {"slow": 9, "work": 9}

        assert sorted(await claim_ids(store, slots=slots)) == sorted((slow, *quick[:3]))
        assert await _starts(store, NOW + SHARE, slots=slots) == [quick[3]]

        assert len(await _starts(store, NOW + HOUR, slots=slots)) == 2  # the next of the slow ones, the last quick one

    async def test_those_that_have_to_wait_leave_their_place_in_a_claim_to_others(self, store: Store) -> None:
        first, *_ = await _submit(store, 5, rate=Rate(1, HOUR), priority=90, scheduled_for=NOW + 1)
        await store.promote(NOW + 1, 10)
        plain = await submit(store, job_type="plain")

        assert await claim_ids(store, limit=2, slots={"work": 9, "plain": 9}) == [first, plain]

    async def test_every_start_counts_that_of_another_attempt_too(self, store: Store) -> None:
        [job_id] = await _submit(store, 1)
        claim = await claim_one(store, job_id)
        for _ in range(2):
            await settle(store, claim.gives_back())
            claim = await claim_again(store, claim)
        await settle(store, claim.gives_back())

        assert await claim_ids(store) == []
        assert await _starts(store, NOW + SHARE) == [job_id]

    async def test_a_repeated_request_starts_nothing_anew(self, store: Store) -> None:
        await _submit(store, 5)
        asked = request(limit=2)
        first = await store.claim(asked, NOW)

        assert await store.claim(request(limit=2, token=asked.token, repeat=True), NOW) == first

        assert len(await claim_ids(store)) == 1

    async def test_a_job_that_never_started_has_spent_nothing(self, store: Store) -> None:
        first, *_ = await _submit(store, 4)
        await settle(store, cancel(await record(store, first), by=None, reason=None))

        assert len(await _starts(store, NOW)) == 3

    async def test_an_ended_job_does_not_give_its_start_back(self, store: Store) -> None:
        await _submit(store, 5)
        asked = request()
        claims = [Claim(job, asked.token) for job in await store.claim(asked, NOW)]

        await settle(store, *(claim.completes() for claim in claims))

        assert await _starts(store, NOW) == []

    async def test_a_key_may_have_a_limit_at_a_time_as_well(self, store: Store) -> None:
        await _submit(store, 5, concurrency_key="gpu", concurrency_limit=1)
        claim = await claim_one(store)
        assert await _starts(store, NOW) == []

        await settle(store, claim.completes())

        assert len(await _starts(store, NOW)) == 1

    async def test_who_asks_late_and_gets_nothing_gives_nothing_back_either(self, store: Store) -> None:
        await _submit(store, 10, scheduled_for=NOW + 1)
        await store.promote(NOW + 1, 10)
        await claim_ids(store, limit=3)

        assert await claim_ids(store, now=NOW - SPAN // 2) == []

        assert len(await _starts(store, NOW + SHARE)) == 1

    @pytest.mark.parametrize("back", [SECOND, SPAN, 365 * DAY], ids=["a second", "a span", "a year"])
    async def test_a_clock_that_goes_back_holds_nothing_up_for_more_than_two_spans(
        self, store: Store, back: int
    ) -> None:
        await _submit(store, 10)
        await claim_ids(store)

        started: list[str] = []
        for i in range(1, 2 * RATE.count + 1):
            started += await _starts(store, NOW - back + i * SHARE)

        assert 1 <= len(started) <= 2 * RATE.count


class TestRateDue:
    async def test_a_key_that_is_not_spent_may_start_now(self, store: Store) -> None:
        *_, last = await _submit(store, 5)
        assert await store.rate_due(last, NOW) is None

        await claim_ids(store, limit=2)

        assert await store.rate_due(last, NOW) is None

    async def test_a_spent_key_says_when(self, store: Store) -> None:
        *_, last = await _submit(store, 5)
        await claim_ids(store)

        due = await store.rate_due(last, NOW)

        assert due == NOW + SHARE
        assert await _starts(store, due - 1) == []
        assert len(await _starts(store, due)) == 1

    async def test_a_job_without_a_rate_or_one_that_is_not_there_may_start_now(self, store: Store) -> None:
        await _submit(store, 5)
        await claim_ids(store)

        for job_id in (await submit(store), *await _submit(store, 1, "other"), new_job().job_id):
            assert await store.rate_due(job_id, NOW) is None
