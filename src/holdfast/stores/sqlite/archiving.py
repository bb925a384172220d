"""Retention: ended jobs that are over their time become a row of the archive, which `get` still answers from.

It walks the jobs in order of arrival, a step at a time. What it reads is checked again in the transaction that moves
it, so that a job which someone retries in between stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from holdfast.clock import MICROS, Instant
from holdfast.lifecycle import Status
from holdfast.limits import COUNTERS_DAYS
from holdfast.store.types import JobRecord, Keep, RetentionPolicy, Retired
from holdfast.stores.sqlite import sql
from holdfast.stores.sqlite.sql import load
from holdfast.stores.sqlite.tx import Tx

RETIRABLE = load("retirable")
MEMBERS = load("tree_members")
STANDING = load("retire_standing")
ARCHIVE = load("archive")
RETIRE = load("retire")
GET = load("archive_get")
OVER = load("archive_over")
WITH_FILES = load("archive_files")
_record = msgspec.json.Decoder(JobRecord)

Standing = tuple[int, str, str, str, Instant | None]  # seq, id, type, status, completed_at


class Found(msgspec.Struct):
    """What a step of the walk came to: jobs to move, and where to go on."""

    batch: list[tuple[int, Instant]]  # seq, completed_at
    next: str | None


def look(connection: apsw.Connection, policy: RetentionPolicy, now: Instant, limit: int, after: str | None) -> Found:
    newest = _newest_cutoff(policy, now)
    if newest is None:
        return Found([], None)
    text, last, arrived, count = sql.rows(connection, RETIRABLE, (int(after or 0), limit, newest))[0]
    batch: dict[int, Instant] = {}
    seen: set[str] = set()  # roots of trees that were looked at: their other jobs need not be
    for seq, job_id, job_type, status, completed_at, root in msgspec.json.decode(text or "[]"):
        if root in seen or seq in batch or not _is_over(policy, job_type, status, completed_at, now):
            continue
        if root is not None:
            seen.add(root)
        batch.update(_with_tree(connection, policy, (seq, job_id, job_type, status, completed_at), root, now))
    # Jobs arrive in the order of time, nearly: where a whole step of them is too young, so are those after it.
    done = count < limit or arrived >= newest
    return Found(list(batch.items()), None if done else str(last))


def _newest_cutoff(policy: RetentionPolicy, now: Instant) -> Instant | None:
    """Nothing that ended later than this is over its time."""
    spans = [span for keep in (policy.keep, *policy.by_type.values()) for span in _spans(keep) if span is not None]
    return now - min(spans) if spans else None


def _spans(keep: Keep) -> tuple[int | None, int | None, int | None]:
    return keep.completed_micros, keep.failed_micros, keep.cancelled_micros


def _is_over(policy: RetentionPolicy, job_type: str, status: str, completed_at: Instant | None, now: Instant) -> bool:
    if completed_at is None or (policy.job_types and job_type not in policy.job_types):
        return False
    keep = policy.by_type.get(job_type, policy.keep)
    match status:
        case Status.COMPLETED:
            span = keep.completed_micros
        case Status.FAILED:
            span = keep.failed_micros
        case Status.CANCELLED:
            span = keep.cancelled_micros
        case _:
            return False
    return span is not None and completed_at < now - span


def _with_tree(
    connection: apsw.Connection, policy: RetentionPolicy, job: Standing, root: str | None, now: Instant
) -> dict[int, Instant]:
    """The job, with its tree if it has one and all of that is over; nothing when a part has to stay."""
    members: list[Any] = [job] if root is None else sql.rows(connection, MEMBERS, (root,)) or [job]
    if not all(_is_over(policy, job_type, status, at, now) for _, _, job_type, status, at in members):
        return {}
    return {seq: at for seq, _, _, _, at in (*members, job)}


def retire(
    tx: Tx, batch: list[tuple[int, Instant]], policy: RetentionPolicy, now: Instant, limit: int
) -> tuple[int, int]:
    """Move the batch; how many were moved, and how many rows of the archive went."""
    archived: list[str] = []
    standing = _standing(tx, batch) if batch else []
    if standing:
        encoded = msgspec.json.encode(standing).decode()
        tx.execute(ARCHIVE, {"now": now, "batch": encoded})
        archived = [job_id for (job_id,) in tx.rows(RETIRE, (encoded,))]
        gone = msgspec.json.encode(archived).decode()
        tx.execute("DELETE FROM step WHERE job_id IN (SELECT value FROM json_each(?))", (gone,))
        tx.execute("DELETE FROM edge WHERE child_id IN (SELECT value FROM json_each(?))", (gone,))
    return len(archived), _drop(tx, policy, now, limit)


def _standing(tx: Tx, batch: list[tuple[int, Instant]]) -> list[int]:
    """Those of the batch that are still as they were read, a tree only if all of it is: someone may have retried a
    part of it since, or added one."""
    trees: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    for seq, root, size in tx.rows(STANDING, (msgspec.json.encode(batch).decode(),)):
        trees.setdefault(root, []).append(seq)
        sizes[root] = size
    return [seq for root, members in trees.items() if len(members) == sizes[root] for seq in members]


def _drop(tx: Tx, policy: RetentionPolicy, now: Instant, limit: int) -> int:
    tx.execute("DELETE FROM counter WHERE minute < ?", (now - COUNTERS_DAYS * 86_400 * MICROS,))
    if policy.archive_micros is None:
        return 0
    over = [job_id for (job_id,) in tx.rows(OVER, (now - policy.archive_micros, limit))]
    if over:
        gone = msgspec.json.encode(over).decode()
        tx.execute("DELETE FROM archive WHERE job_id IN (SELECT value FROM json_each(?))", (gone,))
        tx.execute("DELETE FROM dedup WHERE job_id IN (SELECT value FROM json_each(?))", (gone,))
    return len(over)


def anything_to_drop(connection: apsw.Connection, policy: RetentionPolicy, now: Instant) -> bool:
    if policy.archive_micros is not None and sql.rows(connection, OVER, (now - policy.archive_micros, 1)):
        return True
    oldest = now - COUNTERS_DAYS * 86_400 * MICROS
    return bool(sql.value(connection, "SELECT EXISTS (SELECT 1 FROM counter WHERE minute < ?)", (oldest,)))


def answer(found: Found, archived: int, dropped: int, limit: int) -> Retired:
    more_to_drop = found.next is None and dropped == limit
    return Retired(archived, dropped, "0" if more_to_drop else found.next)


def get(connection: apsw.Connection, job_ids: Sequence[str]) -> dict[str, JobRecord]:
    found = sql.rows(connection, GET, (msgspec.json.encode(job_ids).decode(),))
    return {
        job_id: msgspec.structs.replace(_record.decode(details), archived_at=archived_at, status=Status(status))
        for job_id, archived_at, status, details in found
    }


def with_files(connection: apsw.Connection, limit: int) -> list[str]:
    return [job_id for (job_id,) in sql.rows(connection, WITH_FILES, (limit,))]


def cleaned(tx: Tx, job_ids: Sequence[str]) -> None:
    tx.connection.executemany("UPDATE archive SET has_files = 0 WHERE job_id = ?", [(each,) for each in job_ids])
