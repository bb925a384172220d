"""Children of running jobs: at once, staged, and listed."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import Status
from holdfast.store.types import Hold, Inserted, NewJob, Page, Verdict
from holdfast.stores.sqlite import inserting, reading, sql, unpacking
from holdfast.stores.sqlite.tx import Tx
from holdfast.stores.transitions import held

CHILDREN = (
    reading.GET[: reading.GET.index("FROM job")]
    + "FROM job INDEXED BY job_parent WHERE parent_job_id = :parent AND job_id > :after"
    " AND (:status IS NULL OR status = :status) ORDER BY job_id LIMIT :limit"
)


def insert_children(tx: Tx, hold: Hold, jobs: Sequence[NewJob], now: Instant) -> list[Inserted] | None:
    return inserting.insert(tx, jobs, now) if _held(tx, hold) is Verdict.APPLIED else None


def stage(tx: Tx, hold: Hold, part: int, jobs: Sequence[NewJob], now: Instant) -> Verdict:
    verdict = _held(tx, hold)
    if verdict is Verdict.APPLIED:
        unpacking.stage(tx, hold, part, jobs)
    return verdict


def _held(tx: Tx, hold: Hold) -> Verdict:
    row = tx.row(reading.STANDING, (msgspec.json.encode([hold.job_id]).decode(),))
    return held(hold, None if row is None else (row[1], row[2], row[3]))


def children(connection: apsw.Connection, job_id: str, after: str | None, limit: int, status: Status | None) -> Page:
    asked = {
        "parent": job_id,
        "after": after or "",
        "status": None if status is None else status.value,
        "limit": limit + 1,
    }
    found = sql.rows(connection, CHILDREN, asked)
    items = tuple(reading.with_edges(connection, row) for row in found[:limit])
    return Page(items, items[-1].job_id if len(found) > limit else None)
