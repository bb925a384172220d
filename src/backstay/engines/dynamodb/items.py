"""Jobs as DynamoDB items: from a submitted job to an item and back, with large texts in items of their own.

None and defaults are absent from an item. Texts over 200 bytes are separate, so that claims, heartbeats and settlements
write one small item whatever the payload's size. A text is written before the commit that names it: if that fails it is
orphaned, and swept. An item holds 400 KB, and a larger one could never be settled, so errors and history are cut to
fit; sizes are those of what is written, because a control character takes six bytes in JSON.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from backstay.clock import Instant
from backstay.core.dependencies import TriggerRule
from backstay.core.job_fields import ARCHIVED_FIELDS
from backstay.core.records import (
    NEW_DEFAULTS,
    ClaimedJob,
    ErrorEntry,
    ExpiredClaim,
    HistoryEvent,
    JobRecord,
    NewJob,
)
from backstay.core.states import Event, Status
from backstay.engines.dynamodb import history, schema
from backstay.engines.dynamodb.schema import Item, Key, Table
from backstay.engines.dynamodb.table import Tables
from backstay.engines.dynamodb.transport import Lane
from backstay.errors import StoreError

INLINE_BYTES_MAX = 200
ARTIFACTS_INLINE_BYTES_MAX = 64_000
PART_CHARS = 75_000  # characters of up to 4 bytes: 300 KB of an item's 400
# Texts that may be separate: the attribute, the one that names its body, and the maximum size inside the item.
_SPILLED = (
    ("payload", "body", INLINE_BYTES_MAX),
    ("result", "result_body", INLINE_BYTES_MAX),
    ("artifacts", "artifacts_body", ARTIFACTS_INLINE_BYTES_MAX),
)
_BODIES = frozenset(pointer for _, pointer, _ in _SPILLED)
Texts = Mapping[Key, str]


class Missing(StoreError):
    """A text that an item names does not exist. If the job has just been archived, reading again resolves it."""


def spill(item: Item) -> tuple[Item, list[Item]]:
    """Return the item with long texts replaced by names, and the records that hold them. A body is named after the
    write (`wid`), so that a repeat never overwrites another writer's text."""
    records: list[Item] = []
    for name, pointer, most in _SPILLED:
        text = item.get(name)
        if text is None or len(text) * 4 <= most or len(text.encode()) <= most:
            continue
        parts = [text[i : i + PART_CHARS] for i in range(0, len(text), PART_CHARS)]
        body = f"{item['wid']}.{name[0]}.{len(parts)}"
        for number, part in enumerate(parts):
            pk, sk = schema.body(item["job_id"], body, number)
            records.append({"pk": pk, "sk": sk, "text": part})
        item = {key: value for key, value in item.items() if key != name} | {pointer: body}
    return item, records


async def put(tables: Tables, records: list[Item], *, lane: Lane = Lane.USUAL) -> None:
    if records:
        await tables.put_many(Table.RECORDS, records, lane=lane)


async def fetch(
    tables: Tables, items: Iterable[Item], *, names: tuple[str, ...] = ("payload", "result", "artifacts")
) -> Texts:
    """Read the parts of all bodies that these items name."""
    wanted = [
        key
        for item in items
        for name, pointer, _ in _SPILLED
        if name in names and pointer in item
        for key in _parts(item, item[pointer])
    ]
    found = await tables.get(Table.RECORDS, wanted)
    return {key: part["text"] for key, part in zip(wanted, found, strict=True) if part is not None}


def payload(item: Item, texts: Texts) -> str:
    return _text(item, "payload", "body", texts) or "null"


def result(item: Item, texts: Texts) -> str | None:
    return _text(item, "result", "result_body", texts)


def artifacts(item: Item, texts: Texts) -> str | None:
    return _text(item, "artifacts", "artifacts_body", texts)


def names_of(item: Item) -> list[Key]:
    """Return the keys of the records that hold the texts of this item."""
    return [key for _, pointer, _ in _SPILLED if pointer in item for key in _parts(item, item[pointer])]


def _text(item: Item, name: str, pointer: str, texts: Texts) -> str | None:
    if pointer not in item:
        found = item.get(name)
        return None if found is None else str(found)
    parts = _parts(item, item[pointer])
    if any(key not in texts for key in parts):
        raise Missing(
            f"job {item['job_id']}: a part of its {name} is missing: restore the table of records from a backup, or"
            " submit the job again"
        )
    return "".join(texts[key] for key in parts)


def _parts(item: Item, body: str) -> list[Key]:
    return [schema.body(item["job_id"], body, number) for number in range(int(body.rpartition(".")[2]))]


ERRORS_BYTES = 40_000
ERROR_TEXT_BYTES = 3_500
LAST_ERROR_BYTES = 4_000
LOGS_BYTES = 32_000
HISTORY_BYTES = 64_000
HISTORY_FIRST = 10  # first events that are never dropped, like the last ones
HISTORY_LAST = 20  # last events, whose reasons are cut less than those before
LAST_REASON_BYTES = 16_000  # the last one stays complete, at its maximum length
LATE_REASON_BYTES = 1_000
REASON_BYTES = 200
NAME_BYTES = 300  # names of workers, people and error types
METRICS_BYTES = 16_000

_error_list = msgspec.json.Decoder(list[ErrorEntry])


def cut(text: str, most: int) -> str:
    """Shorten a text to its beginning and end."""
    raw = text.encode()
    if len(raw) <= most:
        return text
    half = (most - 5) // 2
    return raw[:half].decode(errors="ignore") + " … " + raw[-half:].decode(errors="ignore")


def cut_written(text: str, most: int) -> str:
    """Shorten a text by its size as JSON."""
    budget = most
    while len(msgspec.json.encode(text)) - 2 > most:
        text = cut(text, budget)
        budget = budget * 2 // 3
    return text


def errors(text: str) -> str:
    entries = [
        msgspec.structs.replace(
            each,
            type=cut_written(each.type, NAME_BYTES),
            message=cut_written(each.message, ERROR_TEXT_BYTES),
            traceback=cut_written(each.traceback, ERROR_TEXT_BYTES),
        )
        for each in _error_list.decode(text)
    ]
    return last_that_fit(msgspec.json.encode(entries).decode(), ERRORS_BYTES)


def last_that_fit(text: str, most: int) -> str:
    entries = msgspec.json.decode(text)
    while isinstance(entries, list) and entries and len(msgspec.json.encode(entries)) > most:
        entries = entries[max(1, len(entries) // 10) :]
    return msgspec.json.encode(entries).decode()


def first_that_fit(text: str, most: int) -> str:
    entries = msgspec.json.decode(text)
    while isinstance(entries, dict) and entries and len(msgspec.json.encode(entries)) > most:
        entries.popitem()
    return msgspec.json.encode(entries).decode()


def short_history(text: str) -> str:
    """Shorten history: cut reasons, the earlier ones more; then drop events from the middle. Versions tell how many."""
    events = history.parse(text)
    from_the_end = range(len(events) - 1, -1, -1)
    lines = [_event(each, ago) for each, ago in zip(events, from_the_end, strict=True)]
    total = sum(len(line.encode()) + 1 for line in lines)
    while total > HISTORY_BYTES and len(lines) > HISTORY_FIRST + 1:
        total -= len(lines.pop(HISTORY_FIRST).encode()) + 1
    return "\n".join(lines)


def _event(event: HistoryEvent, ago: int) -> str:
    most = LAST_REASON_BYTES if ago == 0 else LATE_REASON_BYTES if ago < HISTORY_LAST else REASON_BYTES
    shortened = msgspec.structs.replace(
        event,
        by=None if event.by is None else cut_written(event.by, NAME_BYTES),
        reason=None if event.reason is None else cut_written(event.reason, most),
    )
    return history.line(shortened)


PROGRESS_MIN = 1e-9  # DynamoDB numbers end at 1e-130; below that it refuses the whole write

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
_CLAIMED = frozenset(ClaimedJob.__struct_fields__)
# Fields that have a shorter name in an item, or another form. Ends of children add to the counts of a parent.
_RENAMED = {
    "trigger_rule": "rule",
    "open_children": "open",
    "failed_children": "bad",
    "cancelled_children": "left",
}
# keys of indexes: never the empty string
_KEYS = ("subject", "content_hash", "concurrency_key", "worker_id", "root_job_id")
# The fields of a new job that its item has under the same name, with the default that is left out.
_NEW = {
    name: NEW_DEFAULTS.get(name)
    for name in NewJob.__struct_fields__
    if name in JobRecord.__struct_fields__ and name not in _RENAMED
}
_errors = msgspec.json.Decoder(tuple[ErrorEntry, ...])
_archived = msgspec.json.Decoder(JobRecord)


class Edges(msgspec.Struct, frozen=True):
    """The dependencies and dependents of a job, as far as a record lists them."""

    dependencies: tuple[str, ...] = ()
    dependents: tuple[str, ...] = ()
    dependent_count: int = 0


NO_EDGES = Edges()


def new_wid() -> str:
    """Return the id of a write: random per call and job, so that a repeat recognises its earlier try."""
    return secrets.token_urlsafe(8)


def new_item(job: NewJob, status: Status, now: Instant, event: Event, wid: str) -> Item:
    item: Item = {name: value for name, usual in _NEW.items() if (value := getattr(job, name)) != usual}
    if job.trigger_rule != TriggerRule.ALL_SUCCESS:
        item["rule"] = job.trigger_rule
    if job.rate is not None:
        item.update(rate_count=job.rate.count, rate_micros=job.rate.micros)
    item.update(
        status=status.value,
        created_at=now,
        updated_at=now,
        version=1,
        history=history.submitted(now, event, status, job.created_by),
        wid=wid,
    )
    return without_empty_keys(item)


def without_empty_keys(item: Item) -> Item:
    """Move empty strings to `empty`: a key of an index may not be the empty string."""
    empty = {name for name in _KEYS if item.get(name) == ""}
    if not empty:
        return item
    return {name: value for name, value in item.items() if name not in empty} | {"empty": empty}


def bare_record(item: Item) -> JobRecord:
    """Return the record of a job without its texts, for decisions that do not look at them."""
    return record({name: value for name, value in item.items() if name not in _BODIES}, {})


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
        payload=payload(item, texts),
        result=result(item, texts),
        artifacts=artifacts(item, texts),
        errors=_errors.decode(item["errors"]) if item.get("errors") else (),
        parked="parked" in item,
        history=history.parse(history.trim(item["history"])),
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
    fields: dict[str, Any] = {"failures": 0, "snoozes": 0, "give_backs": 0}
    fields.update((name, value) for name, value in item.items() if name in _CLAIMED)
    fields.update((name, "") for name in item.get("empty", ()) if name in _CLAIMED)
    fields["payload"] = payload
    if artifacts is not None:
        fields["artifacts"] = artifacts
    return ClaimedJob(**fields)


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
        suspicion=item.get("suspicion", 0),
    )


# The archived form: the same as the statement `archive` keeps on the SQL engines

_KEPT = frozenset(ARCHIVED_FIELDS) - {"status", "result_tables", *_RENAMED}  # which `archived` adds by itself


def archived(item: Item, now: Instant) -> Item:
    """Return the archived form. A job may have files that its record does not name, of an attempt that was lost,
    stopped or failed; only a job that completed at its first attempt names all."""
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


# Fit into the 400 KB of an item


def fit(item: Item) -> Item:
    """Return the item within its size limit. Only errors, reasons and logs are cut, never what defines the job."""
    changed: Item = {}
    if 0 < item.get("progress", 0) < PROGRESS_MIN:
        changed["progress"] = 0.0
    if _over(item, "errors", ERRORS_BYTES):
        changed["errors"] = errors(item["errors"])
    if _over(item, "last_error", LAST_ERROR_BYTES):
        changed["last_error"] = cut(item["last_error"], LAST_ERROR_BYTES)
    if _over(item, "error_type", NAME_BYTES):
        changed["error_type"] = cut(item["error_type"], NAME_BYTES)
    if _over(item, "logs", LOGS_BYTES):
        changed["logs"] = last_that_fit(item["logs"], LOGS_BYTES)
    if _over(item, "history", HISTORY_BYTES):
        changed["history"] = short_history(item["history"])
    if _over(item, "metrics", METRICS_BYTES):
        changed["metrics"] = first_that_fit(item["metrics"], METRICS_BYTES)
    return {**item, **changed} if changed else item


def _over(item: Item, name: str, most: int) -> bool:
    text = item.get(name)
    return isinstance(text, str) and len(text) * 4 > most and len(text.encode()) > most
