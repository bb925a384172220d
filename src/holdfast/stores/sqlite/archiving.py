"""Retention: ended jobs that are over their time become a row of the archive, which `get` still answers from.

It walks the jobs in order of arrival, a step at a time. What it reads is checked again in the transaction that moves
it, so that a job which someone retries in between stays.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import Status
from holdfast.store.types import JobRecord, RetentionPolicy
from holdfast.stores import retiring
from holdfast.stores.sqlite import access, sql, totalling
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


def look(
    connection: apsw.Connection, policy: RetentionPolicy, now: Instant, limit: int, after: str | None
) -> retiring.Found:
    newest = retiring.newest_cutoff(policy, now)
    if newest is None:
        return retiring.Found([], None)
    text, last, arrived, count = sql.rows(connection, RETIRABLE, (int(after or 0), limit, newest))[0]
    batch: dict[int, Instant] = {}
    for job, root in retiring.over(policy, text, now):
        members = [] if root is None else sql.rows(connection, MEMBERS, (root,))
        batch.update(retiring.with_tree(policy, job, members, now))
    return retiring.Found(list(batch.items()), retiring.next_step(last, arrived, count, limit, newest))


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
    """Those of the batch that are still as they were read."""
    rows = tx.rows(STANDING, (msgspec.json.encode(batch).decode(),))
    return retiring.whole_trees((seq, root, size) for seq, root, size in rows)


def _drop(tx: Tx, policy: RetentionPolicy, now: Instant, limit: int) -> int:
    totalling.keep_up(tx, now)
    access.drop(tx, now, limit)
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
    return totalling.anything_to_do(connection, now) or access.anything_to_drop(connection, now)


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
