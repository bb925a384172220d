"""Guards of deduplication: which job a key stands for, and whether it still does."""

from __future__ import annotations

from holdfast.clock import Instant
from holdfast.lifecycle import TERMINAL
from holdfast.store.types import FOREVER, JobRecord
from holdfast.stores.sqlite import reading
from holdfast.stores.sqlite.writer import Tx


def living_target(tx: Tx, key: str, now: Instant) -> JobRecord | None:
    """The job that answers for a key; None when the guard has ended, or its job is no longer there."""
    row = tx.row("SELECT job_id, until FROM dedup WHERE dedup_key = ?", (key,))
    if row is None:
        return None
    job_id, until = row
    target = reading.get(tx.connection, [job_id])[0]
    if target is None:
        return None
    in_force = target.status not in TERMINAL if until is None else now < until
    return target if in_force else None


def guard(tx: Tx, key: str, job_id: str, until: Instant | None) -> None:
    """`until` None: while the job is active."""
    tx.execute(
        "INSERT OR REPLACE INTO dedup (dedup_key, job_id, until) VALUES (?, ?, ?)",
        (key, job_id, None if until is None else min(until, FOREVER)),
    )


def guard_again(tx: Tx, job_id: str, now: Instant) -> bool:
    """An ended job is to run once more: it needs its key back. False when the key stands for another by now."""
    key = tx.value("SELECT dedup_key FROM job WHERE job_id = ?", (job_id,))
    if key is None:
        return True
    target = living_target(tx, key, now)
    if target is None:
        guard(tx, key, job_id, None)
    return target is None or target.job_id == job_id
