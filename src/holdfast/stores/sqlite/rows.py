"""Rows of the file to records of the port, and history events to text."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import ErrorEntry, Event, Status
from holdfast.store.types import HistoryEvent, JobRecord

COLUMNS = [
    "job_id",
    "job_type",
    "queue",
    "status",
    "priority",
    "payload",
    "created_at",
    "updated_at",
    "scheduled_for",
    "started_at",
    "completed_at",
    "attempt",
    "failures",
    "snoozes",
    "give_backs",
    "max_attempts",
    "timeout_micros",
    "version",
    "worker_id",
    "worker_version",
    "lease_expires_at",
    "progress",
    "stage",
    "result",
    "result_artifact",
    "last_error",
    "errors",
    "logs",
    "log_location",
    "metrics",
    "artifacts",
    "subject",
    "tags",
    "created_by",
    "dedup_key",
    "content_hash",
    "reused_from",
    "concurrency_key",
    "concurrency_limit",
    "parked",
    "parent_job_id",
    "root_job_id",
    "job_stage",
    "on_dependency_failure",
    "history",
]

_errors = msgspec.json.Decoder(tuple[ErrorEntry, ...])
_history = msgspec.json.Decoder(tuple[HistoryEvent, ...])
_STATUS, _STARTED, _COMPLETED, _ERRORS, _PARKED, _HISTORY = (
    COLUMNS.index(name) for name in ("status", "started_at", "completed_at", "errors", "parked", "history")
)


def record(row: tuple[Any, ...], edges: tuple[str, str, int] | None = None) -> JobRecord:
    fields = dict(zip(COLUMNS, row, strict=True))
    fields["status"] = Status(row[_STATUS])
    fields["errors"] = _errors.decode(row[_ERRORS]) if row[_ERRORS] else ()
    fields["parked"] = bool(row[_PARKED])
    fields["history"] = history(row[_HISTORY])
    if row[_STARTED] is not None and row[_COMPLETED] is not None:
        fields["processing_micros"] = max(0, row[_COMPLETED] - row[_STARTED])
    if edges is not None:
        fields["dependencies"] = tuple(msgspec.json.decode(edges[0]))
        fields["dependent_jobs"] = tuple(msgspec.json.decode(edges[1]))
        fields["dependent_count"] = edges[2]
    return JobRecord(**fields)


def history(text: str) -> tuple[HistoryEvent, ...]:
    return _history.decode("[" + text.replace("\n", ",") + "]")


def submit_event(now: Instant, event: Event, target: Status, by: str | None) -> str:
    return f'[1,{now},"{event.value}",null,"{target.value}",0,{_text(by)}]'


def event_tail(
    now: Instant,
    event: Event,
    source: Status,
    target: Status,
    attempt: int,
    by: str | None,
    reason: str | None,
) -> str:
    """A history event without its opening bracket and version, which SQL puts before it."""
    why = f",{_text(reason)}" if reason is not None else ""
    return f',{now},"{event.value}","{source.value}","{target.value}",{attempt},{_text(by)}{why}]'


def _text(value: str | None) -> str:
    return "null" if value is None else msgspec.json.encode(str(value)).decode()
