"""Pickup latency: from just before the submit call to the handler's first line.

The load is an open loop: one job every 20 ms by the clock, whether or not the one before has started.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

from marks import Marks

GAP_SECONDS = 0.02
WARM_UP_JOBS = 5
WARM_UP_NUMBER = 1_000_000 - 100_000 - 1  # beyond any mark file, and still six digits in the payload
SETTLE_SECONDS = 0.5  # between warm-up and load, so that start-up work is over
WAIT_SECONDS = 30.0


class NeverPickedUp(Exception):
    """Some jobs never reached a handler."""


async def load(submit: Callable[[int], Awaitable[object]], jobs: int) -> list[int]:
    """When each submit call began, in CLOCK_MONOTONIC nanoseconds."""
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
