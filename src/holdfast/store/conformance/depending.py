"""depends_on: what a job waits for, what its end sets free, and how far a failure reaches."""

from __future__ import annotations

import pytest

from holdfast.errors import UnknownDependency
from holdfast.lifecycle import Event, Staged, Status, cancel, manual_retry
from holdfast.limits import LISTED_EDGES_MAX, RELEASE_BATCH_MAX
from holdfast.store.conformance.brood import children_of
from holdfast.store.conformance.factories import (
    HOUR,
    NOW,
    cancelled,
    claim_again,
    claim_ids,
    completed,
    failed,
    new_job,
    record,
    retry_by_hand,
    running,
    settle,
    status,
    submit,
    submit_many,
)
from holdfast.store.conformance.listening import Ear
from holdfast.store.port import Store
from holdfast.store.types import Query, Signal, Verdict

POLICIES = [("cancel", Status.CANCELLED), ("fail", Status.FAILED)]


class TestDependencies:
    async def test_a_job_waits_until_the_one_it_depends_on_completes(self, store: Store) -> None:
        parent = await running(store)
        child = await submit(store, depends_on=(parent.job_id,))
        assert await status(store, child) is Status.WAITING
        assert await claim_ids(store) == []

        await settle(store, parent.completes())

        assert await claim_ids(store) == [child]

    async def test_a_release_is_an_event_with_its_reason(self, store: Store) -> None:
        parent = await running(store)
        child = await submit(store, depends_on=(parent.job_id,))

        await settle(store, parent.completes(), now=NOW + 5)

        submitted, released = (await record(store, child)).history
        assert submitted.target is Status.WAITING
        assert (released.version, released.at, released.event) == (2, NOW + 5, Event.RELEASE)
        assert (released.source, released.target) == (Status.WAITING, Status.PENDING)
        assert released.reason is not None
        assert parent.job_id in released.reason

    async def test_a_job_waits_for_all_of_them(self, store: Store) -> None:
        first, second = await running(store), await running(store)
        child = await submit(store, depends_on=(first.job_id, second.job_id))

        await settle(store, first.completes())
        assert await status(store, child) is Status.WAITING
        assert (await record(store, child)).version == 1

        await settle(store, second.completes())
        assert await status(store, child) is Status.PENDING

    async def test_the_last_two_may_complete_in_one_batch(self, store: Store) -> None:
        first, second = await running(store), await running(store)
        child = await submit(store, depends_on=(first.job_id, second.job_id))

        await settle(store, first.completes(), second.completes())

        assert await claim_ids(store) == [child]

    async def test_a_job_named_twice_is_waited_for_once(self, store: Store) -> None:
        parent = await running(store)
        child = await submit(store, depends_on=(parent.job_id, parent.job_id))

        await settle(store, parent.completes())

        assert await status(store, child) is Status.PENDING

    async def test_a_released_job_still_waits_for_its_time(self, store: Store) -> None:
        parent = await running(store)
        child = await submit(store, depends_on=(parent.job_id,), scheduled_for=NOW + HOUR)

        await settle(store, parent.completes())

        assert await status(store, child) is Status.SCHEDULED

    async def test_a_job_that_completed_before_is_not_waited_for(self, store: Store) -> None:
        parent = await completed(store)

        [answer] = await store.insert([new_job(depends_on=(parent,))], NOW)

        assert answer.status is Status.PENDING

    async def test_an_unknown_job_is_refused_and_nothing_is_stored(self, store: Store) -> None:
        job = new_job(depends_on=(await submit(store), new_job().job_id))

        with pytest.raises(UnknownDependency):
            await store.insert([job], NOW)

        assert await store.get([job.job_id]) == [None]

    async def test_a_batch_may_depend_on_its_own_earlier_jobs(self, store: Store) -> None:
        parent = new_job()
        child = new_job(depends_on=(parent.job_id,))

        await store.insert([parent, child], NOW)

        assert await status(store, child.job_id) is Status.WAITING
        assert await claim_ids(store) == [parent.job_id]

    async def test_a_retry_of_the_parent_keeps_its_dependents_waiting(self, store: Store) -> None:
        parent = await running(store)
        child = await submit(store, depends_on=(parent.job_id,))

        await settle(store, parent.fails())

        assert await status(store, child) is Status.WAITING

    async def test_a_repeated_completion_releases_once(self, store: Store) -> None:
        parent = await running(store)
        child = await submit(store, depends_on=(parent.job_id,))

        await settle(store, parent.completes())
        await settle(store, parent.completes())

        assert (await record(store, child)).version == 2

    async def test_edges_are_listed_on_both_records(self, store: Store) -> None:
        parent = await submit(store)
        children = await submit_many(store, 3, depends_on=(parent,))

        stored = await record(store, parent)
        assert (set(stored.dependent_jobs), stored.dependent_count) == (set(children), 3)
        assert (await record(store, children[0])).dependencies == (parent,)

    async def test_long_lists_of_edges_are_cut_and_counted(self, store: Store) -> None:
        parent = await submit(store)
        await submit_many(store, LISTED_EDGES_MAX + 5, depends_on=(parent,))

        stored = await record(store, parent)
        assert (len(stored.dependent_jobs), stored.dependent_count) == (
            LISTED_EDGES_MAX,
            LISTED_EDGES_MAX + 5,
        )


class TestCascades:
    @pytest.mark.parametrize(("policy", "target"), POLICIES)
    async def test_a_failed_parent_ends_its_dependents_as_they_asked(
        self, store: Store, policy: str, target: Status
    ) -> None:
        parent = await running(store, max_attempts=1)
        child = await submit(store, depends_on=(parent.job_id,), on_dependency_failure=policy)

        await settle(store, parent.fails(), now=NOW + 5)

        ended = await record(store, child)
        assert (ended.status, ended.completed_at, ended.version) == (target, NOW + 5, 2)
        assert (ended.history[-1].event, ended.history[-1].target) == (Event.RELEASE, target)

    async def test_a_job_that_fails_with_its_dependency_says_why(self, store: Store) -> None:
        parent = await running(store, max_attempts=1)
        child = await submit(store, depends_on=(parent.job_id,), on_dependency_failure="fail")

        await settle(store, parent.fails())

        ended = await record(store, child)
        assert ended.stage == "error"
        assert ended.last_error is not None
        assert parent.job_id in ended.last_error

    @pytest.mark.parametrize(("policy", "target"), POLICIES)
    async def test_a_cancelled_parent_is_a_failure_too(self, store: Store, policy: str, target: Status) -> None:
        parent = await submit(store)
        child = await submit(store, depends_on=(parent,), on_dependency_failure=policy)

        await settle(store, cancel(await record(store, parent), by=None, reason=None))

        assert await status(store, child) is target

    @pytest.mark.parametrize("end", [failed, cancelled])
    @pytest.mark.parametrize(("policy", "target"), POLICIES)
    async def test_depending_on_a_job_that_ended_badly_ends_at_once(
        self, store: Store, end: object, policy: str, target: Status
    ) -> None:
        parent = await end(store)  # type: ignore[operator]

        [answer] = await store.insert([new_job(depends_on=(parent,), on_dependency_failure=policy)], NOW)

        assert answer.status is target
        assert [event.target for event in (await record(store, answer.job_id)).history] == [
            Status.WAITING,
            target,
        ]

    async def test_one_failed_parent_is_enough(self, store: Store) -> None:
        good, bad = await running(store), await running(store, max_attempts=1)
        child = await submit(store, depends_on=(good.job_id, bad.job_id))

        await settle(store, bad.fails())
        assert await status(store, child) is Status.CANCELLED

        await settle(store, good.completes())
        assert (await record(store, child)).version == 2

    async def test_a_failure_reaches_all_descendants(self, store: Store) -> None:
        root = await running(store, max_attempts=1)
        line = [root.job_id]
        for _ in range(5):
            line.append(await submit(store, depends_on=(line[-1],)))

        await settle(store, root.fails())

        assert {await status(store, job_id) for job_id in line[1:]} == {Status.CANCELLED}

    async def test_a_diamond_is_cancelled_once(self, store: Store) -> None:
        root = await running(store, max_attempts=1)
        left, right = await submit_many(store, 2, depends_on=(root.job_id,))
        bottom = await submit(store, depends_on=(left, right))

        await settle(store, root.fails())

        assert (await record(store, bottom)).status is Status.CANCELLED
        assert (await record(store, bottom)).version == 2

    async def test_a_cancelled_dependent_is_retried_only_once_what_it_depends_on_has_completed(
        self, store: Store
    ) -> None:
        first = await running(store, max_attempts=1)
        child = await submit(store, depends_on=(first.job_id,))
        await settle(store, first.fails())
        before = await record(store, child)

        retry = manual_retry(before, now=NOW, by=None, reason=None)
        assert await store.apply([retry], NOW) == [Verdict.BLOCKED]
        assert await record(store, child) == before

        await retry_by_hand(store, first.job_id)
        again = await claim_again(store, first)
        await settle(store, again.completes())
        await retry_by_hand(store, child)

        assert await claim_ids(store) == [child]


class TestReleaseOutbox:
    AT_ONCE = RELEASE_BATCH_MAX  # that the commit of the end releases; the rest is left to `release`
    COUNT = AT_ONCE + 150

    async def _drain(self, store: Store) -> None:
        for _ in range(10):
            if not await store.release(NOW, 100):
                return
        raise AssertionError("release does not come to an end")

    @pytest.mark.parametrize("succeeds", [True, False])
    async def test_more_dependents_than_one_commit_takes_are_all_released(self, store: Store, succeeds: bool) -> None:
        parent = await running(store, max_attempts=1)
        await submit_many(store, self.COUNT, depends_on=(parent.job_id,))

        await settle(store, parent.completes() if succeeds else parent.fails())
        moved = "pending" if succeeds else "cancelled"
        assert (await store.counts())[moved] == self.AT_ONCE
        await self._drain(store)

        counts = await store.counts()
        assert (counts["waiting"], counts[moved]) == (0, self.COUNT)

    async def test_another_store_goes_on_where_the_first_stopped(self, store: Store, second_store: Store) -> None:
        parent = await running(store)
        await submit_many(store, self.COUNT, depends_on=(parent.job_id,))
        await settle(store, parent.completes())

        await self._drain(second_store)

        assert (await store.counts())["waiting"] == 0
        page = await store.find(Query(status=Status.PENDING, limit=1000))
        assert {job.version for job in page.items} == {2}

    @pytest.mark.parametrize("brings", ["dependents", "children"])
    async def test_who_does_only_a_part_tells_upkeep_here_and_elsewhere(
        self, store: Store, second_store: Store, brings: str
    ) -> None:
        parent = await running(store)
        end = parent.completes()
        if brings == "dependents":
            await submit_many(store, self.COUNT, depends_on=(parent.job_id,))
        else:
            jobs = children_of(parent, self.COUNT)
            for part in range(3):
                await store.stage(parent.hold, part, jobs[part::3], NOW)
            end = parent.completes(staged=Staged(3, self.COUNT))
        near, far = Ear(store, Signal.UNFINISHED), Ear(second_store, Signal.UNFINISHED)

        await settle(store, end)
        await near.heard()
        await far.heard()
        near.stop()
        far.stop()

        while await second_store.release(NOW, 100):  # at once: nobody has to wait until the first has gone
            pass
        assert (await store.counts())["pending"] == self.COUNT

    async def test_a_cascade_through_the_outbox_reaches_the_end(self, store: Store) -> None:
        root = await running(store, max_attempts=1)
        middle = await submit_many(store, self.COUNT, depends_on=(root.job_id,))
        last = await submit(store, depends_on=(middle[-1],))

        await settle(store, root.fails())
        await self._drain(store)

        assert await status(store, last) is Status.CANCELLED

    async def test_without_work_there_is_nothing_to_release(self, store: Store) -> None:
        await submit(store, depends_on=(await submit(store),))

        assert await store.release(NOW, 100) == 0
