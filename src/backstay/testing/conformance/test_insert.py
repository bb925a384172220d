"""Conformance: insert is atomic; ids chosen by the caller, deduplication, reuse and join."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from backstay.core.job_fields import PLAIN_FIELDS
from backstay.core.lifecycle import Completed, cancel, manual_retry
from backstay.core.port import Store
from backstay.core.records import FOREVER, ClaimedJob, JobRecord, NewJob, Rate, Verdict
from backstay.core.states import Event, Status
from backstay.errors import DedupConflict, UnknownDependency
from backstay.testing.conformance.factories import (
    HOUR,
    NOW,
    PLAIN_VALUES,
    SPECIAL_VALUES,
    claim_ids,
    claim_one,
    completed,
    failed,
    given,
    new_job,
    record,
    request,
    retry_by_hand,
    running,
    settle,
    status,
    submit,
    submit_many,
    told,
)

PLAIN_CLAIMED = sorted(set(PLAIN_FIELDS) & set(ClaimedJob.__struct_fields__))
ON_RECORD = sorted(set(NewJob.__struct_fields__) & set(JobRecord.__struct_fields__))
CLAIMED = sorted(set(NewJob.__struct_fields__) & set(ClaimedJob.__struct_fields__))
BESIDE = pytest.mark.parametrize("beside", [0, 1, 250], ids=["alone", "beside another", "among many"])


async def _claimed_twice(store: Store, job: NewJob) -> list[ClaimedJob]:
    """Return a job as it is claimed, and as a repeat of the same claim answers with it."""
    asked = request(slots={job.job_type: 1})
    again = msgspec.structs.replace(asked, slots={}, repeat=True)
    return [*await store.claim(asked, NOW), *await store.claim(again, NOW)]


class TestInsert:
    async def test_a_job_that_is_due_begins_pending(self, store: Store) -> None:
        job = new_job()

        [answer] = await store.insert([job], NOW)

        assert (answer.job_id, answer.status, answer.existing) == (job.job_id, Status.PENDING, None)

    async def test_from_a_thread_without_an_event_loop_it_stores_the_jobs_or_says_that_it_did_not(
        self, store: Store
    ) -> None:
        jobs = [new_job(), new_job(dedup_key="once", special=True), new_job(scheduled_for=NOW + 1)]

        answers = await asyncio.to_thread(store.insert_here, jobs, NOW)

        if answers is None:
            assert await store.get([job.job_id for job in jobs]) == [None, None, None]
            answers = await store.insert(jobs, NOW)
        assert [each.job_id for each in answers] == [job.job_id for job in jobs]
        assert [await status(store, job.job_id) for job in jobs] == [Status.PENDING, Status.PENDING, Status.SCHEDULED]

    async def test_a_job_for_later_begins_scheduled(self, store: Store) -> None:
        [answer] = await store.insert([new_job(scheduled_for=NOW + 1)], NOW)

        assert answer.status is Status.SCHEDULED

    @BESIDE
    async def test_every_field_of_a_plain_job_is_stored_and_claimed_as_it_was_given(
        self, store: Store, beside: int
    ) -> None:
        job = new_job(**PLAIN_VALUES, job_type="full", root_job_id=await submit(store))

        await store.insert([*(new_job() for _ in range(beside)), job], NOW)

        assert not job.special
        assert told(await record(store, job.job_id), PLAIN_FIELDS) == given(job, PLAIN_FIELDS)
        for claimed in await _claimed_twice(store, job):
            assert told(claimed, PLAIN_CLAIMED) == given(job, PLAIN_CLAIMED)

    async def test_a_field_is_claimed_as_it_was_given_if_all_others_have_their_defaults(self, store: Store) -> None:
        jobs = [new_job(**{name: value}) for name, value in PLAIN_VALUES.items()]

        await store.insert(jobs, NOW)

        claimed = {job.job_id: job for job in await store.claim(request(), NOW)}
        for job in jobs:
            assert told(claimed[job.job_id], PLAIN_CLAIMED) == told(job, PLAIN_CLAIMED)

    @BESIDE
    @pytest.mark.parametrize("others", [{}, {"own_id": True}], ids=["plain ones", "special ones"])
    async def test_every_field_of_a_special_job_is_stored_and_claimed_as_it_was_given(
        self, store: Store, beside: int, others: dict[str, Any]
    ) -> None:
        parent, dependency = await submit(store), await completed(store)
        tree = {"parent_job_id": parent, "root_job_id": parent, "depends_on": (dependency,)}
        job = new_job(**SPECIAL_VALUES, **tree, job_type="full")

        await store.insert([*(new_job(**others) for _ in range(beside)), job], NOW)

        assert told(await record(store, job.job_id), ON_RECORD) == given(job, ON_RECORD)
        for claimed in await _claimed_twice(store, job):
            assert told(claimed, CLAIMED) == given(job, CLAIMED)

    @pytest.mark.parametrize("later", [-1, 1], ids=["due", "scheduled"])
    @pytest.mark.parametrize("beside", [0, 250], ids=["alone", "among many"])
    async def test_a_job_keeps_its_fields_whenever_it_is_due(self, store: Store, later: int, beside: int) -> None:
        job = new_job(**PLAIN_VALUES, root_job_id=await submit(store), scheduled_for=NOW + later)

        await store.insert([*(new_job() for _ in range(beside)), job], NOW)

        assert told(await record(store, job.job_id), PLAIN_FIELDS) == given(job, PLAIN_FIELDS)

    async def test_a_child_has_the_root_of_its_parent(self, store: Store) -> None:
        root = await submit(store)
        child = await submit(store, parent_job_id=root)
        grandchild = await submit(store, parent_job_id=child)

        assert [(await record(store, each)).root_job_id for each in (root, child, grandchild)] == [
            None,
            root,
            root,
        ]
        assert (await record(store, grandchild)).parent_job_id == child

    async def test_a_child_of_an_unknown_job_is_refused(self, store: Store) -> None:
        orphan = new_job(parent_job_id=new_job().job_id)

        with pytest.raises(UnknownDependency):
            await store.insert([orphan], NOW)

        assert await store.get([orphan.job_id]) == [None]

    async def test_a_new_job_has_run_nothing_and_has_one_event(self, store: Store) -> None:
        stored = await record(store, await submit(store, created_by="me"))

        assert (stored.attempt, stored.failures, stored.version, stored.progress) == (0, 0, 1, 0.0)
        assert (stored.created_at, stored.updated_at) == (NOW, NOW)
        assert (stored.worker_id, stored.lease_expires_at, stored.result, stored.errors) == (
            None,
            None,
            None,
            (),
        )
        [event] = stored.history
        assert (
            event.version,
            event.at,
            event.event,
            event.source,
            event.target,
            event.attempt,
            event.by,
        ) == (
            1,
            NOW,
            Event.SUBMIT,
            None,
            Status.PENDING,
            0,
            "me",
        )

    async def test_a_batch_is_answered_in_order(self, store: Store) -> None:
        jobs = [new_job(scheduled_for=NOW + (HOUR if i % 2 else 0)) for i in range(10)]

        answers = await store.insert(jobs, NOW)

        assert [answer.job_id for answer in answers] == [job.job_id for job in jobs]
        assert [answer.status for answer in answers] == [Status.PENDING, Status.SCHEDULED] * 5

    async def test_nothing_is_an_answer_to_nothing(self, store: Store) -> None:
        assert await store.insert([], NOW) == []

    @pytest.mark.parametrize("position", [0, 1, 2])
    async def test_a_batch_with_one_bad_job_stores_none(self, store: Store, position: int) -> None:
        jobs = [new_job(), new_job()]
        jobs.insert(position, new_job(depends_on=(new_job().job_id,)))

        with pytest.raises(UnknownDependency):
            await store.insert(jobs, NOW)

        assert await store.get([job.job_id for job in jobs]) == [None, None, None]

    async def test_concurrent_inserts_are_all_stored(self, store: Store, second_store: Store) -> None:
        jobs = [new_job() for _ in range(64)]

        await asyncio.gather(*((store, second_store)[i % 2].insert([job], NOW) for i, job in enumerate(jobs)))

        assert None not in await store.get([job.job_id for job in jobs])

    async def test_an_acknowledged_job_is_seen_by_another_store(self, store: Store, second_store: Store) -> None:
        job_id = await submit(store)

        assert await second_store.get([job_id]) == await store.get([job_id])


class TestOwnId:
    async def test_a_repeated_id_answers_with_the_first_job_and_stores_nothing(self, store: Store) -> None:
        job = new_job(own_id=True, payload="1")
        await store.insert([job], NOW)

        [answer] = await store.insert([new_job(job_id=job.job_id, own_id=True, payload="2")], NOW)

        assert answer.existing == await record(store, job.job_id)
        assert (await record(store, job.job_id)).payload == "1"

    async def test_a_repeated_id_of_an_ended_job_does_not_run_it_again(self, store: Store) -> None:
        job_id = await completed(store, own_id=True)

        [answer] = await store.insert([new_job(job_id=job_id, own_id=True)], NOW)

        assert (answer.job_id, answer.status) == (job_id, Status.COMPLETED)

    async def test_a_batch_may_name_the_same_id_twice(self, store: Store) -> None:
        job = new_job(own_id=True)

        first, second = await store.insert([job, job], NOW)

        assert (first.existing, second.job_id) == (None, job.job_id)
        assert second.existing is not None
        assert sum((await store.counts()).values()) == 1


class TestDedup:
    async def test_while_a_job_is_active_its_key_answers_with_it(self, store: Store) -> None:
        first = await submit(store, dedup_key="k")

        [answer] = await store.insert([new_job(dedup_key="k")], NOW)

        assert answer.job_id == first
        assert answer.existing == await record(store, first)
        assert sum((await store.counts()).values()) == 1

    @pytest.mark.parametrize("end", [completed, failed])
    async def test_the_key_of_an_ended_job_is_free_again(self, store: Store, end: object) -> None:
        first = await end(store, dedup_key="k")  # type: ignore[operator]

        assert await submit(store, dedup_key="k") != first

    async def test_the_key_of_a_cancelled_job_is_free_again(self, store: Store) -> None:
        first = await submit(store, dedup_key="k")
        await settle(store, cancel(await record(store, first), by=None, reason=None))

        assert await submit(store, dedup_key="k") != first

    async def test_a_running_job_still_holds_its_key(self, store: Store) -> None:
        claim = await running(store, dedup_key="k")

        assert await submit(store, dedup_key="k") == claim.job_id

    async def test_a_period_holds_the_key_although_the_job_has_ended(self, store: Store) -> None:
        first = await completed(store, dedup_key="k", dedup_until=NOW + HOUR)

        assert await submit(store, dedup_key="k", now=NOW + HOUR - 1) == first
        assert await submit(store, dedup_key="k", now=NOW + HOUR) != first

    async def test_for_ever_holds_the_key_for_ever(self, store: Store) -> None:
        first = await completed(store, dedup_key="k", dedup_until=FOREVER)

        assert await submit(store, dedup_key="k", now=NOW + 100 * 365 * 24 * HOUR) == first

    async def test_the_key_passes_to_the_job_that_took_it_last(self, store: Store) -> None:
        await completed(store, dedup_key="k")
        second = await submit(store, dedup_key="k")

        assert await submit(store, dedup_key="k") == second

    async def test_another_payload_answers_with_the_existing_job(self, store: Store) -> None:
        first = await submit(store, dedup_key="k", payload="1")

        assert await submit(store, dedup_key="k", payload="2") == first
        assert (await record(store, first)).payload == "1"

    async def test_another_payload_is_an_error_where_that_was_asked_for(self, store: Store) -> None:
        await submit(store, dedup_key="k", payload="1")
        bystander = new_job()

        with pytest.raises(DedupConflict):
            await store.insert([bystander, new_job(dedup_key="k", payload="2", dedup_conflict_is_error=True)], NOW)

        assert await store.get([bystander.job_id]) == [None]

    async def test_the_same_payload_is_no_conflict(self, store: Store) -> None:
        first = await submit(store, dedup_key="k", payload="1")

        assert await submit(store, dedup_key="k", payload="1", dedup_conflict_is_error=True) == first

    async def test_a_batch_with_the_same_key_twice_stores_one_job(self, store: Store) -> None:
        first, second = await submit_many(store, 2, dedup_key="k")

        assert first == second
        assert await claim_ids(store) == [first]

    async def test_concurrent_submits_of_one_key_get_one_job(self, store: Store, second_store: Store) -> None:
        ids = await asyncio.gather(*(submit((store, second_store)[i % 2], dedup_key="k") for i in range(32)))

        assert len(set(ids)) == 1
        assert sum((await store.counts()).values()) == 1

    async def test_a_retry_by_hand_does_not_take_a_key_that_stands_for_another_job_by_now(self, store: Store) -> None:
        first = await completed(store, dedup_key="k")
        second = await submit(store, dedup_key="k")
        before = await record(store, first)

        retry = manual_retry(before, now=NOW, by=None, reason=None)
        assert await store.apply([retry], NOW) == [Verdict.TAKEN]

        assert await record(store, first) == before
        assert await submit(store, dedup_key="k") == second

    async def test_a_job_that_is_retried_by_hand_has_its_key_again(self, store: Store) -> None:
        for until in (None, NOW + 1):
            key = f"{until}"
            job_id = await completed(store, dedup_key=key, dedup_until=until)

            await retry_by_hand(store, job_id, now=NOW + HOUR)

            assert await submit(store, dedup_key=key, now=NOW + HOUR) == job_id


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
