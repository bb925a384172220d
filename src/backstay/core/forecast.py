"""When a pending job will start: from how long jobs took, what comes before it, and the slots. Pure.

Two ways lead to a number. Run times: the jobs that come first, times what each takes, over the slots that may run them.
Pace: how many jobs of its type have ended in the minutes for which the job has waited; it contains what the first does
not know, such as the time between two jobs or a slow store, and is preferred once there are enough of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Literal

import msgspec

from backstay.clock import MICROS
from backstay.core.records import Counter, Total, WorkerRow
from backstay.core.states import BOUNDS, Counted, spans_of

_ATTEMPTS = (Counted.COMPLETED, Counted.FAILED, Counted.RETRIED)
PACE_ENDED_MIN = 20  # jobs that must have ended before their pace says more than their run times
_SIGMAS = 1.65  # nine of ten outcomes of a normal distribution lie within
_DOUBT = 0.25  # of the estimate: what neither run times nor pace know, such as jobs that are still to come


class Unforeseen(StrEnum):
    """Why there is no estimate."""

    PAUSED = "paused"
    NO_WORKER = "no_worker"
    NO_HISTORY = "no_history"  # no attempt of its type has ended
    TAKES_TURNS = "takes_turns"  # keys take turns, and each may have any number of jobs
    RUNS_ALONE = "runs_alone"
    WAITS = "waits"  # for other jobs
    NOT_DUE = "not_due"  # `until` says when it is
    MOVED = "moved"


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """When a pending job starts, in seconds from now: most likely, and between which bounds nine of ten times."""

    seconds: float
    low: float
    high: float | None  # None: more jobs come first than are counted, and it may take any longer
    ahead: int  # jobs that come first
    each_seconds: float  # what a job of its type takes on average
    slots: int  # jobs of its type that run at a time
    basis: Literal["run_times", "pace"]


class RunTime(msgspec.Struct, frozen=True):
    """How long the attempts of a type took."""

    count: int
    mean: float  # seconds
    deviation: float  # the standard deviation of one

    @property
    def doubt(self) -> float:
        """The standard error of the mean."""
        return self.deviation / math.sqrt(self.count)


class _Sums:
    def __init__(self) -> None:
        self.count = 0
        self.micros = 0
        self.buckets: list[tuple[int, int]] = []

    def add(self, found: Counter | Total) -> None:
        self.count += found.count
        self.micros += found.ran_micros
        self.buckets += found.buckets


def run_times(counted: Iterable[Counter | Total]) -> dict[str, RunTime]:
    """Return how long the attempts of each type took."""
    sums: dict[str, _Sums] = {}
    for each in counted:
        if each.outcome in _ATTEMPTS and each.buckets:  # without buckets no attempt: a result was reused
            sums.setdefault(each.job_type, _Sums()).add(each)
    return {
        name: RunTime(found.count, found.micros / MICROS / found.count, _deviation(found))
        for name, found in sums.items()
        if found.count
    }


def without_line(times: Mapping[str, RunTime], held: int, slots: int) -> dict[str, RunTime]:
    """Return how long jobs take in their slot. What is measured begins with the claim, and workers claim short jobs
    ahead: `held` jobs for these slots. Each then takes as much longer as there are more of them than slots."""
    factor = max(1.0, held / slots) if slots else 1.0
    return {name: RunTime(each.count, each.mean / factor, each.deviation / factor) for name, each in times.items()}


def _deviation(found: _Sums) -> float:
    """Return the spread of the run times, as far as their buckets tell it."""
    mean = found.micros / MICROS / found.count
    total = squares = 0.0
    for bucket, count in found.buckets:
        seconds = _middle(spans_of(bucket)[0])
        total += count
        squares += count * (seconds - mean) ** 2
    return min(math.sqrt(squares / total), 3 * mean) if total else mean


def _middle(place: int) -> float:
    """Return a run time that stands for a bucket."""
    if place == 0:
        return BOUNDS[0] / 2
    return BOUNDS[-1] * 1.5 if place == len(BOUNDS) else math.sqrt(BOUNDS[place - 1] * BOUNDS[place])


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What comes before a job."""

    ahead: int  # jobs of its queue and type, or of the key that holds it back
    others: Mapping[str, int] = {}  # jobs of other types that the same workers run first, by type
    is_capped: bool = False  # there are more of them than were counted
    has_room: bool = False  # a worker has a free slot for it


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """Who may run a job."""

    own: int  # jobs of its type that run at a time
    pool: int  # jobs of all types


def room(job_type: str, workers: Sequence[WorkerRow], key_limit: int | None) -> Room:
    """Return the slots of the workers that may run a job. `key_limit`: how many jobs of its key may run."""
    own = sum(
        min(each.concurrency, each.limits.get(job_type, each.concurrency)) * each.batches.get(job_type, 1)
        for each in workers
    )
    return Room(own=own if key_limit is None else min(own, key_limit), pool=sum(each.concurrency for each in workers))


def estimate(
    job_type: str,
    times: Mapping[str, RunTime],
    line: Line,
    slots: Room,
    *,
    ended: int = 0,
    span_seconds: float = 0.0,
    wait_seconds: float = 0.0,
    seconds_per_start: float = 0.0,
) -> Estimate | None:
    """Return when the job starts; None if no attempt of its type has ended.

    `ended`: jobs of its type that ended in the last `span_seconds`, in which this job was pending. `wait_seconds` and
    `seconds_per_start`: what its rate adds: the time until the next start, and between starts.
    """
    own = times.get(job_type)
    if own is None or not slots.own:
        return None
    count = line.ahead + sum(line.others.values())
    if line.has_room and not count:
        seconds, spread = 0.0, own.doubt
        basis: Literal["run_times", "pace"] = "run_times"
    elif ended >= PACE_ENDED_MIN:
        # Other types have had their share of the slots in this time, too.
        basis, per_job = "pace", span_seconds / ended
        seconds = (line.ahead + 1) * per_job
        spread = math.sqrt(line.ahead + 1) * per_job + seconds / math.sqrt(ended)
    else:
        basis = "run_times"
        seconds, spread = _by_run_times(own, times, line, slots)
    seconds = max(seconds, wait_seconds + line.ahead * seconds_per_start if seconds_per_start else wait_seconds)
    margin = _SIGMAS * spread + _DOUBT * seconds
    return Estimate(
        seconds=seconds,
        low=seconds if line.is_capped else max(wait_seconds, seconds - margin),
        high=None if line.is_capped else seconds + margin,
        ahead=count,
        each_seconds=own.mean,
        slots=slots.own,
        basis=basis,
    )


def _by_run_times(own: RunTime, times: Mapping[str, RunTime], line: Line, slots: Room) -> tuple[float, float]:
    """Return the wait for a slot, and its standard deviation. All slots are busy, so that one gets free after a job's
    run time over their number, on average; the job starts with the one after those of the jobs before it."""
    works = [(line.ahead + 1, own), *((count, times.get(name, own)) for name, count in line.others.items())]
    in_pool = sum(count * each.mean for count, each in works) / max(slots.pool, 1)
    in_own = (line.ahead + 1) * own.mean / slots.own
    variance = sum(count * each.deviation**2 + (count * each.doubt) ** 2 for count, each in works)
    return max(in_pool, in_own), math.sqrt(variance) / min(slots.own, max(slots.pool, 1)) + own.mean / slots.own
