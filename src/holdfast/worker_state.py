"""What a worker is up to, by its row: the same on the command line, in the dashboard and in the metrics. Pure."""

from __future__ import annotations

from typing import Literal, get_args

from holdfast import limits
from holdfast.clock import MICROS, Instant
from holdfast.store.types import WorkerRow

State = Literal["working", "idle", "stopping", "stuck", "silent"]
STATES: tuple[State, ...] = get_args(State)


def state_of(row: WorkerRow, now: Instant) -> State:
    """What weighs most: of a worker that nobody hears nothing else is known; one with a stuck thread needs a look."""
    if is_silent(row, now):
        return "silent"
    if row.stuck:
        return "stuck"
    return "stopping" if row.stopping else "working" if row.running else "idle"


def is_silent(row: WorkerRow, now: Instant) -> bool:
    """Whether it was not heard of for a lease of its own; it is heard three times in each."""
    return now - row.heartbeat_at > (row.lease_micros or round(limits.LEASE_SECONDS * MICROS))
