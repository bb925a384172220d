"""Conformance: paused and limited queues, and rate limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backstay.core.lifecycle import cancel, reprioritise
from backstay.core.port import Store
from backstay.core.records import LimitChange, LimitOf, LimitRow, QueueChange, QueueRow, Rate, Signal, Verdict
from backstay.core.states import Status
from backstay.errors import QueueFull
from backstay.testing.conformance.factories import (
    DAY,
    HOUR,
    MINUTE,
    NOW,
    SECOND,
    Claim,
    claim_again,
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
from backstay.testing.conformance.test_read import SignalRecorder

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


class TestPausedUntil:
    async def test_a_queue_resumes_by_itself_at_its_time(self, store: Store, second_store: Store) -> None:
        [job_id] = await submit_many(store, 1)
        pause = QueueChange(paused=True, by="me", until=NOW + HOUR)
        assert (await store.change_queue("default", pause, NOW)).paused_until == NOW + HOUR

        before = await second_store.promote(NOW + HOUR - 1, 10)
        assert (before.count, before.next_due_at) == (0, NOW + HOUR)
        assert await claim_ids(store, now=NOW + HOUR - 1) == []
        await second_store.promote(NOW + HOUR, 10)

        assert await store.queues() == []
        assert await claim_ids(store, now=NOW + HOUR) == [job_id]

    async def test_whoever_waits_is_woken_when_a_pause_ends(self, store: Store) -> None:
        due, ready = SignalRecorder(store, Signal.DUE), SignalRecorder(store, Signal.READY)
        await store.change_queue("default", QueueChange(paused=True, until=NOW + HOUR), NOW)
        await due.heard()

        await store.promote(NOW + HOUR, 10)

        await ready.heard()
        due.stop()
        ready.stop()

    async def test_the_limit_of_a_queue_outlives_its_pause(self, store: Store) -> None:
        await _limit(store, 7)
        await store.change_queue("default", QueueChange(paused=True, until=NOW + 1), NOW)

        await store.promote(NOW + 1, 10)

        assert await store.queues() == [QueueRow(name="default", max_pending=7)]

    async def test_the_last_pause_says_until_when(self, store: Store) -> None:
        await store.change_queue("default", QueueChange(paused=True, by="me", until=NOW + 1), NOW)

        row = await store.change_queue("default", QueueChange(paused=True, by="you"), NOW)
        await store.promote(NOW + HOUR, 10)

        assert (row.paused_by, row.paused_until) == ("me", None)
        assert await store.queues() == [row]


PAUSE_TYPE = LimitChange(paused=True, by="me", reason="the model is down")


class TestPausedType:
    async def test_what_was_set_is_answered_and_kept(self, store: Store, second_store: Store) -> None:
        paused = LimitRow(
            of=LimitOf.TYPE,
            name="T",
            paused_at=NOW + 5,
            paused_by="me",
            pause_reason="the model is down",
            paused_until=NOW + HOUR,
        )
        change = LimitChange(paused=True, by="me", reason="the model is down", until=NOW + HOUR)

        assert await store.change_limit(LimitOf.TYPE, "T", change, NOW + 5) == paused
        assert await second_store.limits() == [paused]
        assert await store.change_limit(LimitOf.TYPE, "T", LimitChange(paused=False), NOW) == LimitRow(
            of=LimitOf.TYPE, name="T"
        )
        assert await second_store.limits() == []

    @pytest.mark.parametrize(
        "changes",
        [{}, {"concurrency_key": "k", "concurrency_limit": 9}, {"fairness_key": "f"}],
        ids=["plain", "keyed", "fair"],
    )
    async def test_a_paused_type_gives_no_jobs_and_the_others_do(
        self, store: Store, second_store: Store, changes: dict[str, Any]
    ) -> None:
        await submit(store, job_type="A", **changes)
        await submit(store, job_type="A", queue="other", **changes)
        other = await submit(store, job_type="B", **changes)

        await store.change_limit(LimitOf.TYPE, "A", PAUSE_TYPE, NOW)
        asked: dict[str, Any] = {"queues": ("default", "other"), "slots": {"A": 5, "B": 5}}

        assert await claim_ids(second_store, queues=("default",), slots={"A": 5}) == []
        assert await claim_ids(second_store, **asked) == [other]
        await store.change_limit(LimitOf.TYPE, "A", LimitChange(paused=False), NOW)
        assert len(await claim_ids(second_store, **asked)) == 2

    async def test_of_many_types_the_paused_ones_give_no_jobs(self, store: Store) -> None:
        types = [f"T{number:02}" for number in range(40)]
        ids = {name: await submit(store, job_type=name) for name in types}
        for name in types[::2]:
            await store.change_limit(LimitOf.TYPE, name, PAUSE_TYPE, NOW)

        claimed: list[str] = []
        while more := await claim_ids(store, slots=dict.fromkeys(types, 5), limit=100):
            claimed += more

        assert sorted(claimed) == sorted(ids[name] for name in types[1::2])

    async def test_a_type_resumes_by_itself_at_its_time(self, store: Store, second_store: Store) -> None:
        [job_id] = await submit_many(store, 1, job_type="A")
        await store.change_limit(LimitOf.TYPE, "A", LimitChange(paused=True, until=NOW + HOUR), NOW)

        assert (await second_store.promote(NOW + 1, 10)).next_due_at == NOW + HOUR
        assert await claim_ids(store, slots={"A": 5}) == []
        await second_store.promote(NOW + HOUR, 10)

        assert await claim_ids(store, slots={"A": 5}, now=NOW + HOUR) == [job_id]


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


SPAN = 60 * SECOND
RATE = Rate(3, SPAN)
SHARE = SPAN // RATE.count


async def _submit(store: Store, count: int, key: str = "api", **changes: Any) -> list[str]:
    said: dict[str, Any] = {"rate_key": key, "rate": RATE}
    return await submit_many(store, count, **(said | changes))


async def _starts(store: Store, now: int, **changes: Any) -> list[str]:
    """Return the jobs that start at `now`, after a promotion."""
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
        recorder = SignalRecorder(store, Signal.DUE)

        await claim_ids(store)
        await recorder.heard()

        assert (await store.promote(NOW, 100)).next_due_at == NOW + SHARE
        recorder.stop()

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

    async def test_one_that_comes_back_holds_back_none_that_was_due_before_it(self, store: Store) -> None:
        ids = await _submit(store, 5)
        first = await claim_one(store, ids[0])
        await claim_ids(store)
        await settle(store, first.snoozes(SHARE - 1))
        assert (await store.promote(NOW + SHARE - 1, 10)).count == 1

        order = [await _starts(store, NOW + i * SHARE, limit=1) for i in range(1, 4)]

        assert order == [[ids[3]], [ids[4]], [ids[0]]]

    async def test_a_new_job_that_was_due_before_those_that_could_start_comes_first(self, store: Store) -> None:
        late = await _submit(store, 3)
        [early] = await _submit(store, 1, scheduled_for=NOW - HOUR)

        assert await claim_ids(store) == [early, *late[:2]]
        assert await _starts(store, NOW + SHARE) == [late[2]]

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


def _budget(units: int = 100) -> dict[str, Any]:
    return {"rate_key": "api", "rate": Rate(units, HOUR)}


class TestRateCost:
    async def test_starts_take_as_much_of_a_rate_as_they_cost(self, store: Store) -> None:
        ids = await submit_many(store, 3, **_budget(), rate_cost=40)

        assert await claim_ids(store) == ids[:2]
        assert await store.rate_due(ids[2], NOW) == NOW + 12 * MINUTE  # 20 units are left, 40 are wanted

        await store.promote(NOW + 12 * MINUTE, 10)
        assert await claim_ids(store, now=NOW + 12 * MINUTE) == ids[2:]

    async def test_jobs_of_any_cost_draw_from_one_budget(self, store: Store) -> None:
        costly = await submit(store, **_budget(), rate_cost=60)
        rest = await submit_many(store, 50, **_budget())

        assert await claim_ids(store) == [costly, *rest[:40]]

    async def test_cheap_jobs_do_not_starve_a_costly_one_before_them(self, store: Store) -> None:
        spent = await submit(store, **_budget(), rate_cost=90)
        assert await claim_ids(store) == [spent]
        costly = await submit(store, **_budget(), rate_cost=50)
        cheap = await submit_many(store, 20, **_budget())

        started: list[str] = []
        for minute in range(0, 24, 2):
            await store.promote(NOW + minute * MINUTE, 100)
            started += await claim_ids(store, now=NOW + minute * MINUTE)
        assert started == []  # ten units were left, and a unit comes every 36 s: the costly job has all of them

        await store.promote(NOW + 24 * MINUTE, 100)
        assert await claim_ids(store, now=NOW + 24 * MINUTE) == [costly]
        await store.promote(NOW + 36 * MINUTE, 100)
        assert await claim_ids(store, now=NOW + 36 * MINUTE) == cheap

    async def test_a_cheap_job_that_comes_later_waits_too(self, store: Store, second_store: Store) -> None:
        await submit(store, **_budget(), rate_cost=90)
        assert len(await claim_ids(store)) == 1
        await submit(store, **_budget(), rate_cost=50)
        assert await claim_ids(store) == []

        await submit(second_store, **_budget(), now=NOW + 1)

        assert await claim_ids(second_store, now=NOW + 1) == []

    async def test_the_others_go_on_once_a_costly_job_has_left(self, store: Store) -> None:
        await submit(store, **_budget(), rate_cost=90)
        assert len(await claim_ids(store)) == 1
        costly = await submit(store, **_budget(), rate_cost=100)
        cheap = await submit_many(store, 3, **_budget())
        assert await claim_ids(store) == []

        await settle(store, cancel(await record(store, costly), by="me", reason="too much"))

        await store.promote(NOW + MINUTE, 100)
        await store.promote(NOW + 2 * MINUTE, 100)
        assert await claim_ids(store, now=NOW + 2 * MINUTE) == cheap

    async def test_a_retry_costs_as_much_again(self, store: Store) -> None:
        job_id = await submit(store, **_budget(), rate_cost=60)
        await settle(store, (await claim_one(store, job_id)).gives_back())

        assert await claim_ids(store) == []
        await store.promote(NOW + 12 * MINUTE, 10)
        assert await claim_ids(store, now=NOW + 12 * MINUTE) == [job_id]

    async def test_a_job_that_costs_more_than_there_ever_is_takes_all(self, store: Store) -> None:
        """The rate of a stored job may have been made smaller since by an option of its schedule, or by hand."""
        job_id = await submit(store, **_budget(), rate_cost=1_000)

        assert await claim_ids(store) == [job_id]
        other = await submit(store, **_budget())
        assert await claim_ids(store) == []
        await store.promote(NOW + HOUR // 100, 10)
        assert await claim_ids(store, now=NOW + HOUR // 100) == [other]

    async def test_many_costly_jobs_wait_in_their_order(self, store: Store) -> None:
        ids = await submit_many(store, 12, **_budget(), rate_cost=50)
        started = await claim_ids(store)

        for half_hour in range(1, 11):
            at = NOW + half_hour * 30 * MINUTE
            await store.promote(at, 100)
            started += await claim_ids(store, now=at)

        assert started == ids


def _limit_to(concurrency: int | None = None, rate: Rate | None = None) -> LimitChange:
    return LimitChange(limits=True, by="me", concurrency=concurrency, rate=rate)


async def _limit_type(store: Store, concurrency: int | None = None, rate: Rate | None = None) -> None:
    await store.change_limit(LimitOf.TYPE, "work", _limit_to(concurrency, rate), NOW)


async def _limit_key(store: Store, key: str, concurrency: int | None = None, rate: Rate | None = None) -> None:
    await store.change_limit(LimitOf.KEY, key, _limit_to(concurrency, rate), NOW)


class TestRunLimits:
    async def test_what_was_set_is_answered_and_kept(self, store: Store, second_store: Store) -> None:
        of_key = await store.change_limit(LimitOf.KEY, "customer: 7/8", _limit_to(rate=Rate(5, HOUR)), NOW + 1)
        of_type = await store.change_limit(LimitOf.TYPE, "work", _limit_to(4, Rate(100, MINUTE)), NOW)

        assert (of_type.concurrency, of_type.rate, of_type.set_at, of_type.set_by) == (4, Rate(100, MINUTE), NOW, "me")
        assert (of_key.concurrency, of_key.rate, of_key.set_at) == (None, Rate(5, HOUR), NOW + 1)
        assert await second_store.limits() == [of_key, of_type]
        await store.change_limit(LimitOf.KEY, "customer: 7/8", _limit_to(), NOW)
        await store.change_limit(LimitOf.TYPE, "work", LimitChange(paused=True), NOW)
        await store.change_limit(LimitOf.TYPE, "work", _limit_to(), NOW)
        [paused] = await second_store.limits()
        assert (paused.paused_at, paused.concurrency, paused.set_at, paused.set_by) == (NOW, None, None, None)

    async def test_a_type_runs_no_more_jobs_than_its_limit_over_all_workers_and_queues(
        self, store: Store, second_store: Store
    ) -> None:
        ids = await submit_many(store, 4)
        elsewhere = await submit(store, queue="other")
        other = await submit(store, job_type="free")
        await _limit_type(store, 3)
        asked: dict[str, Any] = {"queues": ("default", "other"), "slots": {"work": 2, "free": 2}}

        assert await claim_ids(store, **asked) == [*ids[:2], other]
        assert await claim_ids(second_store, **asked) == [ids[2]]
        assert await claim_ids(second_store, **asked) == []

        await _limit_type(second_store, None)
        assert await claim_ids(store, **asked) == [ids[3], elsewhere]

    async def test_jobs_that_run_already_count(self, store: Store) -> None:
        ids = await submit_many(store, 4)
        first = await claim_one(store, ids[0])
        second = await claim_one(store, ids[1])

        await _limit_type(store, 1)

        assert await claim_ids(store) == []
        await settle(store, first.completes())
        assert await claim_ids(store) == []
        await settle(store, second.completes())
        assert await claim_ids(store) == [ids[2]]

    @pytest.mark.parametrize("end", ["retries", "cancelled", "snoozes"])
    async def test_however_a_run_ends_it_no_longer_counts(self, store: Store, end: str) -> None:
        await _limit_type(store, 1)
        first, second = await submit_many(store, 2)
        claim = await claim_one(store, first)
        assert await claim_ids(store) == []

        if end == "retries":
            await settle(store, claim.fails())
        elif end == "snoozes":
            await settle(store, claim.snoozes(HOUR))
        else:
            await settle(store, cancel(await record(store, first), by="me", reason=None))

        assert await claim_ids(store) == [second]

    async def test_claims_at_once_start_no_more_than_the_limit(self, store: Store, second_store: Store) -> None:
        await _limit_type(store, 5)
        await submit_many(store, 40)

        claimed = await asyncio.gather(*(claim_ids(each, limit=3) for each in (store, second_store) * 6))

        assert sum(map(len, claimed)) <= 5
        started = sum(map(len, claimed))
        while more := await claim_ids(store, limit=3):
            started += len(more)
        assert started == 5

    async def test_a_limit_of_a_type_holds_instead_of_what_its_jobs_were_submitted_with(self, store: Store) -> None:
        ids = await submit_many(store, 6, concurrency_key="work", concurrency_limit=2)
        assert await claim_ids(store) == ids[:2]
        assert await claim_ids(store) == []

        await _limit_type(store, 5)

        assert await claim_ids(store) == ids[2:5]

    async def test_a_limit_of_a_type_holds_beside_limits_of_keys(self, store: Store) -> None:
        of_a = await submit_many(store, 3, concurrency_key="a", concurrency_limit=2)
        of_b = await submit_many(store, 3, concurrency_key="b", concurrency_limit=2)
        await _limit_type(store, 3)

        claimed = await claim_ids(store)
        while more := await claim_ids(store):
            claimed += more

        assert claimed == [*of_a[:2], of_b[0]]

    async def test_the_limit_of_a_key_holds_instead_of_that_of_its_jobs(self, store: Store) -> None:
        ids = await submit_many(store, 8, concurrency_key="customer", concurrency_limit=2)
        await _limit_key(store, "customer", 1)
        assert await claim_ids(store) == ids[:1]
        assert await claim_ids(store) == []

        await _limit_key(store, "customer", 4)
        assert await claim_ids(store) == ids[1:4]
        more = await submit(store, concurrency_key="customer", concurrency_limit=2)
        assert await claim_ids(store) == []

        await _limit_key(store, "customer", None)
        assert await claim_ids(store) == []  # four run: more than two
        assert more not in ids

    async def test_a_type_starts_no_more_jobs_than_its_rate(self, store: Store, second_store: Store) -> None:
        ids = await submit_many(store, 5)
        await _limit_type(store, rate=Rate(2, HOUR))

        assert await claim_ids(store) == ids[:2]
        assert await claim_ids(second_store) == []
        assert await store.rate_due(ids[2], NOW) == NOW + HOUR // 2
        due = (await second_store.promote(NOW + 1, 10)).next_due_at
        assert due is not None
        assert due <= NOW + HOUR // 2

        await store.promote(NOW + HOUR // 2, 10)
        assert await claim_ids(store, now=NOW + HOUR // 2) == [ids[2]]
        await _limit_type(store)
        assert await claim_ids(store, now=NOW + HOUR // 2) == ids[3:]

    async def test_workers_are_woken_when_the_rate_of_a_type_allows_another(self, store: Store) -> None:
        await submit_many(store, 2)
        await _limit_type(store, rate=Rate(1, HOUR))
        assert len(await claim_ids(store)) == 1
        assert await claim_ids(store) == []
        ready = SignalRecorder(store, Signal.READY)

        await store.promote(NOW + HOUR, 10)

        await ready.heard()
        ready.stop()

    async def test_the_rate_of_a_type_is_a_budget_too(self, store: Store) -> None:
        costly = await submit(store, rate_cost=60)
        next_one = await submit(store, rate_cost=60)
        cheap = await submit(store)
        await _limit_type(store, rate=Rate(100, HOUR))

        assert await claim_ids(store) == [costly]
        assert await claim_ids(store) == []  # the cheap one comes after the costly one
        await store.promote(NOW + 12 * MINUTE, 10)
        assert await claim_ids(store, now=NOW + 12 * MINUTE) == [next_one]
        await store.promote(NOW + 13 * MINUTE, 10)
        assert await claim_ids(store, now=NOW + 13 * MINUTE) == [cheap]

    @pytest.mark.parametrize("of", ["key", "type"])
    async def test_another_rate_holds_for_jobs_that_wait_already(self, store: Store, of: str) -> None:
        name = "work" if of == "type" else "customer"
        ids = await submit_many(store, 9, rate_key=name, rate=Rate(1, HOUR))
        assert await claim_ids(store) == ids[:1]
        assert await claim_ids(store) == []

        await store.change_limit(LimitOf(of), name, _limit_to(rate=Rate(3, HOUR)), NOW)
        await store.promote(NOW, 100)
        assert await claim_ids(store) == ids[1:4]
        assert await claim_ids(store) == []
        await store.promote(NOW + HOUR // 3, 100)
        assert await claim_ids(store, now=NOW + HOUR // 3) == ids[4:5]

        await store.change_limit(LimitOf(of), name, _limit_to(rate=Rate(1, DAY)), NOW + HOUR // 3)
        later = NOW + HOUR
        await store.promote(later, 100)
        assert await claim_ids(store, now=later) == ids[5:6]
        await store.promote(later + HOUR, 100)
        assert await claim_ids(store, now=later + HOUR) == []

        await store.change_limit(LimitOf(of), name, _limit_to(), later + HOUR)
        await store.promote(later + HOUR, 100)
        assert await claim_ids(store, now=later + HOUR) == ids[6:7]

    async def test_jobs_of_one_key_and_several_rates_draw_from_what_was_set(self, store: Store) -> None:
        some = await submit_many(store, 3, rate_key="customer", rate=Rate(50, HOUR))
        others = await submit_many(store, 3, rate_key="customer", rate=Rate(90, HOUR))
        await _limit_key(store, "customer", rate=Rate(4, HOUR))

        assert await claim_ids(store) == [*some, others[0]]
        assert await claim_ids(store) == []
        for quarter in (1, 2):
            at = NOW + quarter * 15 * MINUTE
            await store.promote(at, 100)
            assert await claim_ids(store, now=at) == [others[quarter]]
