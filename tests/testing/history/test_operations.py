"""Invariants of operating, each with a history that keeps it and histories that break it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backstay.core.records import FOREVER, Counter, JobRecord
from backstay.core.states import Counted, Status
from backstay.testing.conformance.factories import a_policy
from backstay.testing.history import Outcome
from tests.testing.history.histories import MINUTE, Calls, a_schedule, archived, changed, job, judged, life

AFTER_2000 = a_policy(2_000, 2_000, 2_000)


# Retention, which is part of S1: what may leave, when, and as what


def _ended_and_archived(**changes: Any) -> tuple[list[JobRecord], Calls, dict[str, Any]]:
    """Completed at 1,003, archived at 9,000."""
    calls = Calls()
    calls.submit("a", job_type="work")
    calls.claim("a")
    calls.apply("a", "complete")
    calls.retire(AFTER_2000)
    return [], calls, {"archive": [archived("a", "submit, claim, complete", **changes)]}


def _judged(story: tuple[list[JobRecord], Calls, dict[str, Any]]) -> set[str]:
    records, calls, more = story
    return judged(records, calls, **more)


def test_s1_a_job_that_was_archived_after_its_time_is_right() -> None:
    assert _judged(_ended_and_archived()) == set()


def test_s1_a_job_that_was_archived_before_its_time_is_reported() -> None:
    assert _judged(_ended_and_archived(completed_at=8_000)) == {"S1"}
    assert _judged(_ended_and_archived(at=8_999)) == {"S1"}


def test_s1_each_state_and_type_has_its_own_time() -> None:
    records, calls, more = _ended_and_archived()
    calls.made.pop()
    calls.retire(a_policy(8_000, 0, 0))
    assert judged(records, calls, **more) == {"S1"}
    calls.retire(a_policy(8_000, 0, 0, by_type={"work": AFTER_2000.keep}))
    assert judged(records, calls, **more) == set()


def test_s1_a_job_that_was_archived_while_it_was_active_is_reported() -> None:
    story = _ended_and_archived(status=Status.PROCESSING, completed_at=None)
    assert "S1" in _judged(story)


def test_s1_an_end_in_the_archive_that_nobody_brought_about_is_reported() -> None:
    assert "S1" in _judged(_ended_and_archived(status=Status.CANCELLED))


def test_s1_a_job_that_was_archived_as_it_was_before_its_retry_is_reported() -> None:
    records, calls, more = _ended_and_archived()
    calls.apply("a", "retry by hand", 1, version=3)
    assert judged(records, calls, **more) == {"S1"}
    calls.claim("a", 2)
    assert judged(records, calls, **more) == {"S1"}


def test_s1_a_tree_of_which_a_part_stayed_is_reported() -> None:
    _, calls, more = _ended_and_archived()
    calls.submit("b", job_type="work")
    assert judged([job("b", "submit", root_job_id="a")], calls, **more) == {"S1"}
    assert judged([job("b", "submit")], calls, **more) == set()


def test_s1_a_job_that_left_the_archive_is_gone_only_after_its_time_there() -> None:
    records, calls, _ = _ended_and_archived()
    assert "S1" in judged(records, calls)
    calls.retire(a_policy(2_000, archive=5_000), now=13_000)
    assert "S1" in judged(records, calls)
    calls.retire(a_policy(2_000, archive=5_000), now=15_000)
    assert judged(records, calls) == set()


def test_s1_a_retention_of_which_nobody_heard_may_have_happened() -> None:
    records, calls, more = _ended_and_archived()
    calls.made.pop()
    calls.retire(AFTER_2000, outcome=Outcome.INFO)
    assert judged(records, calls, **more) == set()


def test_s2_a_job_in_the_archive_that_nobody_submitted_is_reported() -> None:
    records, calls, _ = _ended_and_archived()
    more = {"archive": [archived("a", "submit, claim, complete"), archived("b", "submit, claim, complete")]}
    assert "S2" in judged(records, calls, **more)


def test_s3_a_job_that_is_in_two_places_is_reported() -> None:
    _, calls, more = _ended_and_archived()
    assert "S3" in judged([job("a", "submit, claim, complete")], calls, **more)


def test_s11_a_key_that_the_archive_still_guards_is_not_given_to_another() -> None:
    calls = Calls()
    calls.submit("a", job_type="work", dedup_key="k", dedup_until=FOREVER)
    calls.claim("a")
    calls.apply("a", "complete")
    calls.retire(AFTER_2000)
    calls.submit("b", job_type="work", dedup_key="k")
    records = [job("b", "submit", dedup_key="k")]
    kept = [archived("a", "submit, claim, complete", dedup_key="k")]
    assert judged(records, calls, archive=kept) == {"S11"}
    calls.made.pop()
    calls.submit("b", dedup_key="k", answered="a")
    assert judged([], calls, archive=kept) == set()


@pytest.mark.parametrize(("until", "found"), [(1_500, set()), (5_000, {"S11"})], ids=["over", "in force"])
def test_s11_a_window_ends_by_the_clock_also_while_its_job_is_active(until: int, found: set[str]) -> None:
    calls = Calls()
    for name in "ab":
        calls.submit(name, dedup_key="k", dedup_until=until)
    second = job("b", life("submit", at=1_999), dedup_key="k")
    assert judged([job("a", "submit", dedup_key="k"), second], calls) == found


def test_s11_an_answer_from_a_window_that_is_over_is_reported() -> None:
    calls = Calls()
    calls.submit("a", dedup_key="k", dedup_until=1_500)
    calls.claim("a")
    calls.apply("a", "complete")
    calls.submit("b", dedup_key="k", dedup_until=9_000, answered="a")
    records = [job("a", "submit, claim, complete", dedup_key="k")]
    assert judged(records, calls) == set()
    calls.made[-1] = msgspec.structs.replace(calls.made[-1], now=1_500)
    assert judged(records, calls) == {"S11"}


# Generations, and a running job that is only moved in line


def test_s12_a_job_that_is_retried_by_hand_before_what_it_depends_on_has_succeeded_is_reported() -> None:
    calls = Calls()
    calls.submit("p")
    calls.submit("c", depends_on=("p",))
    calls.apply("p", "cancel pending", 0)
    calls.apply("c", "retry cancelled by hand", 0, version=2)
    records = [
        job("p", "submit, cancel pending"),
        job("c", "submit waiting, release to cancelled, retry cancelled by hand", dependencies=("p",)),
    ]
    assert judged(records, calls) == {"S12"}


def test_a_running_job_that_is_reprioritised_breaks_no_invariant() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a")
    calls.apply("a", "reprioritise", version=2)
    calls.extend("a")
    calls.apply("a", "complete")
    assert judged([job("a", "submit, claim, reprioritise, complete")], calls) == set()


def test_s7_a_running_job_without_a_lease_is_reported() -> None:
    assert judged([job("a", "submit, claim, reprioritise", lease_expires_at=None)]) == {"S7"}
    assert judged([job("a", "submit", lease_expires_at=5)]) == {"S7"}


def test_s9_a_holder_who_is_refused_for_nothing_is_reported() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a")
    calls.apply("a", "reprioritise", version=2)
    calls.apply("a", "complete", outcome=Outcome.STALE)
    assert judged([job("a", "submit, claim, reprioritise")], calls) == {"S9"}


def test_s9_a_priority_that_nobody_asked_for_is_reported() -> None:
    calls = Calls()
    calls.submit("a")
    assert judged([job("a", "submit, reprioritise pending")], calls) == {"S9"}


# S19: schedules


def _ticked(*ticks: int, **changes: Any) -> list[JobRecord]:
    names = {f"tick {tick}": tick * MINUTE for tick in ticks}
    return [job(name, "submit", schedule="tick", tick_at=at, **changes) for name, at in names.items()]


def _fired(missed: str = "all") -> Calls:
    calls = Calls()
    calls.save(a_schedule(missed=missed))
    calls.fire(1)
    calls.fire(2)
    return calls


def test_s19_every_tick_with_its_job_is_right() -> None:
    assert judged(_ticked(1, 2), _fired(), schedules=[a_schedule(next_at=3 * MINUTE)]) == set()


def test_s19_two_jobs_for_a_tick_are_reported() -> None:
    twice = [*_ticked(1), *(msgspec.structs.replace(each, job_id="other") for each in _ticked(1))]
    assert judged(twice) == {"S19"}


def test_s19_jobs_that_people_asked_for_have_no_tick() -> None:
    assert judged([job("a", "submit", schedule="tick"), job("b", "submit", schedule="tick")]) == set()


def test_s19_a_tick_that_was_granted_twice_is_reported() -> None:
    calls = _fired()
    calls.fire(2)
    assert judged(_ticked(1, 2), calls) == {"S19"}


def test_s19_a_tick_whose_job_is_missing_is_reported() -> None:
    found = judged(_ticked(2), _fired(), schedules=[a_schedule(next_at=3 * MINUTE)])
    assert found == {"S1", "S3", "S19"}


def test_s19_a_schedule_that_moved_on_without_its_job_is_reported_although_nobody_heard() -> None:
    calls = _fired()
    calls.fire(3, outcome=Outcome.INFO)
    for at, found in ((3, set()), (4, {"S19"})):
        assert judged(_ticked(1, 2), calls, schedules=[a_schedule(next_at=at * MINUTE)]) == found
    assert judged(_ticked(1, 2, 3), calls, schedules=[a_schedule(next_at=4 * MINUTE)]) == set()


def test_s19_a_schedule_that_stands_where_nobody_moved_it_is_reported() -> None:
    assert judged(_ticked(1, 2), _fired(), schedules=[a_schedule(next_at=9 * MINUTE)]) == {"S19"}


@pytest.mark.parametrize(
    ("missed", "right", "wrong"),
    [("all", (3, 4, 5), (3, 5)), ("one", (5,), (4,)), ("one", (5,), ()), ("skip", (), (5,))],
)
def test_s19_ticks_that_were_missed_follow_the_policy(
    missed: str, right: tuple[int, ...], wrong: tuple[int, ...]
) -> None:
    for made, found in ((right, set()), (wrong, {"S19"})):
        calls = Calls()
        calls.save(a_schedule(missed=missed, next_at=3 * MINUTE))
        calls.fire(*made, due=3, to=6, now=7 * MINUTE - 1)
        assert judged(_ticked(*made), calls, schedules=[a_schedule(missed=missed, next_at=6 * MINUTE)]) == found


def test_s19_a_tick_that_is_decided_on_time_is_not_skipped() -> None:
    for made, found in (((3,), set()), ((), {"S19"})):
        calls = Calls()
        calls.save(a_schedule(missed="skip", next_at=3 * MINUTE))
        calls.fire(*made, due=3, to=4, now=3 * MINUTE + 1)
        assert judged(_ticked(*made), calls) == found


def test_s19_a_tick_before_its_time_is_reported() -> None:
    calls = Calls()
    calls.save(a_schedule())
    calls.fire(1, now=MINUTE - 1)
    assert judged(_ticked(1), calls) == {"S19"}


def test_s19_a_firing_by_who_saw_an_older_version_is_reported() -> None:
    calls = _fired()
    calls.save(a_schedule(version=2, next_at=3 * MINUTE))
    calls.fire(3)
    assert judged(_ticked(1, 2, 3), calls) == {"S19"}
    calls.together(2)
    assert judged(_ticked(1, 2, 3), calls) == set()


def test_s19_a_firing_of_a_paused_schedule_is_reported() -> None:
    calls = Calls()
    calls.save(a_schedule(paused_at=5))
    calls.fire(1)
    assert judged(_ticked(1), calls) == {"S19"}


def test_s19_a_firing_of_a_dropped_schedule_is_reported() -> None:
    calls = _fired()
    calls.drop()
    calls.fire(3)
    assert judged(_ticked(1, 2, 3), calls) == {"S19"}


def test_s19_a_schedule_that_was_made_anew_may_come_to_the_same_tick() -> None:
    calls = _fired()
    calls.drop()
    calls.save(a_schedule(next_at=2 * MINUTE))
    calls.fire(2)
    assert judged(_ticked(1, 2), calls, schedules=[a_schedule(next_at=3 * MINUTE)]) == set()


# S20: pausing


def test_s20_a_job_that_is_handed_out_while_its_queue_is_paused_is_reported() -> None:
    calls = Calls()
    calls.submit("a")
    calls.change_queue(paused=True)
    calls.claim("a")
    assert judged([job("a", "submit, claim")], calls) == {"S20"}
    assert judged([job("a", "submit, claim", queue="other")], calls) == set()


def test_s20_a_job_that_is_handed_out_while_its_type_is_paused_is_reported() -> None:
    calls = Calls()
    calls.submit("a")
    calls.change_limit(paused=True)
    calls.claim("a")
    assert judged([job("a", "submit, claim")], calls) == {"S20"}
    assert judged([job("a", "submit, claim", job_type="other")], calls) == set()
    calls.made.pop()
    calls.change_limit(paused=False)
    calls.claim("a")
    assert judged([job("a", "submit, claim")], calls) == set()


# S25: limits at run time


def _two_claims(*, ends_first: bool = False) -> Calls:
    calls = Calls()
    calls.submit("a")
    calls.submit("b")
    calls.change_limit(most=1)
    calls.claim("a")
    if ends_first:
        calls.apply("a", "complete")
    calls.claim("b")
    return calls


def test_s25_one_job_more_than_a_type_may_run_is_reported() -> None:
    jobs = [job("a", "submit, claim"), job("b", "submit, claim")]
    assert judged(jobs, _two_claims()) == {"S25"}
    assert judged([jobs[0], job("b", "submit, claim", job_type="other")], _two_claims()) == set()


def test_s25_a_job_that_has_ended_makes_room_for_the_next() -> None:
    jobs = [job("a", "submit, claim, complete"), job("b", "submit, claim")]
    assert judged(jobs, _two_claims(ends_first=True)) == set()


def test_s25_what_was_claimed_at_once_or_after_a_change_is_right() -> None:
    jobs = [job("a", "submit, claim"), job("b", "submit, claim")]
    together = _two_claims()
    together.together(2)
    assert judged(jobs, together) == set()
    raised = Calls()
    raised.submit("a")
    raised.submit("b")
    raised.change_limit(most=1)
    raised.claim("a")
    raised.change_limit(most=0)
    raised.claim("b")
    assert judged(jobs, raised) == set()


def test_s20_a_claim_before_the_pause_or_after_the_resume_is_right() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a")
    calls.change_queue(paused=True)
    calls.apply("a", "retry")
    calls.change_queue(paused=False)
    calls.claim("a", 2)
    assert judged([job("a", "submit, claim, retry, due, claim")], calls) == set()


def test_s20_a_claim_during_the_pause_call_is_nobodys_fault() -> None:
    calls = Calls()
    calls.submit("a")
    calls.change_queue(paused=True)
    calls.claim("a")
    calls.together(2)
    assert judged([job("a", "submit, claim")], calls) == set()


def test_s20_a_resume_of_which_nobody_heard_may_have_happened() -> None:
    calls = Calls()
    calls.submit("a")
    calls.change_queue(paused=True)
    calls.change_queue(paused=False, outcome=Outcome.INFO)
    calls.claim("a")
    assert judged([job("a", "submit, claim")], calls) == set()


def test_s20_a_claim_that_is_answered_again_was_made_before() -> None:
    calls = Calls()
    calls.submit("a")
    calls.claim("a")
    calls.change_queue(paused=True)
    calls.claim("a")
    repeat = calls.made.pop()
    calls.made.append(msgspec.structs.replace(repeat, item=msgspec.structs.replace(repeat.item, repeat=True)))
    assert judged([job("a", "submit, claim")], calls) == set()


# S21: counters


def _counted(**counts: int) -> list[Counter]:
    return [Counter(0, "work", "default", 50, Counted(name), count, 0, 0) for name, count in counts.items()]


WORDS = "submit, claim, retry, due, claim, complete, retry by hand, claim, reprioritise, give back"
RIGHT = {"submitted": 1, "retried": 1, "completed": 1, "retried_by_hand": 1, "given_back": 1}


def test_s21_counters_that_say_what_the_histories_say_are_right() -> None:
    assert judged([job("a", WORDS)], counters=_counted(**RIGHT)) == set()


@pytest.mark.parametrize("wrong", [{"completed": 2}, {"retried": 0}, {"cancelled": 1}], ids=str)
def test_s21_counters_that_say_more_or_less_are_reported(wrong: dict[str, int]) -> None:
    assert judged([job("a", WORDS)], counters=_counted(**(RIGHT | wrong))) == {"S21"}


def test_s21_an_outcome_in_another_minute_is_reported() -> None:
    late = job("a", changed(life("submit, claim, complete"), 3, at=2 * MINUTE), completed_at=2 * MINUTE)
    assert judged([late], counters=_counted(submitted=1, completed=1)) == {"S21"}


def test_s21_types_whose_histories_are_not_whole_are_not_judged() -> None:
    records, calls, more = _ended_and_archived()
    assert judged(records, calls, counters=_counted(submitted=7), **more) == set()
