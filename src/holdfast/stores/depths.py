"""Depths from what an engine has counted: one row for each queue, type, state and priority, or several. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.clock import Instant
from holdfast.statuses import Status
from holdfast.store.types import Depth, Place


def depths_of(rows: Iterable[Sequence[Any]]) -> list[Depth]:
    """Of queue, type, status, priority, count, oldest and newest."""
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
