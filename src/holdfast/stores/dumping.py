"""Dumps of jobs from the columns that the SQL engines share, and the columns from a dump; the cursors of an export."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.lifecycle import Status
from holdfast.store import dumps
from holdfast.store.dumps import ArchiveDump, EdgeDump, JobDump
from holdfast.store.types import HistoryEvent, JobRecord, Rate
from holdfast.stores import records

# All that an export reads. What workers say about themselves is none of it: they live on while their queue moves.
TABLES = (
    "job", "edge", "dedup", "step", "archive", "queue", "schedule", "job_type", "counter", "counter_sum", "api_key",
    "audit", "result_table",
)  # fmt: skip
# What a job has beside its record. `claim_token` stays behind: nothing runs while a queue moves.
BESIDE = ("joins", "awaited", "unmet_dependencies", "join_name", "rate_count", "rate_micros")
JOB_COLUMNS = (*records.COLUMNS, *BESIDE)
_BROOD = ("children", "open_children", "failed_children", "cancelled_children")
_USUAL = {each.name: each.default for each in msgspec.structs.fields(JobRecord) if not each.required}
_record = msgspec.json.Decoder(JobRecord)


def job(row: Sequence[Any], edges: Iterable[tuple[str, Any, Any]]) -> JobDump:
    """From the values of JOB_COLUMNS, in order, and (parent, met, joined) of what it depends on."""
    size = len(records.COLUMNS)
    joins, awaited, unmet, join, rate_count, rate_micros = row[size : size + len(BESIDE)]
    return JobDump(
        record=dumps.bare(records.record(tuple(row[:size]))),
        edges=tuple(sorted(EdgeDump(parent, bool(met), bool(joined)) for parent, met, joined in edges)),
        unmet=unmet,
        joins=joins,
        awaited=bool(awaited),
        rate=None if rate_count is None else Rate(rate_count, rate_micros),
        join=join,
    )


def job_values(dump: JobDump) -> tuple[Any, ...]:
    """The values of JOB_COLUMNS. What is parked is in sight again: whoever claims next parks it anew."""
    record = dump.record
    fields: dict[str, Any] = {name: getattr(record, name) for name in records.COLUMNS}
    fields.update(
        status=record.status.value,
        errors=_json(record.errors),
        parked=False,
        history=history_text(record.history),
        trigger_rule=None if record.trigger_rule == "all_success" else record.trigger_rule,
        waits=record.waits or None,
        result_tables=_json(record.result_tables),
    )
    if not record.children:
        fields.update(dict.fromkeys(_BROOD))
    beside = (
        dump.joins,
        dump.awaited,
        dump.unmet,
        dump.join,
        None if dump.rate is None else dump.rate.count,
        None if dump.rate is None else dump.rate.micros,
    )
    return (*fields.values(), *beside)


def history_text(events: Sequence[HistoryEvent]) -> str:
    """As stores keep it: a line for each, without a reason where there was none."""
    return "\n".join(
        msgspec.json.encode(each).decode().removesuffix(",null]").removesuffix("]") + "]" for each in events
    )


def archived(status: str, archived_at: int, has_files: Any, details: str) -> ArchiveDump:
    kept = msgspec.structs.replace(_record.decode(details), archived_at=archived_at, status=Status(status))
    return ArchiveDump(msgspec.structs.replace(kept, result_tables=tuple(sorted(kept.result_tables))), bool(has_files))


def archived_details(dump: ArchiveDump) -> str:
    """What an archive keeps of a job, as text: nothing that a record has anyway."""
    fields = msgspec.structs.asdict(dump.record)
    kept = {name: value for name, value in fields.items() if name not in _USUAL or value != _USUAL[name]}
    kept.pop("archived_at", None)
    return msgspec.json.encode(kept).decode()


def _json(values: Sequence[Any]) -> str | None:
    return msgspec.json.encode(values).decode() if values else None


# Cursors: the sort key of the last item, as JSON


def cursor(*key: Any) -> str:
    return msgspec.json.encode(key).decode()


def position(after: str | None, start: Sequence[Any]) -> list[Any]:
    """Where a page begins: after the cursor, or after `start`, which is before everything."""
    return list(start) if after is None else list(msgspec.json.decode(after))
