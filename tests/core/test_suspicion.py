"""Suspicion: what a lost worker leaves of it, and whose turn it is in a worker."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.core.records import ExpiredClaim, Lost
from backstay.core.suspicion import (
    LOST_ONCE,
    OPEN,
    RUNS_ALONE,
    Held,
    Opening,
    Turns,
    Waiting,
    after_a_loss,
)
from backstay.limits import ALONE_SECONDS, ALONE_TURN_SECONDS

CLAIM = ExpiredClaim("j", 1, 0, 5, 0, 0, "w", 1, "work", "default", 50, 0, 0)
ONE = Waiting(in_worker=True, in_child=False)
IN_CHILD = Waiting(in_worker=False, in_child=True)
LONG = ALONE_SECONDS + 1
MANY = 100


@pytest.mark.parametrize(
    ("failures", "max_attempts", "before", "after"),
    [
        (0, 5, 0, LOST_ONCE),
        (2, 5, 0, LOST_ONCE),
        (1, 5, LOST_ONCE, RUNS_ALONE),
        (2, 5, RUNS_ALONE, RUNS_ALONE),
        (0, 2, 0, RUNS_ALONE),  # on its last attempt now
        (3, 5, 0, RUNS_ALONE),
        (4, 5, RUNS_ALONE, LOST_ONCE),  # a dead letter: if it is retried, its failures start again
        (0, 1, 0, RUNS_ALONE),
    ],
)
def test_a_job_runs_alone_once_it_was_lost_again_or_has_one_attempt_left(
    failures: int, max_attempts: int, before: int, after: int
) -> None:
    claim = msgspec.structs.replace(CLAIM, failures=failures, max_attempts=max_attempts, suspicion=before)
    assert after_a_loss(claim) == after


@given(st.integers(2, 20), st.lists(st.booleans(), min_size=20, max_size=20))
def test_whatever_else_fails_a_lost_job_is_never_lost_next_to_others_on_its_last_attempt(
    max_attempts: int, losses: list[bool]
) -> None:
    """A job that was lost before is alone on its last attempt, unless it has failed by itself since."""
    failures = suspicion = 0
    for lost in losses:
        if failures + 1 >= max_attempts:
            break
        if lost:
            claim = msgspec.structs.replace(CLAIM, failures=failures, max_attempts=max_attempts, suspicion=suspicion)
            suspicion = after_a_loss(claim)
        else:
            suspicion = 0
        failures += 1
    if suspicion and failures + 1 >= max_attempts:
        assert suspicion == RUNS_ALONE


def opened(held: list[Held], waiting: Waiting | None = ONE, *, turns: Turns | None = None, now: float = 0.0) -> Opening:
    return (turns or Turns()).opening(held, waiting, now, idle=False)


def test_without_jobs_that_wait_to_run_alone_all_is_as_usual() -> None:
    assert opened([Held(0, False, 0.0), Held(LOST_ONCE, False, 9.0)], None) is OPEN


@pytest.mark.parametrize("seconds", [0.0, ALONE_SECONDS / 2])
def test_a_worker_makes_room_before_it_claims_one_that_runs_alone(seconds: float) -> None:
    found = opened([Held(0, False, seconds)])
    assert (found.shared, found.alone) == (False, False)


def test_jobs_that_take_long_do_not_hold_up_one_that_runs_alone() -> None:
    assert opened([Held(0, False, LONG)]).alone


def test_an_empty_worker_claims_one_that_runs_alone_at_once() -> None:
    assert opened([]) == Opening(shared=False, lost=Lost.NONE, alone=True)


@pytest.mark.parametrize("in_child", [False, True])
def test_it_never_shares_a_worker_with_another_lost_job_however_long_that_runs(in_child: bool) -> None:
    found = opened([Held(LOST_ONCE, in_child, LONG)])
    assert found == Opening(lost=Lost.NONE), "no slot is kept empty meanwhile, and no other lost job comes in"


@pytest.mark.parametrize("seconds", [0.0, ALONE_SECONDS / 2, LONG, 3_600.0])
def test_nothing_joins_it_at_first_and_no_other_lost_job_ever(seconds: float) -> None:
    found = opened([Held(RUNS_ALONE, False, seconds), Held(0, False, LONG)])
    assert (found.shared, found.lost, found.alone) == (seconds > ALONE_SECONDS, Lost.NONE, False)


def test_jobs_in_child_processes_run_alone_side_by_side_but_not_next_to_a_lost_one_in_the_worker() -> None:
    children = [Held(RUNS_ALONE, True, 0.1), Held(LOST_ONCE, True, 0.0)]
    assert opened(children, IN_CHILD).alone_in_child
    assert not opened([*children, Held(LOST_ONCE, False, LONG)], IN_CHILD).alone_in_child
    assert not opened([*children, Held(0, False, 0.0)], IN_CHILD).alone_in_child
    assert not opened(children, Waiting(in_worker=True, in_child=True)).alone_in_child


@given(st.floats(0.001, 30.0), st.floats(0.001, 30.0))
def test_neither_those_that_run_alone_nor_the_others_starve(alone_seconds: float, other_seconds: float) -> None:
    """However long they take: each gets a third of a worker's time at least, counted until the last turn ended."""
    turns, now, spent = Turns(), 0.0, {"alone": 0.0, "others": 0.0}
    switches = 0
    last = ""
    while switches < MANY:
        if turns.opening([], ONE, now, idle=False).alone:
            kind, took = "alone", alone_seconds
            turns.opening([Held(RUNS_ALONE, False, 0.0)], ONE, now, idle=False)
        else:
            kind, took = "others", other_seconds
        switches += kind != last
        last = kind
        spent[kind] += took
        now += took
    shortest = min(alone_seconds, ALONE_TURN_SECONDS)
    assert spent["others"] >= 0.5 * now - 2 * alone_seconds
    assert spent["alone"] >= shortest * (switches // 2 - 1)


def test_with_nothing_else_to_do_they_do_not_wait_for_their_turn() -> None:
    turns = Turns()
    for now in range(MANY):
        assert turns.opening([], ONE, float(now), idle=True).alone
        turns.opening([Held(RUNS_ALONE, False, 0.5)], ONE, now + 0.5, idle=True)


def test_a_long_lost_job_that_leaves_no_room_for_one_that_runs_alone_does_not_stop_the_other_lost_ones() -> None:
    turns = Turns()
    long = Held(LOST_ONCE, False, LONG)
    seen = [turns.opening([long], ONE, now / 10, idle=False).lost for now in range(1_200)]

    assert seen.count(Lost.SHARED) > len(seen) / 2
    assert Lost.NONE in seen  # or they would never leave room, as each may be a long one
