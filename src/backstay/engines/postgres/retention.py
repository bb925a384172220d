"""Retention on PostgreSQL: ended jobs are archived, and archive rows are deleted when their time is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backstay.clock import Instant
from backstay.core.records import RetentionPolicy, Verdict
from backstay.engines import sql_rows
from backstay.engines.postgres import access, waits
from backstay.engines.postgres.connection import Tx

_FIRST = "00000000-0000-0000-0000-000000000000"


async def look(tx: Tx, policy: RetentionPolicy, now: Instant, limit: int, after: str | None) -> sql_rows.Found:
    newest = sql_rows.newest_cutoff(policy, now)
    if newest is None:
        return sql_rows.Found([], None)
    text, last, arrived, count = await tx.row("retirable", _start(after), limit, newest) or (None, None, 0, 0)
    batch: dict[Any, Instant] = {}
    for job, root in sql_rows.over(policy, text, now):
        members = [] if root is None else await tx.rows("tree_members", root)
        batch.update(sql_rows.with_tree(policy, job, members, now))
    return sql_rows.Found(list(batch.items()), sql_rows.next_step(last, arrived, count, limit, newest))


def _start(after: str | None) -> str:
    return after if after and after != "0" else _FIRST


async def retire(tx: Tx, batch: list[tuple[str, Instant]], now: Instant) -> int:
    standing = await _standing(tx, batch) if batch else []
    if not standing:
        return 0
    archived: int = await tx.value("archive", standing, now)
    await tx.value("drop_ended", standing)
    return archived


async def _standing(tx: Tx, batch: list[tuple[str, Instant]]) -> list[str]:
    """Return the jobs of the batch that are unchanged since they were read. They are locked first, so that this stays
    true until the commit."""
    ids, ends = ([each[0] for each in batch], [each[1] for each in batch])
    await tx.rows("retire_lock", ids)
    return sql_rows.whole_trees((key, root, size) for key, root, size in await tx.rows("retire_standing", ids, ends))


async def remove(tx: Tx, job_id: str, version: int, repeat: bool) -> Verdict:
    """Delete a job that has ended, or its archive row; `repeat`: the earlier try may have done so."""
    await tx.rows("lock_jobs", [job_id], [])
    state = await tx.value("remove", job_id, version)
    if state is None:
        return Verdict.APPLIED if repeat else Verdict.GONE
    return Verdict(state)


async def drop(tx: Tx, policy: RetentionPolicy, now: Instant, limit: int) -> int:
    await access.sum_counters(tx, now)
    await access.drop_entries(tx, now, limit)
    await waits.drop_old_mailboxes(tx, now, limit)
    if policy.archive_micros is None:
        return 0
    dropped: int = await tx.value("archive_drop", now - policy.archive_micros, limit)
    return dropped


async def with_files(tx: Tx, limit: int) -> list[str]:
    return await tx.column("with_files", limit)


async def cleaned(tx: Tx, job_ids: Sequence[str]) -> None:
    await tx.execute("cleaned", list(job_ids))
