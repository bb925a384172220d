"""Conformance: dependencies, trigger rules, what the end of a job releases, and how far a failure spreads."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.core.dependencies import TriggerRule
from backstay.core.event_details import Dependency
from backstay.core.lifecycle import cancel, manual_retry
from backstay.core.port import Store
from backstay.core.records import Inserted, Query, Signal, Staged, Verdict
from backstay.core.states import Event, Status
from backstay.errors import UnknownDependency
from backstay.limits import LISTED_EDGES_MAX, RELEASE_BATCH_MAX
from backstay.testing.conformance.factories import (
    HOUR,
    NOW,
    cancelled,
    claim_again,
    claim_ids,
    completed,
    ended,
    failed,
    new_job,
    quiet,
    record,
    retry_by_hand,
    running,
    settle,
    status,
    submit,
    submit_many,
)
from backstay.testing.conformance.test_children import children_of
from backstay.testing.conformance.test_read import SignalRecorder

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
        assert released.details == Dependency(parent.job_id, Status.COMPLETED)

    async def test_a_job_waits_for_all_of_them(self, store: Store) -> None:
        first, second = await running(store), await running(store)
        child = await submit(store, depends_on=(first.job_id, second.job_id))

        await settle(store, first.completes())
        assert await status(store, child) is Status.WAITING
        assert (await record(store, child)).version == 1

        await settle(store, second.completes())
        assert await status(store, child) is Status.PENDING

    async def test_a_job_that_waits_for_one_less_is_recorded_as_before(self, store: Store) -> None:
        """Else it would differ between engines, and a transfer would not open what it has copied."""
        first, second = await running(store), await running(store)
        child = await submit(store, depends_on=(first.job_id, second.job_id))
        before = await record(store, child)

        await settle(store, first.completes(), now=NOW + 5)

        assert await record(store, child) == before

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
        assert ended.history[-1].details == Dependency(parent.job_id, Status.FAILED)

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
    AT_ONCE = RELEASE_BATCH_MAX  # released by the commit of the end; the rest is left to `release`
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
        near, far = SignalRecorder(store, Signal.UNFINISHED), SignalRecorder(second_store, Signal.UNFINISHED)

        await settle(store, end)
        await near.heard()
        await far.heard()
        near.stop()
        far.stop()

        while await second_store.release(NOW, 100):  # at once: none has to wait until the first has left
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


COMPLETED, FAILED, CANCELLED = Status.COMPLETED, Status.FAILED, Status.CANCELLED
ALL_SUCCESS, ALL_DONE, ONE_SUCCESS, ONE_FAILED, NONE_FAILED = TriggerRule

# Which outcomes of its only dependency let a job start. Any other ends it.
STARTS = {
    ALL_SUCCESS: {COMPLETED},
    ALL_DONE: {COMPLETED, FAILED, CANCELLED},
    ONE_SUCCESS: {COMPLETED},
    ONE_FAILED: {FAILED},
    NONE_FAILED: {COMPLETED, CANCELLED},
}
EACH = [(rule, outcome) for rule in STARTS for outcome in (COMPLETED, FAILED, CANCELLED)]
STATUS_BY_POLICY = {"cancel": CANCELLED, "fail": FAILED}

# The state of a job after the first of two dependencies has ended, and after the second. None: ended, as
# on_dependency_failure says.
OF_TWO: list[tuple[TriggerRule, tuple[Status, Status], tuple[Status | None, Status | None]]] = [
    (ALL_SUCCESS, (COMPLETED, COMPLETED), (Status.WAITING, Status.PENDING)),
    (ALL_SUCCESS, (COMPLETED, CANCELLED), (Status.WAITING, None)),
    (ALL_SUCCESS, (FAILED, COMPLETED), (None, None)),
    (ALL_DONE, (FAILED, COMPLETED), (Status.WAITING, Status.PENDING)),
    (ALL_DONE, (CANCELLED, FAILED), (Status.WAITING, Status.PENDING)),
    (ONE_SUCCESS, (FAILED, COMPLETED), (Status.WAITING, Status.PENDING)),
    (ONE_SUCCESS, (COMPLETED, FAILED), (Status.PENDING, Status.PENDING)),
    (ONE_SUCCESS, (COMPLETED, COMPLETED), (Status.PENDING, Status.PENDING)),
    (ONE_SUCCESS, (CANCELLED, FAILED), (Status.WAITING, None)),
    (ONE_FAILED, (COMPLETED, FAILED), (Status.WAITING, Status.PENDING)),
    (ONE_FAILED, (FAILED, COMPLETED), (Status.PENDING, Status.PENDING)),
    (ONE_FAILED, (COMPLETED, CANCELLED), (Status.WAITING, None)),
    (NONE_FAILED, (CANCELLED, COMPLETED), (Status.WAITING, Status.PENDING)),
    (NONE_FAILED, (CANCELLED, CANCELLED), (Status.WAITING, Status.PENDING)),
    (NONE_FAILED, (COMPLETED, FAILED), (Status.WAITING, None)),
    (NONE_FAILED, (FAILED, CANCELLED), (None, None)),
]


async def _insert(store: Store, **changes: object) -> Inserted:
    [answer] = await store.insert([new_job(**changes)], NOW)
    return answer


class TestTriggerRules:
    @pytest.mark.parametrize(("rule", "outcome"), EACH)
    async def test_the_end_of_what_it_depends_on_starts_a_job_or_ends_it(
        self, store: Store, rule: TriggerRule, outcome: Status
    ) -> None:
        parent = await running(store)
        dependents = {
            policy: await submit(store, depends_on=(parent.job_id,), trigger_rule=rule, on_dependency_failure=policy)
            for policy in STATUS_BY_POLICY
        }

        await settle(store, parent.ends_as(outcome))

        for policy, job_id in dependents.items():
            job = await record(store, job_id)
            target = Status.PENDING if outcome in STARTS[rule] else STATUS_BY_POLICY[policy]
            assert (job.status, job.version) == (target, 2)
            assert (job.history[-1].event, job.history[-1].target) == (Event.RELEASE, target)

    @pytest.mark.parametrize(("rule", "outcomes", "stands"), OF_TWO)
    async def test_of_two_each_end_counts(
        self,
        store: Store,
        rule: TriggerRule,
        outcomes: tuple[Status, Status],
        stands: tuple[Status | None, Status | None],
    ) -> None:
        parents = [await running(store) for _ in outcomes]
        depends_on = tuple(parent.job_id for parent in parents)
        job_id = await submit(store, depends_on=depends_on, trigger_rule=rule)

        for parent, outcome, expected in zip(parents, outcomes, stands, strict=True):
            await settle(store, parent.ends_as(outcome))
            assert await status(store, job_id) is (expected or CANCELLED)

        assert (await record(store, job_id)).version == 2  # once, by the one that decided

    @pytest.mark.parametrize(("rule", "outcomes", "stands"), OF_TWO)
    async def test_of_two_that_end_in_one_batch_both_count(
        self,
        store: Store,
        rule: TriggerRule,
        outcomes: tuple[Status, Status],
        stands: tuple[Status | None, Status | None],
    ) -> None:
        parents = [await running(store) for _ in outcomes]
        depends_on = tuple(parent.job_id for parent in parents)
        job_id = await submit(store, depends_on=depends_on, trigger_rule=rule)

        await settle(store, *(parent.ends_as(end) for parent, end in zip(parents, outcomes, strict=True)))

        assert await status(store, job_id) is (stands[-1] or CANCELLED)

    async def test_one_that_started_early_runs_undisturbed_by_the_others(self, store: Store) -> None:
        first, second = await running(store), await running(store)
        job_id = await submit(store, depends_on=(first.job_id, second.job_id), trigger_rule=ONE_SUCCESS)
        await settle(store, first.completes())
        assert await claim_ids(store) == [job_id]
        before = await record(store, job_id)

        await settle(store, second.ends_as(FAILED))

        assert await record(store, job_id) == before

    @pytest.mark.parametrize("rule", [ALL_DONE, ONE_SUCCESS, NONE_FAILED])
    async def test_one_that_is_released_still_waits_for_its_time(self, store: Store, rule: TriggerRule) -> None:
        parent = await running(store)
        later = NOW + HOUR
        job_id = await submit(store, depends_on=(parent.job_id,), trigger_rule=rule, scheduled_for=later)

        await settle(store, parent.completes())

        assert await status(store, job_id) is Status.SCHEDULED

    async def test_a_cascade_goes_as_far_as_the_rules_let_it(self, store: Store) -> None:
        root = await running(store)
        left_out = await submit(store, depends_on=(root.job_id,))
        after_all = await submit(store, depends_on=(left_out,), trigger_rule=NONE_FAILED)
        strict = await submit(store, depends_on=(left_out,), trigger_rule=ALL_SUCCESS)

        await settle(store, root.ends_as(FAILED))

        stand = await store.statuses([left_out, after_all, strict])
        assert stand == [CANCELLED, Status.PENDING, CANCELLED]

    async def test_the_rule_is_on_the_record(self, store: Store) -> None:
        parent = await submit(store)
        jobs = {rule: await submit(store, depends_on=(parent,), trigger_rule=rule) for rule in TriggerRule}

        assert {rule: (await record(store, job_id)).trigger_rule for rule, job_id in jobs.items()} == {
            rule: rule.value for rule in TriggerRule
        }
        assert (await record(store, parent)).trigger_rule == "all_success"


class TestRulesAtSubmit:
    @pytest.mark.parametrize(("rule", "outcome"), EACH)
    async def test_what_ended_before_counts_as_what_ends_after(
        self, store: Store, rule: TriggerRule, outcome: Status
    ) -> None:
        parent = await ended(store, outcome)

        for policy, broken in STATUS_BY_POLICY.items():
            answer = await _insert(store, depends_on=(parent,), trigger_rule=rule, on_dependency_failure=policy)

            starts = outcome in STARTS[rule]
            assert answer.status is (Status.PENDING if starts else broken)
            job = await record(store, answer.job_id)
            assert [event.target for event in job.history] == ([Status.PENDING] if starts else [Status.WAITING, broken])
            assert job.history[-1].details == (None if starts else Dependency(parent, outcome))

    @pytest.mark.parametrize(
        ("rule", "before", "stands"),
        [
            (ALL_SUCCESS, COMPLETED, Status.WAITING),
            (ALL_SUCCESS, CANCELLED, CANCELLED),
            (ALL_DONE, FAILED, Status.WAITING),
            (ONE_SUCCESS, COMPLETED, Status.PENDING),
            (ONE_SUCCESS, FAILED, Status.WAITING),
            (NONE_FAILED, CANCELLED, Status.WAITING),
            (NONE_FAILED, FAILED, CANCELLED),
        ],
    )
    async def test_one_that_has_ended_counts_beside_one_that_has_not(
        self, store: Store, rule: TriggerRule, before: Status, stands: Status
    ) -> None:
        over, open_one = await ended(store, before), await running(store)

        answer = await _insert(store, depends_on=(over, open_one.job_id), trigger_rule=rule)
        assert answer.status is stands
        assert (await record(store, answer.job_id)).status is stands

        await settle(store, open_one.completes())
        assert await status(store, answer.job_id) is (Status.PENDING if stands is Status.WAITING else stands)

    async def test_the_last_that_could_have_succeeded_ends_it(self, store: Store) -> None:
        over, last = await ended(store, FAILED), await running(store)
        answer = await _insert(store, depends_on=(over, last.job_id), trigger_rule=ONE_SUCCESS)

        await settle(store, last.ends_as(CANCELLED))

        assert await status(store, answer.job_id) is CANCELLED

    async def test_one_that_ends_as_it_comes_ends_those_that_depend_on_it(self, store: Store) -> None:
        bad = await ended(store, FAILED)
        first = new_job(depends_on=(bad,))
        second = new_job(depends_on=(first.job_id,))
        third = new_job(depends_on=(first.job_id,), trigger_rule=ALL_DONE)

        answers = await store.insert([first, second, third], NOW)

        assert [each.status for each in answers] == [CANCELLED, CANCELLED, Status.PENDING]

    @pytest.mark.parametrize("rule", TriggerRule)
    async def test_an_unknown_job_is_refused_under_every_rule(self, store: Store, rule: TriggerRule) -> None:
        job = new_job(depends_on=(await completed(store), new_job().job_id), trigger_rule=rule)

        with pytest.raises(UnknownDependency):
            await store.insert([job], NOW)

        assert await store.get([job.job_id]) == [None]

    async def test_one_with_a_rule_of_its_own_does_not_join_an_identical_job(self, store: Store) -> None:
        same: dict[str, Any] = {"job_type": "embed", "content_hash": "h"}
        await running(store, **same)
        parent = await ended(store, FAILED)

        answer = await _insert(store, depends_on=(parent,), trigger_rule=ALL_DONE, reuse_since=0, **same)

        assert answer.status is Status.PENDING

    async def test_one_with_a_rule_of_its_own_still_reuses_a_finished_result(self, store: Store) -> None:
        same = {"job_type": "embed", "content_hash": "h"}
        donor = await completed(store, **same)
        parent = await running(store)

        answer = await _insert(store, depends_on=(parent.job_id,), trigger_rule=ALL_DONE, reuse_since=0, **same)

        assert (answer.status, answer.reused_from) == (COMPLETED, donor)


class TestRulesOfMany:
    EDGES = 45  # more than some engines write in one commit

    @pytest.mark.parametrize(("last", "stands"), [(COMPLETED, Status.PENDING), (FAILED, CANCELLED)])
    async def test_one_success_of_many_is_enough_and_none_is_too_few(
        self, store: Store, last: Status, stands: Status
    ) -> None:
        parents = [await running(store) for _ in range(self.EDGES)]
        depends_on = tuple(parent.job_id for parent in parents)
        job_id = await submit(store, depends_on=depends_on, trigger_rule=ONE_SUCCESS)
        await quiet(store)

        await settle(store, *(parent.ends_as(FAILED) for parent in parents[:-1]))
        await quiet(store)
        assert await status(store, job_id) is Status.WAITING
        await settle(store, parents[-1].ends_as(last))

        assert await status(store, job_id) is stands

    @pytest.mark.parametrize(
        ("rule", "stands"),
        [
            (ALL_SUCCESS, CANCELLED),
            (ALL_DONE, Status.PENDING),
            (ONE_SUCCESS, CANCELLED),
            (NONE_FAILED, CANCELLED),
        ],
    )
    async def test_many_that_had_ended_before_are_all_counted(
        self, store: Store, rule: TriggerRule, stands: Status
    ) -> None:
        parents = [await running(store) for _ in range(self.EDGES)]
        await settle(store, *(parent.ends_as(FAILED) for parent in parents))

        job_id = await submit(store, depends_on=tuple(each.job_id for each in parents), trigger_rule=rule)
        await quiet(store)

        assert await status(store, job_id) is stands

    async def test_more_dependents_than_one_commit_takes_all_start_after_a_failure(
        self, store: Store, many: int
    ) -> None:
        parent = await running(store)
        await submit_many(store, many, depends_on=(parent.job_id,), trigger_rule=ALL_DONE)

        await settle(store, parent.ends_as(FAILED))
        await quiet(store)

        counts = await store.counts()
        assert (counts["waiting"], counts["pending"]) == (0, many)
