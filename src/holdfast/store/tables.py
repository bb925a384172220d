"""Result tables as they cross the port: their columns, rows on their way in, and rows that were asked for."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.clock import Instant
from holdfast.store.types import Hold

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
    """A table of results: rows of a job, told apart by `key`. All columns but the key may be empty."""

    name: str
    key: str
    columns: tuple[Column, ...]  # the key and the subject among them
    subject: str | None = None
    subject_index: bool = False  # rows can be asked for by subject, over all jobs


class RowOrigin(msgspec.Struct, frozen=True, gc=False):
    """Where the job of a row stands in its tree."""

    parent_job_id: str | None = None
    root_job_id: str | None = None
    job_stage: str | None = None


class RowBatch(msgspec.Struct, frozen=True):
    """Rows of one running attempt for one table; values in the order of its columns. `part` counts the attempt's
    batches for this table: one that is put again replaces itself."""

    hold: Hold
    table: ResultTable
    part: int
    rows: tuple[tuple[Value, ...], ...]
    origin: RowOrigin = RowOrigin()


class RowQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one job, by key. `attempt`: the one that the page before was of."""

    job_id: str
    key: Value = None
    subject: str | None = None
    after: Value = None
    limit: int = 500
    attempt: int | None = None


class StoredRow(msgspec.Struct, frozen=True, gc=False):
    job_id: str  # of the job that put it, also where another answers with it
    created_at: Instant
    origin: RowOrigin
    values: tuple[Value, ...]


class RowPage(msgspec.Struct, frozen=True):
    """`attempt`: of which attempt the rows are; 0 where there are none to see. `next`: `after` of the next page."""

    items: tuple[StoredRow, ...]
    attempt: int = 0
    next: Value = None
