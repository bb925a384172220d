"""The queue of PgQueuer: the table `pgqueuer` of a PostgreSQL database, and its log.

    backstay import pgqueuer 'postgresql://user@host/db'

Jobs leave the queue when they end, except failed ones that are held. What is left of them is their lines in the log,
which have neither payload nor result. The log also has when a job started, and the error of an attempt that is retried.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

from backstay import codec
from backstay.core.states import Status
from backstay.errors import InvalidPayload
from backstay.imports.postgres_tables import PostgresTables
from backstay.imports.source import (
    RUNNING,
    Row,
    Unmappable,
    Work,
    document,
    known,
    moment,
    priority_around,
    required,
    text,
    whole,
)

_STATES = {
    "queued": Status.PENDING,
    "picked": Status.PROCESSING,
    "failed": Status.FAILED,
    "successful": Status.COMPLETED,
    "exception": Status.FAILED,
    "canceled": Status.CANCELLED,
    "deleted": Status.CANCELLED,
}
_ENDED = ("successful", "exception", "failed", "canceled", "deleted")
NO_PAYLOAD = "the log of PgQueuer has no payloads: it cannot be run again"
_NEEDED = ("id", "priority", "created", "updated", "execute_after", "status", "entrypoint", "payload")
_LOG_NEEDED = ("created", "job_id", "status", "priority", "entrypoint", "traceback")
# Columns that came with later releases.
_LATER = {"dedupe_key": "text", "headers": "text", "attempts": "integer", "queue_manager_id": "text"}
_WAITING = """
SELECT job.id::text AS id, job.status::text AS status, job.priority, job.entrypoint, job.payload, job.created,
    job.updated, job.execute_after, {later}, past.picks, past.started, past.traceback, false AS gone
FROM {queue} AS job
LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE line.status::text = 'picked') AS picks,
        max(line.created) FILTER (WHERE line.status::text = 'picked') AS started,
        (array_agg(line.traceback::text ORDER BY line.created DESC, line.id DESC)
            FILTER (WHERE line.traceback IS NOT NULL))[1] AS traceback
    FROM {log} AS line WHERE line.job_id = job.id
) AS past ON true
"""
_GONE = """
SELECT line.job_id::text, (array_agg(line.status::text ORDER BY line.created DESC, line.id DESC))[1],
    (array_agg(line.priority ORDER BY line.id DESC))[1], min(line.entrypoint), NULL::bytea, min(line.created),
    max(line.created), min(line.created), {later},
    count(*) FILTER (WHERE line.status::text = 'picked'),
    max(line.created) FILTER (WHERE line.status::text = 'picked'),
    (array_agg(line.traceback::text ORDER BY line.created DESC, line.id DESC)
        FILTER (WHERE line.traceback IS NOT NULL))[1],
    true
FROM {log} AS line
WHERE NOT EXISTS (SELECT FROM {queue} AS job WHERE job.id = line.job_id)
GROUP BY line.job_id
"""


class PgQueuer:
    has_dependencies = False

    def __init__(self, address: str) -> None:
        self._tables = PostgresTables(address, "a queue of PgQueuer", schema="", prefix="", name="")
        self.location = self._tables.location
        self._prefix = self._tables.options["name"]
        self._statement = ""

    async def open(self) -> None:
        await self._tables.open()
        queue, log = (self._tables.options["prefix"] + name for name in ("pgqueuer", "pgqueuer_log"))
        columns = await self._tables.columns_of(queue, _NEEDED)
        await self._tables.columns_of(log, _LOG_NEEDED)
        tables = {"queue": await self._tables.name_of(queue), "log": await self._tables.name_of(log)}
        here = ", ".join(
            f"job.{name}::{kind} AS {name}" if name in columns else f"NULL::{kind} AS {name}"
            for name, kind in _LATER.items()
        )
        gone = ", ".join(f"NULL::{kind}" for kind in _LATER.values())
        waiting = _WAITING.format(later=here, **tables)
        self._statement = f"{waiting} UNION ALL {_GONE.format(later=gone, **tables)}"

    async def close(self) -> None:
        await self._tables.close()

    async def count(self) -> int:
        return await self._tables.count(self._statement)

    def pages(self) -> AsyncIterator[list[Row]]:
        return self._tables.pages(f"SELECT * FROM ({self._statement}) AS jobs ORDER BY id::bigint", self._work)  # noqa: S608

    def notes(self) -> list[str]:
        return ["schedules are not jobs: add them to the new application"]

    def _work(self, row: dict[str, Any]) -> Work:
        if row["gone"] and row["status"] not in _ENDED:
            raise Unmappable("it was removed from the queue by hand")
        status = known(_STATES, row["status"])
        failed_before = whole(row["attempts"], "attempts")
        if status is Status.PENDING and failed_before:
            status = Status.RETRYING
        is_over = status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
        picks = whole(row["picks"], "picked")
        created_at = required(moment(row["created"], "created"), "created")
        has_started = status not in (Status.PENDING, Status.CANCELLED) or picks > 0
        started_at = moment(row["started"], "picked") or (moment(row["updated"], "updated") if has_started else None)
        attempt, failures = _attempts(status, picks, failed_before)
        return Work(
            source_id=f"{self._prefix}{self._prefix and '-'}{row['id']}",
            state=row["status"],
            job_type=row["entrypoint"],
            payload=None if row["payload"] is None else payload_of(row["payload"]),
            status=status,
            priority=priority_around(row["priority"]),
            created_at=created_at,
            due_at=None if is_over else moment(row["execute_after"], "execute_after"),
            started_at=started_at if status is not Status.PENDING else None,
            ended_at=moment(row["updated"], "updated") if is_over else None,
            attempt=attempt,
            failures=failures,
            error=_error(row["traceback"]) if status is not Status.COMPLETED else None,
            worker_id=text(row["queue_manager_id"]),
            tags=tuple(f"{name}={value}" for name, value in (document(row["headers"], "headers") or {}).items()),
            dedup_key=None if is_over else text(row["dedupe_key"]),
            note=RUNNING if status is Status.PROCESSING else NO_PAYLOAD if row["gone"] else "",
        )


def _attempts(status: Status, picks: int, failed_before: int) -> tuple[int, int]:
    """Return how often a job has started and failed. One that was picked again after its worker was lost has started
    more often than it has failed."""
    match status:
        case Status.PENDING:
            return 0, 0
        case Status.RETRYING:
            return max(picks, failed_before), failed_before
        case Status.COMPLETED:
            return max(1, picks), max(0, picks - 1)
        case Status.CANCELLED:
            return picks, max(0, picks - 1)
        case Status.FAILED:
            return max(1, picks), max(1, picks)
        case _:
            return max(picks, failed_before + 1), failed_before + 1


def payload_of(content: bytes) -> Any:
    """Return what a payload says: JSON, else text, else bytes as {"base64": …}."""
    try:
        return codec.from_json(content, "payload")
    except InvalidPayload:
        pass
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def _error(traceback: str | None) -> str | None:
    if traceback is None:
        return None
    said = document(traceback, "traceback")
    return text(said.get("traceback")) or f"{said.get('exception_type')}: {said.get('exception_message')}"
