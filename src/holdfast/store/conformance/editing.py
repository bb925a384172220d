"""apply, as editors use it: where a job stands in line, and when it runs."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from holdfast.errors import IllegalTransition
from holdfast.lifecycle import ACTIVE, Event, Status, reprioritise, reschedule
from holdfast.store.conformance.factories import (
    HOUR,
    NOW,
    claim_ids,
    in_state,
    record,
    running,
    settle,
    status,
    submit,
    submit_many,
)
from holdfast.store.conformance.listening import Ear
from holdfast.store.port import Store
from holdfast.store.types import Promoted, Signal, Verdict


async def _give_priority(store: Store, job_id: str, priority: int) -> None:
    await settle(store, reprioritise(await record(store, job_id), priority=priority, by="me", reason=None))


async def _put_off(store: Store, job_id: str, run_at: int, *, now: int = NOW) -> None:
    edit = reschedule(await record(store, job_id), run_at=run_at, now=now, by="me", reason=None)
    await settle(store, edit, now=now)


class TestReprioritise:
    async def test_a_new_priority_changes_the_order_of_claims(self, store: Store) -> None:
        first, second, third = await submit_many(store, 3)

        await _give_priority(store, third, 90)
        await _give_priority(store, first, 10)

        assert await claim_ids(store) == [third, second, first]

    async def test_it_is_a_version_and_an_event_of_its_own(self, store: Store) -> None:
        before = await in_state(store, Status.PENDING)

        edit = reprioritise(before, priority=77, by="me", reason="it is urgent")
        assert await store.apply([edit], NOW + 5) == [Verdict.APPLIED]

        after = await record(store, before.job_id)
        assert (after.priority, after.version, after.status) == (77, before.version + 1, Status.PENDING)
        last = after.history[-1]
        assert (last.version, last.at, last.event, last.by, last.reason) == (
            after.version,
            NOW + 5,
            Event.REPRIORITISE,
            "me",
            "it is urgent",
        )
        assert (last.source, last.target) == (Status.PENDING, Status.PENDING)

    @pytest.mark.parametrize("state", sorted(ACTIVE))
    async def test_nothing_but_its_place_in_line_changes(self, store: Store, state: Status) -> None:
        before = await in_state(store, state)

        await _give_priority(store, before.job_id, 3)

        after = await record(store, before.job_id)
        expected = msgspec.structs.replace(before, priority=3, version=before.version + 1)
        moving = {"updated_at": 0, "history": ()}
        assert msgspec.structs.replace(after, **moving) == msgspec.structs.replace(expected, **moving)

    async def test_a_running_job_keeps_its_lease_and_its_holder(self, store: Store) -> None:
        claim = await running(store)
        await _give_priority(store, claim.job_id, 90)

        during = await record(store, claim.job_id)
        assert (during.lease_expires_at, during.attempt, during.worker_id) == (
            claim.job.lease_expires_at,
            claim.job.attempt,
            "worker-1",
        )
        assert await store.extend([claim.hold], NOW + 2 * HOUR, NOW) == [Verdict.APPLIED]
        assert await store.apply([claim.completes()] * 2, NOW) == [Verdict.APPLIED] * 2
        assert await status(store, claim.job_id) is Status.COMPLETED

    async def test_a_running_job_that_waits_again_waits_with_its_new_priority(self, store: Store) -> None:
        claim = await running(store, job_type="work")
        other = await submit(store, priority=60)
        await _give_priority(store, claim.job_id, 70)

        await settle(store, claim.gives_back())

        assert await claim_ids(store) == [claim.job_id, other]

    async def test_a_waiting_job_is_still_released(self, store: Store) -> None:
        parent = await running(store)
        child = await submit(store, depends_on=(parent.job_id,))
        await _give_priority(store, child, 90)

        await settle(store, parent.completes())

        assert await claim_ids(store) == [child]

    async def test_an_editor_who_saw_an_older_version_is_refused(self, store: Store) -> None:
        seen = await in_state(store, Status.PENDING)
        await _give_priority(store, seen.job_id, 60)
        before = await record(store, seen.job_id)

        assert await store.apply([reprioritise(seen, priority=10, by=None, reason=None)], NOW) == [Verdict.STALE]

        assert await record(store, seen.job_id) == before

    async def test_holders_are_not_alarmed(self, store: Store) -> None:
        claim = await running(store)
        ear = Ear(store, Signal.STOPPED, Signal.ENDED)

        await _give_priority(store, claim.job_id, 90)
        await settle(store, claim.completes())
        await ear.heard()

        assert set(ear.got) == {Signal.ENDED}
        ear.stop()

    async def test_of_many_editors_who_saw_the_same_one_wins(self, store: Store, second_store: Store) -> None:
        seen = await in_state(store, Status.PENDING)
        edits = [reprioritise(seen, priority=n, by=None, reason=None) for n in range(8)]

        verdicts = await asyncio.gather(
            *((store, second_store)[i % 2].apply([edit], NOW) for i, edit in enumerate(edits))
        )

        assert verdicts.count([Verdict.APPLIED]) == 1
        assert (await record(store, seen.job_id)).priority == verdicts.index([Verdict.APPLIED])


class TestReschedule:
    @pytest.mark.parametrize("state", [Status.PENDING, Status.SCHEDULED])
    @pytest.mark.parametrize(("delay", "target"), [(0, Status.PENDING), (2 * HOUR, Status.SCHEDULED)])
    async def test_a_job_that_has_not_begun_runs_when_it_is_told_to(
        self, store: Store, state: Status, delay: int, target: Status
    ) -> None:
        before = await in_state(store, state)
        run_at = NOW + delay

        await _put_off(store, before.job_id, run_at)

        after = await record(store, before.job_id)
        assert (after.status, after.scheduled_for, after.version) == (target, run_at, before.version + 1)
        last = after.history[-1]
        assert (last.event, last.source, last.target, last.by) == (Event.RESCHEDULE, state, target, "me")

    async def test_it_is_promoted_at_its_new_time(self, store: Store) -> None:
        job_id = await submit(store, scheduled_for=NOW + HOUR)

        await _put_off(store, job_id, NOW + 2 * HOUR)

        assert await store.promote(NOW + 2 * HOUR - 1, 10) == Promoted(0, NOW + 2 * HOUR)
        assert await store.promote(NOW + 2 * HOUR, 10) == Promoted(1, None)

    async def test_a_pending_job_stands_in_line_by_its_new_time(self, store: Store) -> None:
        first, second = await submit_many(store, 2, scheduled_for=NOW - 10)

        await _put_off(store, first, NOW - 5)

        assert await claim_ids(store) == [second, first]

    @pytest.mark.parametrize("state", sorted(set(Status) - {Status.PENDING, Status.SCHEDULED}))
    async def test_a_job_in_any_other_state_is_refused(self, store: Store, state: Status) -> None:
        before = await in_state(store, state)

        with pytest.raises(IllegalTransition):
            await _put_off(store, before.job_id, NOW + HOUR)

        assert await record(store, before.job_id) == before

    async def test_an_editor_who_saw_an_older_version_is_refused(self, store: Store) -> None:
        seen = await in_state(store, Status.SCHEDULED)
        await store.promote(NOW + HOUR, 10)
        before = await record(store, seen.job_id)

        edit = reschedule(seen, run_at=NOW + 2 * HOUR, now=NOW, by=None, reason=None)
        assert await store.apply([edit], NOW) == [Verdict.STALE]

        assert await record(store, seen.job_id) == before
