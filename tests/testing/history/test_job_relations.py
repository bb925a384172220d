"""Invariants between jobs and between moments, and the log itself: histories that keep them, and that break them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from backstay.core.records import FOREVER, JobRecord
from backstay.core.states import Event
from backstay.testing.history import Edge, Evidence, OperationLog, Outcome, digest, read_operations
from backstay.testing.history.checker import check, unfinished
from backstay.testing.history.evidence import Answer, Item
from tests.testing.history.histories import Calls, changed, job, judged, life

# S11: keys


def _two_under_a_key(**second: Any) -> tuple[list[JobRecord], Calls]:
    calls = Calls()
    calls.submit("a", dedup_key="k", **second)
    calls.submit("b", dedup_key="k", **second)
    return [job("a", "submit", dedup_key="k"), job("b", "submit", dedup_key="k")], calls


def test_s11_two_active_jobs_under_a_key_are_reported() -> None:
    assert judged(*_two_under_a_key()) == {"S11"}


def test_s11_two_jobs_that_were_active_at_the_same_time_are_reported() -> None:
    _, calls = _two_under_a_key()
    for name in "ab":
        calls.claim(name)
        calls.apply(name, "complete")
    records = [job(name, "submit, claim, complete", dedup_key="k") for name in "ab"]
    assert judged(records, calls) == {"S11"}


def test_s11_a_second_job_after_the_first_has_ended_is_right() -> None:
    calls = Calls()
    calls.submit("a", dedup_key="k")
    calls.claim("a")
    calls.apply("a", "complete")
    calls.submit("b", dedup_key="k")
    records = [job("a", "submit, claim, complete", dedup_key="k"), job("b", "submit", dedup_key="k")]
    assert judged(records, calls) == set()


def test_s11_a_job_that_is_retried_by_hand_beside_another_of_its_key_is_reported() -> None:
    calls = Calls()
    calls.submit("a", dedup_key="k")
    calls.claim("a")
    calls.apply("a", "complete")
    calls.submit("b", dedup_key="k")
    calls.apply("a", "retry by hand", version=3)
    for name, attempt in (("a", 2), ("b", 1)):
        calls.claim(name, attempt)
        calls.apply(name, "complete", attempt)
    words = "submit, claim, complete, retry by hand, claim, complete"
    records = [job("a", words, dedup_key="k"), job("b", "submit, claim, complete", dedup_key="k")]
    assert judged(records, calls) == {"S11"}


def test_s11_a_second_job_within_the_window_is_reported() -> None:
    calls = Calls()
    calls.submit("a", dedup_key="k", dedup_until=FOREVER)
    calls.claim("a")
    calls.apply("a", "complete")
    calls.submit("b", dedup_key="k", dedup_until=FOREVER)
    records = [job("a", "submit, claim, complete", dedup_key="k"), job("b", "submit", dedup_key="k")]
    assert judged(records, calls) == {"S11"}


def test_s11_an_ended_job_that_answers_for_a_new_submission_is_reported() -> None:
    calls = Calls()
    calls.submit("a", dedup_key="k")
    calls.claim("a")
    calls.apply("a", "complete")
    calls.submit("b", dedup_key="k", answered="a")
    assert judged([job("a", "submit, claim, complete", dedup_key="k")], calls) == {"S11"}


def test_s11_a_job_of_another_key_that_answers_is_reported() -> None:
    calls = Calls()
    calls.submit("a", dedup_key="k")
    calls.submit("b", dedup_key="other", answered="a")
    assert judged([job("a", "submit", dedup_key="k")], calls) == {"S11"}


# S12: dependencies


def _parent_and_child(parent: str, child: str, **more: Any) -> tuple[list[JobRecord], Calls]:
    calls = Calls()
    calls.submit("p")
    calls.submit("c", depends_on=("p",))
    records = [job("p", parent), job("c", child, dependencies=("p",), **more)]
    for name, record in (("p", records[0]), ("c", records[1])):
        for event in record.history:
            if event.event is Event.CLAIM:
                calls.claim(name, event.attempt)
            elif event.event is Event.COMPLETE:
                calls.apply(name, "complete", event.attempt)
            elif event.event is Event.CANCEL:
                calls.apply(name, "cancel pending", event.attempt)
    return records, calls


def test_s12_a_child_that_runs_after_its_parent_is_right() -> None:
    evidence = _parent_and_child("submit, claim, complete", "submit waiting, release, claim, complete")
    assert judged(*evidence) == set()
    assert judged(*evidence, edges=[Edge("p", "c", True)]) == set()


def test_s12_a_child_that_was_claimed_without_its_parents_success_is_reported() -> None:
    assert "S12" in judged(*_parent_and_child("submit, claim", "submit waiting, release, claim, complete"))


def test_s12_a_child_that_was_claimed_before_its_parent_was_completed_is_reported() -> None:
    records, calls = _parent_and_child("submit, claim, complete", "submit, claim")
    early = [op for op in calls.made if op.verb == "claim" and op.job_id == "c"]
    calls.made = [msgspec.structs.replace(op, invoked=0, returned=0) if op in early else op for op in calls.made]
    assert "S12" in judged(records, calls)


def test_s12_a_child_that_outlives_its_cancelled_parent_is_reported() -> None:
    assert judged(*_parent_and_child("submit, cancel pending", "submit waiting")) == {"S12"}
    assert judged(*_parent_and_child("submit, cancel pending", "submit waiting, release to cancelled")) == set()


def test_s12_a_policy_that_was_not_followed_is_reported() -> None:
    words = ("submit, cancel pending", "submit waiting, release to cancelled")
    assert judged(*_parent_and_child(*words, on_dependency_failure="fail")) == {"S12"}


@pytest.mark.parametrize(
    "edges",
    [[], [Edge("p", "c", True)] * 2, [Edge("p", "c", False)]],
    ids=["missing", "twice", "not consumed"],
)
def test_s12_edges_that_are_wrong_are_reported(edges: list[Edge]) -> None:
    evidence = _parent_and_child("submit, claim, complete", "submit waiting, release, claim, complete")
    assert judged(*evidence, edges=edges) == {"S12"}


def test_s12_an_edge_that_was_met_too_early_is_reported() -> None:
    evidence = _parent_and_child("submit, claim", "submit waiting")
    assert judged(*evidence, edges=[Edge("p", "c", True)]) == {"S12"}


# S13 to S16


def test_s13_a_job_that_becomes_claimable_before_it_is_due_is_reported() -> None:
    calls = Calls()
    calls.submit("a", scheduled_for=1_500)
    assert judged([job("a", "submit later, first due")], calls) == {"S13"}
    assert judged([job("a", life("submit later, first due", at=1_500))], calls) == set()


def test_s13_a_retry_before_its_delay_is_over_is_reported() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a")
    calls.apply("a", "retry", scheduled_for=60_000)
    assert judged([job("a", "submit, claim, retry, due")], calls) == {"S13"}


def test_s13_a_retry_by_hand_does_not_wait_for_the_delay() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a")
    calls.apply("a", "retry", scheduled_for=60_000)
    calls.apply("a", "cancel retrying", 1)
    calls.apply("a", "retry cancelled by hand", 1)
    words = "submit, claim, retry, cancel retrying, retry cancelled by hand"
    assert judged([job("a", words)], calls) == set()


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.INFO])
def test_s14_half_a_batch_is_reported(outcome: Outcome) -> None:
    calls = Calls()
    calls.submit("a", "b", outcome=outcome)
    assert "S14" in judged([job("a", "submit")], calls)
    assert judged([job("a", "submit"), job("b", "submit")], calls) == set()


def test_s14_a_refused_batch_that_is_stored_is_reported() -> None:
    calls = Calls()
    calls.submit("a", "b", outcome=Outcome.ERROR)
    assert "S14" in judged([job("a", "submit"), job("b", "submit")], calls)


def test_s14_a_batch_with_too_few_answers_is_reported() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a")
    calls.apply("a", "complete")
    calls.made[-1] = msgspec.structs.replace(calls.made[-1], answers=0)
    assert judged([job("a", "submit, claim, complete")], calls) == {"S14"}


def test_s15_a_job_that_is_both_completed_and_cancelled_is_reported() -> None:
    assert "S15" in judged([job("a", "submit, claim, complete, cancel")])


def test_s15_a_cancel_that_was_acknowledged_and_undone_is_reported() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a")
    calls.apply("a", "cancel")
    calls.apply("a", "complete")
    assert "S15" in judged([job("a", "submit, claim, complete")], calls)


def test_s15_a_cancel_that_came_too_late_is_right() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a")
    calls.apply("a", "complete")
    calls.apply("a", "cancel", outcome=Outcome.STALE)
    assert judged([job("a", "submit, claim, complete")], calls) == set()


def test_s16_an_id_that_was_answered_with_two_jobs_is_reported() -> None:
    calls = Calls()
    calls.submit("a", own_id=True)
    calls.submit("a", own_id=True, answered="b")
    calls.submit("b")
    assert judged([job("a", "submit"), job("b", "submit")], calls) == {"S16"}


def test_s16_a_repeated_settlement_is_granted_again() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a")
    calls.apply("a", "complete")
    calls.apply("a", "complete")
    assert judged([job("a", "submit, claim, complete")], calls) == set()
    calls.apply("a", "complete", outcome=Outcome.STALE)
    assert judged([job("a", "submit, claim, complete")], calls) == {"S16"}


def test_s16_an_attempt_that_was_settled_twice_is_reported() -> None:
    history = life("submit, claim, retry, due, claim, retry")
    assert "S16" in judged([job("a", changed(history, 6, attempt=1))])


# S18, L1, and the log itself


def test_s18_with_arbitrary_clocks_only_store_times_are_left_out() -> None:
    calls = Calls()
    calls.submit("a", scheduled_for=1_500)
    evidence = Evidence([job("a", "submit later, first due", version=3)], calls.made)
    assert {v.invariant for v in check(evidence, clocks="arbitrary")} == {"S6"}


def test_l1_a_job_that_has_not_ended_is_reported() -> None:
    evidence = Evidence([job("a", "submit, claim"), job("b", "submit, claim, complete")])
    assert [violation.job_id for violation in unfinished(evidence)] == ["a"]


def test_an_operation_that_never_returned_is_read_as_unknown(tmp_path: Path) -> None:
    log = OperationLog(tmp_path / "p1.jsonl")
    log.returned(log.invoke("insert", [Item(job_id="a")]), Outcome.OK, [Answer(job_id="a")])
    log.invoke("claim", [Item(token=digest("secret"))])
    log.close()
    first, second = read_operations([log.path])
    assert (first.process, first.outcome, first.answer.job_id) == ("p1", Outcome.OK, "a")
    assert (second.verb, second.outcome) == ("claim", Outcome.INFO)
    assert b"secret" not in log.path.read_bytes()


def test_a_line_that_was_cut_by_a_kill_is_left_out(tmp_path: Path) -> None:
    log = OperationLog(tmp_path / "p1.jsonl")
    log.invoke("insert", [Item(job_id="a")])
    log.invoke("insert", [Item(job_id="b")])
    log.close()
    log.path.write_bytes(log.path.read_bytes()[:-5])
    assert [operation.job_id for operation in read_operations([log.path])] == ["a"]


def test_each_job_of_a_call_is_answered_for_itself(tmp_path: Path) -> None:
    log = OperationLog(tmp_path / "p1.jsonl")
    number = log.invoke("apply", [Item(job_id="a", attempt=1), Item(job_id="b", attempt=1)])
    log.returned(number, Outcome.OK, [Answer(), Answer(outcome=Outcome.STALE)])
    log.close()
    assert [(op.job_id, op.outcome) for op in read_operations([log.path])] == [
        ("a", Outcome.OK),
        ("b", Outcome.STALE),
    ]
