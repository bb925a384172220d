"""The Delphi job queue: a DynamoDB table, with the key of its document's text or that of its code.

    backstay import delphi 'dynamodb://DelphiJobQueue?region=us-east-1'

In the text, `job_id` is the key of the table. In the code it is `status` and `created_at`, so that a change of status
is a new item and the removal of the old one: a job that a crash left twice is imported as its newer item. Configuration
and results may be documents or JSON text, and what is empty may be absent, null or an empty string.

A job may depend on others. The states of those are read before the first page, so that a waiting job is recognised.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from backstay.core.states import Status
from backstay.engines.dynamodb.schema import Item
from backstay.errors import ConfigurationError
from backstay.imports.dynamodb_table import ForeignTable
from backstay.imports.source import (
    RUNNING,
    Row,
    Unmappable,
    Work,
    document,
    known,
    moment,
    named,
    read,
    required,
    text,
    whole,
)

_STATES = {
    "PENDING": Status.PENDING,
    "PROCESSING": Status.PROCESSING,
    "COMPLETED": Status.COMPLETED,
    "FAILED": Status.FAILED,
    "CANCELLED": Status.CANCELLED,
}
_ENDED = ("COMPLETED", "FAILED", "CANCELLED")
_SURVEYED = {"#j": "job_id", "#s": "status", "#v": "version", "#u": "updated_at", "#d": "dependencies"}
NAIVE = "times without a zone are taken as UTC"


class _Seen(msgspec.Struct, frozen=True):
    """What is known of an item before it is mapped."""

    status: str
    newness: tuple[int, str]
    depends_on: tuple[str, ...]


class Delphi:
    def __init__(self, address: str) -> None:
        self._table = ForeignTable(address)
        self._jobs: dict[str, _Seen] = {}  # the newest item of each job
        self._has_dependencies = False
        self._items = 0

    @property
    def location(self) -> str:
        return self._table.location

    @property
    def has_dependencies(self) -> bool:
        return self._has_dependencies

    async def open(self) -> None:
        described = await self._table.described()
        keys = [key["AttributeName"] for key in described["KeySchema"]]
        if keys not in (["job_id"], ["status", "created_at"]):
            raise ConfigurationError(
                f"{self._table.name} is not a Delphi job queue: its key is {', '.join(keys)}, not job_id, or status and"
                " created_at"
            )
        await self._survey()

    async def _survey(self) -> None:
        self._jobs.clear()
        self._items = 0
        async for page in self._table.scan(
            ProjectionExpression=", ".join(_SURVEYED), ExpressionAttributeNames=_SURVEYED
        ):
            self._items += len(page)
            for item in page:
                seen = _Seen(str(item.get("status", "")), _newness(item), _needs(item))
                job_id = str(item.get("job_id", ""))
                before = self._jobs.get(job_id)
                if before is None or seen.newness > before.newness:
                    self._jobs[job_id] = seen
        self._has_dependencies = any(seen.depends_on for seen in self._jobs.values())

    async def close(self) -> None:
        await self._table.close()

    async def count(self) -> int:
        return self._items

    async def pages(self) -> AsyncIterator[list[Row]]:
        async for page in self._table.scan():
            yield [self._row(item) for item in page]

    def notes(self) -> list[str]:
        return [NAIVE]

    def _row(self, item: Item) -> Row:
        return read(item.get("job_id", "?"), item.get("status", "?"), lambda: self._work(item))

    def _work(self, item: Item) -> Work:
        job_id = text(item.get("job_id"))
        if job_id is None:
            raise Unmappable("it has no job_id")
        newest = self._jobs.get(job_id)
        if newest is not None and newest.newness > _newness(item):
            raise Unmappable("a newer item of the same job is imported instead")
        state = item.get("status")
        status = known(_STATES, state)
        retries = whole(item.get("retry_count"), "retry_count")
        results = document(item.get("job_results"), "job_results")
        logs = document(item.get("logs"), "logs")
        depends_on = _listed(item.get("dependencies"))
        unfinished, note = self._waits_for(depends_on) if status is Status.PENDING else ((), "")
        if note:
            status = Status.CANCELLED
        has_started = status is not Status.PENDING
        has_failed = status in (Status.FAILED, Status.PROCESSING)
        created_at = required(moment(item.get("created_at"), "created_at"), "created_at")
        updated_at = moment(item.get("updated_at"), "updated_at")
        started_at = moment(item.get("started_at"), "started_at")
        return Work(
            source_id=job_id,
            state=str(state),
            job_type=named(item.get("job_type"), "job_type"),
            payload=document(item.get("job_config"), "job_config") or {},
            status=status,
            created_at=created_at,
            started_at=started_at if has_started and not note else None,
            ended_at=moment(item.get("completed_at"), "completed_at") or (updated_at if has_started else None),
            attempt=retries + int(status in (Status.COMPLETED, Status.FAILED, Status.PROCESSING)),
            failures=retries + int(has_failed),
            max_attempts=whole(item.get("max_retries"), "max_retries", 4) + 1 if "max_retries" in item else None,
            timeout_seconds=item.get("timeout_seconds"),
            priority=item.get("priority"),
            subject=text(item.get("conversation_id")),
            created_by=text(item.get("created_by")),
            result=results,
            error=note or _error(status, results, logs),
            worker_id=text(item.get("worker_id")) if has_started and started_at is not None else None,
            logs=_entries(logs),
            log_location=text(logs.get("log_location")) if isinstance(logs, dict) else None,
            version=whole(item.get("version"), "version", 1),
            depends_on=depends_on,
            unfinished=unfinished,
            note=note or (RUNNING if status is Status.PROCESSING else ""),
        )

    def _waits_for(self, depends_on: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
        """Return which of its dependencies a waiting job waits for, and why it can never start, if so."""
        unfinished = []
        for each in depends_on:
            seen = self._jobs.get(each)
            if seen is None:
                raise Unmappable("it depends on a job that is not in the table")
            if seen.status in ("FAILED", "CANCELLED"):
                return (), f"a job that it depends on has {'failed' if seen.status == 'FAILED' else 'been cancelled'}"
            if seen.status != "COMPLETED":
                unfinished.append(each)
        return tuple(unfinished), ""


def _newness(item: Item) -> tuple[int, str]:
    version = item.get("version")
    return version if isinstance(version, int) else 0, str(item.get("updated_at") or "")


def _needs(item: Item) -> tuple[str, ...]:
    """Return the dependencies of a job; none if they cannot be read, for which the job itself is refused later."""
    try:
        return _listed(item.get("dependencies"))
    except (Unmappable, TypeError):
        return ()


def _listed(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = document(value, "dependencies") if value else ()
    return tuple(str(each) for each in value or ())


def _error(status: Status, results: Any, logs: Any) -> str | None:
    """Return why a job failed: what its results say, or the last error that it logged."""
    if status is not Status.FAILED:
        return None
    if isinstance(results, dict):
        for name in ("error", "error_message", "message"):
            if isinstance(results.get(name), str):
                return str(results[name])
    errors = [str(each.get("message")) for each in _entries(logs) if each.get("level") == "ERROR"]
    return errors[-1] if errors else "the job queue does not say why it failed"


def _entries(logs: Any) -> tuple[dict[str, Any], ...]:
    found = logs.get("entries") if isinstance(logs, dict) else None
    return tuple(each for each in found or () if isinstance(each, dict))
