"""Queues as users see them: settings, and job counts by state, type and priority. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from backstay.clock import Instant, Moment, to_datetime
from backstay.core.records import Depth, JobType, Place, QueueRow, WorkerRow
from backstay.core.states import Status


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue: its job counts, whether it is paused, its limit and its workers."""

    name: str
    pending: int = 0
    processing: int = 0
    scheduled: int = 0
    retrying: int = 0
    waiting: int = 0
    oldest_pending_at: Moment | None = None  # since when the oldest pending job is due
    paused_at: Moment | None = None
    paused_by: str | None = None
    pause_reason: str | None = None
    paused_until: Moment | None = None  # it resumes by itself then; None: once someone resumes it
    max_pending: int | None = None
    workers: int = 0
    note: str | None = None  # of a change: that nothing uses a queue of this name yet

    @property
    def paused(self) -> bool:
        return self.paused_at is not None


def serving(workers: Iterable[WorkerRow]) -> Counter[str]:
    """Count the workers of each queue."""
    return Counter(queue for worker in workers for queue in worker.queues)


def overview(
    rows: Iterable[QueueRow], depths: Iterable[Depth], types: Iterable[JobType], serving: Mapping[str, int]
) -> list[Queue]:
    """Return every queue that is named anywhere: by jobs, types, workers, or a pause. `serving` counts the workers of
    each queue."""
    said = {row.name: row for row in rows}
    counts: dict[str, dict[str, int]] = {}
    oldest: dict[str, int] = {}
    for depth in depths:
        of_queue = counts.setdefault(depth.queue, {})
        of_queue[depth.status.value] = of_queue.get(depth.status.value, 0) + depth.count
        if depth.status is Status.PENDING:
            oldest[depth.queue] = min(oldest.get(depth.queue, depth.oldest_at), depth.oldest_at)
    names = {*said, *counts, *serving, *(each.queue for each in types)}
    return [
        _queue(name, said.get(name), counts.get(name, {}), oldest.get(name), serving.get(name, 0))
        for name in sorted(names)
    ]


def _queue(name: str, row: QueueRow | None, counts: dict[str, int], oldest: int | None, workers: int) -> Queue:
    row = row or QueueRow(name=name)
    return Queue(
        name=name,
        **counts,
        oldest_pending_at=None if oldest is None else to_datetime(oldest),
        paused_at=None if row.paused_at is None else to_datetime(row.paused_at),
        paused_by=row.paused_by,
        pause_reason=row.pause_reason,
        paused_until=None if row.paused_until is None else to_datetime(row.paused_until),
        max_pending=row.max_pending,
        workers=workers,
        note=None,
    )


def depths_of(rows: Iterable[Sequence[Any]]) -> list[Depth]:
    """Return depths from rows of queue, type, status, priority, count, oldest and newest."""
    sums: dict[tuple[str, str, str], dict[int, tuple[int, Instant, Instant]]] = {}
    for queue, job_type, status, priority, count, oldest, newest in rows:
        places = sums.setdefault((queue, job_type, status), {})
        before = places.get(priority, (0, oldest, newest))
        places[priority] = (before[0] + count, min(before[1], oldest), max(before[2], newest))
    return [_depth(*kind, places) for kind, places in sorted(sums.items())]


def _depth(queue: str, job_type: str, status: str, places: dict[int, tuple[int, Instant, Instant]]) -> Depth:
    found = tuple(Place(priority, *places[priority]) for priority in sorted(places, reverse=True))
    return Depth(
        queue=queue,
        job_type=job_type,
        status=Status(status),
        count=sum(place.count for place in found),
        oldest_at=min(place.oldest_at for place in found),
        by_priority=found,
    )
