"""apply, edge by edge: every legal one works, every illegal one is refused, and every guard guards."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest

from holdfast.errors import HoldfastError, IllegalTransition
from holdfast.lifecycle import (
    TERMINAL,
    Cancelled,
    Discarded,
    Event,
    Outcome,
    Snoozed,
    Status,
    allowed,
    cancel,
    edges,
    manual_retry,
    reschedule,
    rescue,
)
from holdfast.store.conformance.factories import (
    HOUR,
    NOW,
    an_error,
    claim_again,
    claim_ids,
    claim_one,
    completed,
    in_state,
    new_job,
    record,
    request,
    running,
    settle,
    submit,
    transition,
)
from holdfast.store.port import Store
from holdfast.store.types import Verdict

LEGAL = edges()
APPLIED_EDGES = [
    (event, source, target) for event, source, target in LEGAL if source is not None and event is not Event.CLAIM
]


async def _begin(store: Store, event: Event, target: Status) -> str:
    """A job that comes into being by `event` in `target`."""
    match event, target:
        case Event.SUBMIT, Status.WAITING:
            changes: dict[str, Any] = {"depends_on": (await submit(store, job_type="parent"),)}
        case Event.SUBMIT, Status.SCHEDULED:
            changes = {"scheduled_for": NOW + HOUR}
        case Event.REUSE, Status.COMPLETED:
            await completed(store, job_type="same", content_hash="h")
            changes = {"job_type": "same", "content_hash": "h", "reuse_since": 0}
        case _:
            changes = {}
    return await submit(store, **changes)


class TestEdges:
    @pytest.mark.parametrize(("event", "source", "target"), LEGAL)
    async def test_every_edge_of_the_lifecycle_works(
        self, store: Store, event: Event, source: Status | None, target: Status
    ) -> None:
        version = 0
        if source is None:
            job_id = await _begin(store, event, target)
        else:
            before = await in_state(store, source)
            job_id, version = before.job_id, before.version
            if event is Event.CLAIM:
                await claim_ids(store)
            else:
                clears = event is Event.MANUAL_RETRY  # a result belongs to a completed job only
                await settle(store, transition(before, event, target, clear_result=clears))

        after = await record(store, job_id)
        assert (after.status, after.version) == (target, version + 1)
        assert (after.completed_at is not None) == (target in TERMINAL)
        assert (after.lease_expires_at is not None) == (target is Status.PROCESSING)
        last = after.history[-1]
        assert (last.version, last.event, last.source, last.target) == (version + 1, event, source, target)

    @pytest.mark.parametrize("state", Status)
    async def test_every_other_pair_of_event_and_target_is_refused(self, store: Store, state: Status) -> None:
        before = await in_state(store, state)

        for event, target in product(Event, Status):
            if not allowed(event, state, target):
                with pytest.raises(IllegalTransition):
                    await store.apply([transition(before, event, target)], NOW)

        assert await record(store, before.job_id) == before

    @pytest.mark.parametrize("state", Status)
    async def test_an_edge_from_a_state_that_the_job_has_left_is_stale(self, store: Store, state: Status) -> None:
        before = await in_state(store, state)
        moves = [transition(before, event, target, source=source) for event, source, target in APPLIED_EDGES]
        elsewhere = [move for move in moves if move.source is not state]

        assert await store.apply(elsewhere, NOW) == [Verdict.STALE] * len(elsewhere)

        assert await record(store, before.job_id) == before

    async def test_one_illegal_transition_refuses_its_whole_batch(self, store: Store) -> None:
        claim, other = await running(store), await in_state(store, Status.COMPLETED)

        with pytest.raises(IllegalTransition):
            await store.apply([claim.completes(), transition(other, Event.COMPLETE, Status.COMPLETED)], NOW)

        assert (await record(store, claim.job_id)).status is Status.PROCESSING

    async def test_a_claim_is_not_to_be_had_by_apply(self, store: Store) -> None:
        before = await in_state(store, Status.PENDING)

        with pytest.raises(HoldfastError):
            await store.apply([transition(before, Event.CLAIM, Status.PROCESSING)], NOW)

        assert await record(store, before.job_id) == before

    async def test_reschedule_sets_the_next_run(self, store: Store) -> None:
        job = await in_state(store, Status.PENDING)

        await settle(store, reschedule(job, run_at=NOW + HOUR, now=NOW, by="me", reason="later"))
        later = await record(store, job.job_id)
        assert (later.status, later.scheduled_for) == (Status.SCHEDULED, NOW + HOUR)

        await settle(store, reschedule(later, run_at=NOW, now=NOW, by="me", reason="now after all"))
        assert await claim_ids(store) == [job.job_id]

    @pytest.mark.parametrize("state", sorted(TERMINAL))
    async def test_a_manual_retry_begins_a_new_generation(self, store: Store, state: Status) -> None:
        job = await in_state(store, state)

        await settle(store, manual_retry(job, now=NOW + 5, by="me", reason="again"), now=NOW + 5)

        again = await record(store, job.job_id)
        assert (again.status, again.failures, again.snoozes, again.give_backs) == (Status.PENDING, 0, 0, 0)
        assert (again.result, again.completed_at, again.progress, again.stage) == (None, None, 0.0, "")
        assert (again.attempt, again.scheduled_for, again.errors) == (job.attempt, NOW + 5, job.errors)
        [claimed] = await store.claim(request(slots={job.job_type: 1}), NOW + 5)
        assert claimed.attempt == job.attempt + 1

    @pytest.mark.parametrize(("max_attempts", "target"), [(1, Status.FAILED), (2, Status.RETRYING)])
    async def test_a_rescue_counts_a_failure_and_says_that_the_lease_was_lost(
        self, store: Store, max_attempts: int, target: Status
    ) -> None:
        await running(store, lease_micros=0, max_attempts=max_attempts)
        [claim] = await store.expired(NOW, 10)

        await settle(store, rescue(claim, lease=claim.lease_expires_at, now=NOW, reason="worker died", by="w2"))

        job = await record(store, claim.job_id)
        assert (job.status, job.failures, job.attempt, job.progress) == (target, 1, 1, 0.0)
        assert (job.errors[-1].type, job.errors[-1].message) == ("LeaseLost", "worker died")
        assert (job.history[-1].event, job.history[-1].by) == (Event.RESCUE, "w2")

    @pytest.mark.parametrize("changes", [{}, {"concurrency_key": "k", "concurrency_limit": 1}], ids=["plain", "keyed"])
    async def test_a_claim_says_when_the_last_worker_was_lost_until_an_attempt_has_failed_otherwise(
        self, store: Store, changes: dict[str, Any]
    ) -> None:
        first = await running(store, lease_micros=0, max_attempts=9, **changes)
        assert first.job.lost_at is None
        [claim] = await store.expired(NOW, 10)
        await settle(store, rescue(claim, lease=claim.lease_expires_at, now=NOW + 5, reason="died", by="w2"))
        await store.promote(NOW + 5, 10)

        second = await claim_again(store, first, now=NOW + 5)
        repeat = request(slots={first.job.job_type: 1}, limit=1, token=second.token, repeat=True)
        assert [job.lost_at for job in await store.claim(repeat, NOW + 5)] == [NOW + 5]
        await settle(store, second.ends(Snoozed(0, costs=False), now=NOW + 6), now=NOW + 6)
        await store.promote(NOW + 6, 10)
        third = await claim_again(store, first, now=NOW + 6)
        await settle(store, third.gives_back(), now=NOW + 7)
        fourth = await claim_again(store, first, now=NOW + 7)
        await settle(store, fourth.fails(now=NOW + 8), now=NOW + 8)
        await store.promote(NOW + HOUR, 10)
        fifth = await claim_again(store, first, now=NOW + HOUR)

        assert [each.job.lost_at for each in (second, third, fourth, fifth)] == [NOW + 5] * 3 + [None]
        assert (fifth.job.failures, fifth.job.snoozes) == (2, 0)


OUTCOMES: list[Outcome] = [Discarded(an_error()), Cancelled("no need")]


class TestGuards:
    @pytest.mark.parametrize("guard", [{"attempt": 2}, {"token": "other"}, {"version": 9}, {"lease": 9}], ids=str)
    @pytest.mark.parametrize("settlement", ["completes", "fails", "snoozes", "gives_back"])
    async def test_a_settlement_whose_guard_does_not_hold_is_stale_and_changes_nothing(
        self, store: Store, settlement: str, guard: dict[str, Any]
    ) -> None:
        claim = await running(store)
        before = await record(store, claim.job_id)

        wrong = msgspec.structs.replace(getattr(claim, settlement)(), **guard)
        assert await store.apply([wrong], NOW) == [Verdict.STALE]

        assert await record(store, claim.job_id) == before

    @pytest.mark.parametrize("guard", ["attempt", "version", "lease"])
    async def test_a_rescue_whose_guard_does_not_hold_is_stale_and_changes_nothing(
        self, store: Store, guard: str
    ) -> None:
        await running(store, lease_micros=0)
        [expired] = await store.expired(NOW, 10)
        before = await record(store, expired.job_id)

        right = rescue(expired, lease=expired.lease_expires_at, now=NOW, reason="died", by=None)
        wrong = msgspec.structs.replace(right, **{guard: 9})
        assert await store.apply([wrong], NOW) == [Verdict.STALE]

        assert await record(store, expired.job_id) == before

    @pytest.mark.parametrize("state", [Status.PENDING, Status.PROCESSING, Status.WAITING])
    async def test_an_editor_who_saw_an_older_version_is_refused(self, store: Store, state: Status) -> None:
        before = await in_state(store, state)
        late = msgspec.structs.replace(cancel(before, by="me", reason=None), version=before.version - 1)

        assert await store.apply([late], NOW) == [Verdict.STALE]

        assert await record(store, before.job_id) == before

    async def test_guards_that_hold_let_a_settlement_through(self, store: Store) -> None:
        claim = await running(store)

        exact = {"version": claim.job.version, "lease": claim.job.lease_expires_at}
        await settle(store, msgspec.structs.replace(claim.completes(), **exact))

    async def test_a_job_that_does_not_exist_is_gone(self, store: Store) -> None:
        ghost = msgspec.structs.replace((await running(store)).completes(), job_id=new_job().job_id)

        assert await store.apply([ghost], NOW) == [Verdict.GONE]

    async def test_a_stale_worker_cannot_finish_a_job_that_was_claimed_again(self, store: Store) -> None:
        stalled = await running(store, lease_micros=0)
        [expired] = await store.expired(NOW, 10)
        await settle(store, rescue(expired, lease=expired.lease_expires_at, now=NOW, reason="stalled", by=None))
        await store.promote(NOW, 10)
        current = await claim_again(store, stalled)
        before = await record(store, stalled.job_id)

        assert await store.apply([stalled.completes('"late"')], NOW) == [Verdict.STALE]
        assert await record(store, stalled.job_id) == before

        await settle(store, current.completes('"right"'))
        assert (await record(store, stalled.job_id)).result == '"right"'

    async def test_the_right_attempt_with_the_wrong_token_is_refused_after_a_manual_retry_too(
        self, store: Store
    ) -> None:
        first = await running(store)
        await settle(store, first.completes())
        await settle(store, manual_retry(await record(store, first.job_id), now=NOW, by=None, reason=None))

        assert await store.apply([first.completes()], NOW) == [Verdict.STALE]
        assert (await record(store, first.job_id)).status is Status.PENDING

    async def test_a_completion_after_a_cancel_is_stale(self, store: Store) -> None:
        claim = await running(store)
        await settle(store, cancel(await record(store, claim.job_id), by="me", reason="enough"))

        assert await store.apply([claim.completes()], NOW) == [Verdict.STALE]

        job = await record(store, claim.job_id)
        assert (job.status, job.result) == (Status.CANCELLED, None)

    async def test_a_cancel_after_a_completion_is_stale(self, store: Store) -> None:
        claim = await running(store)
        seen = await record(store, claim.job_id)
        await settle(store, claim.completes())

        assert await store.apply([cancel(seen, by="me", reason=None)], NOW) == [Verdict.STALE]
        assert (await record(store, claim.job_id)).status is Status.COMPLETED

    async def test_a_mixed_batch_answers_each_in_order(self, store: Store) -> None:
        good, failing, lost, last = [await running(store) for _ in range(4)]
        await settle(store, lost.gives_back())
        await claim_one(store, lost.job_id, slots={lost.job.job_type: 1})
        ghost = msgspec.structs.replace(good.completes(), job_id=new_job().job_id)

        verdicts = await store.apply(
            [good.completes(), lost.completes(), ghost, failing.fails(), last.completes()], NOW
        )

        applied, stale, gone = Verdict.APPLIED, Verdict.STALE, Verdict.GONE
        assert verdicts == [applied, stale, gone, applied, applied]
        jobs = [await record(store, claim.job_id) for claim in (good, lost, failing, last)]
        assert [job.status for job in jobs] == [
            Status.COMPLETED,
            Status.PROCESSING,
            Status.RETRYING,
            Status.COMPLETED,
        ]

    @pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
    async def test_a_handler_may_end_its_job_for_good(self, store: Store, outcome: Outcome) -> None:
        claim = await running(store)

        await settle(store, claim.ends(outcome))

        assert (await record(store, claim.job_id)).status in TERMINAL
