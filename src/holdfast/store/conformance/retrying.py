"""A manual retry that may wait: for what it depends on, and what runs again too."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.lifecycle import Event, Status, manual_retry
from holdfast.store.conformance.brood import brood
from holdfast.store.conformance.factories import (
    NOW,
    Claim,
    archived,
    cancelled,
    claim_again,
    claim_ids,
    claim_one,
    completed,
    quiet,
    record,
    retry_by_hand,
    running,
    settle,
    status,
    submit,
)
from holdfast.store.port import Store
from holdfast.store.types import Verdict
from holdfast.trees import Brood, TriggerRule

COMPLETED, FAILED, CANCELLED = Status.COMPLETED, Status.FAILED, Status.CANCELLED
ALL_SUCCESS, ALL_DONE, ONE_SUCCESS, NONE_FAILED = TriggerRule


async def again(store: Store, job_id: str, *, rewait: bool = True) -> Verdict:
    retry = manual_retry(await record(store, job_id), now=NOW, by="me", reason=None, rewait=rewait)
    [verdict] = await store.apply([retry], NOW)
    return verdict


async def after(store: Store, *ends: Status, **changes: Any) -> tuple[list[Claim], str]:
    """Jobs that ended like this, and one that depended on them and was cancelled for its own sake."""
    parents = [await running(store) for _ in ends]
    depends_on = tuple(parent.job_id for parent in parents)
    job_id = await cancelled(store, depends_on=depends_on, **changes)
    await settle(store, *(parent.ends_as(end) for parent, end in zip(parents, ends, strict=True)))
    return parents, job_id


class TestWaitingAgain:
    async def test_it_waits_for_what_runs_again(self, store: Store) -> None:
        [parent], job_id = await after(store, FAILED)
        await retry_by_hand(store, parent.job_id)

        assert await again(store, job_id) is Verdict.APPLIED

        job = await record(store, job_id)
        assert (job.status, job.completed_at, job.awaits) == (Status.WAITING, None, None)
        assert (job.history[-1].event, job.history[-1].target) == (Event.MANUAL_RETRY, Status.WAITING)
        await settle(store, (await claim_again(store, parent)).completes())
        assert await claim_ids(store) == [job_id]
        assert (await record(store, job_id)).history[-2].event is Event.RELEASE

    async def test_with_all_completed_it_runs_at_once(self, store: Store) -> None:
        _, job_id = await after(store, COMPLETED, COMPLETED)

        assert await again(store, job_id) is Verdict.APPLIED

        assert await status(store, job_id) is Status.PENDING

    async def test_it_counts_only_those_that_run_again(self, store: Store) -> None:
        [kept, first, second], job_id = await after(store, COMPLETED, FAILED, CANCELLED)
        for parent in (first, second):
            await retry_by_hand(store, parent.job_id)
        await again(store, job_id)

        for parent, stands in ((first, Status.WAITING), (second, Status.PENDING)):
            await settle(store, (await claim_again(store, parent)).completes())
            assert await status(store, job_id) is stands
        assert await status(store, kept.job_id) is COMPLETED

    async def test_what_fails_again_ends_it_again(self, store: Store) -> None:
        [parent], job_id = await after(store, FAILED, on_dependency_failure="fail")
        await retry_by_hand(store, parent.job_id)
        await again(store, job_id)

        await settle(store, (await claim_again(store, parent)).ends_as(FAILED))

        job = await record(store, job_id)
        assert (job.status, job.history[-1].event) == (FAILED, Event.RELEASE)

    @pytest.mark.parametrize("end", [FAILED, CANCELLED])
    async def test_what_stays_ended_badly_keeps_it_from_running(self, store: Store, end: Status) -> None:
        [bad, active], job_id = await after(store, end, FAILED)
        await retry_by_hand(store, active.job_id)
        before = await record(store, job_id)

        assert await again(store, job_id) is Verdict.BLOCKED

        assert await record(store, job_id) == before
        assert await status(store, bad.job_id) is end

    async def test_one_that_may_not_wait_is_refused(self, store: Store) -> None:
        [parent], job_id = await after(store, FAILED)
        await retry_by_hand(store, parent.job_id)

        assert await again(store, job_id, rewait=False) is Verdict.BLOCKED

    @pytest.mark.parametrize(
        ("rule", "ends", "stands"),
        [
            (ALL_DONE, (FAILED, CANCELLED), Status.PENDING),
            (NONE_FAILED, (COMPLETED, CANCELLED), Status.PENDING),
            (NONE_FAILED, (CANCELLED, FAILED), None),
            (ONE_SUCCESS, (FAILED, COMPLETED), Status.PENDING),
            (ONE_SUCCESS, (FAILED, CANCELLED), None),
            (ALL_SUCCESS, (COMPLETED, CANCELLED), None),
        ],
    )
    @pytest.mark.parametrize("rewait", [True, False])
    async def test_each_rule_says_whether_it_may(
        self, store: Store, rule: TriggerRule, ends: tuple[Status, ...], stands: Status | None, rewait: bool
    ) -> None:
        _, job_id = await after(store, *ends, trigger_rule=rule)

        verdict = await again(store, job_id, rewait=rewait)

        assert verdict is (Verdict.BLOCKED if stands is None else Verdict.APPLIED)
        assert await status(store, job_id) is (stands or CANCELLED)

    @pytest.mark.parametrize(
        ("rule", "ends", "stands", "then"),
        [
            (ALL_DONE, (FAILED, FAILED), Status.WAITING, Status.PENDING),
            (NONE_FAILED, (CANCELLED, FAILED), Status.WAITING, CANCELLED),
            (ONE_SUCCESS, (COMPLETED, FAILED), Status.PENDING, Status.PENDING),
            (ONE_SUCCESS, (CANCELLED, FAILED), Status.WAITING, CANCELLED),
        ],
    )
    async def test_each_rule_says_for_what_it_waits_again(
        self, store: Store, rule: TriggerRule, ends: tuple[Status, ...], stands: Status, then: Status
    ) -> None:
        [_, last], job_id = await after(store, *ends, trigger_rule=rule)
        await retry_by_hand(store, last.job_id)

        assert await again(store, job_id) is Verdict.APPLIED
        assert await status(store, job_id) is stands
        await settle(store, (await claim_again(store, last)).ends_as(FAILED))

        assert await status(store, job_id) is then

    async def test_a_line_of_them_runs_again_in_its_order(self, store: Store) -> None:
        first = await running(store, job_type="a")
        second = await submit(store, job_type="b", depends_on=(first.job_id,))
        third = await submit(store, job_type="c", depends_on=(second,))
        await settle(store, first.ends_as(FAILED))
        assert await store.statuses([second, third]) == [CANCELLED, CANCELLED]

        for job_id in (first.job_id, second, third):
            assert await again(store, job_id) is Verdict.APPLIED

        for job_id, kind in ((first.job_id, "a"), (second, "b"), (third, "c")):
            every = {"a": 9, "b": 9, "c": 9}
            claim = await claim_one(store, job_id, slots=every)
            assert claim.job.job_type == kind
            await settle(store, claim.completes())

    async def test_a_whole_line_may_be_asked_for_in_one_batch(self, store: Store) -> None:
        first = await running(store)
        second = await submit(store, depends_on=(first.job_id,))
        await settle(store, first.ends_as(FAILED))
        records = [await record(store, job_id) for job_id in (first.job_id, second)]

        await settle(store, *(manual_retry(job, now=NOW, by=None, reason=None, rewait=True) for job in records))

        assert await store.statuses([first.job_id, second]) == [Status.PENDING, Status.WAITING]

    async def test_a_child_that_waits_again_is_open_again(self, store: Store) -> None:
        parent = await running(store)
        first = await running(store, parent_job_id=parent.job_id)
        second = await submit(store, parent_job_id=parent.job_id, depends_on=(first.job_id,))
        await settle(store, first.ends_as(FAILED))
        assert await brood(store, parent.job_id) == Brood(2, 0, 1, 1)

        await again(store, first.job_id)
        await again(store, second)

        assert await brood(store, parent.job_id) == Brood(2, 2)

    async def test_one_that_joined_an_identical_job_does_not_wait_for_that(self, store: Store) -> None:
        leader = await running(store, job_type="embed", content_hash="h")
        joined = await submit(store, job_type="embed", content_hash="h", reuse_since=0)
        await settle(store, leader.completes())
        await retry_by_hand(store, leader.job_id)

        assert await again(store, joined) is Verdict.APPLIED

        assert await status(store, joined) is Status.PENDING

    async def test_one_whose_key_has_gone_to_another_is_refused(self, store: Store) -> None:
        parent = await running(store)
        first = await cancelled(store, depends_on=(parent.job_id,), dedup_key="k")
        await submit(store, dedup_key="k")

        assert await again(store, first) is Verdict.TAKEN

    async def test_it_waits_again_for_many(self, store: Store) -> None:
        parents, job_id = await after(store, *[FAILED] * 45)
        for parent in parents:
            await retry_by_hand(store, parent.job_id)

        assert await again(store, job_id) is Verdict.APPLIED
        await quiet(store)
        claims = [await claim_again(store, parent) for parent in parents]
        await settle(store, *(claim.completes() for claim in claims[:-1]))
        assert await status(store, job_id) is Status.WAITING
        await settle(store, claims[-1].completes())

        assert await status(store, job_id) is Status.PENDING

    async def test_a_parent_that_has_waited_for_its_children_waits_again_for_what_it_depends_on(
        self, store: Store
    ) -> None:
        first = await completed(store)
        parent = await running(store, depends_on=(first,))
        await running(store, parent_job_id=parent.job_id)
        await settle(store, parent.ends_as(FAILED))
        await retry_by_hand(store, first)

        assert await again(store, parent.job_id) is Verdict.APPLIED

        assert await status(store, parent.job_id) is Status.WAITING

    async def test_what_ended_badly_and_is_gone_for_long_counts_as_it_ended(self, store: Store) -> None:
        bad = await archived(store, FAILED)
        job_id = await submit(store, depends_on=(bad.job_id,))

        assert await again(store, job_id) is Verdict.BLOCKED
