"""Conformance: children, stored at once, with the completion, or staged before it; counts of a parent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backstay.core.dependencies import Brood, TriggerRule
from backstay.core.lifecycle import Raised, Snoozed, cancel, rescue
from backstay.core.port import Store
from backstay.core.records import Hold, NewJob, Query, QueueChange, Staged, Transition, Verdict
from backstay.core.states import Status
from backstay.errors import EffectFailed, QueueFull, UnknownDependency
from backstay.limits import CHILDREN_INLINE_MAX
from backstay.testing.conformance.factories import (
    DAY,
    HOUR,
    NOW,
    SECOND,
    Claim,
    a_policy,
    an_error,
    claim_again,
    claim_ids,
    claim_one,
    completed,
    ended,
    new_job,
    quiet,
    record,
    remove_files,
    request,
    retire,
    retry_by_hand,
    running,
    settle,
    status,
    submit,
    submit_many,
)

COMPLETED, FAILED, CANCELLED = Status.COMPLETED, Status.FAILED, Status.CANCELLED


async def brood(store: Store, parent: str) -> Brood:
    job = await record(store, parent)
    return Brood(job.children, job.open_children, job.failed_children, job.cancelled_children)


async def with_children(store: Store, count: int = 1, **changes: Any) -> tuple[Claim, list[Claim]]:
    """Return a running parent with running children."""
    parent = await running(store, **changes)
    return parent, [await running(store, parent_job_id=parent.job_id) for _ in range(count)]


def child(parent: Claim, **changes: Any) -> NewJob:
    """Return a child as a handler submits it: with a derived id, so that a repeat submits the same child."""
    return new_job(parent_job_id=parent.job_id, own_id=True, **changes)


def children_of(parent: Claim, count: int, **changes: Any) -> tuple[NewJob, ...]:
    return tuple(child(parent, **changes) for _ in range(count))


def ids(jobs: tuple[NewJob, ...]) -> list[str]:
    return [job.job_id for job in jobs]


class TestChildren:
    async def test_a_job_without_children_has_none(self, store: Store) -> None:
        job_id = await submit(store)

        assert await brood(store, job_id) == Brood()
        assert (await store.children(job_id, None, 10)).items == ()

    async def test_a_parent_counts_its_children(self, store: Store) -> None:
        parent = await submit(store)
        before = await record(store, parent)

        await submit(store, parent_job_id=parent)
        await submit_many(store, 2, parent_job_id=parent)

        assert await brood(store, parent) == Brood(3, 3)
        after = await record(store, parent)
        assert (after.version, after.history) == (before.version, before.history)

    async def test_a_parent_may_come_with_its_children(self, store: Store) -> None:
        parent = new_job(job_type="parent", special=True)
        children = [new_job(parent_job_id=parent.job_id) for _ in range(3)]

        await store.insert([parent, *children], NOW)

        assert await brood(store, parent.job_id) == Brood(3, 3)
        assert {(await record(store, each.job_id)).root_job_id for each in children} == {parent.job_id}

    @pytest.mark.parametrize(
        ("outcome", "counted"),
        [(COMPLETED, Brood(1)), (FAILED, Brood(1, failed=1)), (CANCELLED, Brood(1, cancelled=1))],
    )
    async def test_a_child_that_ends_counts_as_what_it_ended(
        self, store: Store, outcome: Status, counted: Brood
    ) -> None:
        parent, [child] = await with_children(store)

        for _ in range(2):  # once, however often it is repeated
            await settle(store, child.ends_as(outcome))

        assert await brood(store, parent.job_id) == counted

    async def test_those_that_end_in_one_batch_all_count(self, store: Store) -> None:
        parent, children = await with_children(store, 6)
        other, [stranger] = await with_children(store)

        ends = [COMPLETED, COMPLETED, FAILED, CANCELLED, COMPLETED]
        await settle(
            store,
            stranger.completes(),
            *(child.ends_as(end) for child, end in zip(children, ends, strict=False)),
        )

        assert await brood(store, parent.job_id) == Brood(6, 1, failed=1, cancelled=1)
        assert await brood(store, other.job_id) == Brood(1)

    async def test_plain_completions_in_one_batch_all_count(self, store: Store) -> None:
        parent, children = await with_children(store, 4)

        for _ in range(2):
            await settle(store, *(child.completes() for child in children[:3]))

        assert await brood(store, parent.job_id) == Brood(4, 1)

    async def test_a_failure_with_tries_left_leaves_a_child_open(self, store: Store) -> None:
        parent, [child] = await with_children(store)

        await settle(store, child.fails())

        assert await brood(store, parent.job_id) == Brood(1, 1)

    async def test_a_refused_settlement_counts_nothing(self, store: Store) -> None:
        parent, [child] = await with_children(store)
        await settle(store, child.gives_back())
        await claim_again(store, child)

        assert await store.apply([child.completes()], NOW) == [Verdict.STALE]

        assert await brood(store, parent.job_id) == Brood(1, 1)

    async def test_a_child_that_is_cancelled_by_an_editor_counts(self, store: Store) -> None:
        parent = await submit(store)
        child = await submit(store, parent_job_id=parent)

        await settle(store, cancel(await record(store, child), by="me", reason=None))

        assert await brood(store, parent) == Brood(1, cancelled=1)

    async def test_a_child_that_dies_with_its_worker_counts(self, store: Store) -> None:
        parent = await submit(store)
        await running(store, parent_job_id=parent, lease_micros=0, max_attempts=1)
        [expired] = await store.expired(NOW, 10)

        await settle(store, rescue(expired, lease=expired.lease_expires_at, now=NOW, reason="died", by=None))

        assert await brood(store, parent) == Brood(1, failed=1)

    async def test_a_settlement_that_does_not_name_the_parent_counts_all_the_same(self, store: Store) -> None:
        parent, [child] = await with_children(store)

        await settle(store, msgspec.structs.replace(child.completes(), parent_job_id=None))

        assert await brood(store, parent.job_id) == Brood(1)

    async def test_a_child_that_runs_again_is_open_again(self, store: Store) -> None:
        parent, [child] = await with_children(store)
        await settle(store, child.ends_as(FAILED))

        await retry_by_hand(store, child.job_id)

        assert await brood(store, parent.job_id) == Brood(1, 1)

    async def test_children_that_end_with_their_dependency_count(self, store: Store) -> None:
        parent, [first] = await with_children(store)
        await submit_many(store, 2, parent_job_id=parent.job_id, depends_on=(first.job_id,))
        await submit(store, parent_job_id=parent.job_id, depends_on=(first.job_id,), on_dependency_failure="fail")

        await settle(store, first.ends_as(FAILED))

        assert await brood(store, parent.job_id) == Brood(4, failed=2, cancelled=2)

    async def test_a_child_that_ends_as_it_comes_counts_as_both(self, store: Store) -> None:
        parent = await submit(store)
        await completed(store, job_type="embed", content_hash="h")
        bad = await ended(store, FAILED)

        await submit(store, parent_job_id=parent, job_type="embed", content_hash="h", reuse_since=0)
        await submit(store, parent_job_id=parent, depends_on=(bad,))

        assert await brood(store, parent) == Brood(2, cancelled=1)

    async def test_a_child_that_had_joined_an_identical_job_counts_when_that_completes(self, store: Store) -> None:
        leader = await running(store, job_type="embed", content_hash="h")
        parent = await submit(store)
        await submit(store, parent_job_id=parent, job_type="embed", content_hash="h", reuse_since=0)
        assert await brood(store, parent) == Brood(1, 1)

        await settle(store, leader.completes())

        assert await brood(store, parent) == Brood(1)

    async def test_a_child_that_is_there_already_is_not_counted_again(self, store: Store) -> None:
        parent = await submit(store)
        child = new_job(parent_job_id=parent, own_id=True)
        keyed = {"parent_job_id": parent, "dedup_key": "k"}

        for _ in range(2):
            await store.insert([child, child, new_job(**keyed), new_job(**keyed)], NOW)

        assert await brood(store, parent) == Brood(2, 2)

    async def test_a_refused_batch_counts_nothing(self, store: Store) -> None:
        parent = await submit(store)
        bad = new_job(parent_job_id=parent, depends_on=(new_job().job_id,))

        with pytest.raises(UnknownDependency):
            await store.insert([new_job(parent_job_id=parent), bad], NOW)

        assert await brood(store, parent) == Brood()

    async def test_a_grandchild_counts_with_its_parent_alone(self, store: Store) -> None:
        root = await submit(store)
        child = await submit(store, parent_job_id=root)
        grandchild = await submit(store, parent_job_id=child)

        assert [await brood(store, each) for each in (root, child)] == [Brood(1, 1), Brood(1, 1)]
        assert (await record(store, grandchild)).root_job_id == root

    async def test_children_are_listed_in_pages_by_id(self, store: Store) -> None:
        parent = await submit(store)
        ids = sorted(await submit_many(store, 5, parent_job_id=parent))
        await submit(store, parent_job_id=ids[0])

        found: list[str] = []
        after = None
        for size in (2, 2, 1):
            page = await store.children(parent, after, 2)
            assert len(page.items) == size
            found += [job.job_id for job in page.items]
            after = page.next

        assert (found, after) == (ids, None)
        assert page.items[0] == await record(store, ids[-1])

    async def test_a_page_that_is_just_full_is_the_last(self, store: Store) -> None:
        parent = await submit(store)
        await submit_many(store, 2, parent_job_id=parent)

        assert (await store.children(parent, None, 2)).next is None

    async def test_children_in_one_state_are_listed(self, store: Store) -> None:
        parent, [first, second] = await with_children(store, 2)
        third = await submit(store, parent_job_id=parent.job_id)
        await settle(store, first.completes())

        for state, job_id in ((COMPLETED, first.job_id), (Status.PROCESSING, second.job_id), (Status.PENDING, third)):
            page = await store.children(parent.job_id, None, 10, state)
            assert [job.job_id for job in page.items] == [job_id]

    async def test_children_are_found_by_their_parent(self, store: Store) -> None:
        parent = await submit(store)
        ids = await submit_many(store, 3, parent_job_id=parent)
        await submit(store, parent_job_id=ids[0])

        page = await store.find(Query(parent=parent, limit=10))

        assert {job.job_id for job in page.items} == set(ids)

    async def test_a_claim_says_how_many_children_there_are(self, store: Store) -> None:
        parent = await submit(store, job_type="parent")
        await submit_many(store, 3, parent_job_id=parent)

        job = (await claim_one(store, parent, slots={"parent": 1})).job

        assert (job.children, job.waits, job.join) == (3, 0, None)

    async def test_the_archive_keeps_the_numbers(self, store: Store) -> None:
        parent, children = await with_children(store, 2)
        await settle(store, children[0].completes(), children[1].ends_as(FAILED), parent.completes())

        await retire(store, a_policy(), now=NOW + 2 * DAY)

        assert (await record(store, parent.job_id)).archived_at is not None
        assert await brood(store, parent.job_id) == Brood(2, failed=1)


class TestChildrenAtOnce:
    async def test_they_are_stored_while_their_parent_runs(self, store: Store) -> None:
        parent = await running(store)
        jobs = children_of(parent, 2)

        answers = await store.insert_children(parent.hold, jobs, NOW)

        assert answers is not None
        assert [(each.job_id, each.status) for each in answers] == [(job_id, Status.PENDING) for job_id in ids(jobs)]
        assert await brood(store, parent.job_id) == Brood(2, 2)
        assert sorted(await claim_ids(store)) == sorted(ids(jobs))

    async def test_a_child_that_is_there_answers_for_itself(self, store: Store) -> None:
        parent = await running(store)
        job = child(parent)
        await store.insert_children(parent.hold, [job], NOW)

        answers = await store.insert_children(parent.hold, [job], NOW)

        assert answers is not None
        assert answers[0].existing == await record(store, job.job_id)
        assert await brood(store, parent.job_id) == Brood(1, 1)

    async def test_a_claim_that_is_lost_stores_none(self, store: Store) -> None:
        parent = await running(store)
        jobs = children_of(parent, 2)
        await settle(store, parent.gives_back())
        await claim_again(store, parent)

        assert await store.insert_children(parent.hold, jobs, NOW) is None
        nobody = Hold(new_job().job_id, 1, "token")
        assert await store.insert_children(nobody, jobs, NOW) is None

        assert await store.statuses(ids(jobs)) == [None] * 2
        assert await brood(store, parent.job_id) == Brood()

    async def test_an_ended_parent_stores_none(self, store: Store) -> None:
        parent = await running(store)
        await settle(store, parent.completes())

        assert await store.insert_children(parent.hold, [child(parent)], NOW) is None

    async def test_what_is_refused_is_refused_as_for_anyone(self, store: Store) -> None:
        await store.change_queue("small", QueueChange(max_pending=1), NOW)
        parent = await running(store)

        with pytest.raises(UnknownDependency):
            await store.insert_children(parent.hold, [child(parent, depends_on=(new_job().job_id,))], NOW)
        with pytest.raises(QueueFull):
            await store.insert_children(parent.hold, children_of(parent, 2, queue="small"), NOW)

        assert await brood(store, parent.job_id) == Brood()

    async def test_a_dedup_key_answers_with_whoever_has_it(self, store: Store) -> None:
        parent = await running(store)
        before = await submit(store, dedup_key="k")

        answers = await store.insert_children(parent.hold, [child(parent, dedup_key="k")], NOW)

        assert answers is not None
        assert answers[0].job_id == before
        assert await brood(store, parent.job_id) == Brood()


PARTS = 3


class TestChildrenWithTheCompletion:
    async def test_children_are_stored_with_their_parents_completion(self, store: Store) -> None:
        parent = await running(store)
        jobs = children_of(parent, 3)
        assert await store.statuses(ids(jobs)) == [None] * 3

        await settle(store, parent.completes(children=jobs))

        assert await store.statuses(ids(jobs)) == [Status.PENDING] * 3
        assert await brood(store, parent.job_id) == Brood(3, 3)
        first = await record(store, jobs[0].job_id)
        assert (first.parent_job_id, first.root_job_id) == (parent.job_id, parent.job_id)
        assert sorted(await claim_ids(store)) == sorted(ids(jobs))

    async def test_a_completion_that_is_told_twice_brings_them_once(self, store: Store) -> None:
        parent = await running(store)
        jobs = children_of(parent, 2)

        for _ in range(2):
            await settle(store, parent.completes(children=jobs))

        assert await brood(store, parent.job_id) == Brood(2, 2)
        assert {(await record(store, job.job_id)).version for job in jobs} == {1}

    @pytest.mark.parametrize("how", ["fails", "snoozes", "gives back"])
    async def test_a_run_that_comes_to_nothing_leaves_none(self, store: Store, how: str) -> None:
        parent = await running(store)
        jobs = children_of(parent, 2)
        ends: dict[str, Transition] = {
            "fails": parent.ends(Raised(an_error()), children=jobs),
            "snoozes": parent.ends(Snoozed(HOUR), children=jobs),
            "gives back": parent.gives_back(),
        }

        await settle(store, ends[how])
        await quiet(store)

        assert await store.statuses(ids(jobs)) == [None] * 2
        assert await brood(store, parent.job_id) == Brood()

    async def test_a_lost_claim_leaves_none(self, store: Store) -> None:
        parent = await running(store)
        jobs = children_of(parent, 2)
        await settle(store, parent.gives_back())
        await claim_again(store, parent)

        late = [parent.completes(children=jobs), parent.waits(children=jobs)]
        assert await store.apply(late, NOW) == [Verdict.STALE] * 2
        await quiet(store)

        assert await store.statuses(ids(jobs)) == [None] * 2
        assert await brood(store, parent.job_id) == Brood()

    async def test_a_second_run_finds_the_children_of_the_first(self, store: Store) -> None:
        parent = await running(store)
        jobs = children_of(parent, 3)
        assert await store.insert_children(parent.hold, jobs[:2], NOW) is not None
        await settle(store, parent.gives_back())
        again = await claim_again(store, parent)

        await settle(store, again.completes(children=jobs))

        assert await brood(store, parent.job_id) == Brood(3, 3)

    async def test_they_may_wait_for_one_another(self, store: Store) -> None:
        parent = await running(store)
        first = child(parent, job_type="first")
        second = child(parent, depends_on=(first.job_id,))

        await settle(store, parent.completes(children=(first, second)))

        assert await store.statuses([first.job_id, second.job_id]) == [Status.PENDING, Status.WAITING]
        await settle(store, (await claim_one(store, slots={"first": 1})).completes())
        assert await status(store, second.job_id) is Status.PENDING

    async def test_children_that_cannot_be_stored_fail_the_run(self, store: Store) -> None:
        parent, other = await running(store), await running(store)
        good, bad = child(parent), child(parent, depends_on=(new_job().job_id,))
        before = await record(store, parent.job_id)

        with pytest.raises(EffectFailed, match="depend") as refused:
            await store.apply([other.completes(), parent.completes(children=(good, bad))], NOW)

        assert refused.value.job_id == parent.job_id
        assert await record(store, parent.job_id) == before
        assert await store.statuses([other.job_id, good.job_id]) == [Status.PROCESSING, None]

    async def test_a_full_queue_takes_them_all_the_same(self, store: Store) -> None:
        await store.change_queue("small", QueueChange(max_pending=1), NOW)
        parent = await running(store)
        jobs = children_of(parent, 3, queue="small")

        await settle(store, parent.completes(children=jobs))

        assert await store.statuses(ids(jobs)) == [Status.PENDING] * 3

    async def test_a_parent_that_brings_children_is_still_a_child_itself(self, store: Store) -> None:
        root = await running(store)
        middle = await running(store, parent_job_id=root.job_id)
        await settle(store, root.waits())
        [leaf] = jobs = children_of(middle, 1)

        await settle(store, middle.completes(children=jobs))

        assert await status(store, root.job_id) is Status.PENDING  # its own child has ended
        assert await brood(store, middle.job_id) == Brood(1, 1)
        assert (await record(store, leaf.job_id)).root_job_id == root.job_id

    async def test_a_completion_with_children_releases_those_that_depend_on_it(self, store: Store) -> None:
        parent = await running(store)
        dependent = await submit(store, depends_on=(parent.job_id,))

        await settle(store, parent.completes(children=children_of(parent, 2, job_type="child")))

        assert await claim_ids(store) == [dependent]

    async def test_a_parent_waits_for_the_children_that_come_with_its_wait(self, store: Store) -> None:
        parent = await running(store)
        jobs = children_of(parent, 2)

        await settle(store, parent.waits(children=jobs))
        assert await status(store, parent.job_id) is Status.WAITING
        for left in (Status.WAITING, Status.PENDING):
            await settle(store, (await claim_one(store)).completes())
            assert await status(store, parent.job_id) is left

        assert await brood(store, parent.job_id) == Brood(2)

    async def test_a_wait_that_is_told_twice_brings_them_once(self, store: Store) -> None:
        parent = await running(store)
        jobs = children_of(parent, 2)

        for _ in range(2):
            await settle(store, parent.waits(children=jobs))

        assert await brood(store, parent.job_id) == Brood(2, 2)
        assert (await record(store, parent.job_id)).waits == 1

    async def test_children_that_end_as_they_come_are_not_waited_for(self, store: Store) -> None:
        await completed(store, job_type="embed", content_hash="h")
        bad = await ended(store, Status.FAILED)
        parent = await running(store)
        reused = child(parent, job_type="embed", content_hash="h", reuse_since=0)

        await settle(store, parent.waits(children=(reused, child(parent, depends_on=(bad,)))))
        await quiet(store)

        assert await status(store, parent.job_id) is Status.PENDING
        assert await brood(store, parent.job_id) == Brood(2, cancelled=1)

    @pytest.mark.parametrize("waits", [False, True])
    async def test_as_many_as_may_come_with_a_commit_all_come(self, store: Store, waits: bool) -> None:
        parent = await running(store)
        jobs = children_of(parent, CHILDREN_INLINE_MAX)

        await settle(store, parent.waits(children=jobs) if waits else parent.completes(children=jobs))
        await quiet(store)

        assert await brood(store, parent.job_id) == Brood(CHILDREN_INLINE_MAX, CHILDREN_INLINE_MAX)
        assert await status(store, parent.job_id) is (Status.WAITING if waits else Status.COMPLETED)
        assert set(await store.statuses(ids(jobs))) == {Status.PENDING}


class TestStagedChildren:
    async def _stage(self, store: Store, parent: Claim, jobs: tuple[NewJob, ...]) -> Staged:
        size = -(-len(jobs) // PARTS)
        for part in range(PARTS):
            some = jobs[part * size : (part + 1) * size]
            assert await store.stage(parent.hold, part, some, NOW) is Verdict.APPLIED
        return Staged(PARTS, len(jobs))

    async def test_more_than_one_commit_takes_are_staged_and_come_with_the_completion(
        self, store: Store, many: int
    ) -> None:
        parent = await running(store)
        jobs = children_of(parent, many)

        staged = await self._stage(store, parent, jobs)
        assert await store.statuses([jobs[0].job_id, jobs[-1].job_id]) == [None] * 2
        await settle(store, parent.completes(staged=staged))
        await quiet(store)

        assert await brood(store, parent.job_id) == Brood(many, many)
        assert (await store.counts())["pending"] == many
        assert await status(store, parent.job_id) is Status.COMPLETED

    async def test_a_parent_waits_until_the_last_that_it_staged_has_ended(self, store: Store, many: int) -> None:
        parent = await running(store)
        staged = await self._stage(store, parent, children_of(parent, many))
        await settle(store, parent.waits(staged=staged))

        done = 0
        while done < many:
            assert await status(store, parent.job_id) is Status.WAITING
            asked = request()
            claims = [Claim(job, asked.token) for job in await store.claim(asked, NOW)]
            if not claims:  # the stored ones have ended, and others are still to be stored
                assert await store.release(NOW, 100)
                continue
            await settle(store, *(claim.completes() for claim in claims))
            done += len(claims)
        await quiet(store)

        job = await record(store, parent.job_id)
        assert (job.status, job.version) == (Status.PENDING, 4)
        assert await brood(store, parent.job_id) == Brood(many)

    async def test_another_store_goes_on_where_the_first_stopped(
        self, store: Store, second_store: Store, many: int
    ) -> None:
        parent = await running(store)
        staged = await self._stage(store, parent, children_of(parent, many))
        await settle(store, parent.completes(staged=staged))

        await quiet(second_store)

        assert await brood(store, parent.job_id) == Brood(many, many)

    async def test_a_settlement_that_is_told_twice_brings_them_once(self, store: Store) -> None:
        parent = await running(store)
        staged = await self._stage(store, parent, children_of(parent, 9))

        for _ in range(2):
            await settle(store, parent.completes(staged=staged))
            await quiet(store)

        assert await brood(store, parent.job_id) == Brood(9, 9)

    async def test_a_parent_that_runs_again_may_stage_more_while_the_first_are_on_their_way(
        self, store: Store, many: int
    ) -> None:
        parent = await running(store)
        staged = await self._stage(store, parent, children_of(parent, many, job_type="child"))
        await settle(store, parent.completes(staged=staged))
        await retry_by_hand(store, parent.job_id)
        again = await claim_again(store, parent)

        await settle(store, again.completes(staged=await self._stage(store, again, children_of(parent, 3))))
        await quiet(store)

        assert await brood(store, parent.job_id) == Brood(many + 3, many + 3)

    async def test_they_may_wait_for_one_another_across_parts(self, store: Store) -> None:
        parent = await running(store)
        first = child(parent, job_type="first")
        jobs = (first, *children_of(parent, 5, depends_on=(first.job_id,)))

        await settle(store, parent.completes(staged=await self._stage(store, parent, jobs)))
        await quiet(store)
        assert await store.statuses(ids(jobs)) == [Status.PENDING] + [Status.WAITING] * 5
        await settle(store, (await claim_one(store, slots={"first": 1})).completes())

        assert set(await store.statuses(ids(jobs[1:]))) == {Status.PENDING}

    async def test_a_part_that_is_staged_again_is_replaced(self, store: Store) -> None:
        parent = await running(store)
        first, second = child(parent), child(parent)
        await store.stage(parent.hold, 0, [first], NOW)

        await store.stage(parent.hold, 0, [second], NOW)
        await settle(store, parent.completes(staged=Staged(1, 1)))
        await quiet(store)

        assert await store.statuses([first.job_id, second.job_id]) == [None, Status.PENDING]

    async def test_a_claim_that_is_lost_stages_nothing(self, store: Store) -> None:
        parent = await running(store)
        await settle(store, parent.gives_back())
        await claim_again(store, parent)

        assert await store.stage(parent.hold, 0, [child(parent)], NOW) is Verdict.STALE
        nobody = Hold(new_job().job_id, 1, "token")
        assert await store.stage(nobody, 0, [child(parent)], NOW) is Verdict.GONE

    @pytest.mark.parametrize("how", ["fails", "gives back", "is cancelled", "completes without them"])
    async def test_what_a_run_staged_that_came_to_nothing_never_comes(self, store: Store, how: str) -> None:
        parent = await running(store, max_attempts=1)
        jobs = children_of(parent, 3)
        await self._stage(store, parent, jobs)

        match how:
            case "fails":
                await settle(store, parent.fails())
            case "gives back":
                await settle(store, parent.gives_back())
            case "is cancelled":
                await settle(store, cancel(await record(store, parent.job_id), by=None, reason=None))
            case _:
                await settle(store, parent.completes())
        await quiet(store)

        assert await store.statuses(ids(jobs)) == [None] * 3
        assert await brood(store, parent.job_id) == Brood()

    async def test_an_attempt_brings_only_what_it_staged_itself(self, store: Store) -> None:
        parent = await running(store)
        first, second = child(parent), child(parent)
        await store.stage(parent.hold, 0, [first], NOW)
        await settle(store, parent.gives_back())
        again = await claim_again(store, parent)

        await store.stage(again.hold, 0, [second], NOW)
        await settle(store, again.completes(staged=Staged(1, 1)))
        await quiet(store)

        assert await store.statuses([first.job_id, second.job_id]) == [None, Status.PENDING]

    async def test_a_settlement_that_names_parts_which_are_not_there_fails(self, store: Store) -> None:
        parent = await running(store)
        await store.stage(parent.hold, 0, [child(parent)], NOW)

        with pytest.raises(EffectFailed) as refused:
            await store.apply([parent.completes(staged=Staged(2, 2))], NOW)

        assert refused.value.job_id == parent.job_id
        assert await status(store, parent.job_id) is Status.PROCESSING

    async def test_what_was_staged_comes_although_what_it_depends_on_is_long_gone(self, store: Store) -> None:
        before = await completed(store)
        parent = await running(store)
        job = child(parent, depends_on=(before,))
        await store.stage(parent.hold, 0, [job], NOW)
        await retire(store, a_policy(0, 0, 0), now=NOW + SECOND)
        await remove_files(store)
        await retire(store, a_policy(0, 0, 0, archive=0), now=NOW + DAY)
        assert await store.statuses([before]) == [None]

        await settle(store, parent.completes(staged=Staged(1, 1)))
        await quiet(store)

        assert await status(store, job.job_id) is Status.PENDING

    async def test_staged_children_come_although_another_job_has_taken_the_key_of_one(self, store: Store) -> None:
        parent = await running(store)
        taken, *others = children_of(parent, 3)
        taken = msgspec.structs.replace(taken, special=True, dedup_key="k", dedup_conflict_is_error=True)
        staged = await self._stage(store, parent, (taken, *others))
        await submit(store, dedup_key="k", payload='"another"')

        await settle(store, parent.completes(staged=staged))  # too late to refuse it
        await quiet(store)

        assert (await record(store, parent.job_id)).children == 2
        assert {await status(store, each.job_id) for each in others} == {Status.PENDING}

    async def test_a_parent_whose_staged_children_end_as_they_come_goes_on(self, store: Store) -> None:
        bad = await ended(store, Status.FAILED)
        parent = await running(store)
        jobs = children_of(parent, 6, depends_on=(bad,))
        staged = await self._stage(store, parent, jobs)

        await settle(store, parent.waits(TriggerRule.NONE_FAILED, staged=staged))
        await quiet(store)

        assert await status(store, parent.job_id) is Status.PENDING
        assert await brood(store, parent.job_id) == Brood(6, cancelled=6)
