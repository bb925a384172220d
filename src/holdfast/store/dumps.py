"""A queue as it is carried from one store to another: what each kind of thing is, whatever engine it comes from.

An item is the msgpack of one of these. The same thing makes the same bytes on every engine, so that two stores can be
compared item by item. What an engine works out for itself (what is parked, who depends on a job) does not travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.clock import Instant
from holdfast.store.tables import ResultTable, RowOrigin, StoredRow
from holdfast.store.types import ApiKey, AuditEntry, Counter, JobRecord, JobType, QueueRow, Rate, Schedule, Total

T = TypeVar("T")

TYPES = "types"
QUEUES = "queues"
SCHEDULES = "schedules"
TABLES = "tables"
JOBS = "jobs"
STEPS = "steps"
ARCHIVE = "archive"
GUARDS = "guards"
COUNTERS = "counters"
TOTALS = "totals"
KEYS = "keys"
AUDIT = "audit"
ROWS = "rows"
# In this order: rows need their table, and files of jobs the archived one that they may belong to.
KINDS = (TYPES, QUEUES, SCHEDULES, TABLES, ARCHIVE, JOBS, STEPS, GUARDS, COUNTERS, TOTALS, KEYS, AUDIT, ROWS)


class EdgeDump(msgspec.Struct, frozen=True, array_like=True, order=True):
    """That a job depends on `parent_id`, which may be in the archive, or gone."""

    parent_id: str
    met: bool
    joined: bool  # it only joined an identical job


class JobDump(msgspec.Struct, frozen=True, kw_only=True):
    record: JobRecord  # see `bare`
    edges: tuple[EdgeDump, ...] = ()  # by parent
    unmet: int = 0
    joins: str | None = None  # the identical job that it waits for
    awaited: bool = False
    rate: Rate | None = None
    join: str | None = None  # which function is entered once its children have ended


class StepDump(msgspec.Struct, frozen=True):
    job_id: str
    name: str
    answer: str
    attempt: int
    recorded_at: Instant


class ArchiveDump(msgspec.Struct, frozen=True):
    record: JobRecord
    has_files: bool


class GuardDump(msgspec.Struct, frozen=True):
    dedup_key: str
    job_id: str
    until: Instant | None


class TotalDump(msgspec.Struct, frozen=True):
    """What was counted before `until`, which is one and the same for all of them; see stores/summing.py."""

    total: Total
    until: Instant


class RowDump(msgspec.Struct, frozen=True):
    table: str
    attempt: int
    part: int
    job_id: str
    created_at: Instant
    origin: RowOrigin
    values: tuple[Any, ...]  # each a Value, as msgpack tells them apart

    @classmethod
    def of(cls, table: str, attempt: int, part: int, row: StoredRow) -> RowDump:
        return cls(table, attempt, part, row.job_id, row.created_at, row.origin, row.values)


Dump = (
    JobType | QueueRow | Schedule | ResultTable | JobDump | StepDump | ArchiveDump | GuardDump | Counter | TotalDump
    | ApiKey | AuditEntry | RowDump
)  # fmt: skip

_TYPES: dict[str, type[Dump]] = {
    TYPES: JobType,
    QUEUES: QueueRow,
    SCHEDULES: Schedule,
    TABLES: ResultTable,
    JOBS: JobDump,
    STEPS: StepDump,
    ARCHIVE: ArchiveDump,
    GUARDS: GuardDump,
    COUNTERS: Counter,
    TOTALS: TotalDump,
    KEYS: ApiKey,
    AUDIT: AuditEntry,
    ROWS: RowDump,
}
_decoders = {kind: msgspec.msgpack.Decoder(found) for kind, found in _TYPES.items()}
_encode = msgspec.msgpack.Encoder().encode


def bare(record: JobRecord) -> JobRecord:
    """A record without what an engine works out for itself."""
    return msgspec.structs.replace(
        record,
        parked=False,
        dependencies=(),
        dependent_jobs=(),
        dependent_count=0,
        processing_micros=None,
        result_tables=tuple(sorted(record.result_tables)),
    )


def packed(dump: Dump) -> bytes:
    return _encode(dump)


def unpacked(kind: str, item: bytes, expected: type[T]) -> T:
    found = _decoders[kind].decode(item)
    if not isinstance(found, expected):
        raise TypeError(f"{kind} are not {expected.__name__}")
    return found


def all_unpacked(kind: str, items: Sequence[bytes], expected: type[T]) -> list[T]:
    return [unpacked(kind, item, expected) for item in items]


def name_of(kind: str, item: bytes) -> str:
    """Which one an item is, for people."""
    match _decoders[kind].decode(item):
        case JobDump(record=record) | ArchiveDump(record=record):
            return record.job_id
        case StepDump(job_id=job_id, name=name):
            return f"{job_id} {name}"
        case GuardDump(dedup_key=key):
            return key
        case RowDump(table=table, job_id=job_id):
            return f"{table} of {job_id}"
        case Counter() as counter:
            return f"{counter.minute} {counter.job_type} {counter.outcome.value}"
        case TotalDump(total=total):
            return f"{total.job_type} {total.outcome.value}"
        case ApiKey(key_id=name) | AuditEntry(entry_id=name):
            return name
        case JobType(job_type=name) | QueueRow(name=name) | Schedule(name=name) | ResultTable(name=name):
            return name
        case other:
            raise TypeError(f"{kind} are not {type(other).__name__}")
