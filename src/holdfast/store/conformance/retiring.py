"""retire: what is over its time goes to the archive, a step at a time; what is active stays."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from holdfast.lifecycle import ACTIVE, TERMINAL, Status, manual_retry
from holdfast.limits import COUNTERS_DAYS
from holdfast.store.conformance.factories import (
    DAY,
    NOW,
    SECOND,
    a_policy,
    cancelled,
    completed,
    failed,
    in_state,
    record,
    retire,
    retry_by_hand,
    running,
    settle,
    submit,
    submit_many,
)
from holdfast.store.port import Store
from holdfast.store.types import Keep, Query, RetentionPolicy, Retired, Verdict

YEARS = 10 * 365 * DAY
SPANS = {Status.COMPLETED: 7 * DAY, Status.CANCELLED: 8 * DAY, Status.FAILED: 30 * DAY}
POLICY = a_policy(SPANS[Status.COMPLETED], SPANS[Status.FAILED], SPANS[Status.CANCELLED])
AT_ONCE = a_policy(0, 0, 0)


async def _archived(store: Store, *job_ids: str) -> list[bool]:
    return [(await record(store, job_id)).archived_at is not None for job_id in job_ids]


async def _settled_at(store: Store, now: int) -> str:
    claim = await running(store, now=now)
    await settle(store, claim.completes(now=now), now=now)
    return claim.job_id


class TestRetire:
    @pytest.mark.parametrize("state", sorted(TERMINAL))
    async def test_an_ended_job_is_archived_after_the_span_of_its_state_and_not_before(
        self, store: Store, state: Status
    ) -> None:
        job = await in_state(store, state)

        assert await retire(store, POLICY, now=NOW + SPANS[state]) == 0
        assert await record(store, job.job_id) == job

        assert await retire(store, POLICY, now=NOW + SPANS[state] + SECOND) == 1
        assert (await record(store, job.job_id)).archived_at == NOW + SPANS[state] + SECOND

    @pytest.mark.parametrize("state", sorted(TERMINAL))
    async def test_a_state_without_a_span_is_kept_for_ever(self, store: Store, state: Status) -> None:
        jobs = {each: (await in_state(store, each)).job_id for each in sorted(TERMINAL)}
        name = f"{state.value}_micros"
        policy = RetentionPolicy(msgspec.structs.replace(POLICY.keep, **{name: None}), {}, None)

        await retire(store, policy, now=NOW + YEARS)

        assert {each: (await _archived(store, job_id))[0] for each, job_id in jobs.items()} == {
            each: each is not state for each in sorted(TERMINAL)
        }

    async def test_a_policy_without_any_span_keeps_everything(self, store: Store) -> None:
        await completed(store)

        assert await store.retire(a_policy(None, None, None), NOW + YEARS, 10, None) == Retired(0, 0, None)

    async def test_a_type_may_have_spans_of_its_own(self, store: Store) -> None:
        short = await completed(store, job_type="short")
        usual = await completed(store)
        kept = await completed(store, job_type="kept")
        by_type = {"short": Keep(DAY, DAY, DAY), "kept": Keep(None, None, None)}
        policy = a_policy(7 * DAY, by_type=by_type)

        await retire(store, policy, now=NOW + 2 * DAY)
        assert await _archived(store, short, usual, kept) == [True, False, False]

        await retire(store, policy, now=NOW + YEARS)
        assert await _archived(store, short, usual, kept) == [True, True, False]

    async def test_only_the_types_that_were_named_are_looked_at(self, store: Store) -> None:
        wanted, other = await completed(store, job_type="wanted"), await completed(store, job_type="other")

        assert await retire(store, a_policy(job_types=("wanted",)), now=NOW + YEARS) == 1

        assert await _archived(store, wanted, other) == [True, False]

    @pytest.mark.parametrize("state", sorted(ACTIVE))
    async def test_an_active_job_is_never_touched(self, store: Store, state: Status) -> None:
        before = await in_state(store, state)

        await retire(store, AT_ONCE, now=NOW + YEARS)

        assert await record(store, before.job_id) == before

    async def test_a_job_that_runs_again_is_active_and_its_time_begins_anew(self, store: Store) -> None:
        claim = await running(store)
        await settle(store, claim.fails())
        await store.promote(NOW + DAY, 10)
        job_id = await completed(store)
        await retry_by_hand(store, job_id, now=NOW + 20 * DAY)

        assert await retire(store, POLICY, now=NOW + 40 * DAY) == 0

        assert (await record(store, job_id)).status is Status.PENDING
        assert (await record(store, claim.job_id)).status is Status.PENDING

    async def test_its_span_counts_from_its_end_and_not_from_its_beginning(self, store: Store) -> None:
        claim = await running(store)
        await settle(store, claim.completes(now=NOW + 20 * DAY), now=NOW + 20 * DAY)

        assert await retire(store, POLICY, now=NOW + 26 * DAY) == 0
        assert await retire(store, POLICY, now=NOW + 28 * DAY) == 1

    async def test_what_went_is_no_longer_found_or_counted(self, store: Store) -> None:
        for state in sorted(TERMINAL):
            await in_state(store, state, subject="s")

        await retire(store, AT_ONCE, now=NOW + DAY)

        assert set((await store.counts()).values()) == {0}
        assert (await store.find(Query())).items == ()
        assert (await store.find(Query(subject="s"))).items == ()
        assert await store.dead(10) == []

    async def test_the_steps_of_a_job_go_with_it(self, store: Store) -> None:
        claim = await running(store)
        await store.record_step(claim.hold, "charge", "1", NOW)
        await settle(store, claim.completes())

        await retire(store, AT_ONCE, now=NOW + DAY)

        assert await store.step(claim.job_id, "charge") is None

    async def test_counters_over_their_time_go_too(self, store: Store) -> None:
        await submit(store)
        late = NOW + (COUNTERS_DAYS + 1) * DAY
        await submit(store, now=late, job_type="late")

        await retire(store, POLICY, now=late)

        assert [counter.job_type for counter in await store.counters(NOW - DAY, late + DAY)] == ["late"]


class TestTrees:
    async def test_a_tree_goes_when_all_of_it_is_over(self, store: Store) -> None:
        root = await completed(store)
        child = await completed(store, parent_job_id=root)
        grandchild = await cancelled(store, parent_job_id=child)

        assert await retire(store, POLICY, now=NOW + 9 * DAY) == 3

        assert await _archived(store, root, child, grandchild) == [True] * 3

    async def test_a_part_that_is_active_keeps_its_whole_tree(self, store: Store) -> None:
        root = await completed(store)
        child = await submit(store, parent_job_id=root)
        grandchild = await completed(store, parent_job_id=child)
        bystander = await completed(store)

        assert await retire(store, POLICY, now=NOW + YEARS) == 1

        assert await _archived(store, root, child, grandchild, bystander) == [False, False, False, True]

    async def test_a_part_that_is_kept_longer_keeps_its_whole_tree(self, store: Store) -> None:
        root = await completed(store)
        child = await failed(store, parent_job_id=root)

        assert await retire(store, POLICY, now=NOW + 9 * DAY) == 0
        assert await retire(store, POLICY, now=NOW + 31 * DAY) == 2

        assert await _archived(store, root, child) == [True, True]

    async def test_a_tree_longer_than_a_step_goes_as_a_whole(self, store: Store) -> None:
        root = await completed(store)
        children = [await completed(store, parent_job_id=root) for _ in range(5)]

        done = await store.retire(POLICY, NOW + YEARS, 2, None)

        assert done.archived == 6
        assert await _archived(store, root, *children) == [True] * 6

    async def test_a_part_that_is_retried_at_that_moment_keeps_its_tree(
        self, store: Store, second_store: Store
    ) -> None:
        for _ in range(10):
            root = await completed(store)
            child = await completed(store, parent_job_id=root)
            retry = manual_retry(await record(store, child), now=NOW, by=None, reason=None)

            await asyncio.gather(retire(store, AT_ONCE, now=NOW + DAY), second_store.apply([retry], NOW))

            gone = await _archived(store, root, child)
            assert gone in ([True, True], [False, False])


class TestPassesOfRetention:
    async def test_a_step_is_bounded_and_says_where_the_next_one_starts(self, store: Store) -> None:
        for _ in range(10):
            await completed(store, job_type="work")
        counts, after = [], None
        for _ in range(20):
            done = await store.retire(POLICY, NOW + YEARS, 3, after)
            counts.append(done.archived)
            after = done.next
            if after is None:
                break

        assert sum(counts) == 10
        assert max(counts) < 10
        assert after is None

    async def test_rows_that_have_to_stay_do_not_keep_those_behind_them(self, store: Store) -> None:
        await submit_many(store, 30)
        for _ in range(5):
            await completed(store, job_type="kept")
        over = [await completed(store, job_type="over") for _ in range(5)]
        policy = a_policy(by_type={"kept": Keep(None, None, None)})

        assert await retire(store, policy, now=NOW + YEARS, limit=4) == 5

        assert await _archived(store, *over) == [True] * 5
        assert (await store.counts())["pending"] == 30

    async def test_a_pass_over_what_is_too_young_ends(self, store: Store) -> None:
        for i in range(10):
            await _settled_at(store, NOW + i)

        assert await retire(store, POLICY, now=NOW + DAY, limit=2) == 0

    async def test_a_second_pass_finds_what_has_come_to_its_time_since(self, store: Store) -> None:
        first, second = await _settled_at(store, NOW), await _settled_at(store, NOW + 2 * DAY)

        await retire(store, POLICY, now=NOW + 8 * DAY, limit=1)
        assert await _archived(store, first, second) == [True, False]
        before = await record(store, first)

        await retire(store, POLICY, now=NOW + 10 * DAY, limit=1)
        assert await _archived(store, second) == [True]
        assert await record(store, first) == before

    async def test_two_passes_at_once_archive_each_job_once(self, store: Store, second_store: Store) -> None:
        ids = [await completed(store, job_type="work") for _ in range(20)]

        counts = await asyncio.gather(
            *(retire(each, POLICY, now=NOW + YEARS, limit=3) for each in (store, second_store))
        )

        assert sum(counts) == 20
        assert await _archived(store, *ids) == [True] * 20

    async def test_a_job_that_is_retried_at_that_moment_runs_or_is_archived_and_never_both(
        self, store: Store, second_store: Store
    ) -> None:
        ids = [await completed(store, job_type="work") for _ in range(20)]
        retries = [manual_retry(await record(store, each), now=NOW, by=None, reason=None) for each in ids]

        _, *verdicts = await asyncio.gather(
            retire(store, AT_ONCE, now=NOW + DAY, limit=4), *(second_store.apply([each], NOW) for each in retries)
        )

        for job_id, verdict in zip(ids, verdicts, strict=True):
            job = await record(store, job_id)
            if job.archived_at is None:
                assert (verdict, job.status) == ([Verdict.APPLIED], Status.PENDING)
            else:
                assert (verdict, job.status) == ([Verdict.GONE], Status.COMPLETED)
