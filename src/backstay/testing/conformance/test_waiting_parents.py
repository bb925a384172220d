"""Conformance: parents that wait for their children, and what ends them instead."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backstay.core.dependencies import Awaits, Brood, TriggerRule
from backstay.core.lifecycle import cancel, manual_retry, reprioritise
from backstay.core.port import Store
from backstay.core.records import ClaimedJob, Staged, Verdict, shared
from backstay.core.states import Counted, Event, Status
from backstay.testing.conformance.factories import (
    DAY,
    MINUTE,
    NOW,
    Claim,
    claim_again,
    claim_ids,
    claim_one,
    new_job,
    quiet,
    record,
    retry_by_hand,
    running,
    settle,
    status,
    submit,
)
from backstay.testing.conformance.test_children import brood, with_children

COMPLETED, FAILED, CANCELLED = Status.COMPLETED, Status.FAILED, Status.CANCELLED
ENDS = [COMPLETED, FAILED, CANCELLED]
ALL_SUCCESS, ALL_DONE, ONE_SUCCESS, ONE_FAILED, NONE_FAILED = TriggerRule
ROUNDS = 10


async def waiting(store: Store, count: int = 1, **waits: Any) -> tuple[Claim, list[Claim]]:
    """Return a parent that waits for its running children."""
    parent, children = await with_children(store, count)
    await settle(store, parent.waits(**waits))
    return parent, children


class TestWaitingParents:
    async def test_a_parent_that_waits_holds_nothing(self, store: Store) -> None:
        parent, _ = await waiting(store)

        job = await record(store, parent.job_id)
        assert (job.status, job.awaits, job.waits) == (Status.WAITING, Awaits(TriggerRule.ALL_DONE, "fail").stored, 1)
        assert (job.lease_expires_at, job.completed_at, job.failures) == (None, None, 0)
        assert (job.history[-1].event, job.history[-1].target) == (Event.WAIT_FOR_CHILDREN, Status.WAITING)
        assert await claim_ids(store, slots={parent.job.job_type: 1}) == []
        assert parent.job_id not in {each.job_id for each in await store.expired(NOW + DAY, 10)}

    @pytest.mark.parametrize("is_staged", [False, True])
    async def test_it_waits_for_what_its_settlement_brings_whatever_else_is_settled_in_that_call(
        self, store: Store, is_staged: bool
    ) -> None:
        parent, [child] = await with_children(store, 1)
        other = await running(store)
        late, foreign = (new_job(parent_job_id=each.job_id, root_job_id=each.job_id) for each in (parent, other))
        brought: dict[str, Any] = {"children": (late,)}
        if is_staged:
            await store.stage(parent.hold, 0, [late], NOW)
            brought = {"staged": Staged(1, 1)}
        await settle(store, child.ends_as(CANCELLED), other.completes(children=(foreign,)), parent.waits(**brought))
        await quiet(store)

        assert await status(store, parent.job_id) is Status.WAITING
        await settle(store, (await claim_one(store, late.job_id)).completes())
        assert await status(store, parent.job_id) is Status.PENDING

    @pytest.mark.parametrize("outcome", ENDS)
    async def test_the_last_of_its_children_lets_it_go_on_however_it_ends(self, store: Store, outcome: Status) -> None:
        parent, [first, last] = await waiting(store, 2)

        await settle(store, first.ends_as(outcome))
        assert await status(store, parent.job_id) is Status.WAITING
        await settle(store, last.ends_as(outcome), now=NOW + 5)

        job = await record(store, parent.job_id)
        assert (job.status, job.awaits, job.attempt, job.version) == (Status.PENDING, None, 1, 4)
        assert job.scheduled_for == NOW + 5  # the run time of its children does not count as its waiting time
        released = job.history[-1]
        assert (released.event, released.source, released.at) == (Event.RELEASE, Status.WAITING, NOW + 5)

    async def test_it_is_claimed_again_with_what_it_said(self, store: Store) -> None:
        parent, [child] = await waiting(store, join="merge")
        await settle(store, child.completes())

        again = await claim_again(store, parent)

        assert (again.job.attempt, again.job.waits, again.job.join, again.job.children) == (2, 1, "merge", 1)
        assert (again.job.failures, again.job.snoozes, again.job.give_backs) == (0, 0, 0)

    async def test_its_record_has_every_field_of_its_claim(self, store: Store) -> None:
        job = new_job(
            payload='{"pages":2}',
            priority=70,
            subject="book:7",
            tags='["night"]',
            created_by="web",
            job_stage="merge",
            content_hash="abc",
            dedup_key="book:7:night",
            payload_version=2,
            schedule="nightly",
            tick_at=NOW,
            traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )
        await store.insert([job], NOW)
        first = await claim_one(store, job.job_id)
        child = await running(store, parent_job_id=job.job_id, job_type="child")
        await settle(store, first.waits(join="bind"))
        await settle(store, child.completes())
        again = await claim_again(store, first)

        stored = await record(store, job.job_id)

        assert ClaimedJob(**shared(stored, ClaimedJob)) == again.job
        assert (stored.join, stored.children, stored.waits) == ("bind", 1, 1)

    async def test_it_may_wait_again(self, store: Store) -> None:
        parent, [child] = await waiting(store, join="merge")
        await settle(store, child.completes())
        again = await claim_again(store, parent)
        second = await running(store, parent_job_id=parent.job_id)

        await settle(store, again.waits())
        assert await status(store, parent.job_id) is Status.WAITING
        await settle(store, second.completes())

        third = await claim_again(store, parent)
        assert (third.job.waits, third.job.join, third.job.children) == (2, None, 2)

    async def test_with_none_open_it_goes_on_at_once(self, store: Store) -> None:
        parent, [child] = await with_children(store)
        await settle(store, child.completes())

        await settle(store, parent.waits())
        await quiet(store)

        job = await record(store, parent.job_id)
        assert (job.status, job.waits) == (Status.PENDING, 1)
        assert [event.event for event in job.history[-2:]] == [Event.WAIT_FOR_CHILDREN, Event.RELEASE]

    async def test_without_children_it_goes_on_at_once(self, store: Store) -> None:
        parent = await running(store)

        await settle(store, parent.waits())
        await quiet(store)

        assert await status(store, parent.job_id) is Status.PENDING

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    async def test_its_wait_and_the_last_end_may_come_in_one_batch(self, store: Store, order: tuple[int, int]) -> None:
        parent, [child] = await with_children(store)
        both = (parent.waits(), child.completes())

        await settle(store, *(both[i] for i in order))
        await quiet(store)

        assert await status(store, parent.job_id) is Status.PENDING

    async def test_a_wait_that_is_told_twice_counts_once(self, store: Store) -> None:
        parent, _ = await with_children(store)

        for _ in range(2):
            await settle(store, parent.waits())

        job = await record(store, parent.job_id)
        assert (job.waits, job.version) == (1, 3)

    async def test_a_wait_of_a_lost_claim_is_refused(self, store: Store) -> None:
        parent, _ = await with_children(store)
        await settle(store, parent.gives_back())
        again = await claim_again(store, parent)

        assert await store.apply([parent.waits()], NOW) == [Verdict.STALE]

        assert (await record(store, parent.job_id)).attempt == again.job.attempt
        assert await status(store, parent.job_id) is Status.PROCESSING

    async def test_a_child_that_comes_while_it_waits_is_waited_for(self, store: Store) -> None:
        parent, [first] = await waiting(store)
        second = await running(store, parent_job_id=parent.job_id)

        await settle(store, first.completes())
        assert await status(store, parent.job_id) is Status.WAITING
        await settle(store, second.completes())

        assert await status(store, parent.job_id) is Status.PENDING

    async def test_a_child_that_runs_again_meanwhile_is_waited_for(self, store: Store) -> None:
        parent, [first, second] = await waiting(store, 2)
        await settle(store, first.ends_as(FAILED))
        await retry_by_hand(store, first.job_id)

        await settle(store, second.completes())
        assert await status(store, parent.job_id) is Status.WAITING
        await settle(store, (await claim_again(store, first)).completes())

        assert await status(store, parent.job_id) is Status.PENDING

    async def test_a_child_that_runs_again_later_disturbs_nobody(self, store: Store) -> None:
        parent, [child] = await waiting(store)
        await settle(store, child.ends_as(FAILED))
        before = await record(store, parent.job_id)

        await retry_by_hand(store, child.job_id)
        await settle(store, (await claim_again(store, child)).completes())

        after = await record(store, parent.job_id)
        assert (after.status, after.version) == (before.status, before.version)
        assert (after.open_children, after.failed_children) == (0, 0)

    async def test_a_cancelled_one_waits_no_more(self, store: Store) -> None:
        parent, [child] = await waiting(store)
        await settle(store, cancel(await record(store, parent.job_id), by="me", reason=None))
        before = await record(store, parent.job_id)
        assert (before.status, before.awaits) == (CANCELLED, None)

        await settle(store, child.completes())

        assert (await record(store, parent.job_id)).version == before.version
        assert await status(store, parent.job_id) is CANCELLED

    async def test_a_new_priority_leaves_it_waiting(self, store: Store) -> None:
        parent, [child] = await waiting(store)
        seen = await record(store, parent.job_id)

        await settle(store, reprioritise(seen, priority=90, by=None, reason=None))
        assert (await record(store, parent.job_id)).awaits == seen.awaits
        await settle(store, child.completes())

        assert await status(store, parent.job_id) is Status.PENDING

    async def test_a_late_dependency_does_not_let_it_go_on(self, store: Store) -> None:
        first, late = await running(store), await running(store)
        job_type = "early"
        depends_on = (first.job_id, late.job_id)
        job_id = await submit(store, job_type=job_type, depends_on=depends_on, trigger_rule=ONE_SUCCESS)
        await settle(store, first.completes())
        parent = await claim_one(store, job_id, slots={job_type: 1})
        child = await running(store, parent_job_id=job_id)
        await settle(store, parent.waits())
        before = await record(store, job_id)

        await settle(store, late.completes())
        assert await record(store, job_id) == before
        await settle(store, child.completes())

        assert await status(store, job_id) is Status.PENDING

    async def test_the_children_of_one_that_waits_for_its_dependencies_do_not_start_it(self, store: Store) -> None:
        first = await running(store)
        parent = await submit(store, depends_on=(first.job_id,))
        child = await running(store, parent_job_id=parent)

        await settle(store, child.completes())
        assert await status(store, parent) is Status.WAITING
        await settle(store, first.completes())

        assert await status(store, parent) is Status.PENDING

    @pytest.mark.parametrize(
        ("rule", "end", "broken"),
        [
            (ALL_SUCCESS, COMPLETED, False),
            (ALL_SUCCESS, FAILED, True),
            (ALL_SUCCESS, CANCELLED, True),
            (NONE_FAILED, CANCELLED, False),
            (NONE_FAILED, FAILED, True),
            (ALL_DONE, FAILED, False),
        ],
    )
    @pytest.mark.parametrize(("policy", "target"), [("fail", FAILED), ("cancel", CANCELLED)])
    async def test_a_child_that_ended_badly_ends_it_where_it_asked_for_that(
        self, store: Store, rule: TriggerRule, end: Status, broken: bool, policy: str, target: Status
    ) -> None:
        parent, [bad, good] = await waiting(store, 2, rule=rule, on_failure=policy)

        await settle(store, bad.ends_as(end))
        assert await status(store, parent.job_id) is Status.WAITING  # until all its children have ended
        await settle(store, good.completes(), now=NOW + 5)
        await quiet(store)

        job = await record(store, parent.job_id)
        assert job.status is (target if broken else Status.PENDING)
        assert (job.awaits, job.completed_at is not None) == (None, broken)
        if job.status is FAILED:
            assert job.stage == "error"
            assert (job.last_error or "").startswith("ChildFailed: ")
            [dead] = [each for each in await store.dead(10) if each.newest_job_id == parent.job_id]
            assert dead.error_type == "ChildFailed"

    async def test_a_child_that_had_failed_before_ends_one_that_waits_for_success(self, store: Store) -> None:
        parent, [child] = await with_children(store)
        await settle(store, child.ends_as(FAILED))

        await settle(store, parent.waits(ALL_SUCCESS))
        await quiet(store)

        assert await status(store, parent.job_id) is FAILED

    async def test_an_end_goes_up_the_tree(self, store: Store) -> None:
        root = await running(store)
        middle = await running(store, parent_job_id=root.job_id)
        leaf = await running(store, parent_job_id=middle.job_id)
        after = await submit(store, depends_on=(root.job_id,))
        await settle(store, root.waits(ALL_SUCCESS, "cancel"), middle.waits(ALL_SUCCESS))

        await settle(store, leaf.ends_as(FAILED))
        await quiet(store)

        stand = await store.statuses([middle.job_id, root.job_id, after])
        assert stand == [FAILED, CANCELLED, CANCELLED]
        assert await brood(store, root.job_id) == Brood(1, failed=1)

    async def test_one_goes_on_only_when_its_own_children_have_ended(self, store: Store) -> None:
        root = await running(store)
        middle = await running(store, parent_job_id=root.job_id)
        leaf = await running(store, parent_job_id=middle.job_id)
        await settle(store, root.waits(), middle.waits())

        await settle(store, leaf.completes())

        assert await store.statuses([middle.job_id, root.job_id]) == [Status.PENDING, Status.WAITING]
        await settle(store, (await claim_again(store, middle)).completes())
        assert await status(store, root.job_id) is Status.PENDING

    async def test_one_that_ends_by_its_children_is_counted_and_the_wait_is_not(self, store: Store) -> None:
        parent, [child] = await waiting(store, rule=ALL_SUCCESS)
        minute = NOW - NOW % MINUTE
        await settle(store, child.ends_as(CANCELLED))
        await quiet(store)

        rows = await store.counters(minute - DAY, minute + DAY)

        tally = {row.outcome: row.count for row in rows if row.job_type == parent.job.job_type}
        assert tally == {Counted.SUBMITTED: 1, Counted.FAILED: 1}

    async def test_it_makes_room_for_others_of_its_concurrency_key(self, store: Store) -> None:
        parent = await running(store, concurrency_key="gpu")
        child = await submit(store, parent_job_id=parent.job_id, concurrency_key="gpu")
        assert await claim_ids(store) == []

        await settle(store, parent.waits())

        assert await claim_ids(store) == [child]

    async def test_by_hand_it_begins_anew(self, store: Store) -> None:
        parent, [child] = await waiting(store, rule=ALL_SUCCESS, join="merge")
        await settle(store, child.ends_as(FAILED))
        await quiet(store)
        assert await status(store, parent.job_id) is FAILED

        await settle(store, manual_retry(await record(store, parent.job_id), now=NOW, by=None, reason=None))

        again = await claim_again(store, parent)
        assert (again.job.waits, again.job.join, again.job.children) == (0, None, 1)

    async def test_the_end_of_a_child_is_told_with_the_parent_that_goes_on(self, store: Store) -> None:
        parent, [child] = await waiting(store)

        await settle(store, child.completes())

        job = await record(store, parent.job_id)
        assert job.history[-1].reason is not None
        assert job.history[-1].attempt == 1


class TestChildrenRaces:
    async def test_of_two_that_end_at_once_one_lets_the_parent_go_on(self, store: Store, second_store: Store) -> None:
        for _ in range(ROUNDS):
            parent, [first, second] = await waiting(store, 2)

            await asyncio.gather(
                store.apply([first.completes()], NOW), second_store.apply([second.ends_as(FAILED)], NOW)
            )

            job = await record(store, parent.job_id)
            assert (job.status, job.version, job.open_children) == (Status.PENDING, 4, 0)

    async def test_many_that_end_at_once_are_counted_once_each(self, store: Store, second_store: Store) -> None:
        parent, children = await waiting(store, 24)
        stores = (store, second_store)

        await asyncio.gather(
            *(stores[i % 2].apply([child.ends_as(ENDS[i % 3])], NOW) for i, child in enumerate(children))
        )

        assert await brood(store, parent.job_id) == Brood(24, 0, 8, 8)
        job = await record(store, parent.job_id)
        assert (job.status, job.version) == (Status.PENDING, 4)

    async def test_a_wait_and_the_last_end_do_not_miss_each_other(self, store: Store, second_store: Store) -> None:
        for i in range(ROUNDS):
            parent, [child] = await with_children(store)
            calls = [store.apply([parent.waits()], NOW), second_store.apply([child.completes()], NOW)]

            assert await asyncio.gather(*calls[:: 1 if i % 2 else -1]) == [[Verdict.APPLIED]] * 2
            await quiet(store)

            assert await status(store, parent.job_id) is Status.PENDING

    async def test_a_child_that_comes_as_the_last_ends_is_waited_for_or_comes_too_late(
        self, store: Store, second_store: Store
    ) -> None:
        for _ in range(ROUNDS):
            parent, [child] = await waiting(store)
            late = new_job(job_type="late", parent_job_id=parent.job_id)

            await asyncio.gather(store.apply([child.completes()], NOW), second_store.insert([late], NOW))
            await quiet(store)

            assert await brood(store, parent.job_id) == Brood(2, 1)
            assert await status(store, parent.job_id) in (Status.WAITING, Status.PENDING)
            await settle(store, (await claim_one(store, late.job_id, slots={"late": 1})).completes())
            await quiet(store)
            assert await status(store, parent.job_id) is Status.PENDING
