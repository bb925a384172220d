"""Which jobs wait in a worker before there is a slot for them, and which share a call."""

import msgspec
import pytest

from backstay.core.suspicion import LOST_ONCE
from backstay.worker.slots import is_called_alone, may_wait


class Job(msgspec.Struct, frozen=True):
    failures: int = 0
    max_attempts: int = 5
    suspicion: int = 0


@pytest.mark.parametrize(
    ("job", "waits"),
    [
        (Job(), True),
        (Job(failures=3), True),
        (Job(failures=4), False),
        (Job(max_attempts=1), False),
        (Job(failures=1, suspicion=LOST_ONCE), False),
    ],
    ids=str,
)
def test_a_last_attempt_and_a_suspect_do_not_wait_in_a_worker(job: Job, waits: bool) -> None:
    assert may_wait(job) is waits  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("job", "alone"),
    [(Job(), False), (Job(failures=1), True), (Job(failures=1, suspicion=1), True), (Job(suspicion=1), True)],
    ids=str,
)
def test_what_failed_before_is_called_alone_also_when_it_was_retried_by_hand_since(job: Job, alone: bool) -> None:
    assert is_called_alone(job) is alone  # type: ignore[arg-type]
