"""Result tables as they cross the port: columns, rows, queries, and the rules that all engines share. Pure."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

from backstay.clock import MICROS, Instant, to_datetime, to_instant
from backstay.core.records import Hold
from backstay.core.states import Status
from backstay.errors import DuplicateRow, InvalidOption, RowsWithdrawn, SchemaMismatch, StoreUnsafe, UnknownTable
from backstay.limits import RESULT_TABLES_MAX

# MOMENT: an Instant. UUID, DECIMAL, JSON: text. VECTOR: numbers of 32 bits, little-endian.
Value = int | float | str | bool | bytes | None


class ColumnKind(StrEnum):
    INTEGER = "integer"
    NUMBER = "number"
    TEXT = "text"
    BOOLEAN = "boolean"
    BYTES = "bytes"
    MOMENT = "moment"
    UUID = "uuid"
    DECIMAL = "decimal"
    JSON = "json"
    VECTOR = "vector"


class Column(msgspec.Struct, frozen=True):
    name: str
    kind: ColumnKind
    dimensions: int = 0  # of a vector


class ResultTable(msgspec.Struct, frozen=True):
    """A table of results: rows of a job, distinguished by `key`. All columns except the key may be empty."""

    name: str
    key: str
    columns: tuple[Column, ...]  # includes the key and the subject
    subject: str | None = None
    subject_index: bool = False  # rows can be queried by subject, across all jobs


class RowOrigin(msgspec.Struct, frozen=True, gc=False):
    """The place of a row's job in its tree."""

    parent_job_id: str | None = None
    root_job_id: str | None = None
    job_stage: str | None = None


class RowBatch(msgspec.Struct, frozen=True):
    """Rows of one running attempt for one table; values in column order.

    `part` numbers the attempt's batches for this table: a repeated batch replaces itself.
    """

    hold: Hold
    table: ResultTable
    part: int
    rows: tuple[tuple[Value, ...], ...]
    origin: RowOrigin = RowOrigin()


class RowQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one job, by key. `attempt`: that of the previous page."""

    job_id: str
    key: Value = None
    subject: str | None = None
    after: Value = None
    limit: int = 500
    attempt: int | None = None


class StoredRow(msgspec.Struct, frozen=True, gc=False):
    job_id: str  # of the job that wrote it, also if another job reuses it
    created_at: Instant
    origin: RowOrigin
    values: tuple[Value, ...]


class RowPage(msgspec.Struct, frozen=True):
    """`attempt`: the attempt of the rows; 0 if there are none to see. `next`: `after` of the next page."""

    items: tuple[StoredRow, ...]
    attempt: int = 0
    next: Value = None


def declared(stored: ResultTable | None, table: ResultTable) -> ResultTable:
    """Return the table to store from now on. Columns are only added: older code next to newer code declares fewer, and
    still works."""
    if stored is None:
        return table
    _refuse_change(stored, table)
    return msgspec.structs.replace(
        stored,
        columns=stored.columns + missing(stored, table),
        subject=stored.subject or table.subject,
        subject_index=stored.subject_index or table.subject_index,
    )


def missing(stored: ResultTable, table: ResultTable) -> tuple[Column, ...]:
    known = {column.name for column in stored.columns}
    return tuple(column for column in table.columns if column.name not in known)


def not_ours(name: str) -> StoreUnsafe:
    return StoreUnsafe(f"{name} exists, and this queue did not make it: give the result table another name")


def refuse_too_many(stored: int, table: str) -> None:
    if stored >= RESULT_TABLES_MAX:
        raise SchemaMismatch(
            f"result table {table}: there are already {stored}, and the limit is {RESULT_TABLES_MAX}:"
            " keep rows of one kind in one table, whatever job they are of"
        )


def writable(stored: ResultTable | None, table: ResultTable) -> ResultTable:
    """Return the table as stored, if it has every declared column."""
    if stored is None or missing(stored, table):
        raise UnknownTable(
            f"result table {table.name} is declared differently from how it is used: open the app that declares it"
        )
    _refuse_change(stored, table)
    return stored


def readable(stored: ResultTable | None, table: ResultTable) -> list[Column | None]:
    """Return the requested columns; None for a column that was never declared and so has no values."""
    if stored is None:
        raise UnknownTable(
            f"there is no result table {table.name}: it is created when an app opens that has a handler with it in"
            " results=[…]"
        )
    _refuse_change(stored, table)
    known = {column.name for column in stored.columns}
    return [column if column.name in known else None for column in table.columns]


def _refuse_change(stored: ResultTable, table: ResultTable) -> None:
    kinds = {column.name.lower(): column for column in stored.columns}  # SQLite does not distinguish Name and name
    changed = [column for column in table.columns if kinds.get(column.name.lower(), column) != column]
    if (stored.name, stored.key) != (table.name, table.key) or changed or _other_subject(stored, table):
        if stored.name != table.name:
            raise SchemaMismatch(
                f"result table {table.name} would be one with {stored.name}, which is stored: names that differ only in"
                " capitals are the same table; write it as it is stored, or give it another name"
            )
        was = ", ".join(shown(kinds[column.name.lower()]) for column in changed)
        raise SchemaMismatch(
            f"result table {table.name} is stored as {stored.name} with key {stored.key}, subject {stored.subject}"
            f"{f', {was}' if was else ''}, and declared with key {table.key}, subject {table.subject}"
            f"{''.join(f', {shown(column)}' for column in changed)}: give the table, or the column, another name"
        )


def _other_subject(stored: ResultTable, table: ResultTable) -> bool:
    return None not in (stored.subject, table.subject) and stored.subject != table.subject


def shown(column: Column) -> str:
    size = f"({column.dimensions})" if column.dimensions else ""
    return f"{column.name} {column.kind.value}{size}"


def duplicate(table: ResultTable, key: Value, job_id: str) -> DuplicateRow:
    return DuplicateRow(f"{table.name}: {table.key} {key!r:.100} twice in one run of job {job_id}", job_id=job_id)


# status and attempt of the job; rows_of and rows_attempt if it reused another job's result; the current attempt of that
# job, or its last one before retention archived it
Sought = tuple[str, int, str | None, int | None, int | None]


def source(ask: RowQuery, sought: Sequence[object] | None) -> tuple[str | None, int]:
    """Return the job and attempt whose rows this job returns; None if it has no visible rows."""
    job_id, attempt = _source(ask.job_id, sought)
    if ask.attempt is not None and attempt != ask.attempt:
        raise RowsWithdrawn(f"job {ask.job_id} has run again since the previous page: read its rows from the start")
    return job_id, attempt


def _source(job_id: str, sought: Sequence[object] | None) -> tuple[str | None, int]:
    match sought:
        case [Status.COMPLETED.value, int() as attempt, None, _, _]:
            return job_id, attempt
        case [Status.COMPLETED.value, _, str() as donor, int() as attempt, now]:
            if now != attempt:
                became = "is gone" if now is None else "has run again since"
                raise RowsWithdrawn(f"job {job_id} uses the rows of job {donor}, which {became}: also retry this one")
            return donor, attempt
        case _:
            return None, 0


def page(table: ResultTable, found: Sequence[StoredRow], limit: int, attempt: int) -> RowPage:
    """Return a page from one row more than requested: the extra row tells whether there is a next page."""
    following = found[limit - 1].values[key_position(table)] if len(found) > limit else None
    return RowPage(tuple(found[:limit]), attempt, following)


def page_by_subject(table: ResultTable, found: Sequence[StoredRow], limit: int) -> RowPage:
    last = found[limit - 1] if len(found) > limit else None
    following = None if last is None else _cursor(last.created_at, last.job_id, last.values[key_position(table)])
    return RowPage(tuple(found[:limit]), 0, following)


def key_position(table: ResultTable) -> int:
    return next(i for i, column in enumerate(table.columns) if column.name == table.key)


def _cursor(created_at: Instant, job_id: str, key: Value) -> str:
    return msgspec.json.encode((created_at, job_id, key)).decode()


def place(after: str) -> tuple[Instant, str, int | str]:
    """Return the cursor at which a page by subject ended."""
    try:
        return msgspec.json.decode(after, type=tuple[int, str, int | str])
    except msgspec.DecodeError:
        raise InvalidOption(f"after={after!r:.60} is not a cursor of this search: pass `next` of a page") from None


def text(instant: Instant) -> str:
    """Format as ISO 8601 with a fixed length, so that the texts sort by time."""
    seconds, micros = divmod(instant, MICROS)
    return f"{_second(seconds)}.{micros:06d}Z"


@functools.lru_cache(4_096)
def _second(seconds: int) -> str:
    """Most times that are written together are of the same few seconds."""
    return to_datetime(seconds * MICROS).isoformat(timespec="seconds").removesuffix("+00:00")


def instant(text: str) -> Instant:
    return to_instant(datetime.fromisoformat(text))
