"""How pickup latency and drains are timed, the same for every contender.

Pickup latency runs from just before the submit call to the handler's first line. The load is an open loop: one job
every 20 ms by the clock, whether or not the previous one has started. A drain runs from the first handler's start until
the store says that no job is pending or running.
"""

from __future__ import annotations

import asyncio
import math
import subprocess
import time
from collections.abc import Awaitable, Callable

from bench.harness.marks import Marks
from bench.harness.processes import check_alive

GAP_SECONDS = 0.02
WARM_UP_JOBS = 5
WARM_UP_NUMBER = 1_000_000 - 100_000 - 1  # beyond any mark file, and still six digits in the payload
SETTLE_SECONDS = 0.5  # between warm-up and load, so that start-up work has ended
WAIT_SECONDS = 30.0
POLL_SECONDS = 0.002
DRAIN_SECONDS = 120.0


class NeverPickedUp(Exception):
    """Some jobs never reached a handler."""


class NeverFinished(Exception):
    """The worker did not finish all jobs in time."""


async def load(submit: Callable[[int], Awaitable[object]], jobs: int) -> list[int]:
    """Return when each submit call began, in CLOCK_MONOTONIC nanoseconds."""
    begun = [0] * jobs

    async def one(number: int) -> None:
        begun[number] = time.monotonic_ns()
        await submit(number)

    start = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(jobs):
            await asyncio.sleep(max(0.0, start + number * GAP_SECONDS - time.monotonic()))
            group.create_task(one(number))
    return begun


def blocking_load(submit: Callable[[int], object], jobs: int) -> list[int]:
    """The same for a peer whose submit blocks."""
    begun = []
    start = time.monotonic()
    for number in range(jobs):
        time.sleep(max(0.0, start + number * GAP_SECONDS - time.monotonic()))
        begun.append(time.monotonic_ns())
        submit(number)
    return begun


def wait_for_count(marks: Marks, count: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while marks.count < count:
        if time.monotonic() > deadline:
            raise NeverPickedUp(f"{marks.count} of {count} jobs were picked up in {WAIT_SECONDS:.0f} s")
        time.sleep(0.01)


def percentiles(begun: list[int], marks: Marks) -> dict[str, float]:
    milliseconds = sorted((started - before) / 1e6 for before, started in zip(begun, marks.stamps(), strict=True))
    return {"p50": _nearest_rank(milliseconds, 0.50), "p99": _nearest_rank(milliseconds, 0.99)}


def _nearest_rank(ordered: list[float], share: float) -> float:
    return ordered[math.ceil(share * len(ordered)) - 1]


def wait_for_marks(worker: subprocess.Popen[bytes], marks: Marks, jobs: int) -> None:
    wait_until(lambda: marks.count >= jobs, worker, lambda: f"{marks.count} of {jobs} handlers started")


def jobs_per_second(
    worker: subprocess.Popen[bytes], marks: Marks, jobs: int, anything_left: Callable[[], bool]
) -> float:
    """Return the rate from the first handler's start until the store reports no pending or running job."""
    wait_for_marks(worker, marks, jobs)
    wait_until(lambda: not anything_left(), worker, lambda: "the store still holds unfinished jobs")
    seconds = (time.monotonic_ns() - marks.first_ns) / 1e9
    if missing := marks.stamps().count(0):
        raise NeverFinished(f"the store is empty, but {missing} of {jobs} jobs never ran")
    return jobs / seconds


def wait_until(done: Callable[[], bool], worker: subprocess.Popen[bytes], state: Callable[[], str]) -> None:
    deadline = time.monotonic() + DRAIN_SECONDS
    while not done():
        check_alive(worker)
        if time.monotonic() > deadline:
            raise NeverFinished(f"after {DRAIN_SECONDS:.0f} s {state()}")
        time.sleep(POLL_SECONDS)
