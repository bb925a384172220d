"""promote, schedules, queues and retention: what upkeep and operators ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.clock import Instant
from holdfast.errors import InvalidSchedule
from holdfast.limits import SCHEDULES_MAX
from holdfast.store.types import (
    Firing,
    Promoted,
    QueueChange,
    QueueRow,
    RetentionPolicy,
    Schedule,
    Signal,
    Verdict,
)
from holdfast.stores import retiring
from holdfast.stores.postgres import access, inserting, rating, releasing, totalling, unpacking
from holdfast.stores.postgres.tx import Tx

# The order in which the statements give and take a schedule's fields.
_SCHEDULE_ORDER = (
    "name", "cron", "timezone", "missed", "job_type", "template", "created_at", "updated_at", "next_at", "version",
    "paused_at", "paused_by", "last_at", "last_job_id",
)  # fmt: skip


async def promote(tx: Tx, now: Instant, limit: int) -> Promoted:
    count = await tx.execute("promote", now, limit)
    if count:
        tx.signals.add(Signal.READY)
    await rating.unpark_due(tx, now)
    return Promoted(count, await next_due(tx, now))


async def next_due(tx: Tx, now: Instant) -> Instant | None:
    """When the next scheduled, retrying or rate-limited job may run."""
    due = await tx.value("next_due")
    rate_due = await rating.next_due(tx, now)
    return min((each for each in (due, rate_due) if each is not None), default=None)


async def release(tx: Tx, now: Instant, limit: int) -> tuple[int, bool]:
    """How much was released, and whether there is something to unpack."""
    done = await releasing.release(tx, now, limit)
    if not await tx.value("staged_any"):
        return done, False
    return done + await unpacking.drop_stale(tx), True


# Queues


async def change_queue(tx: Tx, name: str, change: QueueChange, now: Instant) -> QueueRow:
    row = await tx.row("change_queue", name, change.paused, change.by, change.reason, now, change.max_pending)
    await tx.execute("forget_queues")
    if change.paused is False:
        tx.signals.add(Signal.READY)
    return _queue(row)


async def queues(tx: Tx) -> list[QueueRow]:
    return [_queue(row) for row in await tx.rows("queues")]


def _queue(row: Any) -> QueueRow:
    return QueueRow(name=row[0], paused_at=row[1], paused_by=row[2], pause_reason=row[3], max_pending=row[4])


# Schedules


async def save_schedule(tx: Tx, schedule: Schedule, expected_version: int | None, repeat: bool) -> Verdict:
    stored, count = await tx.row("schedule_version", schedule.name) or (None, 0)
    if stored is None and expected_version is not None:
        return Verdict.GONE
    if stored is None and count >= SCHEDULES_MAX:
        raise InvalidSchedule(f"there are {SCHEDULES_MAX:,} schedules already (SCHEDULES_MAX): remove some first")
    values = [getattr(schedule, name) for name in _SCHEDULE_ORDER]
    saved = await tx.execute("save_schedule", *values, expected_version)
    if not saved and repeat:  # the earlier try of it may be in
        saved = [schedule] == await schedules(tx, [schedule.name])
    if not saved:
        return Verdict.STALE
    tx.signals.add(Signal.PLANNED)
    return Verdict.APPLIED


async def drop_schedule(tx: Tx, name: str, repeat: bool) -> Verdict:
    dropped = await tx.execute("drop_schedule", name) or repeat  # the earlier try of it may have: gone it is
    return Verdict.APPLIED if dropped else Verdict.GONE


async def schedules(tx: Tx, names: Sequence[str]) -> list[Schedule]:
    found = await tx.rows("schedules_named", list(names)) if names else await tx.rows("schedules")
    return [Schedule(**dict(zip(_SCHEDULE_ORDER, row, strict=True))) for row in found]


async def fire(tx: Tx, firing: Firing, now: Instant, store_now: Instant | None, repeat: bool) -> Verdict:
    last = firing.jobs[-1] if firing.jobs else None
    moved = await tx.execute(
        "fire",
        firing.name,
        firing.version,
        firing.due_at,
        firing.next_at,
        None if last is None else last.tick_at,
        None if last is None else last.job_id,
    )
    if not moved:
        found = await schedules(tx, [firing.name])
        if not found:
            return Verdict.GONE
        stored = found[0]
        # Our earlier try, whose answer was lost, is in: nobody else moves a schedule on to just there with this job.
        ours = last is not None and (stored.next_at, stored.last_job_id) == (firing.next_at, last.job_id)
        return Verdict.APPLIED if repeat and ours else Verdict.STALE
    if firing.jobs:
        await inserting.insert(tx, firing.jobs, now, store_now, repeat=False)
    return Verdict.APPLIED


# Retention


async def look(tx: Tx, policy: RetentionPolicy, now: Instant, limit: int, after: str | None) -> retiring.Found:
    newest = retiring.newest_cutoff(policy, now)
    if newest is None:
        return retiring.Found([], None)
    text, last, arrived, count = await tx.row("retirable", int(after or 0), limit, newest) or (None, 0, 0, 0)
    batch: dict[int, Instant] = {}
    for job, root in retiring.over(policy, text, now):
        members = [] if root is None else await tx.rows("tree_members", root)
        batch.update(retiring.with_tree(policy, job, members, now))
    return retiring.Found(list(batch.items()), retiring.next_step(last, arrived, count, limit, newest))


async def retire(tx: Tx, batch: list[tuple[int, Instant]], now: Instant) -> int:
    standing = await _standing(tx, batch) if batch else []
    if not standing:
        return 0
    archived: int = await tx.value("archive", standing, now)
    return archived


async def _standing(tx: Tx, batch: list[tuple[int, Instant]]) -> list[int]:
    """Those of the batch that are still as they were read. Held first, so that this stays true until the commit."""
    seqs, ends = (list(column) for column in zip(*batch, strict=True))
    await tx.rows("retire_lock", seqs)
    return retiring.whole_trees((seq, root, size) for seq, root, size in await tx.rows("retire_standing", seqs, ends))


async def drop(tx: Tx, policy: RetentionPolicy, now: Instant, limit: int) -> int:
    await totalling.keep_up(tx, now)
    await access.drop(tx, now, limit)
    if policy.archive_micros is None:
        return 0
    dropped: int = await tx.value("archive_drop", now - policy.archive_micros, limit)
    return dropped
