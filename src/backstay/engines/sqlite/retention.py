"""Retention on SQLite: ended jobs are archived, and archive rows are deleted when their time is over.

It walks ended jobs in order of arrival, a step at a time, and turns those past their time into archive rows, from which
`get` still answers. What it reads is checked again in the transaction that moves it, so that a job that is retried in
between stays.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from backstay.clock import Instant
from backstay.core.records import RetentionPolicy, Verdict
from backstay.core.states import TERMINAL
from backstay.engines import sql_rows
from backstay.engines.places import STORED
from backstay.engines.sqlite import access, waits
from backstay.engines.sqlite import connection as sqlite_connection
from backstay.engines.sqlite import places as sqlite_places
from backstay.engines.sqlite.connection import load
from backstay.engines.sqlite.writer import Tx

RETIRABLE = load("retirable")
MEMBERS = load("tree_members")
RETIRE_CANDIDATES = load("retire_standing")
ARCHIVE = load("archive")
RETIRE_TALLY = load("retire_tally")
RETIRE = load("retire")
OVER = load("archive_over")
WITH_FILES = load("archive_files")
RETIRE_PLACED = [load(name) for name in ("retire_ended", "retire_details", "retire_events")]  # by position …
RETIRE_NAMED = [load(name) for name in ("retire_steps", "retire_output", "retire_edges")]  # … and by id
DROP_ARCHIVED = load("drop_archived")
DROP_GUARDS = load("drop_guards")
CLEANED = load("cleaned")


def look(
    connection: apsw.Connection, policy: RetentionPolicy, now: Instant, limit: int, after: str | None
) -> sql_rows.Found:
    newest = sql_rows.newest_cutoff(policy, now)
    if newest is None:
        return sql_rows.Found([], None)
    text, last, arrived, count = sqlite_connection.rows(connection, RETIRABLE, (int(after or 0), limit, newest))[0]
    batch: dict[int, Instant] = {}
    for job, root in sql_rows.over(policy, text, now):
        members = [] if root is None else sqlite_connection.rows(connection, MEMBERS, (root,))
        batch.update(sql_rows.with_tree(policy, job, members, now))
    return sql_rows.Found(list(batch.items()), sql_rows.next_step(last, arrived, count, limit, newest))


def retire(
    tx: Tx, batch: list[tuple[int, Instant]], policy: RetentionPolicy, now: Instant, limit: int
) -> tuple[int, int]:
    """Archive the batch; return how many jobs were archived, and how many archive rows were deleted."""
    archived: list[str] = []
    standing = _standing(tx, batch) if batch else []
    if standing:
        tx.arrivals.count()  # while they are there
        encoded = msgspec.json.encode(standing).decode()
        tx.connection.execute(ARCHIVE, {"now": now, "batch": encoded})
        for *kind, status, jobs in tx.rows(RETIRE_TALLY, (encoded,)):
            job_type, queue, priority = kind
            for what in (STORED, status):
                tx.tally((job_type, queue, priority), what, -jobs)
        archived = [job_id for (job_id,) in tx.rows(RETIRE, (encoded,))]
        for statement in RETIRE_PLACED:
            tx.connection.execute(statement, (encoded,))
        gone = msgspec.json.encode(archived).decode()
        for statement in RETIRE_NAMED:
            tx.connection.execute(statement, (gone,))
    return len(archived), _drop(tx, policy, now, limit)


def _standing(tx: Tx, batch: list[tuple[int, Instant]]) -> list[int]:
    """Return the jobs of the batch that are unchanged since they were read."""
    rows = tx.rows(RETIRE_CANDIDATES, (msgspec.json.encode(batch).decode(),))
    return sql_rows.whole_trees((seq, root, size) for seq, root, size in rows)


_REMOVED = [
    load(name)
    for name in (
        "drop_archived", "drop_guards", "remove_ended", "remove_detail", "remove_events", "retire_steps",
        "retire_output", "retire_edges", "remove_staged", "remove_job",
    )
]  # fmt: skip
REMOVE_KIN = load("remove_kin")
ARCHIVED_VERSION = load("archived_version")
NEEDED = load("needed")


def remove(tx: Tx, job_id: str, version: int) -> Verdict:
    """Delete a job that has ended, or its archive row."""
    job = sqlite_places.standing(tx, job_id)
    stored: int | None = tx.value(ARCHIVED_VERSION, (job_id,)) if job is None else job.version
    if stored is None:
        return Verdict.GONE
    if stored != version or (job is not None and job.status not in TERMINAL):
        return Verdict.STALE
    if tx.value(NEEDED, (job_id,)):
        return Verdict.BLOCKED
    if job is not None:
        tx.arrivals.count()  # while it is there
        for what in (STORED, job.status.value):
            tx.tally(job.kind, what, -1)
        tx.connection.execute(REMOVE_KIN, (job_id,))
    named = msgspec.json.encode([job_id]).decode()
    for statement in _REMOVED:
        tx.connection.execute(statement, (named,))
    return Verdict.APPLIED


def _drop(tx: Tx, policy: RetentionPolicy, now: Instant, limit: int) -> int:
    access.sum_counters(tx, now)
    access.drop_entries(tx, now, limit)
    waits.drop_old_mailboxes(tx, now, limit)
    if policy.archive_micros is None:
        return 0
    over = [job_id for (job_id,) in tx.rows(OVER, (now - policy.archive_micros, limit))]
    if over:
        gone = msgspec.json.encode(over).decode()
        tx.connection.execute(DROP_ARCHIVED, (gone,))
        tx.connection.execute(DROP_GUARDS, (gone,))
    return len(over)


def anything_to_drop(connection: apsw.Connection, policy: RetentionPolicy, now: Instant) -> bool:
    if policy.archive_micros is not None and sqlite_connection.rows(connection, OVER, (now - policy.archive_micros, 1)):
        return True
    if waits.has_old_mailboxes(connection, now):
        return True
    return access.has_counters_to_sum(connection, now) or access.has_entries_to_drop(connection, now)


def with_files(connection: apsw.Connection, limit: int) -> list[str]:
    return [job_id for (job_id,) in sqlite_connection.rows(connection, WITH_FILES, (limit,))]


def cleaned(tx: Tx, job_ids: Sequence[str]) -> None:
    tx.connection.executemany(CLEANED, [(each,) for each in job_ids])
