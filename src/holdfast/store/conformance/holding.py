"""What a claim's holder may do while it holds: extend its lease, keep notes, record the answers of steps."""

from __future__ import annotations

import pytest

from holdfast.lifecycle import cancel, rescue
from holdfast.store.conformance.factories import (
    HOUR,
    NOW,
    Claim,
    claim_again,
    new_job,
    record,
    retry_by_hand,
    running,
    settle,
)
from holdfast.store.port import Store
from holdfast.store.types import Hold, Note, Verdict

APPLIED, STALE, GONE = Verdict.APPLIED, Verdict.STALE, Verdict.GONE


def _impostors(claim: Claim) -> list[Hold]:
    """Holds that almost fit."""
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
