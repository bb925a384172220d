"""How a drain is timed, the same for every contender that runs its handlers in a worker process."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from marks import Marks
from processes import check_alive

POLL_SECONDS = 0.002
TIMEOUT_SECONDS = 120.0


class NeverFinished(Exception):
    """The worker did not do all jobs in time."""


def wait_for_marks(worker: subprocess.Popen[bytes], marks: Marks, jobs: int) -> None:
    wait_until(lambda: marks.count >= jobs, worker, lambda: f"{marks.count} of {jobs} handlers started")


def jobs_per_second(
    worker: subprocess.Popen[bytes], marks: Marks, jobs: int, anything_left: Callable[[], bool]
) -> float:
    """From the first handler's start until the store says that no job is pending or running."""
    wait_for_marks(worker, marks, jobs)
    wait_until(lambda: not anything_left(), worker, lambda: "the store still holds unfinished jobs")
    seconds = (time.monotonic_ns() - marks.first_ns) / 1e9
    if missing := marks.stamps().count(0):
        raise NeverFinished(f"the store is empty, but {missing} of {jobs} jobs never ran")
    return jobs / seconds


def wait_until(done: Callable[[], bool], worker: subprocess.Popen[bytes], state: Callable[[], str]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not done():
        check_alive(worker)
        if time.monotonic() > deadline:
            raise NeverFinished(f"after {TIMEOUT_SECONDS:.0f} s {state()}")
        time.sleep(POLL_SECONDS)
