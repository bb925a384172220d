"""The races that the design names: what two do at the same moment ends as if one had come first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from backstay import failpoints
from backstay.core.lifecycle import cancel, manual_retry
from backstay.core.records import Signal, Verdict
from backstay.core.states import Event, Status
from backstay.engines.dynamodb.insert_decision import LINKED_AT_ONCE_MAX
from backstay.engines.dynamodb.outbox import GRACE_MICROS
from backstay.engines.dynamodb.store import DynamoStore
from backstay.limits import RELEASE_BATCH_MAX
from backstay.testing.conformance.factories import (
    DAY,
    NOW,
    a_policy,
    claim_ids,
    completed,
    failed,
    new_job,
    record,
    running,
    settle,
    status,
    submit,
    submit_many,
)

ROUNDS = 10
MANY = LINKED_AT_ONCE_MAX + 10
LATER = NOW + GRACE_MICROS


@pytest.fixture(autouse=True)
def no_failpoints() -> Iterator[None]:
    yield
    failpoints.switch("")


class TestParentsAndChildren:
    async def test_a_child_that_comes_while_its_parent_ends_is_released_once(
        self, store: DynamoStore, second_store: DynamoStore
    ) -> None:
        for _ in range(ROUNDS):
            parent = await running(store)
            children = [new_job(depends_on=(parent.job_id,)) for _ in range(4)]

            await asyncio.gather(
                *((store, second_store)[i % 2].insert([child], NOW) for i, child in enumerate(children)),
                store.apply([parent.completes()], NOW),
            )

            for child in children:
                job = await record(store, child.job_id)
                assert job.status is Status.PENDING
                assert job.version in (1, 2)  # it came after the end, or was released by it
            assert (await record(store, parent.job_id)).dependent_count == 4

    async def test_a_child_of_many_that_end_while_it_comes_is_released_once(
        self, store: DynamoStore, second_store: DynamoStore
    ) -> None:
        parents = [await running(store) for _ in range(MANY)]
        child = new_job(depends_on=tuple(parent.job_id for parent in parents))

        await asyncio.gather(
            store.insert([child], NOW), *(second_store.apply([parent.completes()], NOW) for parent in parents)
        )

        job = await record(store, child.job_id)
        assert (job.status, sum(event.event is Event.RELEASE for event in job.history) <= 1) == (Status.PENDING, True)

    async def test_the_bad_end_of_one_and_the_good_end_of_another_end_a_child_once(
        self, store: DynamoStore, second_store: DynamoStore
    ) -> None:
        for _ in range(ROUNDS):
            good, bad = await running(store), await running(store, max_attempts=1)
            child = await submit(store, depends_on=(good.job_id, bad.job_id))

            await asyncio.gather(store.apply([good.completes()], NOW), second_store.apply([bad.fails()], NOW))

            job = await record(store, child)
            assert (job.status, job.version) == (Status.CANCELLED, 2)

    async def test_a_child_that_is_cancelled_while_it_is_released_ends_once(
        self, store: DynamoStore, second_store: DynamoStore
    ) -> None:
        for _ in range(ROUNDS):
            parent = await running(store)
            child = await submit(store, depends_on=(parent.job_id,))
            edit = cancel(await record(store, child), by=None, reason=None)

            _, [verdict] = await asyncio.gather(store.apply([parent.completes()], NOW), second_store.apply([edit], NOW))

            job = await record(store, child)
            assert job.status is (Status.CANCELLED if verdict is Verdict.APPLIED else Status.PENDING)
            assert len(job.history) == job.version == 2


class TestKeys:
    async def test_a_key_stands_for_the_retried_job_or_the_new_one_and_never_for_both(
        self, store: DynamoStore, second_store: DynamoStore
    ) -> None:
        for n in range(ROUNDS):
            key = f"k{n}"
            old = await completed(store, dedup_key=key)
            retry = manual_retry(await record(store, old), now=NOW, by=None, reason=None)

            [verdict], [answer] = await asyncio.gather(
                store.apply([retry], NOW), second_store.insert([new_job(dedup_key=key)], NOW)
            )

            if verdict is Verdict.APPLIED:
                assert answer.job_id == old
            else:
                assert (verdict, answer.existing) == (Verdict.TAKEN, None)
            assert (await second_store.insert([new_job(dedup_key=key)], NOW))[0].job_id == answer.job_id

    async def test_identical_jobs_that_come_at_once_share_a_run_or_run_and_none_is_lost(
        self, store: DynamoStore, second_store: DynamoStore
    ) -> None:
        leader = await running(store, job_type="embed", content_hash="h")
        same = [new_job(job_type="embed", content_hash="h", reuse_since=0) for _ in range(12)]

        await asyncio.gather(
            *((store, second_store)[i % 2].insert([job], NOW) for i, job in enumerate(same)),
            store.apply([leader.completes('"x"')], NOW),
        )

        found = await store.get([job.job_id for job in same])
        assert {(job.status, job.result) for job in found if job is not None} == {(Status.COMPLETED, '"x"')}


class TestMarks:
    async def test_who_dies_after_ending_a_job_leaves_its_dependents_to_others(
        self, store: DynamoStore, second_store: DynamoStore
    ) -> None:
        parent = await running(store, max_attempts=1)
        children = await submit_many(store, MANY, depends_on=(parent.job_id,))
        last = await submit(store, depends_on=(children[-1],))
        failpoints.switch("outbox.between=raise")
        with pytest.raises(failpoints.FailpointReached):
            await store.apply([parent.fails()], NOW)
        failpoints.switch("")
        assert await status(store, parent.job_id) is Status.FAILED
        assert Status.WAITING in await store.statuses(children)

        while await second_store.release(NOW, 10):
            pass

        assert set(await store.statuses([*children, last])) == {Status.CANCELLED}

    async def test_several_who_go_on_from_one_mark_release_each_child_once(
        self, store: DynamoStore, second_store: DynamoStore
    ) -> None:
        parent = await running(store)
        children = await submit_many(store, MANY * 2, depends_on=(parent.job_id,))
        failpoints.switch("outbox.between=raise")
        with pytest.raises(failpoints.FailpointReached):
            await store.apply([parent.completes()], NOW)
        failpoints.switch("")

        await asyncio.gather(*((store, second_store)[i % 2].release(NOW, RELEASE_BATCH_MAX) for i in range(4)))

        found = await store.get(children)
        assert {(job.status, job.version) for job in found if job is not None} == {(Status.PENDING, 2)}
        assert await store.release(NOW, 100) == 0

    async def test_a_parent_that_is_retried_meanwhile_keeps_the_others_waiting(
        self, store: DynamoStore, second_store: DynamoStore
    ) -> None:
        parent = await running(store, max_attempts=1)
        children = await submit_many(store, MANY, depends_on=(parent.job_id,))
        failpoints.switch("outbox.between=raise")
        with pytest.raises(failpoints.FailpointReached):
            await store.apply([parent.fails()], NOW)
        failpoints.switch("")
        ended = [
            child
            for child, found in zip(children, await store.statuses(children), strict=True)
            if found is Status.CANCELLED
        ]
        seen = await record(store, parent.job_id)
        await settle(store, manual_retry(seen, now=NOW, by=None, reason=None))

        await second_store.release(NOW, 1_000)

        found = await store.statuses(children)
        assert found.count(Status.CANCELLED) == len(ended)
        assert found.count(Status.WAITING) == len(children) - len(ended)
        assert await second_store.release(NOW, 1_000) == 0

    async def test_a_batch_that_is_stored_by_two_is_stored_once(
        self, store: DynamoStore, second_store: DynamoStore
    ) -> None:
        jobs = [new_job(dedup_key=f"k{n}") for n in range(120)]
        failpoints.switch("journal.between=raise")
        with pytest.raises(failpoints.FailpointReached):
            await store.insert(jobs, NOW)
        failpoints.switch("")

        await asyncio.gather(store.release(LATER, 1_000), second_store.release(LATER, 1_000))

        assert (await store.counts())["pending"] == 120
        assert len(await claim_ids(store, limit=1_000, slots={"work": 1_000})) == 120
        submitted = sum(row.count for row in await store.counters(0, NOW + DAY) if row.outcome == "submitted")
        assert submitted == 120


class TestRetention:
    async def test_a_job_is_archived_or_depended_on_and_never_half(
        self, store: DynamoStore, second_store: DynamoStore
    ) -> None:
        for _ in range(ROUNDS):
            parent = await completed(store)
            child = new_job(depends_on=(parent,))

            await asyncio.gather(
                store.retire(a_policy(0, 0, 0), NOW + DAY, 100, None), second_store.insert([child], NOW)
            )

            assert await status(store, child.job_id) is Status.PENDING

    async def test_a_job_is_archived_or_retried_and_never_both(
        self, store: DynamoStore, second_store: DynamoStore
    ) -> None:
        for _ in range(ROUNDS):
            job_id = await failed(store)
            retry = manual_retry(await record(store, job_id), now=NOW, by=None, reason=None)

            _, [verdict] = await asyncio.gather(
                store.retire(a_policy(0, 0, 0), NOW + DAY, 100, None), second_store.apply([retry], NOW)
            )

            job = await record(store, job_id)
            assert (verdict is Verdict.APPLIED) == (job.archived_at is None)
            assert verdict in (Verdict.APPLIED, Verdict.GONE)


async def test_who_is_released_is_signalled(store: DynamoStore) -> None:
    parent = await running(store)
    await submit(store, depends_on=(parent.job_id,))
    heard: set[Signal] = set()
    stop = store.listen(frozenset(Signal), heard.add)

    await settle(store, parent.completes())

    stop()
    assert {Signal.READY, Signal.ENDED} <= heard
