"""insert: all or none, ids that the caller chose, deduplication."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.errors import DedupConflict, UnknownDependency
from holdfast.lifecycle import Event, Status, cancel, manual_retry
from holdfast.store.conformance.factories import (
    HOUR,
    NOW,
    claim_ids,
    completed,
    failed,
    new_job,
    record,
    request,
    retry_by_hand,
    running,
    settle,
    submit,
    submit_many,
)
from holdfast.store.port import Store
from holdfast.store.types import FOREVER, NewJob, Rate, Verdict

_NOT_ON_THE_RECORD = {
    "special",
    "own_id",
    "dedup_until",
    "dedup_conflict_is_error",
    "depends_on",
    "reuse_since",
    "rate",
}
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
FIELDS = sorted(set(NewJob.__struct_fields__) - _NOT_ON_THE_RECORD)


class TestInsert:
    async def test_a_job_that_is_due_begins_pending(self, store: Store) -> None:
        job = new_job()

        [answer] = await store.insert([job], NOW)

        assert (answer.job_id, answer.status, answer.existing) == (job.job_id, Status.PENDING, None)

    async def test_a_job_for_later_begins_scheduled(self, store: Store) -> None:
        [answer] = await store.insert([new_job(scheduled_for=NOW + 1)], NOW)

        assert answer.status is Status.SCHEDULED

    async def test_every_field_of_a_job_is_kept_as_it_was_given(self, store: Store) -> None:
        parent = await submit(store)
        job = new_job(
            payload='{"text": "snö ☃ 🎿", "n": 1.50}',
            priority=99,
            subject="song-1",
            tags='["a","b"]',
            created_by="me",
            job_stage="stems",
            parent_job_id=parent,
            root_job_id=parent,
            content_hash="abc",
            concurrency_key="gpu",
            concurrency_limit=7,
            on_dependency_failure="fail",
            dedup_key="k",
            payload_version=3,
            fairness_key="tenant-1",
            fairness_weight=5,
            rate_key="api",
            rate=Rate(1, HOUR),
            schedule="nightly",
            tick_at=NOW - HOUR,
            traceparent=TRACE,
        )

        await store.insert([job], NOW)

        stored = await record(store, job.job_id)
        for field in FIELDS:
            assert getattr(stored, field) == getattr(job, field), field

    async def test_a_plain_job_keeps_its_version_and_its_fairness_too(self, store: Store) -> None:
        job = new_job(payload_version=3, fairness_key="tenant-1", fairness_weight=5)

        await store.insert([job], NOW)

        stored = await record(store, job.job_id)
        assert (stored.payload_version, stored.fairness_key, stored.fairness_weight) == (3, "tenant-1", 5)

    @pytest.mark.parametrize(
        "changes", [{}, {"dedup_key": "k"}, {"scheduled_for": NOW - 1}], ids=["plain", "special", "due"]
    )
    @pytest.mark.parametrize("beside", [0, 250], ids=["alone", "among many"])
    async def test_whoever_claims_a_job_is_told_the_trace_it_was_submitted_in(
        self, store: Store, changes: dict[str, Any], beside: int
    ) -> None:
        job = new_job(traceparent=TRACE, job_type="traced", **changes)

        await store.insert([*(new_job() for _ in range(beside)), job], NOW)

        assert (await record(store, job.job_id)).traceparent == TRACE
        asked = request(slots={"traced": 1})
        [claimed] = await store.claim(asked, NOW)
        assert claimed.traceparent == TRACE
        again = msgspec.structs.replace(asked, slots={}, repeat=True)
        assert [each.traceparent for each in await store.claim(again, NOW)] == [TRACE]

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
