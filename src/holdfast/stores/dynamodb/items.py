"""Jobs as items: from what is submitted, to what is read. None and defaults are absent from an item. Pure."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import ErrorEntry, Event, Status
from holdfast.store.types import ClaimedJob, ExpiredClaim, JobRecord, NewJob
from holdfast.stores import history, records
from holdfast.stores.dynamodb import bodies, shortening
from holdfast.stores.dynamodb.bodies import Texts
from holdfast.stores.dynamodb.values import Item
from holdfast.transition import LEASE_LOST
from holdfast.trees import TriggerRule

PROGRESS_MIN = 1e-9  # a number of DynamoDB ends at 1e-130, and refuses the whole write below

_NAMES = frozenset(JobRecord.__struct_fields__) - {
    "status",
    "errors",
    "parked",
    "history",
    "dependencies",
    "dependent_jobs",
    "dependent_count",
    "processing_micros",
    "archived_at",
    "payload",
    "result",
    "artifacts",
    "trigger_rule",
    "open_children",
    "failed_children",
    "cancelled_children",
    "result_tables",
}
# What an item calls by a shorter name, or keeps otherwise. A parent's numbers are added to by the ends of its children.
_RENAMED = {
    "trigger_rule": "rule",
    "open_children": "open",
    "failed_children": "bad",
    "cancelled_children": "left",
}
_KEYS = ("subject", "content_hash", "concurrency_key", "worker_id", "root_job_id")  # of indexes: never the empty text
_PLAIN = (
    "job_id",
    "job_type",
    "queue",
    "priority",
    "payload",
    "scheduled_for",
    "max_attempts",
    "timeout_micros",
    "subject",
    "tags",
    "created_by",
    "job_stage",
    "parent_job_id",
    "root_job_id",
    "content_hash",
    "concurrency_key",
    "concurrency_limit",
    "fairness_key",
    "dedup_key",
    "rate_key",
    "schedule",
    "tick_at",
    "traceparent",
)
_DEFAULTS = {"on_dependency_failure": "cancel", "payload_version": 1, "fairness_weight": 1}
_errors = msgspec.json.Decoder(tuple[ErrorEntry, ...])
_archived = msgspec.json.Decoder(JobRecord)


class Edges(msgspec.Struct, frozen=True):
    """What a job depends on and what depends on it, as far as a record lists them."""

    dependencies: tuple[str, ...] = ()
    dependents: tuple[str, ...] = ()
    dependent_count: int = 0


NO_EDGES = Edges()


def new_wid() -> str:
    """Who writes: random per call and job, so that a write recognises itself."""
    return secrets.token_urlsafe(8)


def new_item(job: NewJob, status: Status, now: Instant, event: Event, wid: str) -> Item:
    item: Item = {name: value for name in _PLAIN if (value := getattr(job, name)) is not None}
    for name, usual in _DEFAULTS.items():
        if (value := getattr(job, name)) != usual:
            item[name] = value
    if job.trigger_rule != TriggerRule.ALL_SUCCESS:
        item["rule"] = job.trigger_rule
    if job.rate is not None:
        item.update(rate_count=job.rate.count, rate_micros=job.rate.micros)
    item.update(
        status=status.value,
        created_at=now,
        updated_at=now,
        version=1,
        history=history.submit_event(now, event, status, job.created_by),
        wid=wid,
    )
    return without_empty_keys(item)


def without_empty_keys(item: Item) -> Item:
    """A key of an index may not be the empty text: such ones are named in `empty` instead."""
    empty = {name for name in _KEYS if item.get(name) == ""}
    if not empty:
        return item
    return {name: value for name, value in item.items() if name not in empty} | {"empty": empty}


def status_of(item: Item) -> Status:
    return Status(item["ended"] if "archived_at" in item else item["status"])


def record(item: Item, texts: Texts, edges: Edges = NO_EDGES) -> JobRecord:
    if "archived_at" in item:
        kept = _archived.decode(item["details"])
        return msgspec.structs.replace(kept, archived_at=item["archived_at"], status=Status(item["ended"]))
    fields: dict[str, Any] = {name: value for name, value in item.items() if name in _NAMES}
    fields.update(dict.fromkeys(item.get("empty", ()), ""))
    fields.update(_of_trees(item))
    if item.get("started_at") is not None and item.get("completed_at") is not None:
        fields["processing_micros"] = max(0, item["completed_at"] - item["started_at"])
    fields["progress"] = float(item.get("progress", 0.0))
    return JobRecord(
        **fields,
        status=Status(item["status"]),
        payload=bodies.payload(item, texts),
        result=bodies.result(item, texts),
        artifacts=bodies.artifacts(item, texts),
        errors=_errors.decode(item["errors"]) if item.get("errors") else (),
        parked="parked" in item,
        history=records.history(item["history"]),
        dependencies=edges.dependencies,
        dependent_jobs=edges.dependents,
        dependent_count=edges.dependent_count,
    )


def _of_trees(item: Item) -> dict[str, Any]:
    fields = {name: item[kept] for name, kept in _RENAMED.items() if kept in item}
    if "tables" in item:
        fields["result_tables"] = tuple(sorted(item["tables"]))
    return fields


def claimed(item: Item, payload: str, artifacts: str | None = None) -> ClaimedJob:
    empty = dict.fromkeys(item.get("empty", ()), "")
    return ClaimedJob(
        job_id=item["job_id"],
        job_type=item["job_type"],
        queue=item["queue"],
        priority=item["priority"],
        payload=payload,
        attempt=item["attempt"],
        version=item["version"],
        failures=item.get("failures", 0),
        max_attempts=item["max_attempts"],
        snoozes=item.get("snoozes", 0),
        give_backs=item.get("give_backs", 0),
        timeout_micros=item["timeout_micros"],
        created_at=item["created_at"],
        scheduled_for=item["scheduled_for"],
        lease_expires_at=item["lease_expires_at"],
        subject=item.get("subject", empty.get("subject")),
        parent_job_id=item.get("parent_job_id"),
        root_job_id=item.get("root_job_id"),
        logs=item.get("logs"),
        artifacts=item.get("artifacts") if artifacts is None else artifacts,
        tags=item.get("tags"),
        created_by=item.get("created_by"),
        job_stage=item.get("job_stage"),
        dedup_key=item.get("dedup_key"),
        content_hash=item.get("content_hash", empty.get("content_hash")),
        worker_id=item.get("worker_id", ""),
        started_at=item["started_at"],
        payload_version=item.get("payload_version", 1),
        schedule=item.get("schedule"),
        tick_at=item.get("tick_at"),
        waits=item.get("waits", 0),
        join=item.get("join"),
        children=item.get("children", 0),
        traceparent=item.get("traceparent"),
        lost_at=_lost_at(item),
    )


def _lost_at(item: Item) -> Instant | None:
    """When its worker was lost, where that is what its last error says."""
    if not item.get("last_error", "").startswith(f"{LEASE_LOST}:"):
        return None
    errors = _errors.decode(item["errors"]) if item.get("errors") else ()
    return errors[-1].at if errors else None


def expired(item: Item) -> ExpiredClaim:
    return ExpiredClaim(
        job_id=item["job_id"],
        attempt=item["attempt"],
        failures=item.get("failures", 0),
        max_attempts=item["max_attempts"],
        snoozes=item.get("snoozes", 0),
        give_backs=item.get("give_backs", 0),
        worker_id=item.get("worker_id", ""),
        lease_expires_at=item["lease_expires_at"],
        job_type=item["job_type"],
        queue=item["queue"],
        priority=item["priority"],
        scheduled_for=item["scheduled_for"],
        started_at=item["started_at"],
        parent_job_id=item.get("parent_job_id"),
    )


# What retention leaves: what archive.sql keeps on the SQL engines

_KEPT = frozenset(
    {
        "job_id",
        "job_type",
        "queue",
        "priority",
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
        "progress",
        "stage",
        "last_error",
        "metrics",
        "subject",
        "tags",
        "created_by",
        "dedup_key",
        "content_hash",
        "reused_from",
        "concurrency_key",
        "parent_job_id",
        "root_job_id",
        "job_stage",
        "payload_version",
        "fairness_key",
        "rate_key",
        "schedule",
        "tick_at",
        "children",
        "waits",
        "rows_of",
        "rows_attempt",
    }
)


def archived(item: Item, now: Instant) -> Item:
    """A job may have files that its record does not name: of an attempt that was lost, stopped or failed. Only one
    that completed at its first attempt names all."""
    empty = dict.fromkeys(item.get("empty", ()), "")
    details: dict[str, Any] = {name: item[name] for name in _KEPT if item.get(name) is not None}
    details |= {name: value for name, value in empty.items() if name in _KEPT}
    details |= {"status": item["status"], "payload": "null", **_of_trees(item)}
    if item.get("started_at") is not None and item.get("completed_at") is not None:
        details["processing_micros"] = max(0, item["completed_at"] - item["started_at"])
    attempt = item.get("attempt", 0)
    named = any(name in item for name in ("log_location", "artifacts", "artifacts_body", "result_artifact", "tables"))
    kept: Item = {
        "job_id": item["job_id"],
        "archived_at": now,
        "ended": item["status"],
        "details": msgspec.json.encode(details).decode(),
        "wid": new_wid(),
    }
    if item.get("dedup_key") is not None:
        kept["dedup_key"] = item["dedup_key"]
    if attempt > 1 or (attempt == 1 and item["status"] != "completed") or named:
        kept["files"] = 1
    return kept


# An item holds 400 KB: what a job says about itself is cut where it says too much


def fit(item: Item) -> Item:
    """The item within its bounds. Nothing of what a job is or does is cut, only of what was said about it."""
    changed: Item = {}
    if 0 < item.get("progress", 0) < PROGRESS_MIN:
        changed["progress"] = 0.0
    if _over(item, "errors", shortening.ERRORS_BYTES):
        changed["errors"] = shortening.errors(item["errors"])
    if _over(item, "last_error", shortening.LAST_ERROR_BYTES):
        changed["last_error"] = shortening.cut(item["last_error"], shortening.LAST_ERROR_BYTES)
    if _over(item, "logs", shortening.LOGS_BYTES):
        changed["logs"] = shortening.last_that_fit(item["logs"], shortening.LOGS_BYTES)
    if _over(item, "history", shortening.HISTORY_BYTES):
        changed["history"] = shortening.history(item["history"])
    if _over(item, "metrics", shortening.METRICS_BYTES):
        changed["metrics"] = shortening.first_that_fit(item["metrics"], shortening.METRICS_BYTES)
    return {**item, **changed} if changed else item


def _over(item: Item, name: str, most: int) -> bool:
    text = item.get(name)
    return isinstance(text, str) and len(text) * 4 > most and len(text.encode()) > most
