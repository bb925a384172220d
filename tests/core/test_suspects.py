"""Suspects: which jobs may wait in a worker, which may share it, and how long the others are put off."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.clock import MICROS
from backstay.core.admission import is_called_alone, is_suspect, may_run_beside, may_wait, put_off_micros
from backstay.limits import SUSPECT_SECONDS_MAX, SUSPECT_SECONDS_MIN


class Job(msgspec.Struct, frozen=True):
    failures: int = 0
    max_attempts: int = 5
    lost_at: int | None = None


@pytest.mark.parametrize(
    ("job", "waits"),
    [
        (Job(), True),
        (Job(failures=3), True),
        (Job(failures=4), False),
        (Job(max_attempts=1), False),
        (Job(failures=1, lost_at=7), False),
    ],
    ids=str,
)
def test_a_last_attempt_and_a_suspect_do_not_wait_in_a_worker(job: Job, waits: bool) -> None:
    assert may_wait(job) is waits


@pytest.mark.parametrize(
    ("job", "alone"),
    [(Job(), False), (Job(failures=1), True), (Job(failures=1, lost_at=7), True), (Job(lost_at=7), True)],
    ids=str,
)
def test_what_failed_before_is_called_alone_also_when_it_was_retried_by_hand_since(job: Job, alone: bool) -> None:
    assert is_called_alone(job) is alone
    assert is_suspect(job) is (job.lost_at is not None)


def test_only_suspects_in_processes_of_their_own_run_side_by_side() -> None:
    kinds = ("async", "thread", "process")
    together = [(one, other) for one in kinds for other in kinds if may_run_beside(one, other)]
    assert together == [("process", "process")]


@given(lost_at=st.integers(0, 10**15), now=st.integers(0, 10**15), draw=st.floats(0, 1, exclude_max=True))
def test_a_suspect_is_put_off_for_longer_the_longer_it_has_waited_within_limits(
    lost_at: int, now: int, draw: float
) -> None:
    pause = put_off_micros(lost_at, now, draw) / MICROS
    assert SUSPECT_SECONDS_MIN * 0.5 <= pause <= SUSPECT_SECONDS_MAX * 1.5
    assert pause <= put_off_micros(lost_at, now + 60 * MICROS, draw) / MICROS
