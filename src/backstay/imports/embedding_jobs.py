"""The embedding queue of a PostgreSQL database: the table `embedding_jobs`, and its dead letters.

    backstay import embedding-jobs 'postgresql://user@host/rules'

Jobs of type `embedding` get the payload, subject, tag and content hash that the rules application gives its own, so
that a text which was embedded is not embedded again, and deleting a rule or a project removes its jobs. The vector is
the job's result; the rule's own copy of it is a matter of the application, which keeps its table.

A row whose rule was deleted is gone with it. Dead letters may have been copied to `embedding_job_failures`: those that
are no longer in the queue itself are imported from there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from backstay.clock import MICROS
from backstay.core.checks import PRIORITIES
from backstay.core.states import Status
from backstay.imports.postgres_tables import PostgresTables
from backstay.imports.source import (
    RUNNING,
    Row,
    Work,
    document,
    known,
    moment,
    required,
    text,
    whole,
)

_STATES = {
    "pending": Status.PENDING,
    "processing": Status.PROCESSING,
    "completed": Status.COMPLETED,
    "failed": Status.FAILED,
    "retrying": Status.RETRYING,
}
_COLUMNS = {
    "id": "text", "rule_id": "text", "status": "text", "priority": "text", "embedding_model": "text",
    "input_text": "text", "text_hash": "text", "attempts": "integer", "max_attempts": "integer",
    "created_at": "timestamptz", "started_at": "timestamptz", "completed_at": "timestamptz",
    "embedding_vector": "text", "embedding_dimensions": "integer", "error_message": "text",
    "processing_time_ms": "integer", "worker_id": "text", "worker_version": "text", "project_id": "text",
    "created_by": "text",
}  # fmt: skip
_READ = ", ".join(f"{name}::{kind} AS {name}" for name, kind in _COLUMNS.items())
_TABLE = "embedding_jobs"
_FAILURES = "embedding_job_failures"
BACKOFF_SECONDS, BACKOFF_SECONDS_MAX = 30, 300  # min(300, 30·2^attempts) after the start of the failed attempt


class EmbeddingJobs:
    has_dependencies = False

    def __init__(self, address: str) -> None:
        self._tables = PostgresTables(address, "an embedding queue", table=_TABLE)
        self.location = self._tables.location
        self._statement = ""

    async def open(self) -> None:
        await self._tables.open()
        name = self._tables.options["table"]
        await self._tables.columns_of(name, tuple(_COLUMNS))
        table = await self._tables.name_of(name)
        parts = [f"SELECT {_READ} FROM {table} AS jobs"]  # noqa: S608
        schema, dot, _ = name.rpartition(".")
        if failures := await self._tables.name_of(f"{schema}{dot}{_FAILURES}"):
            parts.append(
                f"SELECT {_READ} FROM {failures} AS dead"  # noqa: S608
                f" WHERE NOT EXISTS (SELECT FROM {table} AS jobs WHERE jobs.id = dead.id)"
            )
        self._statement = " UNION ALL ".join(parts)

    async def close(self) -> None:
        await self._tables.close()

    async def count(self) -> int:
        return await self._tables.count(self._statement)

    def pages(self) -> AsyncIterator[list[Row]]:
        return self._tables.pages(f"{self._statement} ORDER BY created_at, id", _work)

    def notes(self) -> list[str]:
        return []


def _work(row: dict[str, Any]) -> Work:
    status = known(_STATES, row["status"])
    attempts = whole(row["attempts"], "attempts")
    created_at = required(moment(row["created_at"], "created_at"), "created_at")
    started_at = moment(row["started_at"], "started_at") if status is not Status.PENDING else None
    ended = status in (Status.COMPLETED, Status.FAILED)
    ended_at = (moment(row["completed_at"], "completed_at") or started_at or created_at) if ended else None
    attempt = max(attempts, int(status is not Status.PENDING))
    took = row["processing_time_ms"]
    return Work(
        source_id=row["id"],
        state=row["status"],
        job_type="embedding",
        payload={
            "rule_id": row["rule_id"],
            "project_id": row["project_id"],
            "input_text": row["input_text"],
            "text_hash": row["text_hash"],
            "embedding_model": row["embedding_model"],
        },
        status=status,
        created_at=created_at,
        due_at=_due_at(started_at or created_at, attempts) if status is Status.RETRYING else None,
        started_at=started_at,
        ended_at=ended_at,
        attempt=attempt,
        failures=attempt - 1 if status is Status.COMPLETED else attempt,  # a pending job has been given back after each
        max_attempts=whole(row["max_attempts"], "max_attempts", 3) or 1,
        priority=PRIORITIES[row["priority"]],
        subject=f"rule:{row['rule_id']}",
        tags=(f"project:{row['project_id']}",) if row["project_id"] else (),
        created_by=text(row["created_by"]),
        content_hash=f"{row['embedding_model']}:{row['text_hash']}",
        result=_result(row, took) if status is Status.COMPLETED else None,
        error=text(row["error_message"]),
        worker_id=text(row["worker_id"]) if started_at is not None else None,
        worker_version=text(row["worker_version"]) if started_at is not None else None,
        metrics={} if took is None else {"processing_time_ms": took},
        note=RUNNING if status is Status.PROCESSING else "",
    )


def _due_at(started_at: int, attempts: int) -> int:
    wait = min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS << min(attempts, 10))
    return started_at + wait * MICROS


def _result(row: dict[str, Any], took: int | None) -> dict[str, Any]:
    vector = document(row["embedding_vector"], "embedding_vector")
    return {
        "embedding_vector": vector,
        "embedding_dimensions": row["embedding_dimensions"] or len(vector or ()),
        "embedding_model": row["embedding_model"],
        "embedding_ms": took or 0,
    }
