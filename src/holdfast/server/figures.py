"""The tables of GET /stats: how the queue stands, by state and priority, and how each worker did. Pure.

What is active comes from indexes of active jobs, what has ended from the per-minute counters, and what a worker did
from its own row: no table of jobs is walked.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from holdfast import pace
from holdfast.clock import MICROS, Instant, to_datetime
from holdfast.counted import Counted
from holdfast.statuses import Status
from holdfast.store.types import Counter, Depth, WorkerRow

_ENDED = {
    Counted.COMPLETED: Status.COMPLETED,
    Counted.FAILED: Status.FAILED,
    Counted.CANCELLED: Status.CANCELLED,
}


class _Standing:
    """Jobs of one state and priority."""

    def __init__(self, at: Instant) -> None:
        self.count = 0
        self.ran_micros = 0
        self.oldest = self.newest = at

    def add(self, count: int, oldest: Instant, newest: Instant, ran_micros: int = 0) -> None:
        self.count += count
        self.ran_micros += ran_micros
        self.oldest, self.newest = min(self.oldest, oldest), max(self.newest, newest)


def health(depths: Iterable[Depth], counters: Iterable[Counter], now: Instant) -> list[dict[str, Any]]:
    """By priority, the highest first, and state. Of active jobs all there are, and since when they are due or run; of
    those that ended, what the counters of the span have, to the minute."""
    found: dict[tuple[int, Status], _Standing] = {}
    for depth in depths:
        for place in depth.by_priority:
            standing = found.setdefault((place.priority, depth.status), _Standing(place.oldest_at))
            standing.add(place.count, place.oldest_at, place.newest_at)
    for counter in counters:
        if (status := _ENDED.get(counter.outcome)) is not None:
            standing = found.setdefault((counter.priority, status), _Standing(counter.minute))
            standing.add(counter.count, counter.minute, min(counter.minute + 60 * MICROS, now), counter.ran_micros)
    order = list(Status)
    rows = sorted(found.items(), key=lambda each: (-each[0][0], order.index(each[0][1])))
    return [_row(priority, status, standing) for (priority, status), standing in rows]


def _row(priority: int, status: Status, standing: _Standing) -> dict[str, Any]:
    timed = status in (Status.COMPLETED, Status.FAILED)
    return {
        "status": status,
        "priority": priority,
        "count": standing.count,
        "average_time_ms": standing.ran_micros / standing.count / 1000 if timed and standing.count else None,
        "oldest_at": to_datetime(standing.oldest),
        "newest_at": to_datetime(standing.newest),
    }


def counts(depths: Iterable[Depth]) -> dict[str, int]:
    """Active jobs by state, for a key that sees a part of the queues."""
    found: dict[str, int] = {}
    for depth in depths:
        found[depth.status.value] = found.get(depth.status.value, 0) + depth.count
    return found


def performance(workers: Iterable[WorkerRow], now: Instant) -> list[dict[str, Any]]:
    """Of the workers that are registered now, their last 24 hours."""
    return [_performance(row, now) for row in sorted(workers, key=lambda row: row.worker_id) if not row.unread]


def _performance(row: WorkerRow, now: Instant) -> dict[str, Any]:
    done = pace.last_day(row, now)
    since: datetime = to_datetime(done.since)
    return {
        "worker_id": row.worker_id,
        "since": since,
        "completed": done.ended - done.failed,
        "average_time_ms": done.average_ms,
        "failures": done.failed,
    }
