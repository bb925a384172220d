"""Each invariant with a history that keeps it and histories that break it. The judge must tell them apart."""

from __future__ import annotations

import msgspec
import pytest

from backstay.core.records import HistoryEvent, JobRecord
from backstay.core.states import Event, Status
from backstay.limits import HISTORY_HEAD, HISTORY_TAIL
from backstay.testing.history import Outcome
from backstay.testing.history.checker import INVARIANTS
from tests.testing.history.histories import Calls, changed, job, judged, life


def a_whole_life() -> tuple[list[JobRecord], Calls]:
    """Submitted, claimed, failed, claimed again by another, whose predecessor is refused, completed."""
    calls = Calls()
    calls.submit("a")
    calls.claim("a")
    calls.extend("a")
    calls.note("a")
    calls.apply("a", "retry", scheduled_for=1_003)
    calls.claim("a", 2)
    calls.extend("a", 1, outcome=Outcome.STALE)
    calls.apply("a", "complete", 1, result='"late"', outcome=Outcome.STALE)
    calls.apply("a", "complete", 2)
    return [job("a", "submit, claim, retry, due, claim, complete")], calls


def test_a_whole_life_breaks_no_invariant() -> None:
    assert judged(*a_whole_life()) == set()


def test_every_safety_invariant_that_a_store_can_break_is_judged() -> None:
    assert set(INVARIANTS) == {f"S{n}" for n in range(1, 26)} - {"S17", "S18"}


def test_a_dump_alone_is_judged_without_operations() -> None:
    records, _ = a_whole_life()
    assert judged(records) == set()
    assert judged([job("a", changed(records[0].history, 6, attempt=1))]) >= {"S5"}


# S1 to S3: what was acknowledged is there, and nothing else


def test_s1_an_acknowledged_job_that_is_missing_is_reported() -> None:
    calls = Calls()
    calls.submit("a")
    assert "S1" in judged([], calls)


def test_s1_a_job_that_was_purged_may_be_missing() -> None:
    calls = Calls()
    calls.submit("a")
    calls.purge("a")
    assert "S1" not in judged([], calls)


@pytest.mark.parametrize("stored", [True, False])
def test_s1_a_job_whose_submitter_died_may_be_there_or_not(stored: bool) -> None:
    calls = Calls()
    calls.submit("a", outcome=Outcome.INFO)
    assert judged([job("a", "submit")] if stored else [], calls) == set()


def test_s2_a_job_that_nobody_submitted_is_reported() -> None:
    assert "S2" in judged([job("a", "submit")], Calls())


def test_s2_a_payload_that_nobody_submitted_is_reported() -> None:
    calls = Calls()
    calls.submit("a")
    assert "S2" in judged([job("a", "submit", payload='{"n": 1}')], calls)


def test_s3_a_job_in_the_dump_twice_is_reported() -> None:
    assert "S3" in judged([job("a", "submit"), job("a", "submit")])


def test_s3_a_state_that_the_history_does_not_have_is_reported() -> None:
    assert "S3" in judged([job("a", "submit, claim, retry", status=Status.PENDING)])


def test_s3_counts_that_do_not_add_up_are_reported() -> None:
    assert "S3" in judged([job("a", "submit")], counts={"pending": 2})
    assert "S3" not in judged([job("a", "submit")], counts={"pending": 1})


# S4 to S7: one holder, one completion


def test_s4_a_second_completion_is_reported() -> None:
    assert "S4" in judged([job("a", "submit, claim, complete, complete")])


def test_s4_a_change_after_the_end_is_reported() -> None:
    assert "S4" in judged([job("a", "submit, claim, complete, retry")])


def test_s4_a_completion_after_a_manual_retry_is_another_life() -> None:
    assert judged([job("a", "submit, claim, complete, retry by hand, claim, complete")]) == set()


def test_s5_a_settlement_by_an_earlier_attempt_is_reported() -> None:
    history = life("submit, claim, rescue, due, claim, complete")
    assert "S5" in judged([job("a", changed(history, 6, attempt=1))])


def test_s5_a_rescue_of_another_attempt_is_reported() -> None:
    history = life("submit, claim, retry, due, claim, rescue")
    assert "S5" in judged([job("a", changed(history, 6, attempt=1))])


def test_s5_a_settlement_of_a_job_that_is_not_running_is_reported() -> None:
    assert "S5" in judged([job("a", "submit, claim, retry, due, complete")])


def test_s5_a_settlement_with_a_foreign_token_is_reported() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a", token="mine")
    calls.apply("a", "complete", token="yours")
    assert "S5" in judged([job("a", "submit, claim, complete")], calls)


def test_s5_an_extension_that_was_granted_after_the_claim_was_over_is_reported() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a")
    calls.apply("a", "retry")
    calls.extend("a")
    assert "S5" in judged([job("a", "submit, claim, retry")], calls)


def test_s5_a_note_that_was_granted_after_another_claim_is_reported() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a")
    calls.claim("a", 2)
    calls.note("a", 1)
    assert "S5" in judged([job("a", "submit, claim, retry, due, claim")], calls)


def test_s5_an_extension_during_the_settlement_is_nobodys_fault() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a")
    calls.apply("a", "retry")
    calls.extend("a")
    calls.together(2)
    assert judged([job("a", "submit, claim, retry")], calls) == set()


def test_s6_a_gap_in_the_versions_is_reported() -> None:
    history = life("submit, claim, complete")
    assert "S6" in judged([job("a", changed(history, 3, version=4))])


def test_s6_an_event_that_does_not_start_where_the_last_one_ended_is_reported() -> None:
    assert "S6" in judged([job("a", "submit, claim, claim")])


def test_s6_an_edge_that_the_lifecycle_does_not_have_is_reported() -> None:
    history = (*life("submit"), HistoryEvent(2, 1_002, Event.COMPLETE, Status.PENDING, Status.COMPLETED, 0))
    assert "S6" in judged([job("a", history)])


def test_s6_an_attempt_that_does_not_grow_is_reported() -> None:
    history = life("submit, claim, retry, due, claim")
    assert "S6" in judged([job("a", changed(history, 5, attempt=1))])


def test_s6_an_attempt_that_two_claims_were_given_is_reported() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a", 1, token="one")
    calls.claim("a", 1, token="two")
    assert "S6" in judged([job("a", "submit, claim")], calls)


def test_s6_a_record_ahead_of_its_history_is_reported() -> None:
    assert "S6" in judged([job("a", "submit, claim", version=3)])


def test_s6_a_history_whose_middle_was_dropped_is_no_gap() -> None:
    rounds = ", ".join(["claim, give back"] * 99)
    whole = life(f"submit, {rounds}, claim, retry, {', '.join(['due, claim, retry'] * 20)}")
    kept = whole[:HISTORY_HEAD] + whole[-HISTORY_TAIL:]
    assert len(kept) < len(whole)
    assert judged([job("a", kept, max_attempts=50)]) == set()
    assert "S6" in judged([job("a", kept[:50] + kept[51:], max_attempts=50)])


def test_s7_a_claim_while_another_holds_the_job_is_reported() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a", 1, lease=50_000)
    calls.claim("a", 2, lease=60_000)
    assert "S7" in judged([job("a", "submit, claim, claim")], calls)


def test_s7_a_rescue_before_the_expiry_that_the_holder_was_told_is_reported() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a", lease=1_003)
    calls.extend("a", lease=2_000)
    calls.apply("a", "rescue", lease=1_003)
    assert judged([job("a", "submit, claim, rescue")], calls) == {"S7"}


def test_s7_a_rescue_after_the_lease_ended_is_right() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a", lease=1_003)
    calls.apply("a", "rescue", lease=1_003)
    assert judged([job("a", "submit, claim, rescue")], calls) == set()


def test_s7_the_claim_of_a_dead_worker_may_be_rescued_early() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a", lease=9_000)
    calls.apply("a", "rescue")
    rescuer = msgspec.structs.replace(calls.made.pop(), process="p2")
    records = [job("a", "submit, claim, rescue")]
    calls.made.append(rescuer)
    assert judged(records, calls) == {"S7"}
    assert judged(records, calls, dead_workers=["worker"]) == set()


def test_s7_a_worker_that_goes_on_after_it_was_taken_for_dead_is_reported() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a", lease=9_000)
    calls.apply("a", "rescue")
    rescuer = msgspec.structs.replace(calls.made.pop(), process="p2")
    calls.made.append(rescuer)
    calls.extend("a", outcome=Outcome.STALE)
    assert judged([job("a", "submit, claim, rescue")], calls, dead_workers=["worker"]) == {"S7"}


# S8 and S9: the right result, and the truth to everyone


def test_s8_the_result_of_another_attempt_is_reported() -> None:
    records, calls = a_whole_life()
    assert judged([msgspec.structs.replace(records[0], result='"late"')], calls) == {"S8"}


def test_s8_a_completion_that_lost_its_result_is_reported() -> None:
    records, calls = a_whole_life()
    assert judged([msgspec.structs.replace(records[0], result=None)], calls) == {"S8"}


def test_s8_a_result_without_completion_is_reported() -> None:
    assert judged([job("a", "submit, claim", result='"done"')]) == {"S8"}


def test_s8_a_reused_result_is_the_donors() -> None:
    donor = job("a", "submit, claim, complete")
    reused = (HistoryEvent(1, 1_009, Event.REUSE, None, Status.COMPLETED, 0),)
    assert judged([donor, job("b", reused, reused_from="a", result='"done"')]) == set()
    assert judged([donor, job("b", reused, reused_from="a", result='"other"')]) == {"S8"}


def test_s9_a_settlement_that_was_granted_without_effect_is_reported() -> None:
    records, calls = a_whole_life()
    calls.apply("a", "complete", 1, result='"late"')
    assert "S9" in judged(records, calls)


def test_s9_a_settlement_that_was_refused_and_took_effect_is_reported() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a")
    calls.apply("a", "retry", outcome=Outcome.STALE)
    assert "S9" in judged([job("a", "submit, claim, retry")], calls)


def test_s9_a_claim_that_is_not_in_the_history_is_reported() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a")
    assert "S9" in judged([job("a", "submit")], calls)


def test_s9_a_change_that_nobody_asked_for_is_reported() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a")
    assert "S9" in judged([job("a", "submit, claim, retry")], calls)


def test_s9_what_a_killed_worker_asked_for_may_have_happened() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a", outcome=Outcome.INFO)
    calls.apply("a", "complete", outcome=Outcome.INFO)
    assert judged([job("a", "submit, claim, complete")], calls) == set()
    assert judged([job("a", "submit")], calls) == set()


# S10: the budget


def test_s10_a_failure_that_was_counted_twice_is_reported() -> None:
    assert judged([job("a", "submit, claim, retry", failures=2)]) == {"S10"}


def test_s10_a_crash_that_was_not_counted_is_reported() -> None:
    assert judged([job("a", "submit, claim, rescue", failures=0)]) == {"S10"}


def test_s10_a_job_that_goes_on_beyond_its_budget_is_reported() -> None:
    assert "S10" in judged([job("a", "submit, claim, retry, due, claim, retry", max_attempts=2)])


def test_s10_a_job_that_was_given_up_too_early_is_reported() -> None:
    assert judged([job("a", "submit, claim, exhaust")]) == {"S10"}
    assert judged([job("a", "submit, claim, rescue to failed")]) == {"S10"}
    assert judged([job("a", "submit, claim, exhaust", max_attempts=1)]) == set()


def test_s10_a_failed_job_without_a_reason_is_reported() -> None:
    assert judged([job("a", "submit, claim, exhaust", max_attempts=1, last_error=None)]) == {"S10"}


def test_s10_a_job_that_is_given_back_for_ever_is_reported() -> None:
    assert judged([job("a", "submit" + ", claim, give back" * 101)]) == {"S10"}
    assert judged([job("a", "submit", give_backs=101)]) == {"S10"}
    assert judged([job("a", "submit", snoozes=101)]) == {"S10"}


def test_s10_a_manual_retry_begins_a_new_budget() -> None:
    words = "submit, claim, exhaust, retry failed by hand, claim, complete"
    assert judged([job("a", words, max_attempts=1)]) == set()
