"""Guards of deduplication: which job a key stands for, and whether it still does."""

from __future__ import annotations

from holdfast.clock import Instant
from holdfast.lifecycle import TERMINAL
from holdfast.store.types import FOREVER, JobRecord
from holdfast.stores.sqlite import reading
from holdfast.stores.sqlite.tx import Tx


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


def may_guard_again(tx: Tx, job_id: str, now: Instant) -> bool:
    """Whether an ended job that is to run once more can have its key back: not when it stands for another by now."""
    key = tx.value("SELECT dedup_key FROM job WHERE job_id = ?", (job_id,))
    target = None if key is None else living_target(tx, key, now)
    return target is None or target.job_id == job_id


def guard_again(tx: Tx, job_id: str, now: Instant) -> None:
    """The job runs once more: its key stands for it again, as long as it did and at least while it is active."""
    key = tx.value("SELECT dedup_key FROM job WHERE job_id = ?", (job_id,))
    if key is not None and living_target(tx, key, now) is None:
        guard(tx, key, job_id, None)
