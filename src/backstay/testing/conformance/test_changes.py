"""Conformance: jobs that wait are replaced, expire and get other payloads; ended ones are removed."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.core.dependencies import Brood
from backstay.core.lifecycle import cancel, expire, reprioritise, update
from backstay.core.port import Store
from backstay.core.records import FOREVER, Inserted, JobRecord, Query, Verdict
from backstay.core.states import Event, Status
from backstay.errors import DedupConflict
from backstay.testing.conformance.factories import (
    HOUR,
    MINUTE,
    NOW,
    SECOND,
    archived,
    cancelled,
    claim_again,
    claim_ids,
    claim_one,
    completed,
    failed,
    in_state,
    new_job,
    quiet,
    record,
    request,
    retry_by_hand,
    running,
    settle,
    status,
    submit,
)
from backstay.testing.conformance.test_children import brood


async def _submit_again(store: Store, payload: str, *, now: int = NOW, **changes: Any) -> Inserted:
    """Submit with a key that replaces what waits under it."""
    fields = {"dedup_key": "k", "dedup_replaces": True, "payload": payload, "scheduled_for": now} | changes
    [answer] = await store.insert([new_job(special=True, **fields)], now)
    return answer


class TestReplace:
    async def test_the_last_submit_gives_the_job_that_waits_its_payload_and_due_time(self, store: Store) -> None:
        first = await _submit_again(store, '"a"', scheduled_for=NOW + MINUTE)

        second = await _submit_again(store, '"b"', now=NOW + SECOND, scheduled_for=NOW + 2 * MINUTE, created_by="ada")

        assert second.job_id == first.job_id
        assert second.existing is not None
        job = await record(store, first.job_id)
        assert (job.payload, job.scheduled_for, job.status) == ('"b"', NOW + 2 * MINUTE, Status.SCHEDULED)
        assert (job.version, job.history[-1].event, job.history[-1].by) == (2, Event.REPLACE, "ada")
        assert (await store.counts())["scheduled"] == 1
        assert await claim_ids(store, now=NOW + MINUTE) == []
        await store.promote(NOW + 2 * MINUTE, 10)
        assert (await claim_one(store, first.job_id, now=NOW + 2 * MINUTE)).job.payload == '"b"'

    async def test_a_job_never_moves_past_its_ceiling(self, store: Store) -> None:
        span = {"debounce_micros": 10 * MINUTE}
        first = await _submit_again(store, "1", scheduled_for=NOW + MINUTE, **span)

        later = NOW + 9 * MINUTE + 30 * SECOND
        await _submit_again(store, "2", now=later, scheduled_for=later + MINUTE, **span)
        assert (await record(store, first.job_id)).scheduled_for == NOW + 10 * MINUTE

        late = NOW + 11 * MINUTE
        answer = await _submit_again(store, "3", now=late, scheduled_for=late + MINUTE, **span)
        assert answer.status is Status.PENDING
        assert await claim_ids(store, now=late) == [first.job_id]

    async def test_a_pending_job_is_scheduled_again_and_one_that_is_due_keeps_its_place(self, store: Store) -> None:
        first = await _submit_again(store, "1")
        other = await submit(store, scheduled_for=NOW + 1, now=NOW + 1)

        again = await _submit_again(store, "2", now=NOW + SECOND)
        assert (again.job_id, again.status) == (first.job_id, Status.PENDING)
        assert await claim_ids(store, limit=1, now=NOW + SECOND) == [first.job_id]

        await _submit_again(store, "3", now=NOW + SECOND)  # the first one runs: this is another job
        later = await _submit_again(store, "4", now=NOW + SECOND, scheduled_for=NOW + HOUR)
        assert (await record(store, later.job_id)).status is Status.SCHEDULED
        assert await claim_ids(store, now=NOW + SECOND) == [other]

    async def test_a_job_that_waits_for_another_takes_the_payload_and_still_waits(self, store: Store) -> None:
        upstream = await running(store)
        first = await _submit_again(store, "1", depends_on=(upstream.job_id,))

        await _submit_again(store, "2", now=NOW + SECOND)

        job = await record(store, first.job_id)
        assert (job.payload, job.status, job.dependencies) == ("2", Status.WAITING, (upstream.job_id,))
        await settle(store, upstream.completes(), now=NOW + MINUTE)
        assert (await claim_one(store, first.job_id, now=NOW + MINUTE)).job.payload == "2"

    async def test_a_job_that_waits_for_its_retry_takes_the_payload_and_keeps_the_time_of_the_retry(
        self, store: Store
    ) -> None:
        claim = await running(store, dedup_key="k")
        await settle(store, claim.fails())
        before = await record(store, claim.job_id)

        answer = await _submit_again(store, "2", job_type=before.job_type, scheduled_for=NOW + HOUR)

        after = await record(store, claim.job_id)
        assert answer.job_id == claim.job_id
        assert (after.payload, after.status, after.scheduled_for) == ("2", Status.RETRYING, before.scheduled_for)
        assert after.failures == 1

    async def test_a_job_that_runs_is_not_replaced_and_the_new_one_takes_the_key(self, store: Store) -> None:
        claim = await running(store, dedup_key="k", payload='"a"')
        job_type = claim.job.job_type

        new = await _submit_again(store, '"b"', job_type=job_type)
        again = await _submit_again(store, '"c"', job_type=job_type)

        assert new.existing is None
        assert new.job_id != claim.job_id
        assert again.job_id == new.job_id
        assert (await record(store, claim.job_id)).payload == '"a"'
        await settle(store, claim.completes())
        assert (await record(store, new.job_id)).payload == '"c"'

    async def test_a_parent_that_waits_for_its_children_has_begun(self, store: Store) -> None:
        claim = await running(store, dedup_key="k")
        child = new_job(parent_job_id=claim.job_id, special=True)
        await settle(store, claim.waits(children=(child,)))

        new = await _submit_again(store, "2", job_type=claim.job.job_type)

        assert new.job_id != claim.job_id
        assert await status(store, claim.job_id) is Status.WAITING

    async def test_within_its_window_an_ended_job_stays_and_keeps_the_key(self, store: Store) -> None:
        done = await completed(store, dedup_key="k", dedup_until=FOREVER)
        job_type = (await record(store, done)).job_type

        again = await _submit_again(store, "2", job_type=job_type)

        assert (again.job_id, again.status) == (done, Status.COMPLETED)

    async def test_a_job_of_another_type_cannot_take_its_place(self, store: Store) -> None:
        first = await _submit_again(store, "1")

        with pytest.raises(DedupConflict, match="of type work"):
            await _submit_again(store, "2", job_type="other")

        assert (await record(store, first.job_id)).payload == "1"

    async def test_several_of_one_call_leave_one_job_with_the_last_payload(self, store: Store) -> None:
        fields: dict[str, Any] = {"dedup_key": "k", "dedup_replaces": True}
        jobs = [new_job(payload=str(number), **fields) for number in range(3)]

        answers = await store.insert(jobs, NOW)

        assert {answer.job_id for answer in answers} == {jobs[0].job_id}
        assert (await record(store, jobs[0].job_id)).payload == "2"

    async def test_a_payload_of_any_length_takes_the_place_of_any_other(self, store: Store) -> None:
        long = f'"{"x" * 5_000}"'
        first = await _submit_again(store, long)
        await _submit_again(store, '"short"')
        assert (await record(store, first.job_id)).payload == '"short"'

        await _submit_again(store, long)

        assert (await claim_one(store, first.job_id)).job.payload == long

    async def test_one_with_a_key_is_still_held_back_by_it(self, store: Store) -> None:
        await submit(store, concurrency_key="gpu")
        gate: dict[str, Any] = {"concurrency_key": "gpu", "concurrency_limit": 1}
        first = await _submit_again(store, "1", **gate)

        await _submit_again(store, "2", now=NOW + SECOND, **gate)

        claims = await store.claim(request(), NOW + SECOND)
        assert first.job_id not in [job.job_id for job in claims]
        assert len(claims) == 1


class TestExpire:
    @pytest.mark.parametrize("state", [Status.WAITING, Status.SCHEDULED, Status.PENDING])
    async def test_a_job_that_has_not_started_in_time_is_found_and_cancelled(self, store: Store, state: Status) -> None:
        job = await in_state(store, state, expires_at=NOW + MINUTE)
        assert job.expires_at == NOW + MINUTE

        assert await store.overdue(NOW + MINUTE - 1, 10) == []
        assert await store.overdue(NOW + MINUTE, 10) == [job.job_id]
        assert expire(job, now=NOW + MINUTE - 1, by="me") is None
        await settle(store, _expired(job), now=NOW + MINUTE)

        after = await record(store, job.job_id)
        assert (after.status, after.expires_at) == (Status.CANCELLED, None)
        assert (after.history[-1].event, after.history[-1].reason) == (Event.EXPIRE, "expired")
        assert await store.overdue(NOW + HOUR, 10) == []

    @pytest.mark.parametrize("extra", [{}, {"fairness_key": "a"}, {"concurrency_key": "gpu"}, {"rate_key": "r"}])
    async def test_a_claim_never_brings_one_that_has_expired(self, store: Store, extra: dict[str, Any]) -> None:
        over = await submit(store, expires_at=NOW + MINUTE, **extra)
        other = await submit(store, scheduled_for=NOW + 1, now=NOW + 1, expires_at=NOW + HOUR)
        plain = await submit(store, scheduled_for=NOW + 2, now=NOW + 2)

        assert await claim_ids(store, now=NOW + MINUTE) == [other, plain]
        assert await status(store, over) is Status.PENDING

    async def test_one_that_has_started_does_not_expire_whatever_becomes_of_it(self, store: Store) -> None:
        claim = await running(store, expires_at=NOW + MINUTE)
        assert (await record(store, claim.job_id)).expires_at is None
        await settle(store, claim.gives_back())
        again = await claim_again(store, claim, now=NOW + HOUR)
        await settle(store, again.fails(now=NOW + HOUR), now=NOW + HOUR)

        assert await store.overdue(NOW + 2 * HOUR, 10) == []
        assert (await record(store, claim.job_id)).expires_at is None

    async def test_one_that_is_retried_by_hand_after_it_expired_may_run(self, store: Store) -> None:
        job = await in_state(store, Status.PENDING, expires_at=NOW + MINUTE)
        await settle(store, _expired(job), now=NOW + MINUTE)

        await retry_by_hand(store, job.job_id, now=NOW + HOUR)

        assert await store.overdue(NOW + 2 * HOUR, 10) == []
        assert await claim_ids(store, now=NOW + 2 * HOUR) == [job.job_id]

    async def test_a_job_that_became_due_and_one_with_another_priority_still_expire(self, store: Store) -> None:
        job_id = await submit(store, scheduled_for=NOW + SECOND, expires_at=NOW + MINUTE)
        await store.promote(NOW + SECOND, 10)
        job = await record(store, job_id)
        assert job.expires_at == NOW + MINUTE
        await settle(store, reprioritise(job, priority=90, by=None, reason=None), now=NOW + SECOND)

        assert await store.overdue(NOW + MINUTE, 10) == [job_id]
        assert await claim_ids(store, now=NOW + MINUTE) == []

    async def test_one_that_a_dependency_has_released_still_expires(self, store: Store) -> None:
        upstream = await running(store)
        job_id = await submit(store, depends_on=(upstream.job_id,), expires_at=NOW + MINUTE)
        await settle(store, upstream.completes())
        assert await status(store, job_id) is Status.PENDING

        assert await store.overdue(NOW + MINUTE, 10) == [job_id]

    async def test_one_that_was_claimed_in_between_is_not_cancelled(self, store: Store) -> None:
        job_id = await submit(store, expires_at=NOW + MINUTE)
        before = await record(store, job_id)
        await claim_one(store, job_id, now=NOW + SECOND)

        assert await store.apply([_expired(before)], NOW + MINUTE) == [Verdict.STALE]

    async def test_its_end_is_told_to_dependents_and_parents(self, store: Store) -> None:
        parent = await running(store)
        child = new_job(parent_job_id=parent.job_id, expires_at=NOW + MINUTE, special=True)
        await store.insert_children(parent.hold, [child], NOW)
        dependent = await submit(store, depends_on=(child.job_id,))

        await settle(store, _expired(await record(store, child.job_id)), now=NOW + MINUTE)
        await quiet(store, now=NOW + MINUTE)

        assert await status(store, dependent) is Status.CANCELLED
        assert await brood(store, parent.job_id) == Brood(1, 0, 0, 1)

    async def test_a_later_submit_with_its_key_gives_it_a_new_time(self, store: Store) -> None:
        first = await _submit_again(store, "1", expires_at=NOW + MINUTE)

        await _submit_again(store, "2", now=NOW + SECOND, expires_at=NOW + HOUR)

        assert (await record(store, first.job_id)).expires_at == NOW + HOUR
        assert await store.overdue(NOW + MINUTE, 10) == []


class TestUpdate:
    @pytest.mark.parametrize("state", [Status.WAITING, Status.SCHEDULED, Status.PENDING, Status.RETRYING])
    async def test_a_job_that_waits_gets_another_payload_and_nothing_else(self, store: Store, state: Status) -> None:
        job = await in_state(store, state, payload='"old"')
        change = update(job, payload='"new"', payload_version=2, by="ada", reason="a typo")

        await settle(store, change, now=NOW + SECOND)

        after = await record(store, job.job_id)
        assert (after.payload, after.payload_version, after.version) == ('"new"', 2, job.version + 1)
        assert (after.status, after.scheduled_for, after.failures) == (state, job.scheduled_for, job.failures)
        last = after.history[-1]
        assert (last.event, last.by, last.reason) == (Event.UPDATE, "ada", "a typo")

    async def test_the_worker_gets_the_new_payload(self, store: Store) -> None:
        job_id = await submit(store, payload='"old"')
        change = update(await record(store, job_id), payload='"new"', payload_version=1, by=None, reason=None)
        await settle(store, change)

        assert (await claim_one(store, job_id)).job.payload == '"new"'

    async def test_a_job_that_was_claimed_in_between_keeps_its_payload(self, store: Store) -> None:
        job_id = await submit(store, payload='"old"')
        change = update(await record(store, job_id), payload='"new"', payload_version=1, by=None, reason=None)
        await claim_one(store, job_id)

        assert await store.apply([change], NOW) == [Verdict.STALE]
        assert (await record(store, job_id)).payload == '"old"'

    async def test_a_newer_version_of_a_payload_is_left_to_workers_that_read_it(self, store: Store) -> None:
        job_id = await submit(store)
        change = update(await record(store, job_id), payload='"new"', payload_version=3, by=None, reason=None)
        await settle(store, change)

        assert await claim_ids(store, versions={"work": 2}) == []
        assert await claim_ids(store, versions={"work": 3}) == [job_id]

    async def test_it_does_not_count_as_an_outcome(self, store: Store) -> None:
        job = await in_state(store, Status.RETRYING)
        before = await store.totals()

        await settle(store, update(job, payload="2", payload_version=1, by=None, reason=None))

        assert await store.totals() == before


class TestRemove:
    @pytest.mark.parametrize("state", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
    async def test_nothing_is_left_of_an_ended_job(self, store: Store, state: Status) -> None:
        job = await in_state(store, state, subject="song-1")
        tallied = (await store.counts())[state.value]

        assert await store.remove(job.job_id, job.version, NOW) is Verdict.APPLIED

        assert await store.get([job.job_id]) == [None]
        assert await store.statuses([job.job_id]) == [None]
        assert (await store.find(Query(subject="song-1"))).items == ()
        assert (await store.counts())[state.value] == tallied - 1
        assert await store.remove(job.job_id, job.version, NOW) is Verdict.GONE

    @pytest.mark.parametrize("state", [Status.WAITING, Status.SCHEDULED, Status.PENDING, Status.PROCESSING])
    async def test_an_active_job_is_not_removed(self, store: Store, state: Status) -> None:
        job = await in_state(store, state)

        assert await store.remove(job.job_id, job.version, NOW) is Verdict.STALE
        assert await status(store, job.job_id) is state

    async def test_one_that_changed_since_it_was_read_is_not_removed(self, store: Store) -> None:
        job = await in_state(store, Status.FAILED)
        await retry_by_hand(store, job.job_id)
        claim = await claim_one(store, job.job_id, slots={job.job_type: 1})
        await settle(store, claim.completes())

        assert await store.remove(job.job_id, job.version, NOW) is Verdict.STALE

    async def test_its_steps_and_history_go_with_it(self, store: Store) -> None:
        claim = await running(store)
        await store.record_step(claim.hold, "charge", "1", NOW)
        await settle(store, claim.completes())

        await store.remove(claim.job_id, (await record(store, claim.job_id)).version, NOW)

        assert await store.step(claim.job_id, "charge") is None
        again = await submit(store, job_id=claim.job_id, own_id=True)
        assert [event.event for event in (await record(store, again)).history] == [Event.SUBMIT]

    async def test_its_dedup_key_is_free_again(self, store: Store) -> None:
        done = await completed(store, dedup_key="k", dedup_until=FOREVER)

        await store.remove(done, (await record(store, done)).version, NOW)

        [answer] = await store.insert([new_job(dedup_key="k")], NOW)
        assert answer.existing is None

    async def test_an_archived_job_is_removed_with_its_key(self, store: Store) -> None:
        job = await archived(store, dedup_key="k", dedup_until=FOREVER)

        assert await store.remove(job.job_id, job.version, NOW) is Verdict.APPLIED

        assert await store.get([job.job_id]) == [None]
        [answer] = await store.insert([new_job(dedup_key="k")], NOW)
        assert answer.existing is None

    async def test_a_job_with_children_stays_until_they_are_gone(self, store: Store) -> None:
        parent = await running(store)
        child = new_job(parent_job_id=parent.job_id, special=True)
        await settle(store, parent.completes(children=(child,)))
        version = (await record(store, parent.job_id)).version
        claim = await claim_one(store, child.job_id)
        await settle(store, claim.completes())

        assert await store.remove(parent.job_id, version, NOW) is Verdict.BLOCKED

        assert await store.remove(child.job_id, (await record(store, child.job_id)).version, NOW) is Verdict.APPLIED
        assert (await store.children(parent.job_id, None, 10)).items == ()
        assert (await record(store, parent.job_id)).children == 0
        assert await store.remove(parent.job_id, version, NOW) is Verdict.APPLIED

    async def test_one_whose_dependents_have_ended_is_removed_and_they_stay(self, store: Store) -> None:
        upstream = await running(store)
        dependent = await submit(store, depends_on=(upstream.job_id,))
        await settle(store, upstream.completes())
        await quiet(store)

        version = (await record(store, upstream.job_id)).version
        assert await store.remove(upstream.job_id, version, NOW) is Verdict.APPLIED

        job = await record(store, dependent)
        assert (job.status, job.dependencies) == (Status.PENDING, (upstream.job_id,))

    async def test_a_dependent_can_be_removed_and_its_dependency_does_not_name_it(self, store: Store) -> None:
        upstream = await submit(store)
        dependent = await submit(store, depends_on=(upstream,))
        [before] = await store.get([dependent])
        assert before is not None
        await settle(store, cancel(before, by=None, reason=None))

        assert await store.remove(dependent, before.version + 1, NOW) is Verdict.APPLIED
        assert (await record(store, upstream)).dependent_jobs == ()
        await settle(store, (await claim_one(store, upstream)).completes())
        await quiet(store)

    async def test_the_removed_are_not_archived_and_others_are_not_touched(self, store: Store) -> None:
        one = await failed(store)
        other = await cancelled(store)

        await store.remove(one, (await record(store, one)).version, NOW)

        assert [job.job_id for job in (await store.find(Query())).items] == [other]


def _expired(job: JobRecord) -> Any:
    change = expire(job, now=NOW + HOUR, by="worker-1")
    assert change is not None
    return change
