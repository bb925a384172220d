"""What a transition makes of a job's place, and what its history is derived from."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backstay.core.records import LEASE_LOST, ErrorEntry, HistoryEvent, Transition, Verdict
from backstay.core.states import Event, Status
from backstay.engines import places
from backstay.engines.places import EventRow, Move, Standing, decide, token_key

NOW = 1_000_000
KIND = ("send", "mail", 50)


def standing(status: Status = Status.PROCESSING, **fields: Any) -> Standing:
    usual: dict[str, Any] = {"attempt": 1, "version": 2, "failures": 0}
    if status is Status.PROCESSING:
        usual |= {"token": token_key("secret"), "worker_id": "w1", "started_at": 500, "lease_expires_at": 900}
    if status is Status.COMPLETED:
        usual |= {"version": 3, "token": token_key("secret"), "worker_id": "w1", "started_at": 500, "completed_at": 700}
    if status in (Status.PENDING, Status.SCHEDULED, Status.WAITING):
        usual |= {"attempt": 0, "version": 1}
    named = {"job_id": "a", "job_type": "send", "queue": "mail", "max_attempts": 3, "priority": 50}
    return Standing(**{"key": 7, **named, "scheduled_for": 100, "status": status, **usual, **fields})


def transition(event: Event, source: Status, target: Status, **fields: Any) -> Transition:
    return Transition(job_id="a", event=event, source=source, target=target, kind=KIND, **{"attempt": 1, **fields})


def completion(**fields: Any) -> Transition:
    usual = {"token": "secret", "by": "w1", "result": "1"}
    return transition(Event.COMPLETE, Status.PROCESSING, Status.COMPLETED, **{**usual, **fields})


def moved(job: Standing, t: Transition, **more: Any) -> Move:
    found = decide(job, t, NOW, **more)
    assert isinstance(found, Move)
    return found


def told(move: Move) -> list[tuple[int, Event]]:
    return [(each.version, each.event) for each in move.events]


def test_a_job_that_is_gone_is_not_moved() -> None:
    assert decide(None, completion(), NOW) is Verdict.GONE


@pytest.mark.parametrize(
    "job",
    [
        standing(attempt=2),
        standing(token=token_key("another")),
        standing(Status.PENDING),
        standing(Status.COMPLETED),
    ],
)
def test_a_claim_that_no_longer_holds_settles_nothing(job: Standing) -> None:
    assert decide(job, completion(), NOW) is Verdict.STALE


def test_an_edit_of_another_version_and_a_rescue_of_an_extended_claim_are_refused() -> None:
    cancel = transition(Event.CANCEL, Status.PROCESSING, Status.CANCELLED, version=1)
    rescue = transition(Event.RESCUE, Status.PROCESSING, Status.RETRYING, lease=800)
    assert decide(standing(), cancel, NOW) is Verdict.STALE
    assert decide(standing(), rescue, NOW) is Verdict.STALE


def test_a_completion_by_its_worker_stores_no_event_because_its_place_implies_them() -> None:
    move = moved(standing(), completion())
    assert (move.before.place, move.after.place, move.events) == ("running", "ended", ())
    row = move.place_row()
    assert (row["status"], row["version"], row["result"], row["started_at"]) == ("completed", 3, "1", 500)
    assert row["token"] == token_key("secret")
    assert not move.writes_detail


def test_a_completion_by_another_is_told_with_the_claim() -> None:
    assert told(moved(standing(), completion(by="somebody"))) == [(2, Event.CLAIM), (3, Event.COMPLETE)]


def test_a_retry_stores_the_claim_that_running_implied_and_what_the_job_keeps_of_the_failure() -> None:
    error = ErrorEntry(attempt=1, at=NOW, type="ValueError", message="no")
    t = transition(
        Event.RETRY,
        Status.PROCESSING,
        Status.RETRYING,
        token="secret",
        by="w1",
        failures=1,
        error=error,
        scheduled_for=NOW + 5,
        logs="[]",
    )
    move = moved(standing(), t)
    assert told(move) == [(2, Event.CLAIM), (3, Event.RETRY)]
    assert move.events[1].token == token_key("secret")
    assert move.place_row()["scheduled_for"] == NOW + 5
    detail = move.detail_row()
    assert move.writes_detail
    assert (detail["error_type"], detail["last_error"], detail["lost_at"]) == ("ValueError", "ValueError: no", None)
    assert (detail["scheduled_for"], detail["logs"], detail["worker_id"]) == (NOW + 5, "[]", "w1")


def test_only_the_last_errors_are_kept_and_a_lost_lease_is_told_apart() -> None:
    entries = [ErrorEntry(attempt=n, at=n, type="ValueError", message=str(n)) for n in range(5)]
    lost = ErrorEntry(attempt=6, at=NOW, type=LEASE_LOST, message="died")
    t = transition(Event.RESCUE, Status.PROCESSING, Status.RETRYING, lease=900, failures=1, error=lost)
    after = moved(standing(errors=msgspec.json.encode(entries).decode()), t).after
    kept = msgspec.json.decode(after.errors or "", type=list[ErrorEntry])
    assert [each.message for each in kept] == ["1", "2", "3", "4", "died"]
    assert after.lost_at == NOW


def test_a_change_of_priority_keeps_the_job_where_it_is() -> None:
    t = transition(Event.REPRIORITISE, Status.PENDING, Status.PENDING, attempt=0, priority=90)
    move = moved(standing(Status.PENDING, parked=1), t)
    assert (move.place_row()["priority"], move.place_row()["parked"]) == (90, 1)
    assert move.detail_row()["priority"] == 90
    assert told(move) == [(2, Event.REPRIORITISE)]


def test_a_running_job_keeps_its_claim_when_its_priority_changes() -> None:
    t = transition(Event.REPRIORITISE, Status.PROCESSING, Status.PROCESSING, priority=90)
    move = moved(standing(noted_at=600, progress=0.5), t)
    row = move.place_row()
    assert (row["token"], row["lease_expires_at"], row["noted_at"]) == (token_key("secret"), 900, 600)
    assert (row["progress"], row["stage"]) == (0.5, None)
    assert told(move) == [(2, Event.CLAIM), (3, Event.REPRIORITISE)]
    done = moved(move.after, completion())
    assert told(done) == []  # the claim is stored, and the completion is implied


def test_a_job_that_runs_again_tells_its_first_run() -> None:
    t = transition(
        Event.MANUAL_RETRY,
        Status.COMPLETED,
        Status.PENDING,
        by="me",
        version=3,
        scheduled_for=NOW,
        failures=0,
        progress=0.0,
        stage="",
        clear_result=True,
    )
    move = moved(standing(Status.COMPLETED, reused_from="b"), t)
    assert told(move) == [(2, Event.CLAIM), (3, Event.COMPLETE), (4, Event.MANUAL_RETRY)]
    assert move.after.reused_from is None
    assert (move.after.progress, move.after.completed_at, move.after.token) == (0.0, None, None)
    assert move.detail_row()["worker_id"] == "w1"


def test_a_job_that_runs_again_waits_for_what_it_depends_on() -> None:
    t = transition(Event.MANUAL_RETRY, Status.COMPLETED, Status.PENDING, clear_result=True)
    move = moved(standing(Status.COMPLETED), t, unmet=2)
    assert (move.after.place, move.place_row()["unmet"], move.events[-1].target) == ("waiting", 2, Status.WAITING)


def test_only_what_an_ended_job_is_found_by_is_written_with_its_end() -> None:
    plain = moved(standing(subject="s"), completion()).place_row()
    assert (plain["job_type"], plain["content_hash"], plain["subject"]) == (None, None, None)
    alike = moved(standing(subject="s", content_hash="h"), completion()).place_row()
    assert (alike["job_type"], alike["content_hash"], alike["subject"]) == ("send", "h", None)
    rows = moved(standing(subject="s", result_tables='["t"]'), completion()).place_row()
    assert (rows["job_type"], rows["content_hash"], rows["subject"]) == ("send", None, "s")


def fields(**given: Any) -> dict[str, Any]:
    usual = {"created_at": 100, "submitted_for": 100, "created_by": "me", "attempt": 1, "version": 3}
    ran = {"worker_id": "w1", "started_at": 500, "completed_at": 700, "status": Status.COMPLETED}
    return {**usual, **ran, **given}


PLAIN = (
    HistoryEvent(1, 100, Event.SUBMIT, None, Status.PENDING, 0, "me"),
    HistoryEvent(2, 500, Event.CLAIM, Status.PENDING, Status.PROCESSING, 1, "w1"),
    HistoryEvent(3, 700, Event.COMPLETE, Status.PROCESSING, Status.COMPLETED, 1, "w1"),
)


def test_the_history_of_a_plain_job_is_derived() -> None:
    assert places.history(fields(), ()) == PLAIN
    assert places.history(fields(status=Status.PROCESSING, version=2, completed_at=None), ()) == PLAIN[:2]
    assert places.to_store(fields(), PLAIN) == ()


def test_a_job_for_later_was_submitted_as_scheduled() -> None:
    later = fields(submitted_for=200, status=Status.SCHEDULED, version=1)
    assert [each.target for each in places.history(later, ())] == [Status.SCHEDULED]


def test_what_is_stored_is_not_derived_again() -> None:
    again = HistoryEvent(4, 800, Event.MANUAL_RETRY, Status.COMPLETED, Status.PENDING, 1, "me")
    whole = (*PLAIN, again)
    found = places.history(fields(status=Status.PENDING, version=4), whole[1:])
    assert found == whole
    assert places.to_store(fields(status=Status.PENDING, version=4), whole) == whole


def test_what_a_move_stores_and_what_is_derived_make_the_whole_history() -> None:
    t = transition(Event.CANCEL, Status.PROCESSING, Status.CANCELLED, version=2, by="me", reason="enough")
    move = moved(standing(), t)
    stored = [HistoryEvent(*msgspec.structs.astuple(each)[:8]) for each in move.events]
    after = fields(status=Status.CANCELLED, completed_at=NOW)
    assert [each.event for each in places.history(after, stored)] == [Event.SUBMIT, Event.CLAIM, Event.CANCEL]


def test_a_repeat_is_recognised_by_the_token_that_the_settlement_left() -> None:
    done = moved(standing(), completion()).after
    assert places.is_repeat(completion(), done, ())
    assert not places.is_repeat(completion(token="another"), done, ())
    discard = transition(Event.DISCARD, Status.PROCESSING, Status.FAILED, token="secret")
    assert not places.is_repeat(discard, done, ())
    failed = moved(standing(), discard)
    latest = [(each.event.value, each.attempt, each.token) for each in reversed(failed.events)]
    assert places.is_repeat(discard, failed.after, latest)
    assert not places.is_repeat(completion(), failed.after, latest)


def test_a_repeat_is_recognised_until_somebody_else_has_changed_the_job() -> None:
    t = transition(Event.SNOOZE, Status.PROCESSING, Status.SCHEDULED, token="secret", scheduled_for=NOW)
    snoozed = moved(standing(), t)
    latest = [(each.event.value, each.attempt, each.token) for each in reversed(snoozed.events)]
    due = [(Event.DUE.value, 1, None), *latest]
    assert places.is_repeat(t, snoozed.after, due)
    assert not places.is_repeat(t, snoozed.after, [(Event.REPRIORITISE.value, 1, None), *due])


def test_the_middle_of_a_long_history_is_dropped() -> None:
    assert places.trimmed(200) is None
    assert places.trimmed(201) == (101, 101)
    assert places.trimmed(1000) == (101, 900)


def test_a_token_is_stored_as_a_number_of_64_bits() -> None:
    assert token_key("secret") == token_key("secret") != token_key("Secret")
    assert -(2**63) <= token_key("secret") < 2**63


def test_every_column_of_a_place_is_known_of_a_standing() -> None:
    known = {*places.STANDING, "result", "result_artifact", "wakes_at"}  # the last follows from what it waits for
    for names in places.COLUMNS.values():
        assert set(names) <= known
    assert set(places.DETAIL) <= known
    assert set(places.STANDING) <= places.columns("seq").keys()


def test_the_first_event_can_be_that_of_a_job_that_waits_or_reused_a_result() -> None:
    assert places.submitted(5, "me", Status.WAITING) == EventRow(1, 5, Event.SUBMIT, None, Status.WAITING, 0, "me")
