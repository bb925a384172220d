"""lifecycle.py decides, purely: an outcome goes in, a transition comes out."""

import ast
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import backstay
from backstay.backoff import Backoff
from backstay.core.dependencies import Awaits, TriggerRule
from backstay.core.lifecycle import (
    EDGES,
    Cancelled,
    Completed,
    Discarded,
    GivenBack,
    Outcome,
    Raised,
    RetryAsked,
    Snoozed,
    WaitingForChildren,
    allowed,
    cancel,
    check,
    decide,
    manual_retry,
    reschedule,
    rescue,
)
from backstay.core.records import ErrorEntry, NewJob, Staged, Transition
from backstay.core.states import ACTIVE, TERMINAL, Event, Status
from backstay.errors import IllegalTransition, InvalidOption
from backstay.limits import GIVE_BACKS_MAX, REASON_LENGTH_MAX, SNOOZES_MAX, WAITS_MAX

NOW = 1_700_000_000_000_000
SECOND = 1_000_000
ERROR = ErrorEntry(attempt=1, at=NOW, type="ValueError", message="no")
AWAITS = Awaits(TriggerRule.ALL_DONE, "fail")
CHILD = NewJob("c", "work", "default", 50, "null", NOW, 5, SECOND, own_id=True, special=True)


def a_job(**changes: Any) -> Any:
    fields = {
        "job_id": "j",
        "attempt": 4,
        "failures": 0,
        "max_attempts": 5,
        "snoozes": 0,
        "give_backs": 0,
        "suspicion": 0,
    }
    fields |= {"job_type": "work", "queue": "default", "priority": 50, "scheduled_for": NOW - 9, "started_at": NOW - 5}
    return SimpleNamespace(
        **(fields | {"status": Status.PENDING, "version": 9, "waits": 0, "parent_job_id": "p"} | changes)
    )


def decided(outcome: Outcome, job: Any = None, **changes: Any) -> Transition:
    options: dict[str, Any] = {
        "now": NOW,
        "backoff": Backoff(60, 2, 3600, 0),
        "draw": 0.5,
        "token": "t",
        "by": "w",
    }
    return decide(job or a_job(), outcome, **(options | changes))


ALL_OUTCOMES: list[Outcome] = [
    Completed("1"),
    Raised(ERROR),
    RetryAsked(ERROR, 5),
    Snoozed(5, "soon"),
    Cancelled("no need"),
    Discarded(ERROR),
    GivenBack("stopping"),
    WaitingForChildren(AWAITS, "merge"),
]


@pytest.mark.parametrize("outcome", ALL_OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_every_decision_is_an_edge_and_carries_the_fence_and_what_was_recorded(outcome: Outcome) -> None:
    made = decided(outcome, logs="[]", log_location="/log", metrics="{}")

    check(made.event, made.source, made.target)
    assert (made.job_id, made.attempt, made.token, made.by) == ("j", 4, "t", "w")
    assert (made.logs, made.log_location, made.metrics) == ("[]", "/log", "{}")


def test_a_completion_carries_its_result_and_is_all_done() -> None:
    made = decided(Completed('{"a":1}', "artifact"))

    assert (made.event, made.target) == (Event.COMPLETE, Status.COMPLETED)
    assert (made.result, made.result_artifact, made.progress, made.stage) == (
        '{"a":1}',
        "artifact",
        1.0,
        "complete",
    )
    assert made.failures is None


def test_an_error_is_retried_after_its_backoff() -> None:
    made = decided(Raised(ERROR), a_job(failures=1))

    assert (made.event, made.target, made.failures) == (Event.RETRY, Status.RETRYING, 2)
    assert (made.scheduled_for, made.error, made.reason) == (NOW + 120 * SECOND, ERROR, "ValueError: no")


def test_a_handler_may_name_the_delay_itself() -> None:
    assert decided(RetryAsked(ERROR, 7)).scheduled_for == NOW + 7
    assert decided(RetryAsked(ERROR, 0)).scheduled_for == NOW
    assert decided(RetryAsked(ERROR)).scheduled_for == NOW + 60 * SECOND


@pytest.mark.parametrize("outcome", [Raised(ERROR), RetryAsked(ERROR, 5)])
@pytest.mark.parametrize("max_attempts", [1, 2, 1000])
def test_a_job_fails_at_exactly_its_last_attempt(outcome: Outcome, max_attempts: int) -> None:
    for failures in {0, max_attempts - 2, max_attempts - 1} - {-1}:
        made = decided(outcome, a_job(failures=failures, max_attempts=max_attempts))

        last = failures + 1 == max_attempts
        assert (made.event, made.target) == ((Event.EXHAUST, Status.FAILED) if last else (Event.RETRY, Status.RETRYING))
        assert made.failures == failures + 1
        assert (made.scheduled_for is None, made.stage) == (last, "error" if last else None)


def test_a_discarded_job_fails_at_once() -> None:
    made = decided(Discarded(ERROR))

    assert (made.event, made.target, made.failures, made.stage) == (Event.DISCARD, Status.FAILED, 1, "error")
    assert made.error == ERROR


def test_a_handler_may_cancel_its_job() -> None:
    made = decided(Cancelled("no need"))

    assert (made.event, made.target, made.reason, made.failures) == (
        Event.CANCEL,
        Status.CANCELLED,
        "no need",
        None,
    )


def test_a_snooze_counts_as_one_and_not_as_a_failure() -> None:
    made = decided(Snoozed(5, "soon"), a_job(snoozes=SNOOZES_MAX - 1))

    assert (made.event, made.target, made.scheduled_for) == (Event.SNOOZE, Status.SCHEDULED, NOW + 5)
    assert (made.snoozes, made.failures) == (SNOOZES_MAX, None)


def test_a_snooze_beyond_the_cap_is_a_failure() -> None:
    made = decided(Snoozed(5), a_job(snoozes=SNOOZES_MAX))

    assert (made.event, made.failures, made.error and made.error.type) == (Event.RETRY, 1, "SnoozedTooOften")


@pytest.mark.parametrize("outcome", ALL_OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_an_attempt_that_comes_to_an_end_of_its_own_clears_the_job_of_suspicion(outcome: Outcome) -> None:
    kept = isinstance(outcome, Completed | Cancelled | GivenBack)  # written by a retry; not yet run; or both
    assert decided(outcome, a_job(suspicion=2)).suspicion == (None if kept else 0)
    assert decided(outcome, a_job()).suspicion is None


def test_a_job_that_is_given_back_starts_over() -> None:
    made = decided(GivenBack("stopping"), a_job(give_backs=GIVE_BACKS_MAX - 1))

    assert (made.event, made.target, made.give_backs) == (Event.GIVE_BACK, Status.PENDING, GIVE_BACKS_MAX)
    assert (made.progress, made.stage, made.failures) == (0.0, "requeued", None)


def test_a_job_that_everybody_gives_back_is_a_failure() -> None:
    made = decided(GivenBack("stopping"), a_job(give_backs=GIVE_BACKS_MAX, max_attempts=1))

    assert (made.event, made.target, made.failures) == (Event.EXHAUST, Status.FAILED, 1)
    assert made.error is not None
    assert made.error.type == "GivenBackTooOften"


def test_a_parent_waits_for_its_children_and_brings_them_but_no_other_effects() -> None:
    effects = (("INSERT …", ()),)
    made = decided(WaitingForChildren(AWAITS, "merge"), a_job(waits=WAITS_MAX - 1), children=(CHILD,), effects=effects)

    assert (made.event, made.target, made.waits) == (Event.WAIT_FOR_CHILDREN, Status.WAITING, WAITS_MAX)
    assert (made.awaits, made.join, made.children, made.effects) == (AWAITS, "merge", (CHILD,), ())
    assert (made.failures, made.snoozes, made.scheduled_for) == (None, None, None)


def test_a_parent_that_never_gets_past_its_children_fails() -> None:
    made = decided(WaitingForChildren(AWAITS), a_job(waits=WAITS_MAX), children=(CHILD,))

    assert (made.event, made.failures, made.error and made.error.type) == (Event.RETRY, 1, "WaitedTooOften")
    assert "key=" in (made.reason or "")
    assert (made.children, made.awaits) == ((), None)


@pytest.mark.parametrize("outcome", ALL_OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_children_come_with_a_completion_or_a_wait_and_with_nothing_else(outcome: Outcome) -> None:
    made = decided(outcome, children=(CHILD,), staged=Staged(2, 600))

    brings = isinstance(outcome, Completed | WaitingForChildren)
    assert (made.children, made.staged) == (((CHILD,), Staged(2, 600)) if brings else ((), None))


def test_every_change_of_a_job_names_its_parent() -> None:
    ended = a_job(status=Status.FAILED)
    changes = [
        *(decided(outcome) for outcome in ALL_OUTCOMES),
        rescue(a_job(), lease=NOW, now=NOW, reason="died", by=None),
        cancel(a_job(), by=None, reason=None),
        manual_retry(ended, now=NOW, by=None, reason=None),
        reschedule(a_job(), run_at=NOW, now=NOW, by=None, reason=None),
    ]

    assert {change.parent_job_id for change in changes} == {"p"}


def test_a_rescue_is_a_failure_that_runs_again_at_once() -> None:
    made = rescue(a_job(), lease=NOW - 1, now=NOW, reason="died", by="w2")

    assert (made.event, made.target, made.failures, made.scheduled_for) == (
        Event.RESCUE,
        Status.RETRYING,
        1,
        NOW,
    )
    assert (made.attempt, made.lease, made.progress, made.stage) == (4, NOW - 1, 0.0, "requeued")
    assert (made.error and made.error.type, made.token) == ("LeaseLost", None)


def test_a_rescue_of_the_last_attempt_is_a_dead_letter() -> None:
    made = rescue(a_job(max_attempts=1), lease=NOW - 1, now=NOW, reason="died", by=None)

    assert (made.target, made.failures, made.scheduled_for, made.stage) == (Status.FAILED, 1, None, "error")


def test_reasons_are_bounded() -> None:
    long = "x" * (REASON_LENGTH_MAX + 1)

    reasons = [
        decided(Raised(ErrorEntry(attempt=1, at=NOW, type="E", message=long))).reason,
        decided(Snoozed(5, long)).reason,
        decided(Cancelled(long)).reason,
        decided(GivenBack(long)).reason,
        rescue(a_job(), lease=NOW, now=NOW, reason=long, by=None).reason,
        cancel(a_job(), by=None, reason=long).reason,
    ]

    assert {len(reason or "") for reason in reasons} == {REASON_LENGTH_MAX}


@pytest.mark.parametrize("state", Status)
def test_editors_are_refused_where_there_is_no_edge(state: Status) -> None:
    job = a_job(status=state)

    def refused(edit: Any, **options: Any) -> bool:
        try:
            made = edit(job, by="me", reason=None, **options)
        except IllegalTransition:
            return True
        assert (made.source, made.attempt, made.version) == (state, 4, 9)
        return False

    assert refused(cancel) == (state in TERMINAL)
    assert refused(manual_retry, now=NOW) == (state in ACTIVE)
    assert refused(reschedule, run_at=NOW, now=NOW) == (state not in {Status.PENDING, Status.SCHEDULED})


def test_a_manual_retry_gives_the_budget_back_and_clears_the_result() -> None:
    made = manual_retry(a_job(status=Status.FAILED), now=NOW, by="me", reason="fixed")

    assert (made.failures, made.snoozes, made.give_backs, made.clear_result) == (0, 0, 0, True)
    assert (made.target, made.waits, made.rewait) == (Status.PENDING, 0, False)
    assert (made.scheduled_for, made.progress, made.stage) == (NOW, 0.0, "")


def test_a_reschedule_goes_where_its_time_says() -> None:
    job = a_job()

    later = reschedule(job, run_at=NOW + 1, now=NOW, by=None, reason=None)
    now = reschedule(job, run_at=NOW, now=NOW, by=None, reason=None)

    assert (later.target, later.scheduled_for) == (Status.SCHEDULED, NOW + 1)
    assert (now.target, now.scheduled_for) == (Status.PENDING, NOW)


def test_every_event_has_edges_and_ended_jobs_only_leave_by_hand() -> None:
    assert set(EDGES) == set(Event)
    for event in Event:
        for source in TERMINAL:
            for target in Status:
                assert not allowed(event, source, target) or event is Event.MANUAL_RETRY


def test_every_state_can_be_entered_and_every_active_one_left() -> None:
    assert {target for _, targets in EDGES.values() for target in targets} == set(Status)
    assert {source for sources, _ in EDGES.values() for source in sources} == {None, *Status}


# Backoff

spans = st.floats(min_value=0, max_value=1e9, allow_nan=False)
backoffs = st.builds(Backoff, spans, st.floats(min_value=1, max_value=1e6), spans, st.floats(min_value=0, max_value=1))


@given(backoffs, st.integers(1, 1000), st.floats(min_value=0, max_value=1, exclude_max=True))
def test_a_delay_is_never_negative_nor_over_its_cap(backoff: Backoff, failures: int, draw: float) -> None:
    delay = backoff.delay_micros(failures, draw)

    assert 0 <= delay <= round(backoff.max * SECOND)


@given(backoffs, st.integers(1, 1000), st.floats(min_value=0, max_value=1, exclude_max=True))
def test_jitter_stays_within_its_share(backoff: Backoff, failures: int, draw: float) -> None:
    plain = Backoff(backoff.base, backoff.factor, backoff.max, 0).delay_micros(failures, draw)

    delay = backoff.delay_micros(failures, draw)

    slack = 2 + plain * 1e-9
    assert plain * (1 - backoff.jitter) - slack <= delay <= plain * (1 + backoff.jitter) + slack


@given(backoffs, st.integers(1, 999))
def test_without_jitter_delays_never_shrink(backoff: Backoff, failures: int) -> None:
    plain = Backoff(backoff.base, backoff.factor, backoff.max, 0)

    assert plain.delay_micros(failures, 0) <= plain.delay_micros(failures + 1, 0)


def test_delays_double_up_to_their_cap() -> None:
    backoff = Backoff(60, 2, 300, 0)

    assert [backoff.delay_micros(n, 0) // SECOND for n in range(1, 6)] == [60, 120, 240, 300, 300]


def test_jitter_reaches_as_far_down_as_up() -> None:
    backoff = Backoff(100, 1, 1000, 0.1)

    assert [backoff.delay_micros(1, draw) // SECOND for draw in (0, 0.25, 0.5, 0.75, 1)] == [90, 95, 100, 105, 110]


def test_a_power_beyond_floats_is_the_cap() -> None:
    assert Backoff(60, 1e6, 3600, 0).delay_micros(1000, 0.5) == 3600 * SECOND


@pytest.mark.parametrize(
    "options",
    [
        {"base": -1},
        {"factor": 0.5},
        {"max": -1},
        {"jitter": 1.1},
        {"jitter": -0.1},
        {"base": float("nan")},
        {"max": float("inf")},
        {"factor": float("inf")},
    ],
    ids=str,
)
def test_a_backoff_that_cannot_be_meant_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidOption):
        Backoff(**options)


# Purity

PURE = ["core/lifecycle", "backoff", "limits", "codec", "core/records", "core/port"]
IMPURE = {
    "time",
    "random",
    "os",
    "asyncio",
    "socket",
    "threading",
    "pathlib",
    "secrets",
    "subprocess",
    "uuid",
}


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_import_nothing_that_acts(module: str) -> None:
    tree = ast.parse(Path(backstay.__file__).parent.joinpath(f"{module}.py").read_text())
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }

    assert imported & IMPURE == set()
    assert imported <= set(sys.stdlib_module_names) | {"backstay", "msgspec", "pydantic_core"}


@pytest.mark.parametrize("module", ["core/lifecycle", "backoff", "codec"])
def test_pure_modules_wait_for_nothing(module: str) -> None:
    tree = ast.parse(Path(backstay.__file__).parent.joinpath(f"{module}.py").read_text())

    assert not [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.Await)]
