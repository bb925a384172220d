"""trigger_rule: what has to become of those that a job depends on before it starts, and what ends it instead."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import UnknownDependency
from holdfast.lifecycle import Event, Status
from holdfast.store.conformance.factories import (
    HOUR,
    NOW,
    claim_ids,
    completed,
    ended,
    new_job,
    quiet,
    record,
    running,
    settle,
    status,
    submit,
    submit_many,
)
from holdfast.store.port import Store
from holdfast.store.types import Inserted
from holdfast.trees import TriggerRule

COMPLETED, FAILED, CANCELLED = Status.COMPLETED, Status.FAILED, Status.CANCELLED
ALL_SUCCESS, ALL_DONE, ONE_SUCCESS, NONE_FAILED = TriggerRule

# Which ends of the only job that it depends on let a job start. Any other ends it.
STARTS = {
    ALL_SUCCESS: {COMPLETED},
    ALL_DONE: {COMPLETED, FAILED, CANCELLED},
    ONE_SUCCESS: {COMPLETED},
    NONE_FAILED: {COMPLETED, CANCELLED},
}
EACH = [(rule, outcome) for rule in STARTS for outcome in (COMPLETED, FAILED, CANCELLED)]
POLICIES = {"cancel": CANCELLED, "fail": FAILED}

# How a job stands after the first of two has ended, and after the second. None: ended, as on_dependency_failure says.
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
            for policy in POLICIES
        }

        await settle(store, parent.ends_as(outcome))

        for policy, job_id in dependents.items():
            job = await record(store, job_id)
            target = Status.PENDING if outcome in STARTS[rule] else POLICIES[policy]
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

        assert (await record(store, job_id)).version == 2  # once, by whichever decided

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

        for policy, broken in POLICIES.items():
            answer = await _insert(store, depends_on=(parent,), trigger_rule=rule, on_dependency_failure=policy)

            starts = outcome in STARTS[rule]
            assert answer.status is (Status.PENDING if starts else broken)
            job = await record(store, answer.job_id)
            assert [event.target for event in job.history] == ([Status.PENDING] if starts else [Status.WAITING, broken])

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
