"""Conformance: settlements, writes of a claim's holder, and edits of priority and schedule."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from backstay.clock import to_datetime
from backstay.core.event_details import Tick
from backstay.core.lifecycle import (
    Cancelled,
    Completed,
    Discarded,
    GivenBack,
    Outcome,
    Raised,
    RetryAsked,
    Snoozed,
    cancel,
    manual_retry,
    reprioritise,
    reschedule,
    rescue,
    skip_tick,
)
from backstay.core.port import Store
from backstay.core.records import Hold, Note, Promoted, Signal, Transition, Verdict
from backstay.core.states import ACTIVE, Event, Status
from backstay.core.waits import StepKind
from backstay.errors import IllegalTransition
from backstay.limits import ERRORS_KEPT_MAX, HISTORY_HEAD, HISTORY_SLACK, HISTORY_TAIL
from backstay.testing.conformance.factories import (
    HOUR,
    NOW,
    SECOND,
    Claim,
    an_error,
    claim_again,
    claim_ids,
    in_state,
    new_job,
    record,
    retry_by_hand,
    running,
    settle,
    status,
    submit,
    submit_many,
)
from backstay.testing.conformance.test_read import SignalRecorder

OUTCOMES: list[Outcome] = [
    Completed("1"),
    Completed(result_artifact='{"uri":"x"}'),
    Raised(an_error()),
    RetryAsked(an_error(), 5 * SECOND),
    Snoozed(HOUR),
    GivenBack("shutting down"),
    Discarded(an_error()),
    Cancelled("no need"),
]


def _name(outcome: Outcome) -> str:
    return type(outcome).__name__


class TestSettle:
    async def test_the_reason_of_a_completion_is_in_its_history(self, store: Store) -> None:
        claim = await running(store)

        await settle(store, msgspec.structs.replace(claim.completes(), reason="found in the cache"))

        assert (await record(store, claim.job_id)).history[-1].reason == "found in the cache"

    async def test_a_completion_stores_its_result_and_its_event(self, store: Store) -> None:
        claim = await running(store)

        await settle(store, claim.completes('{"text":"snö ☃"}', now=NOW + 7), now=NOW + 7)

        job = await record(store, claim.job_id)
        assert (job.status, job.result, job.version) == (Status.COMPLETED, '{"text":"snö ☃"}', 3)
        assert (job.progress, job.stage, job.completed_at, job.processing_micros) == (
            1.0,
            "complete",
            NOW + 7,
            7,
        )
        assert (job.lease_expires_at, job.worker_id) == (None, "worker-1")
        last = job.history[-1]
        assert (last.version, last.at, last.event, last.attempt, last.by) == (
            3,
            NOW + 7,
            Event.COMPLETE,
            1,
            "worker-1",
        )

    @pytest.mark.parametrize("result", ["null", '""', "0", "[]", '"1"', None])
    async def test_a_small_result_comes_back_byte_by_byte(self, store: Store, result: str | None) -> None:
        claim = await running(store)

        await settle(store, claim.completes(result))

        assert (await record(store, claim.job_id)).result == result

    async def test_a_completion_stores_logs_metrics_and_where_a_large_result_lies(self, store: Store) -> None:
        claim = await running(store)
        extras: dict[str, Any] = {"logs": '["a"]', "log_location": "/log", "metrics": '{"m":1}'}

        await settle(store, claim.ends(Completed(result_artifact='{"uri":"x"}'), **extras))

        job = await record(store, claim.job_id)
        assert (job.result, job.result_artifact) == (None, '{"uri":"x"}')
        assert (job.logs, job.log_location, job.metrics) == ('["a"]', "/log", '{"m":1}')

    async def test_a_completion_with_only_a_log_location_stores_it(self, store: Store) -> None:
        claim = await running(store)

        await settle(store, claim.completes(log_location="/log"))

        assert (await record(store, claim.job_id)).log_location == "/log"

    async def test_a_retry_counts_the_failure_and_waits(self, store: Store) -> None:
        claim = await running(store)

        await settle(store, claim.fails("KeyError", "x", now=NOW + 1), now=NOW + 1)

        job = await record(store, claim.job_id)
        assert (job.status, job.failures, job.scheduled_for) == (Status.RETRYING, 1, NOW + 1 + 60 * SECOND)
        assert (job.last_error, job.history[-1].reason) == ("KeyError: x", "KeyError: x")

    async def test_the_last_failure_is_a_dead_letter(self, store: Store) -> None:
        claim = await running(store, max_attempts=1)

        await settle(store, claim.fails())

        job = await record(store, claim.job_id)
        assert (job.status, job.failures, job.stage) == (Status.FAILED, 1, "error")
        assert job.history[-1].event is Event.EXHAUST

    async def test_a_snooze_sets_the_next_run_and_counts_no_failure(self, store: Store) -> None:
        claim = await running(store)

        await settle(store, claim.snoozes(HOUR))

        job = await record(store, claim.job_id)
        assert (job.status, job.scheduled_for) == (Status.SCHEDULED, NOW + HOUR)
        assert (job.snoozes, job.failures) == (1, 0)

    async def test_a_job_that_is_given_back_is_claimable_at_once(self, store: Store) -> None:
        claim = await running(store)

        await settle(store, claim.gives_back())

        again = await claim_again(store, claim)
        assert (again.job.attempt, again.job.failures, again.job.give_backs) == (2, 0, 1)

    @pytest.mark.parametrize("outcome", OUTCOMES, ids=_name)
    async def test_a_repeated_settlement_is_answered_applied_and_has_one_effect(
        self, store: Store, second_store: Store, outcome: Outcome
    ) -> None:
        claim = await running(store)
        settlement = claim.ends(outcome)
        await settle(store, settlement)
        before = await record(store, claim.job_id)

        assert await store.apply([settlement], NOW + 1) == [Verdict.APPLIED]
        assert await second_store.apply([settlement, settlement], NOW + 2) == [Verdict.APPLIED] * 2

        assert await record(store, claim.job_id) == before

    @pytest.mark.parametrize("outcome", OUTCOMES, ids=_name)
    async def test_a_settlement_named_twice_in_a_batch_has_one_effect(self, store: Store, outcome: Outcome) -> None:
        claim = await running(store)
        settlement = claim.ends(outcome)

        assert await store.apply([settlement, settlement], NOW) == [Verdict.APPLIED] * 2

        assert (await record(store, claim.job_id)).version == 3

    async def test_a_retry_that_was_promoted_since_is_still_our_own(self, store: Store) -> None:
        claim = await running(store)
        settlement = claim.ends(RetryAsked(an_error(), 0))
        await settle(store, settlement)
        await store.promote(NOW, 10)

        assert await store.apply([settlement], NOW) == [Verdict.APPLIED]
        assert (await record(store, claim.job_id)).version == 4

    async def test_a_second_settlement_that_says_something_else_is_stale(self, store: Store) -> None:
        claim = await running(store)
        await settle(store, claim.completes())
        before = await record(store, claim.job_id)

        assert await store.apply([claim.fails()], NOW) == [Verdict.STALE]
        assert await store.apply([claim.gives_back()], NOW) == [Verdict.STALE]

        assert await record(store, claim.job_id) == before

    async def test_no_reader_sees_a_completion_without_its_result_and_event(
        self, store: Store, second_store: Store
    ) -> None:
        claims = [await running(store) for _ in range(20)]
        ids = [claim.job_id for claim in claims]

        reading = [asyncio.ensure_future(second_store.get(ids)) for _ in range(20)]
        await asyncio.gather(*(store.apply([claim.completes()], NOW) for claim in claims))

        seen = [job for read in await asyncio.gather(*reading) for job in read if job is not None]
        assert len(seen) == 400
        for job in seen:
            assert job.version == job.history[-1].version
            assert job.status is job.history[-1].target
            assert (job.result is not None) == (job.status is Status.COMPLETED)

    async def test_a_large_batch_is_applied_in_one_go(self, store: Store) -> None:
        claims = [await running(store, job_type="bulk") for _ in range(50)]

        await settle(store, *(claim.completes(f"{i}") for i, claim in enumerate(claims)))

        for i, claim in enumerate(claims):
            assert (await record(store, claim.job_id)).result == str(i)

    async def test_nothing_is_an_answer_to_nothing(self, store: Store) -> None:
        assert await store.apply([], NOW) == []


class TestErrors:
    async def test_a_job_keeps_its_last_five_errors(self, store: Store) -> None:
        claim = await running(store, max_attempts=10)
        for i in range(7):
            now = NOW + i * HOUR
            await settle(store, claim.fails("Oops", str(i), now=now), now=now)
            await store.promote(now + HOUR, 10)
            claim = await claim_again(store, claim, now=now + HOUR)

        job = await record(store, claim.job_id)
        assert [error.message for error in job.errors] == ["2", "3", "4", "5", "6"]
        assert [error.attempt for error in job.errors] == [3, 4, 5, 6, 7]
        assert len(job.errors) == ERRORS_KEPT_MAX
        assert (job.last_error, job.failures) == ("Oops: 6", 7)

    async def test_an_error_is_kept_as_it_was_told(self, store: Store) -> None:
        claim = await running(store)
        error = an_error("Ünïcode", 'quotes " and \\ and\nlines ☃', claim.job.attempt)

        await settle(store, claim.ends(Raised(error)))

        assert (await record(store, claim.job_id)).errors == (error,)


class TestHistory:
    async def test_versions_count_on_without_a_gap(self, store: Store) -> None:
        claim = await running(store)
        for settlement in (claim.gives_back, claim.fails, claim.snoozes):
            current = claim if settlement == claim.gives_back else await claim_again(store, claim, now=NOW + HOUR)
            await settle(store, getattr(current, settlement.__name__)(), now=NOW + HOUR)
            await store.promote(NOW + 3 * HOUR, 10)

        job = await record(store, claim.job_id)
        assert [event.version for event in job.history] == list(range(1, job.version + 1))
        for earlier, later in pairwise(job.history):
            assert later.source is earlier.target

    @pytest.mark.parametrize("offset", [0, 1, 2])
    async def test_a_long_history_keeps_its_beginning_and_its_end_and_tells_the_gap(
        self, store: Store, offset: int
    ) -> None:
        claim = await running(store)
        for i in range(110):  # three events each, shifted, so that any of them may be the one beyond the limit
            await settle(store, _leaves(claim, Event.GIVE_BACK if i < offset else Event.SNOOZE))
            await store.promote(NOW, 10)
            claim = await claim_again(store, claim)

        job = await record(store, claim.job_id)
        versions = [event.version for event in job.history]
        assert job.version > HISTORY_HEAD + HISTORY_TAIL + HISTORY_SLACK
        assert versions[:HISTORY_HEAD] == list(range(1, HISTORY_HEAD + 1))
        assert versions[-HISTORY_TAIL:] == list(range(job.version - HISTORY_TAIL + 1, job.version + 1))
        assert versions == sorted(set(versions))
        assert len(versions) == HISTORY_HEAD + HISTORY_TAIL


def _leaves(claim: Claim, event: Event) -> Transition:
    """Return a settlement without the caps of lifecycle.decide."""
    return Transition(
        job_id=claim.job_id,
        event=event,
        source=Status.PROCESSING,
        target=Status.PENDING if event is Event.GIVE_BACK else Status.SCHEDULED,
        attempt=claim.job.attempt,
        token=claim.token,
        kind=(claim.job.job_type, claim.job.queue, claim.job.priority),
        scheduled_for=NOW,
    )


APPLIED, STALE, GONE = Verdict.APPLIED, Verdict.STALE, Verdict.GONE


def _impostors(claim: Claim) -> list[Hold]:
    """Return holds that differ from the valid one in one field."""
    return [
        Hold(claim.job_id, claim.job.attempt, "other"),
        Hold(claim.job_id, claim.job.attempt + 1, claim.token),
        Hold(claim.job_id, claim.job.attempt - 1, claim.token),
    ]


def _ghost() -> Hold:
    return Hold(new_job().job_id, 1, "token")


class TestExtend:
    async def test_an_extension_moves_the_lease_and_nothing_else(self, store: Store) -> None:
        claim = await running(store)
        before = await record(store, claim.job_id)

        assert await store.extend([claim.hold], NOW + 2 * HOUR, NOW) == [APPLIED]

        after = await record(store, claim.job_id)
        assert after.lease_expires_at == NOW + 2 * HOUR
        assert (after.version, after.history, after.attempt) == (
            before.version,
            before.history,
            before.attempt,
        )

    async def test_each_hold_is_answered_in_order(self, store: Store) -> None:
        good, other = await running(store), await running(store)
        stale, *_ = _impostors(other)
        before = await record(store, other.job_id)

        assert await store.extend([stale, good.hold, _ghost()], NOW + 2 * HOUR, NOW) == [STALE, APPLIED, GONE]

        assert await record(store, other.job_id) == before
        assert (await record(store, good.job_id)).lease_expires_at == NOW + 2 * HOUR

    async def test_a_hold_that_almost_fits_is_stale(self, store: Store) -> None:
        claim = await running(store)
        before = await record(store, claim.job_id)

        for impostor in _impostors(claim):
            assert await store.extend([impostor], NOW + 2 * HOUR, NOW) == [STALE]

        assert await record(store, claim.job_id) == before

    @pytest.mark.parametrize("settlement", ["completes", "fails", "gives_back"])
    async def test_a_settled_claim_cannot_be_extended(self, store: Store, settlement: str) -> None:
        claim = await running(store)
        await settle(store, getattr(claim, settlement)())

        assert await store.extend([claim.hold], NOW + 2 * HOUR, NOW) == [STALE]
        assert (await record(store, claim.job_id)).lease_expires_at is None

    async def test_a_cancelled_holder_is_told(self, store: Store) -> None:
        claim = await running(store)
        await settle(store, cancel(await record(store, claim.job_id), by=None, reason=None))

        assert await store.extend([claim.hold], NOW + 2 * HOUR, NOW) == [STALE]

    async def test_a_holder_whose_job_was_claimed_again_is_told(self, store: Store) -> None:
        claim = await running(store)
        await settle(store, claim.gives_back())
        current = await claim_again(store, claim)

        assert await store.extend([claim.hold, current.hold], NOW + 2 * HOUR, NOW) == [STALE, APPLIED]

    async def test_an_extension_in_between_defeats_a_rescue(self, store: Store) -> None:
        claim = await running(store, lease_micros=0)
        [expired] = await store.expired(NOW, 10)
        assert await store.extend([claim.hold], NOW + HOUR, NOW) == [APPLIED]

        late = rescue(expired, lease=expired.lease_expires_at, now=NOW, reason="died", by=None)
        assert await store.apply([late], NOW) == [STALE]

        assert await store.expired(NOW, 10) == []

    async def test_nothing_is_an_answer_to_nothing(self, store: Store) -> None:
        assert await store.extend([], NOW + HOUR, NOW) == []


class TestNote:
    async def test_a_note_is_kept_without_a_version_or_an_event(self, store: Store) -> None:
        claim = await running(store)
        note = Note(claim.hold, progress=0.5, stage="half", logs='["a"]', log_location="/log", metrics='{"m":1}')

        assert await store.note([note], NOW + 1) == [APPLIED]

        job = await record(store, claim.job_id)
        assert (job.progress, job.stage, job.logs) == (0.5, "half", '["a"]')
        assert (job.log_location, job.metrics) == ("/log", '{"m":1}')
        assert (job.version, len(job.history)) == (2, 2)

    async def test_what_a_note_leaves_out_is_kept(self, store: Store) -> None:
        claim = await running(store)
        await store.note([Note(claim.hold, progress=0.5, stage="half", logs="[]")], NOW)

        await store.note([Note(claim.hold, progress=0.6)], NOW)

        job = await record(store, claim.job_id)
        assert (job.progress, job.stage, job.logs) == (0.6, "half", "[]")

    async def test_the_last_list_of_artifacts_stands_however_long_the_one_before_was(self, store: Store) -> None:
        claim = await running(store)
        long = "[" + ",".join(f'{{"name":"{"x" * 90}{n}"}}' for n in range(900)) + "]"
        short = '[{"name":"one"}]'
        await store.note([Note(claim.hold, artifacts=long)], NOW)
        assert (await record(store, claim.job_id)).artifacts == long

        await settle(store, claim.completes(artifacts=short))

        assert (await record(store, claim.job_id)).artifacts == short

    @pytest.mark.parametrize("progress", [5e-324, 1e-200, 0.1 + 0.2])
    async def test_any_fraction_is_kept_as_far_as_can_be_seen(self, store: Store, progress: float) -> None:
        claim = await running(store)

        await store.note([Note(claim.hold, progress=progress)], NOW)

        assert (await record(store, claim.job_id)).progress == pytest.approx(progress, abs=1e-9)

    async def test_notes_are_fenced(self, store: Store) -> None:
        claim = await running(store)
        before = await record(store, claim.job_id)

        for impostor in _impostors(claim):
            assert await store.note([Note(impostor, progress=0.9)], NOW) == [STALE]

        assert await record(store, claim.job_id) == before

    async def test_a_note_after_the_end_changes_nothing(self, store: Store) -> None:
        claim = await running(store)
        await settle(store, claim.completes())
        before = await record(store, claim.job_id)

        assert await store.note([Note(claim.hold, progress=0.1, stage="late")], NOW) == [STALE]

        assert await record(store, claim.job_id) == before

    async def test_each_note_is_answered_in_order(self, store: Store) -> None:
        claim = await running(store)
        stale, *_ = _impostors(claim)

        notes = [Note(_ghost(), stage="x"), Note(claim.hold, stage="y"), Note(stale, stage="z")]
        assert await store.note(notes, NOW) == [GONE, APPLIED, STALE]

        assert (await record(store, claim.job_id)).stage == "y"

    @pytest.mark.parametrize("settlement", ["completes", "fails", "snoozes", "gives_back"])
    async def test_a_settlement_keeps_what_was_noted(self, store: Store, settlement: str) -> None:
        claim = await running(store)
        await store.note([Note(claim.hold, logs='["a"]', log_location="/log", metrics='{"m":1}')], NOW)

        await settle(store, getattr(claim, settlement)())

        job = await record(store, claim.job_id)
        assert (job.logs, job.log_location, job.metrics) == ('["a"]', "/log", '{"m":1}')


class TestSteps:
    async def test_a_recorded_answer_is_read_back(self, store: Store) -> None:
        claim = await running(store)
        assert await store.step(claim.job_id, "charge") is None

        assert await store.record_step(claim.hold, "charge", '{"ok":true}', NOW) is APPLIED

        assert await store.step(claim.job_id, "charge") == '{"ok":true}'
        assert await store.step(claim.job_id, "other") is None

    async def test_the_first_answer_stays(self, store: Store) -> None:
        claim = await running(store)
        await store.record_step(claim.hold, "charge", "1", NOW)

        assert await store.record_step(claim.hold, "charge", "2", NOW) is APPLIED

        assert await store.step(claim.job_id, "charge") == "1"

    async def test_a_later_attempt_finds_the_answer(self, store: Store) -> None:
        claim = await running(store)
        await store.record_step(claim.hold, "charge", "1", NOW)
        await settle(store, claim.gives_back())

        await claim_again(store, claim)

        assert await store.step(claim.job_id, "charge") == "1"

    async def test_a_job_that_is_retried_finds_its_answers(self, store: Store) -> None:
        claim = await running(store)
        await store.record_step(claim.hold, "charge", "1", NOW)
        await settle(store, claim.completes())

        await retry_by_hand(store, claim.job_id)

        assert await store.step(claim.job_id, "charge") == "1"

    async def test_a_job_may_be_retried_without_its_answers(self, store: Store) -> None:
        claim, other = await running(store), await running(store)
        for each in (claim, other):
            await store.record_step(each.hold, "charge", "1", NOW)
        await store.record_step(claim.hold, "pack", "1", NOW)
        await settle(store, claim.completes())

        await retry_by_hand(store, claim.job_id, forget_steps=True)

        assert [await store.step(claim.job_id, name) for name in ("charge", "pack")] == [None, None]
        assert await store.step(other.job_id, "charge") == "1"

    async def test_answers_that_are_recorded_after_that_stay_as_any_other(self, store: Store) -> None:
        claim = await running(store)
        await store.record_step(claim.hold, "charge", "1", NOW)
        await settle(store, claim.completes())
        await retry_by_hand(store, claim.job_id, forget_steps=True)
        second = await claim_again(store, claim)

        assert await store.record_step(second.hold, "charge", "2", NOW) is APPLIED
        assert await store.record_step(second.hold, "charge", "3", NOW) is APPLIED  # the first answer stays

        assert await store.step(claim.job_id, "charge") == "2"
        await settle(store, second.gives_back())
        await claim_again(store, claim)
        assert await store.step(claim.job_id, "charge") == "2"

    async def test_answers_can_be_forgotten_again(self, store: Store) -> None:
        claim = await running(store)
        for answer in ("1", "2", "3"):
            assert await store.record_step(claim.hold, "charge", answer, NOW) is APPLIED
            assert await store.step(claim.job_id, "charge") == answer
            await settle(store, claim.completes())
            await retry_by_hand(store, claim.job_id, forget_steps=True)
            assert await store.step(claim.job_id, "charge") is None
            claim = await claim_again(store, claim)

    async def test_a_retry_that_is_refused_forgets_nothing(self, store: Store) -> None:
        claim = await running(store)
        await store.record_step(claim.hold, "charge", "1", NOW)
        await settle(store, claim.completes())
        late = manual_retry(await record(store, claim.job_id), now=NOW, by="me", reason=None, forget_steps=True)
        await retry_by_hand(store, claim.job_id)

        assert await store.apply([late], NOW) == [STALE]

        assert await store.step(claim.job_id, "charge") == "1"

    async def test_a_stale_worker_brings_no_answer_back(self, store: Store) -> None:
        claim = await running(store)
        await store.record_step(claim.hold, "charge", "1", NOW)
        await settle(store, claim.completes())
        await retry_by_hand(store, claim.job_id, forget_steps=True)

        assert await store.record_step(claim.hold, "charge", "1", NOW) is STALE
        await claim_again(store, claim)
        assert await store.record_step(claim.hold, "charge", "1", NOW) is STALE

        assert await store.step(claim.job_id, "charge") is None

    async def test_the_workers_own_steps_are_not_forgotten(self, store: Store) -> None:
        claim = await running(store)
        own = "wait 1, for none"
        await store.record_step(claim.hold, own, "true", NOW, StepKind.OWN)
        await settle(store, claim.completes())

        await retry_by_hand(store, claim.job_id, forget_steps=True)

        assert await store.step(claim.job_id, own, StepKind.OWN) == "true"
        second = await claim_again(store, claim)
        assert await store.record_step(second.hold, own, "false", NOW, StepKind.OWN) is APPLIED
        assert await store.step(claim.job_id, own, StepKind.OWN) == "true"

    async def test_steps_belong_to_their_job(self, store: Store) -> None:
        one, other = await running(store), await running(store)
        await store.record_step(one.hold, "charge", "1", NOW)

        assert await store.step(other.job_id, "charge") is None

    async def test_a_stale_worker_records_nothing(self, store: Store) -> None:
        claim = await running(store)
        for impostor in _impostors(claim):
            assert await store.record_step(impostor, "charge", "9", NOW) is STALE
        assert await store.record_step(_ghost(), "charge", "9", NOW) is GONE

        assert await store.step(claim.job_id, "charge") is None

    async def test_a_settled_claim_records_nothing(self, store: Store) -> None:
        claim = await running(store)
        await settle(store, claim.completes())
        await retry_by_hand(store, claim.job_id)

        assert await store.record_step(claim.hold, "charge", "9", NOW) is STALE
        assert await store.step(claim.job_id, "charge") is None


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
    async def test_a_skipped_tick_changes_nothing_but_its_history(self, store: Store, state: Status) -> None:
        before = await in_state(store, state)

        assert await store.apply([skip_tick(before, schedule="nightly", tick_at=NOW)], NOW + 5) == [Verdict.APPLIED]

        after = await record(store, before.job_id)
        moving = {"updated_at": 0, "history": (), "version": before.version + 1}
        assert msgspec.structs.replace(after, **moving) == msgspec.structs.replace(before, **moving)
        last = after.history[-1]
        assert (last.event, last.source, last.target, last.by) == (Event.SKIP_TICK, state, state, "schedule:nightly")
        assert last.details == Tick("nightly", to_datetime(NOW))

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
        recorder = SignalRecorder(store, Signal.STOPPED, Signal.ENDED)

        for priority in (70, 80, 90):
            await _give_priority(store, claim.job_id, priority)
        await settle(store, claim.completes())
        await recorder.heard()

        # A listener that has just connected may get one hint of everything, whatever changed.
        assert recorder.got.count(Signal.STOPPED) <= 1
        recorder.stop()

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
