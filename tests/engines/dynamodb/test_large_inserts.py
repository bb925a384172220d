"""Inserts that do not fit into one commit: all or none, in one answer, and finished by others after a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from backstay import failpoints
from backstay.core.records import QueueChange, Verdict
from backstay.core.states import Status
from backstay.engines.dynamodb.insert_decision import LINKED_AT_ONCE_MAX
from backstay.engines.dynamodb.outbox import GRACE_MICROS
from backstay.engines.dynamodb.store import DynamoStore
from backstay.engines.dynamodb.transport import Refused
from backstay.errors import DedupConflict, QueueFull, UnknownDependency
from backstay.testing.conformance.factories import (
    HOUR,
    NOW,
    a_firing,
    a_schedule,
    a_tick,
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

MANY = LINKED_AT_ONCE_MAX + 11
LATER = NOW + GRACE_MICROS


@pytest.fixture(autouse=True)
def no_failpoints() -> Iterator[None]:
    yield
    failpoints.switch("")


class TestJournal:
    async def test_a_large_batch_is_stored_whole_and_answered_in_order(self, store: DynamoStore) -> None:
        jobs = [new_job(payload=f'{{"n":{n}}}', scheduled_for=NOW + n % 2) for n in range(250)]

        answers = await store.insert(jobs, NOW)

        assert [answer.job_id for answer in answers] == [job.job_id for job in jobs]
        assert {answer.status for answer in answers[::2]} == {Status.PENDING}
        found = await store.get([job.job_id for job in jobs])
        assert [each.payload for each in found if each is not None] == [job.payload for job in jobs]

    async def test_a_large_batch_may_depend_on_itself_and_name_keys_twice(self, store: DynamoStore) -> None:
        first = new_job()
        jobs = [first, *(new_job(depends_on=(first.job_id,), dedup_key=f"k{n % 60}") for n in range(120))]

        answers = await store.insert(jobs, NOW)

        assert len({answer.job_id for answer in answers}) == 61
        assert (await store.counts())["waiting"] == 60
        assert (await record(store, first.job_id)).dependent_count == 60

    async def test_one_bad_job_refuses_a_large_batch(self, store: DynamoStore) -> None:
        await submit(store, dedup_key="k", payload="1")
        many = [new_job() for _ in range(120)]

        with pytest.raises(UnknownDependency):
            await store.insert([*many, new_job(depends_on=(new_job().job_id,))], NOW)
        with pytest.raises(DedupConflict):
            await store.insert([*many, new_job(dedup_key="k", payload="2", dedup_conflict_is_error=True)], NOW)
        await store.change_queue("default", QueueChange(max_pending=100), NOW)
        with pytest.raises(QueueFull):
            await store.insert(many, NOW)

        assert sum((await store.counts()).values()) == 1

    @pytest.mark.parametrize("special", [False, True])
    async def test_a_batch_whose_inserter_dies_is_finished_by_another(
        self,
        store: DynamoStore,
        second_store: DynamoStore,
        special: bool,
    ) -> None:
        changes = {"depends_on": (await submit(store, job_type="parent"),)} if special else {}
        jobs = [new_job(**changes) for _ in range(150)]
        failpoints.switch("journal.between=raise")
        with pytest.raises(failpoints.FailpointReached):
            await store.insert(jobs, NOW)
        failpoints.switch("")
        assert await store.statuses([jobs[0].job_id]) == [None]

        assert await second_store.release(NOW, 100) == 0
        assert await second_store.release(LATER, 100) == 150
        assert await second_store.release(LATER, 100) == 0

        assert None not in await store.get([job.job_id for job in jobs])

    async def test_ticks_that_do_not_fit_into_one_commit_are_one_firing_all_the_same(self, store: DynamoStore) -> None:
        schedule = a_schedule()
        await store.save_schedule(schedule, None)
        ticks = [NOW + hour * HOUR for hour in range(1, 51)]
        jobs = tuple(a_tick(schedule, tick, dedup_key=f"{tick}") for tick in ticks)

        assert await store.fire([a_firing(schedule, *ticks, jobs=jobs)], NOW + 50 * HOUR) == [Verdict.APPLIED]
        assert await store.fire([a_firing(schedule, *ticks, jobs=jobs)], NOW + 50 * HOUR) == [Verdict.STALE]

        assert None not in await store.statuses([job.job_id for job in jobs])


class TestManyDependencies:
    async def test_a_job_waits_for_all_of_many(self, store: DynamoStore) -> None:
        done = await completed(store)
        parents = [await running(store) for _ in range(MANY)]
        child = await submit(store, depends_on=(done, *(parent.job_id for parent in parents)))
        assert await status(store, child) is Status.WAITING

        for parent in parents[:-1]:
            await settle(store, parent.completes())
        assert await status(store, child) is Status.WAITING
        await settle(store, parents[-1].completes())

        assert (await record(store, child)).version == 2
        assert await claim_ids(store) == [child]

    async def test_many_that_have_completed_are_not_waited_for(self, store: DynamoStore) -> None:
        parents = [await completed(store) for _ in range(MANY)]

        [answer] = await store.insert([new_job(depends_on=tuple(parents))], NOW)

        assert answer.status is Status.PENDING
        assert (await record(store, parents[-1])).dependent_jobs == (answer.job_id,)

    async def test_one_of_many_that_ended_badly_is_enough(self, store: DynamoStore) -> None:
        parents = [*await submit_many(store, MANY), await failed(store)]

        [answer] = await store.insert([new_job(depends_on=tuple(parents))], NOW)

        assert answer.status is Status.CANCELLED

    async def test_edges_that_were_left_unregistered_are_registered_by_another(
        self,
        store: DynamoStore,
        second_store: DynamoStore,
    ) -> None:
        parents = [await running(store) for _ in range(MANY)]
        child = new_job(depends_on=tuple(parent.job_id for parent in parents))
        failpoints.switch("link.between=raise")
        with pytest.raises(failpoints.FailpointReached):
            await store.insert([child], NOW)
        failpoints.switch("")
        await settle(store, *(parent.completes() for parent in parents))
        assert await status(store, child.job_id) is Status.WAITING

        await second_store.release(LATER, 100)

        assert (await record(store, child.job_id)).version == 2
        assert await claim_ids(store) == [child.job_id]


class TestAfterItIsAccepted:
    """Who is told of an error submits again: what was accepted is answered as stored."""

    @pytest.fixture
    def break_after(self, store: DynamoStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
        """Every commit but the first ones is refused, and every read after them."""
        wire = store._open().tables.wire
        persist = wire.persist

        def broken(commits: int) -> None:
            done = 0

            async def persisted(operation: str, body: dict[str, Any], **how: Any) -> dict[str, Any]:
                nonlocal done
                if done >= commits:
                    raise Refused("ProvisionedThroughputExceededException", "slow down")
                done += operation == "TransactWriteItems"
                return await persist(operation, body, **how)

            monkeypatch.setattr(wire, "persist", persisted)

        yield broken
        monkeypatch.undo()

    async def test_a_large_batch_is_answered_and_upkeep_stores_the_rest(
        self, store: DynamoStore, second_store: DynamoStore, break_after: Callable[[int], None]
    ) -> None:
        there = await submit(store, dedup_key="k")
        jobs = [new_job(dedup_key="k"), *(new_job() for _ in range(120)), *(new_job(dedup_key="l") for _ in range(2))]
        break_after(2)

        answers = await store.insert(jobs, NOW)

        assert [answer.job_id for answer in answers[1:122]] == [job.job_id for job in jobs[1:122]]
        assert answers[0].existing is not None and answers[0].job_id == there
        assert answers[122].existing is not None and answers[122].job_id == jobs[121].job_id
        await second_store.release(LATER, 1_000)
        assert (await second_store.counts())["pending"] == 122

    async def test_a_job_with_many_dependencies_is_answered_and_upkeep_links_it(
        self, store: DynamoStore, second_store: DynamoStore, break_after: Callable[[int], None]
    ) -> None:
        parents = await submit_many(store, MANY)
        job = new_job(depends_on=tuple(parents))
        break_after(1)

        [answer] = await store.insert([job], NOW)

        assert (answer.job_id, answer.status) == (job.job_id, Status.WAITING)
        await second_store.release(LATER, 1_000)
        assert (await record(second_store, parents[-1])).dependent_count == 1
