"""What people set at run time: pauses of queues and types, their end, and limits as users see them. Pure."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from backstay.clock import MICROS, Instant, Moment, to_datetime
from backstay.core.records import LimitChange, LimitOf, LimitRow, QueueChange, QueueRow, Rate


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """What holds at run time for a job type, or for a key; one of the two is set."""

    job_type: str | None = None
    key: str | None = None
    concurrency: int | None = None  # how many of its jobs may run at once, over all workers
    rate: str | None = None  # how many may start, or what they may cost: 100/m
    set_at: Moment | None = None  # when these limits were set, and by whom
    set_by: str | None = None
    paused_at: Moment | None = None
    paused_by: str | None = None
    pause_reason: str | None = None
    paused_until: Moment | None = None  # it resumes by itself then; None: once someone resumes it
    note: str | None = None  # of a change: that no worker has announced this type

    @property
    def paused(self) -> bool:
        return self.paused_at is not None

    @classmethod
    def of_row(cls, row: LimitRow, note: str | None = None) -> Limit:
        return cls(
            job_type=row.name if row.of is LimitOf.TYPE else None,
            key=row.name if row.of is LimitOf.KEY else None,
            concurrency=row.concurrency,
            rate=None if row.rate is None else rate_text(row.rate),
            set_at=None if row.set_at is None else to_datetime(row.set_at),
            set_by=row.set_by,
            paused_at=None if row.paused_at is None else to_datetime(row.paused_at),
            paused_by=row.paused_by,
            pause_reason=row.pause_reason,
            paused_until=None if row.paused_until is None else to_datetime(row.paused_until),
            note=note,
        )


_UNITS = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


def rate_text(rate: Rate) -> str:
    """Return a rate as it is written: 10/s, 5/30s."""
    seconds = rate.micros // MICROS
    letter, unit = next((each for each in _UNITS if seconds % each[1] == 0), ("s", 1))
    return f"{rate.count}/{'' if seconds == unit else seconds // unit}{letter}"


Paused = TypeVar("Paused", QueueRow, LimitRow)


def changed_queue(row: QueueRow, change: QueueChange, now: Instant) -> QueueRow:
    """Return the changed settings of a queue."""
    row = _pause(row, change, now)
    if change.max_pending is not None:
        row = msgspec.structs.replace(row, max_pending=change.max_pending or None)
    return row


def changed_limit(row: LimitRow, change: LimitChange, now: Instant) -> LimitRow:
    """Return the changed settings of a type or a key."""
    row = _pause(row, change, now)
    if not change.limits:
        return row
    rate = change.rate
    is_none = change.concurrency is None and rate is None
    return msgspec.structs.replace(
        row,
        concurrency=change.concurrency,
        rate_count=None if rate is None else rate.count,
        rate_micros=None if rate is None else rate.micros,
        set_at=None if is_none else now,
        set_by=None if is_none else change.by,
    )


def _pause(row: Paused, change: QueueChange | LimitChange, now: Instant) -> Paused:
    """Pausing what is paused keeps who did it first, when and why; until when is as it was said last."""
    if change.paused is False:
        return resumed(row)
    if change.paused is None:
        return row
    if row.paused_at is None:
        row = msgspec.structs.replace(row, paused_at=now, paused_by=change.by, pause_reason=change.reason)
    return msgspec.structs.replace(row, paused_until=change.until)


def resumed(row: Paused) -> Paused:
    return msgspec.structs.replace(row, paused_at=None, paused_by=None, pause_reason=None, paused_until=None)


def is_over(row: QueueRow | LimitRow, now: Instant) -> bool:
    """Return whether the time of a pause is over."""
    return row.paused_until is not None and row.paused_until <= now


def says_nothing(row: QueueRow | LimitRow) -> bool:
    """Return whether a row has no setting, so that none is stored."""
    settings = msgspec.structs.asdict(row)
    return all(value is None for name, value in settings.items() if name not in ("of", "name"))
