"""The engine-independent form of a queue in transfer: a dump of each kind of record, and the transfer state.

An item is the msgpack of one of these. The same record makes the same bytes on every engine, so that two stores can be
compared item by item. What an engine derives by itself (parked jobs, reverse edges) is not transferred.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from backstay.clock import Instant
from backstay.core.records import (
    ApiKey,
    AuditEntry,
    Counter,
    Declaration,
    JobRecord,
    JobType,
    LimitRow,
    QueueRow,
    Rate,
    Schedule,
    Total,
)
from backstay.core.result_tables import ResultTable, RowOrigin, StoredRow
from backstay.errors import MoveFailed

T = TypeVar("T")

TYPES = "types"
QUEUES = "queues"
LIMITS = "limits"
SCHEDULES = "schedules"
DECLARATIONS = "declarations"
TABLES = "tables"
JOBS = "jobs"
STEPS = "steps"
OUTPUT = "output"
MAILBOXES = "mailboxes"
ARCHIVE = "archive"
GUARDS = "guards"
COUNTERS = "counters"
TOTALS = "totals"
KEYS = "keys"
AUDIT = "audit"
ROWS = "rows"
# The order of transfer: rows need their table, and files need their job, which may be archived.
KINDS = (
    TYPES, QUEUES, LIMITS, SCHEDULES, DECLARATIONS, TABLES, ARCHIVE, JOBS, STEPS, MAILBOXES, OUTPUT, GUARDS, COUNTERS,
    TOTALS, KEYS, AUDIT, ROWS,
)  # fmt: skip


class EdgeDump(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A dependency of a job on `parent_id`, which may be archived or deleted."""

    parent_id: str
    met: bool
    joined: bool  # the edge only joins an identical job


class JobDump(msgspec.Struct, frozen=True, kw_only=True):
    record: JobRecord  # see `bare`
    edges: tuple[EdgeDump, ...] = ()  # by dependency
    unmet: int = 0
    joins: str | None = None  # the identical job that it waits for
    awaited: bool = False
    rate: Rate | None = None


class GuardDump(msgspec.Struct, frozen=True):
    dedup_key: str
    job_id: str
    until: Instant | None


class Adopted(msgspec.Struct, frozen=True):
    """A job that another queue system has run so far, and the guard of its dedup key."""

    job: JobDump
    guard: GuardDump | None = None

    @property
    def job_id(self) -> str:
        return self.job.record.job_id


class StepDump(msgspec.Struct, frozen=True):
    job_id: str
    kind: str  # see waits.StepKind
    name: str
    answer: str
    attempt: int
    recorded_at: Instant


class OutputDump(msgspec.Struct, frozen=True):
    job_id: str
    attempt: int
    take: int
    first: int
    last: int
    size: int
    written_at: Instant
    text: str


class MailboxDump(msgspec.Struct, frozen=True):
    """A correlation key: who listens, and what is kept, as JSON text; see waits.Mailbox."""

    event_key: str
    content: str
    expires_at: Instant


class ArchiveDump(msgspec.Struct, frozen=True):
    record: JobRecord
    has_files: bool


class TotalDump(msgspec.Struct, frozen=True):
    """All-time totals up to `until`, which is the same for all of them; see engines/sql_rows.py."""

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
    JobType | QueueRow | LimitRow | Schedule | Declaration | ResultTable | JobDump | StepDump | MailboxDump | OutputDump
    | ArchiveDump
    | GuardDump
    | Counter
    | TotalDump | ApiKey | AuditEntry | RowDump
)  # fmt: skip

_TYPES: dict[str, type[Dump]] = {
    TYPES: JobType,
    QUEUES: QueueRow,
    LIMITS: LimitRow,
    SCHEDULES: Schedule,
    DECLARATIONS: Declaration,
    TABLES: ResultTable,
    JOBS: JobDump,
    STEPS: StepDump,
    OUTPUT: OutputDump,
    MAILBOXES: MailboxDump,
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
    """Return a record without the fields that an engine derives."""
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
    """Return the name of an item, for display."""
    match _decoders[kind].decode(item):
        case JobDump(record=record) | ArchiveDump(record=record):
            return record.job_id
        case StepDump(job_id=job_id, name=name):
            return f"{job_id} {name}"
        case OutputDump(job_id=job_id, attempt=attempt, last=last):
            return f"{job_id} attempt {attempt} up to {last}"
        case GuardDump(dedup_key=key) | MailboxDump(event_key=key):
            return key
        case RowDump(table=table, job_id=job_id):
            return f"{table} of {job_id}"
        case Counter() as counter:
            return f"{counter.minute} {counter.job_type} {counter.outcome.value}"
        case TotalDump(total=total):
            return f"{total.job_type} {total.outcome.value}"
        case ApiKey(key_id=name) | AuditEntry(entry_id=name) | Declaration(origin=name):
            return name
        case JobType(job_type=name) | QueueRow(name=name) | Schedule(name=name) | ResultTable(name=name):
            return name
        case LimitRow(of=of, name=name):
            return f"{of.value} {name}"
        case other:
            raise TypeError(f"{kind} are not {type(other).__name__}")


FORMAT = 1  # version of the dump: a transfer that a release with another version has begun cannot be continued
TAKEN_OVER = "another run of the same command continues this transfer, or has abandoned it: nothing was written"
_RUNS_APART = 1 << 32  # large enough that two processes that resume at once do not draw the same
FROM = "from"
INTO = "into"
SEALED = "sealed"  # `kind` of a source store, once no operation in it is under way


class MoveState(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a transfer, as each of its two stores records it."""

    role: str  # from, into
    move_id: str
    other: str  # the other store, for display
    kind: str = ""  # into: the kind that is copied next; from: "", or sealed
    after: str | None = None  # … and the item after which it continues
    done: bool = False
    format: int = FORMAT
    files: int = 0  # into: files copied so far …
    file_bytes: int = 0
    missing: tuple[str, ...] = ()  # … and files that could not be read, up to a few
    missing_count: int = 0
    run: int = 0  # of several processes that try to finish one transfer, the highest run continues


class Exported(msgspec.Struct, frozen=True):
    """A page of one kind: each item is the msgpack of that kind's dump."""

    items: tuple[bytes, ...]
    next: str | None = None


def next_run(*states: MoveState | None) -> int:
    """Return the run number for a process that resumes a transfer; random, so that of two that do so at once one is
    higher."""
    return max(state.run for state in states if state is not None) + 1 + secrets.randbelow(_RUNS_APART)


def refuse_other(stored: MoveState | None, state: MoveState) -> None:
    """Raise unless this is the latest run of the transfer that the store is marked for, and it has not finished."""
    if state.role != INTO or (stored is not None and stored.move_id != state.move_id):
        raise MoveFailed("this store is not the target of this transfer: nothing was written")
    if stored is not None and stored.done and not state.done:
        raise MoveFailed("another run of the same command has finished this transfer: nothing was written")
    if stored is not None and stored.run > state.run:
        raise MoveFailed(TAKEN_OVER)


def refuse_freezing(stored: MoveState | None, state: MoveState) -> None:
    """Raise if another transfer, or a later run, has frozen the queue, or if it is to be sealed before it is frozen."""
    if stored is None or (stored.role == INTO and stored.done):
        if state.kind == SEALED:
            raise MoveFailed("this transfer was abandoned meanwhile: the queue has resumed where it was")
    elif (stored.role, stored.move_id) != (FROM, state.move_id):
        raise MoveFailed(
            f"this queue is already being transferred to or from {stored.other}: finish that, or abandon it with --thaw"
        )
    elif stored.run > state.run:
        raise MoveFailed(TAKEN_OVER)


def is_closed(state: MoveState | None) -> bool:
    """Return whether nothing in a queue with this state may change."""
    if state is None:
        return False
    return not state.done if state.role == INTO else state.kind == SEALED


def is_as_closed(before: MoveState | None, state: MoveState) -> bool:
    """Return whether a queue in one state is already closed as the other requires."""
    return before is not None and _closed(before) == _closed(state)


def _closed(state: MoveState) -> tuple[str, bool, bool]:
    return state.role, state.kind == SEALED, state.done


def refusal(state: MoveState) -> str:
    """Return the StoreMoved message for callers during and after a transfer."""
    if state.role == INTO:
        return (
            f'a transfer from {state.other} into this queue has not finished: run "backstay move" again;'
            " until then the queue is closed"
        )
    if state.done:
        return f"this queue was transferred to {state.other}: set BACKSTAY_URL to it"
    return f"this queue is being transferred to {state.other}: set BACKSTAY_URL to it once that is done"
