"""How a worker did in the last day, from what it has done since it started. Pure.

A worker's row has sums since its start. It also keeps, once an hour, what they were: the difference to the mark of a
day ago is what happened since. So no job has to be looked at.
"""

from __future__ import annotations

import msgspec

from holdfast.clock import MICROS, Instant
from holdfast.store.types import WorkerRow

HOUR = 3600 * MICROS
DAY = 24 * HOUR


class Pace(msgspec.Struct, frozen=True):
    """Attempts of a worker since an instant: a day ago, or its start."""

    since: Instant
    ended: int
    failed: int
    busy_micros: int

    @property
    def average_ms(self) -> float | None:
        return self.busy_micros / self.ended / 1000 if self.ended > 0 else None


def marked(row: WorkerRow) -> WorkerRow:
    """With a mark of now, where the last is an hour old; those that are no longer of use go."""
    now = row.heartbeat_at
    kept = [mark for mark in row.marks if mark[0] > now - DAY - 2 * HOUR]
    if kept and now - kept[-1][0] < HOUR:
        return row
    kept.append((now, row.ended, row.failed, row.busy_micros))
    return msgspec.structs.replace(row, marks=tuple(kept))


def last_day(row: WorkerRow, now: Instant) -> Pace:
    """What it did since a day ago, to the hour."""
    begin = (row.started_at, 0, 0, 0)
    if row.started_at <= now - DAY and row.marks:
        begin = next((mark for mark in reversed(row.marks) if mark[0] <= now - DAY), row.marks[0])
    since, ended, failed, busy = begin
    return Pace(since, max(0, row.ended - ended), max(0, row.failed - failed), max(0, row.busy_micros - busy))
