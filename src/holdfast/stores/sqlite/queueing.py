"""What was said about queues: paused by whom, and how many jobs may wait in one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import apsw

from holdfast.clock import Instant
from holdfast.errors import QueueFull
from holdfast.store.types import NewJob, QueueChange, QueueRow, Signal
from holdfast.stores.sqlite import sql
from holdfast.stores.sqlite.sql import load
from holdfast.stores.sqlite.tx import Tx

PENDING_IN = load("pending_in")
_ALL = "SELECT name, paused_at, paused_by, pause_reason, max_pending FROM queue"
_LIMITED = "SELECT name, max_pending FROM queue WHERE max_pending IS NOT NULL"


def change_queue(tx: Tx, name: str, change: QueueChange, now: Instant) -> QueueRow:
    tx.execute("INSERT OR IGNORE INTO queue (name) VALUES (?)", (name,))
    if change.paused is True:  # pausing what is paused keeps who did it first, and when
        tx.execute(
            "UPDATE queue SET paused_at = ?, paused_by = ?, pause_reason = ? WHERE name = ? AND paused_at IS NULL",
            (now, change.by, change.reason, name),
        )
    elif change.paused is False:
        tx.execute("UPDATE queue SET paused_at = NULL, paused_by = NULL, pause_reason = NULL WHERE name = ?", (name,))
        tx.signals.add(Signal.READY)
    if change.max_pending is not None:
        tx.execute("UPDATE queue SET max_pending = ? WHERE name = ?", (change.max_pending or None, name))
    row = tx.row(f"{_ALL} WHERE name = ?", (name,))
    tx.execute("DELETE FROM queue WHERE paused_at IS NULL AND max_pending IS NULL")
    return _row(row or (name, None, None, None, None))


def queues(connection: apsw.Connection) -> list[QueueRow]:
    return [_row(row) for row in sql.rows(connection, f"{_ALL} ORDER BY name")]


def _row(row: tuple[object, ...]) -> QueueRow:
    name, paused_at, paused_by, reason, max_pending = row
    return QueueRow(
        name=str(name),
        paused_at=paused_at,  # type: ignore[arg-type]
        paused_by=paused_by,  # type: ignore[arg-type]
        pause_reason=reason,  # type: ignore[arg-type]
        max_pending=max_pending,  # type: ignore[arg-type]
    )


def paused(tx: Tx) -> frozenset[str]:
    return frozenset(name for (name,) in tx.rows("SELECT name FROM queue WHERE paused_at IS NOT NULL"))


def refuse_over_limit(tx: Tx, jobs: Sequence[NewJob], now: Instant) -> None:
    """QueueFull where these would be more than a queue takes. Jobs for later do not wait in it yet."""
    limited = tx.rows(_LIMITED)
    if not limited:
        return
    coming = Counter(job.queue for job in jobs if job.scheduled_for <= now)
    for queue, limit in limited:
        if not coming[queue]:
            continue
        # Counted once in a transaction: a thousand jobs with keys must not count the queue a thousand times.
        room = tx.room.get(queue)
        if room is None:
            room = limit - tx.value(PENDING_IN, (queue, limit))
        tx.room[queue] = room - coming[queue]
        if coming[queue] > room:
            raise QueueFull(
                f"the queue {queue} takes {limit:,} pending jobs and has room for {max(0, room):,}:"
                " nothing was stored; submit again when workers have caught up",
                queue=queue,
            )
