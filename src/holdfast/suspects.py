"""Suspects: jobs whose worker died or stalled during their last attempt. Any of them may have been the reason.

When a worker is lost, each job that it held is charged with a failure, because nobody can tell which of them it was. So
that one that kills its worker does not take the others to the dead letters with it, time after time:

    lost together ──▶ suspects ──▶ a worker begins one only while it holds no other ──▶ it ends, and is none any more
                                   └─▶ the others are put off, at no cost

The one to blame can then kill only itself and jobs that are new beside it, and these are suspects from then on: it
costs another job one attempt, once. A stall counts like a death: seen from another host they look the same.

Suspects in child processes may run beside one another, but not beside one of the worker's own process: what they do
ends their own process, not the worker.

This module decides; `worker.slots` asks it. Pure.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.clock import MICROS, Instant
from holdfast.limits import SUSPECT_SECONDS_MAX, SUSPECT_SECONDS_MIN

REASON = "its worker was lost, with others: these run one at a time in a worker"


class Claimed(Protocol):
    @property
    def failures(self) -> int: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def lost_at(self) -> Instant | None: ...


def is_suspect(job: Claimed) -> bool:
    return job.lost_at is not None


def may_wait(job: Claimed) -> bool:
    """Whether it may be held by a worker that has not begun it. Should that one die, a last attempt would be over
    without a run, and a suspect would be charged with what it had no part in."""
    return job.failures + 1 < job.max_attempts and job.lost_at is None


def may_run_beside(isolation: str, other: str) -> bool:
    """Whether two suspects whose handlers run so may run in one worker at a time."""
    return isolation == other == "process"


def is_called_alone(job: Claimed) -> bool:
    """Of a batch type: whatever it was that brought down a call, the next attempt of the others runs without it."""
    return job.failures > 0 or job.lost_at is not None


def put_off_micros(lost_at: Instant, now: Instant, draw: float) -> int:
    """How long until it may be asked for again: the longer it has waited, the longer the one that runs may take. `draw`
    in [0, 1): those that were lost together come back one by one."""
    half = (now - lost_at) / 2 / MICROS
    return round(min(SUSPECT_SECONDS_MAX, max(SUSPECT_SECONDS_MIN, half)) * (0.5 + draw) * MICROS)
