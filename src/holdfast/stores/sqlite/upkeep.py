"""promote, and the rows of workers and types."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from holdfast.clock import Instant
from holdfast.store.types import JobType, Promoted, Signal, WorkerRow
from holdfast.stores.sqlite import rating, releasing, sql, unpacking
from holdfast.stores.sqlite.sql import load
from holdfast.stores.sqlite.tx import Tx

PROMOTE = load("promote")
NEXT_DUE = load("next_due")


def promote(tx: Tx, now: Instant, limit: int) -> Promoted:
    tx.execute(PROMOTE, {"now": now, "limit": limit})
    count = tx.connection.changes()
    if count:
        tx.signals.add(Signal.READY)
    rating.unpark_due(tx, now)
    return Promoted(count, next_due(tx.connection, now))


def next_due(connection: apsw.Connection, now: Instant) -> Instant | None:
    """When the next scheduled, retrying or rate-limited job may run."""
    due: Instant | None = sql.value(connection, NEXT_DUE)
    rate_due = rating.next_due(connection, now)
    return min((each for each in (due, rate_due) if each is not None), default=None)


def release_needed(connection: apsw.Connection) -> bool:
    return bool(
        sql.value(
            connection,
            "SELECT EXISTS (SELECT 1 FROM release_due) OR EXISTS ("
            "SELECT 1 FROM job INDEXED BY job_parked"
            " WHERE parked = 1 AND rate_parked = 0 AND concurrency_key IS NOT NULL)"
            " OR EXISTS (SELECT 1 FROM fair_key) OR EXISTS (SELECT 1 FROM staged)"
            " OR EXISTS (SELECT 1 FROM unpack_due)",
        )
    )


def release(tx: Tx, now: Instant, limit: int) -> int:
    return releasing.release(tx, now, limit) + unpacking.drop_stale(tx)


def beat(tx: Tx, worker: WorkerRow) -> None:
    tx.execute(
        "INSERT OR REPLACE INTO worker (worker_id, heartbeat_at, details) VALUES (?, ?, ?)",
        (worker.worker_id, worker.heartbeat_at, msgspec.json.encode(worker).decode()),
    )


def forget(tx: Tx, worker_ids: Sequence[str]) -> None:
    tx.connection.executemany("DELETE FROM worker WHERE worker_id = ?", [(each,) for each in worker_ids])


def announce(tx: Tx, types: Sequence[JobType]) -> None:
    tx.connection.executemany(
        "INSERT OR REPLACE INTO job_type (job_type, details) VALUES (?, ?)",
        [(each.job_type, msgspec.json.encode(each).decode()) for each in types],
    )
