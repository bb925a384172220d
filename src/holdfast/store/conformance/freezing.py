"""Moving house: a queue that takes and gives no jobs, and one that stands still."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from holdfast.errors import MoveFailed, StoreMoved
from holdfast.lifecycle import Status, cancel
from holdfast.store.conformance.exporting import a_type
from holdfast.store.conformance.factories import (
    HOUR,
    NOW,
    SECOND,
    a_firing,
    a_schedule,
    claim_ids,
    completed,
    new_job,
    record,
    request,
    running,
    settle,
    status,
    submit,
    submit_many,
)
from holdfast.store.moves import FROM, SEALED, MoveState
from holdfast.store.port import Store
from holdfast.store.types import Note, QueueChange, Verdict

LEAVING = MoveState(role=FROM, move_id="m", other="postgresql://there/jobs")
STANDING = msgspec.structs.replace(LEAVING, kind=SEALED)


@contextlib.asynccontextmanager
async def frozen(store: Store, state: MoveState = LEAVING) -> AsyncIterator[None]:
    await store.freeze(LEAVING)
    assert await store.freeze(state) == 0
    try:
        yield
    finally:
        await store.freeze(None)


class TestFreeze:
    async def test_a_queue_that_moves_takes_no_jobs_and_says_where_it_goes(self, store: Store) -> None:
        async with frozen(store):
            with pytest.raises(StoreMoved, match="moves to postgresql://there/jobs"):
                await submit(store)
            with pytest.raises(StoreMoved):
                await submit_many(store, 3)
            with pytest.raises(StoreMoved):
                await submit(store, dedup_key="k")
            with pytest.raises(StoreMoved):
                await submit(store, scheduled_for=NOW + HOUR)

        assert sum((await store.counts()).values()) == 0
        assert await submit(store)

    async def test_it_gives_no_jobs_either(self, store: Store) -> None:
        await submit(store)

        async with frozen(store):
            with pytest.raises(StoreMoved):
                await store.claim(request(), NOW)

        assert len(await claim_ids(store)) == 1

    async def test_everyone_meets_it_with_their_next_call(self, store: Store, second_store: Store) -> None:
        await submit(second_store)  # whatever that one has prepared, it has prepared
        await claim_ids(second_store)
        await submit(second_store)

        async with frozen(store):
            with pytest.raises(StoreMoved):
                await submit(second_store)
            with pytest.raises(StoreMoved):
                await second_store.claim(request(), NOW)

        assert len(await claim_ids(second_store)) == 1

    async def test_what_runs_is_settled_and_lets_go_of_what_waits_for_it(self, store: Store) -> None:
        claim = await running(store)
        dependent = await submit(store, depends_on=(claim.job_id,))

        async with frozen(store):
            assert await store.extend([claim.hold], NOW + 2 * HOUR, NOW) == [Verdict.APPLIED]
            assert await store.note([Note(claim.hold, progress=0.5)], NOW) == [Verdict.APPLIED]
            assert await store.record_step(claim.hold, "charge", "1", NOW) is Verdict.APPLIED
            await settle(store, claim.completes())

        assert await status(store, claim.job_id) is Status.COMPLETED
        assert await status(store, dependent) is Status.PENDING

    async def test_what_runs_may_bring_children(self, store: Store) -> None:
        claim = await running(store)
        child = new_job(parent_job_id=claim.job_id, own_id=True)

        async with frozen(store):
            inserted = await store.insert_children(claim.hold, [child], NOW)

        assert inserted is not None
        assert await status(store, child.job_id) is Status.PENDING

    async def test_a_schedule_does_not_tick(self, store: Store) -> None:
        schedule = a_schedule(next_at=NOW)
        await store.save_schedule(schedule, None)

        async with frozen(store):
            with pytest.raises(StoreMoved):
                await store.fire([a_firing(schedule)], NOW)

        assert await store.schedules() == [schedule]

    async def test_it_stands_still_only_once_nothing_runs(self, store: Store) -> None:
        claim = await running(store)
        await store.freeze(LEAVING)

        assert await store.freeze(STANDING) == 1
        assert await store.moving() == LEAVING
        await settle(store, claim.completes())
        assert await store.freeze(STANDING) == 0
        assert await store.moving() == STANDING

        await store.freeze(None)
        assert await store.moving() is None

    async def test_a_move_that_was_given_up_seals_nothing(self, store: Store) -> None:
        await store.freeze(LEAVING)
        await store.freeze(None)

        for state in (STANDING, msgspec.structs.replace(STANDING, done=True)):
            with pytest.raises(MoveFailed, match="given up"):
                await store.freeze(state)

        assert await store.moving() is None
        assert await submit(store)

    async def test_a_run_of_a_move_that_another_has_taken_over_freezes_nothing(self, store: Store) -> None:
        second = msgspec.structs.replace(STANDING, run=2)

        async with frozen(store, second):
            for state in (LEAVING, STANDING, msgspec.structs.replace(STANDING, run=1, done=True)):
                with pytest.raises(MoveFailed, match="another run"):
                    await store.freeze(state)
            assert await store.moving() == second

    async def test_a_queue_moves_to_one_place_at_a_time(self, store: Store) -> None:
        async with frozen(store):
            with pytest.raises(MoveFailed, match="moves already"):
                await store.freeze(msgspec.structs.replace(LEAVING, move_id="another"))
            assert await store.moving() == LEAVING

    async def test_nothing_of_a_queue_that_stands_still_changes(self, store: Store) -> None:
        due = await submit(store, scheduled_for=NOW + SECOND)
        waiting = await record(store, await submit(store))

        async with frozen(store, STANDING):
            with pytest.raises(StoreMoved):
                await store.promote(NOW + HOUR, 10)
            with pytest.raises(StoreMoved):
                await store.apply([cancel(waiting, by=None, reason=None)], NOW)
            with pytest.raises(StoreMoved):
                await store.change_queue("default", QueueChange(paused=True), NOW)
            with pytest.raises(StoreMoved):
                await store.save_schedule(a_schedule(), None)
            with pytest.raises(StoreMoved):
                await store.announce([a_type()])

        assert await status(store, due) is Status.SCHEDULED
        assert await status(store, waiting.job_id) is Status.PENDING
        assert await store.queues() == []

    async def test_it_is_read_as_ever(self, store: Store) -> None:
        job_id = await completed(store, subject="s")

        async with frozen(store, STANDING):
            assert (await record(store, job_id)).result == "1"
            assert await store.statuses([job_id]) == [Status.COMPLETED]

    async def test_one_that_has_moved_says_so(self, store: Store) -> None:
        async with frozen(store, msgspec.structs.replace(STANDING, done=True)):
            with pytest.raises(StoreMoved, match="has moved to postgresql://there/jobs"):
                await submit(store)
