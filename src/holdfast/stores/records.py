"""Records of the port from the columns that the SQL engines share."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.clock import Instant
from holdfast.counted import NO_BUCKET
from holdfast.lifecycle import Counted, ErrorEntry, Status
from holdfast.store.counters import Buckets
from holdfast.store.types import Counter, HistoryEvent, JobRecord, Total, WorkerRow

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
    "trigger_rule",
    "children",
    "open_children",
    "failed_children",
    "cancelled_children",
    "awaits",
    "waits",
    "result_tables",
    "rows_of",
    "rows_attempt",
    "payload_version",
    "fairness_key",
    "fairness_weight",
    "rate_key",
    "schedule",
    "tick_at",
    "traceparent",
    "history",
]

_errors = msgspec.json.Decoder(tuple[ErrorEntry, ...])
_history = msgspec.json.Decoder(tuple[HistoryEvent, ...])
_names = msgspec.json.Decoder(tuple[str, ...])
_worker = msgspec.json.Decoder(WorkerRow)
_buckets = msgspec.json.Decoder(Buckets)
_STATUS, _STARTED, _COMPLETED, _ERRORS, _PARKED, _HISTORY = (
    COLUMNS.index(name) for name in ("status", "started_at", "completed_at", "errors", "parked", "history")
)
# Columns of trees and results, which most jobs leave empty: then the record says the usual.
_OFTEN_NULL = (
    "trigger_rule", "children", "open_children", "failed_children", "cancelled_children", "waits", "result_tables",
)  # fmt: skip


def record(row: tuple[Any, ...], edges: tuple[str, str, int] | None = None) -> JobRecord:
    fields = dict(zip(COLUMNS, row, strict=True))
    fields["status"] = Status(row[_STATUS])
    fields["errors"] = _errors.decode(row[_ERRORS]) if row[_ERRORS] else ()
    fields["parked"] = bool(row[_PARKED])
    for name in _OFTEN_NULL:
        if fields[name] is None:
            del fields[name]
    if "result_tables" in fields:
        fields["result_tables"] = _names.decode(fields["result_tables"])
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


def counter(
    minute: Instant,
    job_type: str,
    queue: str,
    priority: int,
    outcome: str,
    count: int,
    ran: int,
    waited: int,
    buckets: str | None,
) -> Counter:
    """From the sums of a kind and outcome over its buckets, and [bucket, count] of each as JSON."""
    return Counter(minute, job_type, queue, priority, Counted(outcome), count, ran, waited, buckets_of(buckets))


def buckets_of(text: str | None) -> Buckets:
    return tuple(sorted(_buckets.decode(text))) if text else ()


def counter_rows(counter: Counter) -> list[tuple[Any, ...]]:
    """What a table of counters has of it: a row for each bucket."""
    kind = (counter.minute, counter.job_type, counter.queue, counter.priority, counter.outcome.value)
    split = bucket_rows(counter.count, counter.ran_micros, counter.waited_micros, counter.buckets)
    return [(*kind, *row) for row in split]


def total(job_type: str, queue: str, outcome: str, count: int, ran: int, waited: int, buckets: str | None) -> Total:
    return Total(job_type, queue, Counted(outcome), count, ran, waited, buckets_of(buckets))


def total_rows(total: Total) -> list[tuple[Any, ...]]:
    split = bucket_rows(total.count, total.ran_micros, total.waited_micros, total.buckets)
    return [(total.job_type, total.queue, total.outcome.value, *row) for row in split]


def bucket_rows(count: int, ran: int, waited: int, buckets: Buckets) -> list[tuple[int, int, int, int]]:
    """Bucket, count and times of each. How long attempts took is known of all together, and goes to the first."""
    rest = count - sum(jobs for _, jobs in buckets)
    parts = [(NO_BUCKET, rest), *buckets] if rest or not buckets else list(buckets)
    times = [(ran, waited), *[(0, 0)] * (len(parts) - 1)]
    return [(bucket, jobs, *took) for (bucket, jobs), took in zip(parts, times, strict=True)]


def worker(worker_id: str, heartbeat_at: Instant, details: str) -> WorkerRow:
    """A row that another release, or a hand, has made unreadable must not hide the other workers. As one that takes no
    jobs it is forgotten like any that is silent for long."""
    try:
        return msgspec.structs.replace(_worker.decode(details), heartbeat_at=heartbeat_at)
    except msgspec.MsgspecError:
        return WorkerRow(
            worker_id=worker_id,
            host="",
            pid=0,
            process_key="",
            version="",
            queues=(),
            job_types=(),
            concurrency=0,
            started_at=heartbeat_at,
            heartbeat_at=heartbeat_at,
            unread=True,
        )
