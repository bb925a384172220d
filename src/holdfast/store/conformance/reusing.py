"""reuse: an identical finished job answers at once; an identical running one is joined."""

from __future__ import annotations

import pytest

from holdfast.lifecycle import Completed, Event, Status, cancel, manual_retry
from holdfast.store.conformance.factories import (
    HOUR,
    NOW,
    claim_ids,
    claim_one,
    completed,
    failed,
    new_job,
    record,
    retry_by_hand,
    running,
    settle,
    status,
    submit,
)
from holdfast.store.port import Store
from holdfast.store.types import NewJob, Rate, Verdict


def identical(**changes: object) -> NewJob:
    return new_job(**({"job_type": "embed", "content_hash": "h", "reuse_since": 0} | changes))


class TestReuse:
    async def test_an_identical_completed_job_gives_its_result_to_a_new_record(self, store: Store) -> None:
        donor = await completed(store, '{"answer":42}', job_type="embed", content_hash="h")

        [answer] = await store.insert([identical(dedup_key="k")], NOW + 7)

        assert (answer.status, answer.reused_from, answer.existing) == (Status.COMPLETED, donor, None)
        stored = await record(store, answer.job_id)
        assert (stored.result, stored.reused_from, stored.completed_at) == ('{"answer":42}', donor, NOW + 7)
        assert (stored.progress, stored.stage, stored.dedup_key) == (1.0, "complete", "k")
        [event] = stored.history
        assert (event.event, event.source, event.target) == (Event.REUSE, None, Status.COMPLETED)

    async def test_a_reused_job_keeps_every_field_of_its_own(self, store: Store) -> None:
        await completed(store, job_type="embed", content_hash="h")
        parent = await submit(store)
        job = identical(depends_on=(parent,), rate_key="api", rate=Rate(1, HOUR), schedule="nightly", tick_at=NOW)

        await store.insert([job], NOW)

        stored = await record(store, job.job_id)
        assert (stored.status, stored.dependencies) == (Status.COMPLETED, (parent,))
        assert (stored.rate_key, stored.schedule, stored.tick_at) == ("api", "nightly", NOW)

    async def test_a_reused_job_that_is_retried_by_hand_runs_after_what_it_depends_on(self, store: Store) -> None:
        await completed(store, job_type="embed", content_hash="h")
        parent = await running(store)
        [answer] = await store.insert([identical(depends_on=(parent.job_id,))], NOW)
        before = await record(store, answer.job_id)

        retry = manual_retry(before, now=NOW, by=None, reason=None)
        assert await store.apply([retry], NOW) == [Verdict.BLOCKED]
        await settle(store, parent.completes())
        assert await record(store, answer.job_id) == before
        await retry_by_hand(store, answer.job_id)

        assert await status(store, answer.job_id) is Status.PENDING

    async def test_a_reused_job_is_never_claimed(self, store: Store) -> None:
        await completed(store, job_type="embed", content_hash="h")

        await store.insert([identical()], NOW)

        assert await claim_ids(store, slots={"embed": 9}) == []

    async def test_the_place_of_a_large_result_is_reused_too(self, store: Store) -> None:
        donor = await running(store, job_type="embed", content_hash="h")
        await settle(store, donor.ends(Completed(result_artifact='{"uri":"x"}')))

        [answer] = await store.insert([identical()], NOW)

        assert (await record(store, answer.job_id)).result_artifact == '{"uri":"x"}'

    @pytest.mark.parametrize(
        "other",
        [{"content_hash": "g"}, {"job_type": "other"}, {"reuse_since": NOW + 1}, {"reuse_since": None}],
    )
    async def test_another_content_type_or_age_is_not_identical(self, store: Store, other: dict[str, object]) -> None:
        await completed(store, job_type="embed", content_hash="h")

        [answer] = await store.insert([identical(**other)], NOW)

        assert (answer.status, answer.reused_from) == (Status.PENDING, None)

    async def test_a_result_completed_exactly_then_is_young_enough(self, store: Store) -> None:
        await completed(store, job_type="embed", content_hash="h")

        [answer] = await store.insert([identical(reuse_since=NOW)], NOW)

        assert answer.status is Status.COMPLETED

    async def test_a_failed_job_has_nothing_to_reuse(self, store: Store) -> None:
        await failed(store, job_type="embed", content_hash="h")

        [answer] = await store.insert([identical()], NOW)

        assert answer.status is Status.PENDING

    async def test_a_reused_job_that_is_retried_by_hand_runs_and_forgets_its_donor(self, store: Store) -> None:
        await completed(store, job_type="embed", content_hash="h")
        [answer] = await store.insert([identical()], NOW)

        await retry_by_hand(store, answer.job_id)

        stored = await record(store, answer.job_id)
        assert (stored.status, stored.reused_from, stored.result) == (Status.PENDING, None, None)


class TestJoin:
    async def test_an_identical_running_job_is_joined_and_its_result_shared(self, store: Store) -> None:
        leader = await running(store, job_type="embed", content_hash="h")
        [answer] = await store.insert([identical()], NOW)
        assert answer.status is Status.WAITING

        await settle(store, leader.completes('"shared"'), now=NOW + 5)

        joined = await record(store, answer.job_id)
        assert (joined.status, joined.result, joined.reused_from) == (
            Status.COMPLETED,
            '"shared"',
            leader.job_id,
        )
        assert (joined.completed_at, joined.progress, joined.attempt) == (NOW + 5, 1.0, 0)
        assert joined.history[-1].event is Event.REUSE

    @pytest.mark.parametrize("run_at", [NOW, NOW + HOUR], ids=["due", "scheduled"])
    async def test_a_job_that_has_not_begun_is_joined_too(self, store: Store, run_at: int) -> None:
        await submit(store, job_type="embed", content_hash="h", scheduled_for=run_at)

        [answer] = await store.insert([identical()], NOW)

        assert answer.status is Status.WAITING

    async def test_all_who_joined_share_one_run(self, store: Store) -> None:
        leader = await running(store, job_type="embed", content_hash="h")
        answers = await store.insert([identical() for _ in range(5)], NOW)

        await settle(store, leader.completes())

        joined = [await record(store, answer.job_id) for answer in answers]
        assert {job.reused_from for job in joined} == {leader.job_id}
        assert {job.attempt for job in joined} == {0}

    async def test_when_the_leader_fails_one_who_joined_runs_for_itself(self, store: Store) -> None:
        leader = await running(store, job_type="embed", content_hash="h", max_attempts=1)
        [answer] = await store.insert([identical()], NOW)

        await settle(store, leader.fails())

        stored = await record(store, answer.job_id)
        assert (stored.status, stored.reused_from, stored.failures) == (Status.PENDING, None, 0)
        assert await claim_ids(store, slots={"embed": 9}) == [answer.job_id]

    async def test_when_the_leader_is_cancelled_one_who_joined_runs_for_itself(self, store: Store) -> None:
        leader = await submit(store, job_type="embed", content_hash="h")
        [answer] = await store.insert([identical(on_dependency_failure="fail")], NOW)

        await settle(store, cancel(await record(store, leader), by=None, reason=None))

        assert await status(store, answer.job_id) is Status.PENDING

    async def test_while_the_leader_retries_the_others_wait(self, store: Store) -> None:
        leader = await running(store, job_type="embed", content_hash="h")
        [answer] = await store.insert([identical()], NOW)

        await settle(store, leader.fails())

        assert await status(store, answer.job_id) is Status.WAITING

    @pytest.mark.parametrize("released", [True, False], ids=["its leader failed", "it was cancelled meanwhile"])
    async def test_one_who_joined_may_be_retried_by_hand_whatever_became_of_the_leader(
        self, store: Store, released: bool
    ) -> None:
        leader = await running(store, job_type="embed", content_hash="h", max_attempts=1)
        [answer] = await store.insert([identical(max_attempts=1)], NOW)
        if not released:
            await settle(store, cancel(await record(store, answer.job_id), by=None, reason=None))
        await settle(store, leader.fails())
        if not released:
            await retry_by_hand(store, answer.job_id)
        claim = await claim_one(store, answer.job_id, slots={"embed": 1})
        await settle(store, claim.fails())

        await retry_by_hand(store, answer.job_id)

        assert await status(store, answer.job_id) is Status.PENDING
