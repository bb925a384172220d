"""Queues as users see them: what was said about each, and what waits in it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from holdfast.clock import to_datetime
from holdfast.lifecycle import Status
from holdfast.store.types import Depth, JobType, QueueRow, WorkerRow


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    pending: int = 0
    processing: int = 0
    scheduled: int = 0
    retrying: int = 0
    waiting: int = 0
    oldest_pending_at: datetime | None = None  # since when the oldest pending job is due
    paused_at: datetime | None = None
    paused_by: str | None = None
    pause_reason: str | None = None
    max_pending: int | None = None
    workers: int = 0

    @property
    def paused(self) -> bool:
        return self.paused_at is not None


def overview(
    rows: Iterable[QueueRow], depths: Iterable[Depth], types: Iterable[JobType], workers: Iterable[WorkerRow]
) -> list[Queue]:
    """Every queue that is named anywhere: in jobs, by types, by workers, or by someone who paused it."""
    said = {row.name: row for row in rows}
    counts: dict[str, dict[str, int]] = {}
    oldest: dict[str, int] = {}
    for depth in depths:
        of_queue = counts.setdefault(depth.queue, {})
        of_queue[depth.status.value] = of_queue.get(depth.status.value, 0) + depth.count
        if depth.status is Status.PENDING:
            oldest[depth.queue] = min(oldest.get(depth.queue, depth.oldest_at), depth.oldest_at)
    serving: dict[str, int] = {}
    for worker in workers:
        for name in worker.queues:
            serving[name] = serving.get(name, 0) + 1
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
        max_pending=row.max_pending,
        workers=workers,
    )
