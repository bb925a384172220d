"""Children of a run: stored with its completion or its wait; where they are many, in parts before it."""

from __future__ import annotations

import pytest

from holdfast.errors import EffectFailed
from holdfast.lifecycle import Raised, Snoozed, Staged, Status, Transition, cancel
from holdfast.limits import CHILDREN_INLINE_MAX
from holdfast.store.conformance.brood import brood, child, children_of, ids
from holdfast.store.conformance.factories import (
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
)
from holdfast.store.port import Store
from holdfast.store.types import Hold, NewJob, QueueChange, Verdict
from holdfast.trees import Brood, TriggerRule

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
            if not claims:  # those that are stored have ended, and others are still on their way
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

    async def test_a_parent_whose_staged_children_end_as_they_come_goes_on(self, store: Store) -> None:
        bad = await ended(store, Status.FAILED)
        parent = await running(store)
        jobs = children_of(parent, 6, depends_on=(bad,))
        staged = await self._stage(store, parent, jobs)

        await settle(store, parent.waits(TriggerRule.NONE_FAILED, staged=staged))
        await quiet(store)

        assert await status(store, parent.job_id) is Status.PENDING
        assert await brood(store, parent.job_id) == Brood(6, cancelled=6)
