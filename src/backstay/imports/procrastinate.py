"""The queue of Procrastinate: the table `procrastinate_jobs` of a PostgreSQL database, and its events.

    backstay import procrastinate 'postgresql://user@host/db'

The times of a job are those of its events. An attempt is counted when it ends, so a job that runs is at one more. A
`lock`, which one job at a time holds, becomes a concurrency key with a limit of one. A queueing lock holds only while
its job has not started: it becomes the dedup key of such a job.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from backstay.core.states import Status
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
    "todo": Status.PENDING,
    "doing": Status.PROCESSING,
    "succeeded": Status.COMPLETED,
    "failed": Status.FAILED,
    "cancelled": Status.CANCELLED,
    "aborting": Status.PROCESSING,
    "aborted": Status.CANCELLED,
}
_TABLE, _EVENTS = "procrastinate_jobs", "procrastinate_events"
_NEEDED = ("id", "queue_name", "task_name", "lock", "queueing_lock", "args", "status", "scheduled_at", "attempts")
# Columns that came with later releases, and what a row without them has.
_LATER = {"priority": "0", "worker_id": "NULL", "abort_requested": "false"}
_READ = """
SELECT jobs.id::text AS id, jobs.status::text AS status, jobs.queue_name, jobs.task_name, jobs.lock, jobs.queueing_lock,
    jobs.args::text AS args, jobs.scheduled_at, jobs.attempts, {later}, events.*
FROM {jobs} AS jobs
LEFT JOIN LATERAL (
    SELECT min(at) AS created_at, max(at) FILTER (WHERE type::text = 'started') AS started_at,
        max(at) FILTER (WHERE type::text IN ('failed', 'succeeded', 'cancelled', 'aborted')) AS ended_at
    FROM {events} WHERE job_id = jobs.id
) AS events ON true
ORDER BY jobs.id
"""
_OWN = "builtin:"  # tasks of Procrastinate itself


class Procrastinate:
    has_dependencies = False

    def __init__(self, address: str) -> None:
        self._tables = PostgresTables(address, "a queue of Procrastinate", schema="", name="")
        self.location = self._tables.location
        self._prefix = self._tables.options["name"]
        self._statement = self._table = ""

    async def open(self) -> None:
        await self._tables.open()
        columns = await self._tables.columns_of(_TABLE, _NEEDED)
        await self._tables.columns_of(_EVENTS, ("job_id", "type", "at"))
        self._table = await self._tables.name_of(_TABLE) or _TABLE
        later = ", ".join(f"jobs.{name}" if name in columns else f"{usual} AS {name}" for name, usual in _LATER.items())
        events = await self._tables.name_of(_EVENTS)
        self._statement = _READ.format(jobs=self._table, events=events, later=later)

    async def close(self) -> None:
        await self._tables.close()

    async def count(self) -> int:
        return await self._tables.count(f"SELECT FROM {self._table}")

    def pages(self) -> AsyncIterator[list[Row]]:
        return self._tables.pages(self._statement, self._work)

    def notes(self) -> list[str]:
        return ["periodic tasks are not jobs: add a schedule for each to the new application"]

    def _work(self, row: dict[str, Any]) -> Work:
        status = known(_STATES, row["status"])
        is_running = status is Status.PROCESSING
        if row["task_name"].startswith(_OWN):
            raise Unmappable("a task of Procrastinate itself: Backstay removes old jobs by itself")
        if is_running and row["abort_requested"]:
            raise Unmappable("it was told to stop and has not yet: stop its worker, and import again")
        attempts = whole(row["attempts"], "attempts")
        if status is Status.PENDING and attempts:
            status = Status.RETRYING
        is_over = status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
        # The worker that ran it may have been killed: then it is back in the line, with an event of a start.
        has_started = is_running or attempts > 0
        created_at = required(moment(row["created_at"], "the time of its first event"), "event")
        started_at = moment(row["started_at"], "started") if has_started else None
        return Work(
            source_id=f"{self._prefix}{self._prefix and '-'}{row['id']}",
            state=row["status"],
            job_type=row["task_name"],
            payload=document(row["args"], "args"),
            status=status,
            queue=row["queue_name"],
            priority=priority_around(row["priority"]),
            created_at=created_at,
            due_at=None if is_over else moment(row["scheduled_at"], "scheduled_at"),
            started_at=started_at,
            ended_at=(moment(row["ended_at"], "ended") or started_at or created_at) if is_over else None,
            attempt=attempts + int(is_running),
            failures=max(0, attempts - 1) if status is Status.COMPLETED else attempts + int(is_running),
            error=_error(row) if status is Status.FAILED else None,
            worker_id=text(row["worker_id"]) if is_running else None,
            lock=text(row["lock"]),
            dedup_key=text(row["queueing_lock"]) if row["status"] == "todo" else None,
            note=RUNNING if is_running else "",
        )


def _error(row: dict[str, Any]) -> str:
    return f"failed in Procrastinate after {row['attempts']} attempts, which keeps no message: see its worker's log"
