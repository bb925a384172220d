"""Conformance: every transition and guard, races between two stores, and manual retries that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from itertools import permutations, product
from typing import Any

import msgspec
import pytest

from backstay.clock import to_datetime
from backstay.core.dependencies import Brood, TriggerRule
from backstay.core.event_details import Dependency, DueTime, EventDetails, Priority, Rerun, RerunBelow, Subtree
from backstay.core.lifecycle import (
    Cancelled,
    Discarded,
    Outcome,
    allowed,
    cancel,
    edges,
    manual_retry,
    reschedule,
    rescue,
)
from backstay.core.port import Store
from backstay.core.records import Query, Verdict
from backstay.core.states import TERMINAL, Event, Status
from backstay.errors import BackstayError, IllegalTransition
from backstay.testing.conformance.factories import (
    HOUR,
    NOW,
    Claim,
    an_error,
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
    transition,
)
from backstay.testing.conformance.test_children import brood

LEGAL = edges()
APPLIED_EDGES = [
    (event, source, target) for event, source, target in LEGAL if source is not None and event is not Event.CLAIM
]


async def _begin(store: Store, event: Event, target: Status) -> str:
    """Create a job by `event`, in the state `target`."""
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


_OTHER = "0190b5c8-7b11-7a43-8a58-4a7d04a6f1aa"
DETAILS: list[Any] = [
    Rerun(_OTHER, 3),
    Rerun(_OTHER),
    RerunBelow(_OTHER),
    Subtree(_OTHER),
    Dependency(_OTHER, Status.CANCELLED),
    DueTime(to_datetime(NOW)),
    Priority(75, 50),
]


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

        with pytest.raises(BackstayError):
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

    @pytest.mark.parametrize("details", DETAILS, ids=lambda details: type(details).__name__)
    @pytest.mark.parametrize("forget_steps", [True, False], ids=["forgets", "keeps"])
    async def test_history_has_the_details_of_an_event_besides_its_reason(
        self, store: Store, details: EventDetails, forget_steps: bool
    ) -> None:
        job = await in_state(store, Status.FAILED)
        words = f"run again from {DETAILS[0].job_id}, version 7, without recorded steps"

        edit = manual_retry(job, now=NOW, by="me", reason=words, details=details, forget_steps=forget_steps)
        await settle(store, edit)
        await claim_ids(store, slots={job.job_type: 1})

        again = await record(store, job.job_id)
        event = next(each for each in again.history if each.event is Event.MANUAL_RETRY)
        assert (event.reason, event.forget_steps, event.details) == (words, forget_steps, details)
        others = [each for each in again.history if each is not event]
        assert all((each.forget_steps, each.details) == (False, None) for each in others)

    async def test_an_error_of_a_handler_is_no_lost_lease_whatever_its_name(self, store: Store) -> None:
        claim = await running(store, max_attempts=9)

        await settle(store, claim.fails("LeaseLost", "of my boat", now=NOW), now=NOW)
        await store.promote(NOW + HOUR, 10)

        again = await claim_again(store, claim, now=NOW + HOUR)
        job = await record(store, claim.job_id)
        assert (job.error_type, job.last_error) == ("LeaseLost", "LeaseLost: of my boat")
        assert again.job.lost_at is job.lost_at is None

    async def test_dead_letters_are_told_apart_by_their_type_and_not_by_their_words(self, store: Store) -> None:
        types = ("ChildFailed", "ValueError", "A: B")
        for error_type in types:
            await failed(store, error_type, "ChildFailed: 1 child ended", job_type=f"t.{types.index(error_type)}")

        assert sorted((each.job_type, each.error_type) for each in await store.dead(10)) == [
            (f"t.{place}", error_type) for place, error_type in enumerate(types)
        ]
        assert {job.error_type for job in (await store.find(Query(status=Status.FAILED))).items} == set(types)

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
        await settle(store, second.gives_back(), now=NOW + 6)
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

    @pytest.mark.parametrize("has_parent", [False, True])
    @pytest.mark.parametrize("is_first", [False, True])
    async def test_a_stale_attempt_is_refused_beside_its_successor_in_one_call(
        self, store: Store, is_first: bool, has_parent: bool
    ) -> None:
        """A worker that lost a job can have claimed it again before its first run ends."""
        parent = (await running(store)).job_id if has_parent else None
        stalled = await running(store, parent_job_id=parent)
        await settle(store, stalled.gives_back())
        current = await claim_again(store, stalled)
        both = [(stalled.completes('"late"'), Verdict.STALE), (current.completes('"right"'), Verdict.APPLIED)]
        asked = both if is_first else both[::-1]

        assert await store.apply([each for each, _ in asked], NOW) == [verdict for _, verdict in asked]
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


CLAIMERS = 64
ORDERS = list(permutations(["complete", "rescue", "cancel", "extend"]))
WINNERS = {Event.COMPLETE: Status.COMPLETED, Event.RESCUE: Status.RETRYING, Event.CANCEL: Status.CANCELLED}


class TestRaces:
    async def test_of_sixty_four_claimers_one_gets_the_job(self, store: Store, second_store: Store) -> None:
        job_id = await submit(store)

        taken = await asyncio.gather(
            *(claim_ids((store, second_store)[i % 2], worker_id=f"w{i}", limit=1) for i in range(CLAIMERS))
        )

        assert sorted(taken) == [[]] * (CLAIMERS - 1) + [[job_id]]
        assert (await record(store, job_id)).attempt == 1

    async def test_a_claimer_that_asks_for_many_gets_no_more_than_asked(
        self, store: Store, second_store: Store
    ) -> None:
        await store.insert([], NOW)
        for _ in range(5):
            await submit(store)

        taken = await asyncio.gather(*(claim_ids((store, second_store)[i % 2], limit=2) for i in range(8)))

        assert sorted(len(each) for each in taken) == [0, 0, 0, 0, 0, 1, 2, 2]

    async def test_of_two_stores_that_settle_one_wins(self, store: Store, second_store: Store) -> None:
        for _ in range(10):
            claim = await running(store)
            stranger = msgspec.structs.replace(claim, token="stranger")

            verdicts = await asyncio.gather(
                second_store.apply([stranger.completes('"theirs"')], NOW),
                store.apply([claim.completes('"ours"')], NOW),
                second_store.apply([stranger.fails()], NOW),
            )

            assert [each for [each] in verdicts] == [Verdict.STALE, Verdict.APPLIED, Verdict.STALE]
            assert (await record(store, claim.job_id)).result == '"ours"'

    async def test_a_settlement_sent_through_both_stores_has_one_effect(
        self, store: Store, second_store: Store
    ) -> None:
        for _ in range(10):
            claim = await running(store)

            verdicts = await asyncio.gather(
                *((store, second_store)[i % 2].apply([claim.completes()], NOW) for i in range(6))
            )

            assert verdicts == [[Verdict.APPLIED]] * 6
            assert (await record(store, claim.job_id)).version == 3

    @pytest.mark.parametrize("order", ORDERS, ids="-".join)
    async def test_of_complete_rescue_cancel_and_extend_exactly_one_ends_the_claim(
        self, store: Store, second_store: Store, order: tuple[str, ...]
    ) -> None:
        for swapped in (False, True):
            claim = await running(store, lease_micros=0)
            seen = await record(store, claim.job_id)
            [expired] = [each for each in await store.expired(NOW, 10) if each.job_id == claim.job_id]
            stores = (second_store, store) if swapped else (store, second_store)
            contenders = {
                "complete": claim.completes(),
                "rescue": rescue(expired, lease=expired.lease_expires_at, now=NOW, reason="died", by=None),
                "cancel": cancel(seen, by=None, reason=None),
            }

            calls: list[Awaitable[list[Verdict]]] = [
                stores[i % 2].extend([claim.hold], NOW + HOUR, NOW)
                if name == "extend"
                else stores[i % 2].apply([contenders[name]], NOW)
                for i, name in enumerate(order)
            ]
            verdicts = dict(zip(order, await asyncio.gather(*calls), strict=True))

            winners = [name for name in contenders if verdicts[name] == [Verdict.APPLIED]]
            job = await record(store, claim.job_id)
            assert len(winners) == 1
            assert len(job.history) == job.version == 3
            assert job.history[-1].event == winners[0]
            assert job.status is WINNERS[job.history[-1].event]
            assert (job.result is not None) == (winners == ["complete"])
            assert job.lease_expires_at is None

    async def test_of_many_rescuers_one_counts_the_failure(self, store: Store, second_store: Store) -> None:
        await running(store, lease_micros=0)
        [expired] = await store.expired(NOW, 10)
        attempt = rescue(expired, lease=expired.lease_expires_at, now=NOW, reason="died", by=None)

        verdicts = await asyncio.gather(*((store, second_store)[i % 2].apply([attempt], NOW) for i in range(8)))

        assert sum(each == [Verdict.APPLIED] for each in verdicts) == 1
        assert (await record(store, expired.job_id)).failures == 1

    async def test_of_many_editors_one_wins(self, store: Store, second_store: Store) -> None:
        job = await in_state(store, Status.PENDING)
        edits = [cancel(job, by=f"editor-{i}", reason=None) for i in range(8)]

        verdicts = await asyncio.gather(
            *((store, second_store)[i % 2].apply([edit], NOW) for i, edit in enumerate(edits))
        )

        winner = verdicts.index([Verdict.APPLIED])
        assert verdicts.count([Verdict.APPLIED]) == 1
        assert (await record(store, job.job_id)).history[-1].by == f"editor-{winner}"

    async def test_a_cancel_and_a_claim_leave_one_of_them_standing(self, store: Store, second_store: Store) -> None:
        for _ in range(10):
            job = await in_state(store, Status.PENDING)

            [verdict], taken = await asyncio.gather(
                second_store.apply([cancel(job, by=None, reason=None)], NOW), claim_ids(store)
            )

            assert (verdict is Verdict.APPLIED) == (taken == [])

    async def test_parents_that_end_at_once_release_their_child_once(self, store: Store, second_store: Store) -> None:
        parents = [await running(store) for _ in range(8)]
        child = await submit(store, depends_on=tuple(parent.job_id for parent in parents))

        await asyncio.gather(
            *((store, second_store)[i % 2].apply([parent.completes()], NOW) for i, parent in enumerate(parents))
        )

        job = await record(store, child)
        assert (job.status, job.version) == (Status.PENDING, 2)


COMPLETED, FAILED, CANCELLED = Status.COMPLETED, Status.FAILED, Status.CANCELLED
ALL_SUCCESS, ALL_DONE, ONE_SUCCESS, ONE_FAILED, NONE_FAILED = TriggerRule


async def again(store: Store, job_id: str, *, rewait: bool = True) -> Verdict:
    retry = manual_retry(await record(store, job_id), now=NOW, by="me", reason=None, rewait=rewait)
    [verdict] = await store.apply([retry], NOW)
    return verdict


async def after(store: Store, *ends: Status, **changes: Any) -> tuple[list[Claim], str]:
    """Return jobs that ended in these states, and a job that depended on them and was cancelled itself."""
    parents = [await running(store) for _ in ends]
    depends_on = tuple(parent.job_id for parent in parents)
    job_id = await cancelled(store, depends_on=depends_on, **changes)
    await settle(store, *(parent.ends_as(end) for parent, end in zip(parents, ends, strict=True)))
    return parents, job_id


class TestWaitingAgain:
    async def test_it_waits_for_what_runs_again(self, store: Store) -> None:
        [parent], job_id = await after(store, FAILED)
        await retry_by_hand(store, parent.job_id)

        assert await again(store, job_id) is Verdict.APPLIED

        job = await record(store, job_id)
        assert (job.status, job.completed_at, job.awaits) == (Status.WAITING, None, None)
        assert (job.history[-1].event, job.history[-1].target) == (Event.MANUAL_RETRY, Status.WAITING)
        await settle(store, (await claim_again(store, parent)).completes())
        assert await claim_ids(store) == [job_id]
        assert (await record(store, job_id)).history[-2].event is Event.RELEASE

    async def test_with_all_completed_it_runs_at_once(self, store: Store) -> None:
        _, job_id = await after(store, COMPLETED, COMPLETED)

        assert await again(store, job_id) is Verdict.APPLIED

        assert await status(store, job_id) is Status.PENDING

    async def test_it_counts_only_those_that_run_again(self, store: Store) -> None:
        [kept, first, second], job_id = await after(store, COMPLETED, FAILED, CANCELLED)
        for parent in (first, second):
            await retry_by_hand(store, parent.job_id)
        await again(store, job_id)

        for parent, stands in ((first, Status.WAITING), (second, Status.PENDING)):
            await settle(store, (await claim_again(store, parent)).completes())
            assert await status(store, job_id) is stands
        assert await status(store, kept.job_id) is COMPLETED

    async def test_what_fails_again_ends_it_again(self, store: Store) -> None:
        [parent], job_id = await after(store, FAILED, on_dependency_failure="fail")
        await retry_by_hand(store, parent.job_id)
        await again(store, job_id)

        await settle(store, (await claim_again(store, parent)).ends_as(FAILED))

        job = await record(store, job_id)
        assert (job.status, job.history[-1].event) == (FAILED, Event.RELEASE)

    @pytest.mark.parametrize("end", [FAILED, CANCELLED])
    async def test_what_stays_ended_badly_keeps_it_from_running(self, store: Store, end: Status) -> None:
        [bad, active], job_id = await after(store, end, FAILED)
        await retry_by_hand(store, active.job_id)
        before = await record(store, job_id)

        assert await again(store, job_id) is Verdict.BLOCKED

        assert await record(store, job_id) == before
        assert await status(store, bad.job_id) is end

    async def test_one_that_may_not_wait_is_refused(self, store: Store) -> None:
        [parent], job_id = await after(store, FAILED)
        await retry_by_hand(store, parent.job_id)

        assert await again(store, job_id, rewait=False) is Verdict.BLOCKED

    @pytest.mark.parametrize(
        ("rule", "ends", "stands"),
        [
            (ALL_DONE, (FAILED, CANCELLED), Status.PENDING),
            (NONE_FAILED, (COMPLETED, CANCELLED), Status.PENDING),
            (NONE_FAILED, (CANCELLED, FAILED), None),
            (ONE_SUCCESS, (FAILED, COMPLETED), Status.PENDING),
            (ONE_SUCCESS, (FAILED, CANCELLED), None),
            (ALL_SUCCESS, (COMPLETED, CANCELLED), None),
        ],
    )
    @pytest.mark.parametrize("rewait", [True, False])
    async def test_each_rule_says_whether_it_may(
        self, store: Store, rule: TriggerRule, ends: tuple[Status, ...], stands: Status | None, rewait: bool
    ) -> None:
        _, job_id = await after(store, *ends, trigger_rule=rule)

        verdict = await again(store, job_id, rewait=rewait)

        assert verdict is (Verdict.BLOCKED if stands is None else Verdict.APPLIED)
        assert await status(store, job_id) is (stands or CANCELLED)

    @pytest.mark.parametrize(
        ("rule", "ends", "stands", "then"),
        [
            (ALL_DONE, (FAILED, FAILED), Status.WAITING, Status.PENDING),
            (NONE_FAILED, (CANCELLED, FAILED), Status.WAITING, CANCELLED),
            (ONE_SUCCESS, (COMPLETED, FAILED), Status.PENDING, Status.PENDING),
            (ONE_SUCCESS, (CANCELLED, FAILED), Status.WAITING, CANCELLED),
        ],
    )
    async def test_each_rule_says_for_what_it_waits_again(
        self, store: Store, rule: TriggerRule, ends: tuple[Status, ...], stands: Status, then: Status
    ) -> None:
        [_, last], job_id = await after(store, *ends, trigger_rule=rule)
        await retry_by_hand(store, last.job_id)

        assert await again(store, job_id) is Verdict.APPLIED
        assert await status(store, job_id) is stands
        await settle(store, (await claim_again(store, last)).ends_as(FAILED))

        assert await status(store, job_id) is then

    async def test_a_line_of_them_runs_again_in_its_order(self, store: Store) -> None:
        first = await running(store, job_type="a")
        second = await submit(store, job_type="b", depends_on=(first.job_id,))
        third = await submit(store, job_type="c", depends_on=(second,))
        await settle(store, first.ends_as(FAILED))
        assert await store.statuses([second, third]) == [CANCELLED, CANCELLED]

        for job_id in (first.job_id, second, third):
            assert await again(store, job_id) is Verdict.APPLIED

        for job_id, kind in ((first.job_id, "a"), (second, "b"), (third, "c")):
            every = {"a": 9, "b": 9, "c": 9}
            claim = await claim_one(store, job_id, slots=every)
            assert claim.job.job_type == kind
            await settle(store, claim.completes())

    async def test_a_whole_line_may_be_asked_for_in_one_batch(self, store: Store) -> None:
        first = await running(store)
        second = await submit(store, depends_on=(first.job_id,))
        await settle(store, first.ends_as(FAILED))
        records = [await record(store, job_id) for job_id in (first.job_id, second)]

        await settle(store, *(manual_retry(job, now=NOW, by=None, reason=None, rewait=True) for job in records))

        assert await store.statuses([first.job_id, second]) == [Status.PENDING, Status.WAITING]

    async def test_a_child_that_waits_again_is_open_again(self, store: Store) -> None:
        parent = await running(store)
        first = await running(store, parent_job_id=parent.job_id)
        second = await submit(store, parent_job_id=parent.job_id, depends_on=(first.job_id,))
        await settle(store, first.ends_as(FAILED))
        assert await brood(store, parent.job_id) == Brood(2, 0, 1, 1)

        await again(store, first.job_id)
        await again(store, second)

        assert await brood(store, parent.job_id) == Brood(2, 2)

    async def test_one_that_joined_an_identical_job_does_not_wait_for_that(self, store: Store) -> None:
        leader = await running(store, job_type="embed", content_hash="h")
        joined = await submit(store, job_type="embed", content_hash="h", reuse_since=0)
        await settle(store, leader.completes())
        await retry_by_hand(store, leader.job_id)

        assert await again(store, joined) is Verdict.APPLIED

        assert await status(store, joined) is Status.PENDING

    async def test_one_whose_key_has_gone_to_another_is_refused(self, store: Store) -> None:
        parent = await running(store)
        first = await cancelled(store, depends_on=(parent.job_id,), dedup_key="k")
        await submit(store, dedup_key="k")

        assert await again(store, first) is Verdict.TAKEN

    async def test_it_waits_again_for_many(self, store: Store) -> None:
        parents, job_id = await after(store, *[FAILED] * 45)
        for parent in parents:
            await retry_by_hand(store, parent.job_id)

        assert await again(store, job_id) is Verdict.APPLIED
        await quiet(store)
        claims = [await claim_again(store, parent) for parent in parents]
        await settle(store, *(claim.completes() for claim in claims[:-1]))
        assert await status(store, job_id) is Status.WAITING
        await settle(store, claims[-1].completes())

        assert await status(store, job_id) is Status.PENDING

    async def test_a_parent_that_has_waited_for_its_children_waits_again_for_what_it_depends_on(
        self, store: Store
    ) -> None:
        first = await completed(store)
        parent = await running(store, depends_on=(first,))
        await running(store, parent_job_id=parent.job_id)
        await settle(store, parent.ends_as(FAILED))
        await retry_by_hand(store, first)

        assert await again(store, parent.job_id) is Verdict.APPLIED

        assert await status(store, parent.job_id) is Status.WAITING

    async def test_what_ended_badly_and_is_gone_for_long_counts_as_it_ended(self, store: Store) -> None:
        bad = await archived(store, FAILED)
        job_id = await submit(store, depends_on=(bad.job_id,))

        assert await again(store, job_id) is Verdict.BLOCKED
