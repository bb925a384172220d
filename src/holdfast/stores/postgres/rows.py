"""Rows of result tables: put by running attempts, read of the committed one."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.clock import Instant, to_datetime, to_instant
from holdfast.store.tables import (
    Column,
    ColumnKind,
    ResultTable,
    RowBatch,
    RowOrigin,
    RowPage,
    RowQuery,
    StoredRow,
    Value,
)
from holdfast.store.types import Hold, Verdict
from holdfast.stores import declaring, paging
from holdfast.stores.postgres import tables
from holdfast.stores.postgres.tx import Tx
from holdfast.stores.transitions import held

_OF_JOB = 5  # columns that say whose rows they are, before the row


async def put_rows(tx: Tx, batches: Sequence[RowBatch], now: Instant) -> list[Verdict]:
    """In the order of the jobs, as everyone who holds several rows of jobs."""
    verdicts: dict[int, Verdict] = {}
    for i in sorted(range(len(batches)), key=lambda i: batches[i].hold.job_id):
        verdicts[i] = await _put(tx, batches[i], now)
    return [verdicts[i] for i in range(len(batches))]


async def _put(tx: Tx, batch: RowBatch, now: Instant) -> Verdict:
    table, hold = batch.table, batch.hold
    stored = declaring.writable(await tables.find(tx, table.name), table)
    verdict = await _marked(tx, hold, table.name)
    if verdict is not Verdict.APPLIED or not batch.rows:
        return verdict
    columns = [
        [sent(column.kind, value) for value in values]
        for column, values in zip(table.columns, zip(*batch.rows, strict=True), strict=True)
    ]
    own = (hold.job_id, hold.attempt, batch.part, to_datetime(now), *msgspec.structs.astuple(batch.origin))
    status = await tx.connection.execute(tables.put(tx.sql.schema, table, stored), *own, *columns)
    if int(status.rpartition(" ")[2]) < len(batch.rows):
        await _refuse_duplicate(tx, batch, columns[paging.key_position(table)])
    return Verdict.APPLIED


async def _marked(tx: Tx, hold: Hold, table: str) -> Verdict:
    """The job names the table before a row is in it: retention goes by that. Else the claim is only looked at: what
    slips in after it is lost has an attempt that nobody reads."""
    row = await tx.row("rows_holder", hold.job_id)
    verdict = held(hold, None if row is None else tuple(row)[:3])
    if row is None or verdict is not Verdict.APPLIED or table in msgspec.json.decode(row[3] or "[]"):
        return verdict
    marked = await tx.execute("rows_add_table", table, hold.job_id, hold.attempt, hold.token)
    return Verdict.APPLIED if marked else Verdict.STALE


async def _refuse_duplicate(tx: Tx, batch: RowBatch, keys: list[Any]) -> None:
    hold = batch.hold
    statement = tables.taken(tx.sql.schema, batch.table)
    row = await tx.connection.fetchrow(statement, hold.job_id, hold.attempt, batch.part, keys)
    raise declaring.duplicate(batch.table, None if row is None else row[0], hold.job_id)


async def rows(tx: Tx, table: ResultTable, ask: RowQuery) -> RowPage:
    known = tuple(declaring.readable(await tables.find(tx, table.name), table))
    wanted = [each for each in (ask.after if ask.key is None else ask.key, ask.subject) if each is not None]
    statement = tables.page(
        tx.sql.schema, table, known, ask.key is not None, ask.after is not None, ask.subject is not None
    )
    found = await tx.connection.fetch(statement, ask.job_id, ask.limit + 1, *wanted)
    source, attempt = paging.source(ask, tuple(found[0])[:_OF_JOB] if found else None)
    if source is None:
        return RowPage(())
    stored = [row_of(table.columns, tuple(row)[_OF_JOB:]) for row in found if row[_OF_JOB] is not None]
    at = paging.key_position(table)
    stored.sort(key=lambda row: _in_order(row.values[at]))
    return paging.page(table, stored, ask.limit, attempt)


def _in_order(key: Value) -> Any:
    """A join does not promise the order of what it joins."""
    return key.encode() if isinstance(key, str) else key


async def rows_by_subject(tx: Tx, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
    known = tuple(declaring.readable(await tables.find(tx, table.name), table))
    wanted: list[Any] = [subject, limit + 1]
    if after is not None:
        created_at, job_id, key = paging.place(after)
        wanted += [to_datetime(created_at), job_id, key]
    found = await tx.connection.fetch(tables.by_subject(tx.sql.schema, table, known, after is not None), *wanted)
    return paging.page_by_subject(table, [row_of(table.columns, tuple(row)) for row in found], limit)


async def latest(tx: Tx, subject: str, job_type: str) -> str | None:
    found: str | None = await tx.value("rows_latest", subject, job_type)
    return found


async def drop_rows(tx: Tx, job_id: str, limit: int) -> int:
    named = await tx.value("rows_archived", job_id)
    dropped = 0
    for name in msgspec.json.decode(named or "[]"):
        if dropped < limit and await tables.find(tx, name) is not None:
            status = await tx.connection.execute(tables.drop(tx.sql.schema, name), job_id, limit - dropped)
            dropped += int(status.rpartition(" ")[2])
    return dropped


def row_of(columns: Sequence[Column], row: tuple[Any, ...]) -> StoredRow:
    job_id, created_at, *origin = row[:5]
    values = tuple(_value(column.kind, value) for column, value in zip(columns, row[5:], strict=True))
    return StoredRow(job_id, to_instant(created_at), RowOrigin(*origin), values)


def sent(kind: ColumnKind, value: Any) -> Any:
    if value is None:
        return None
    match kind:
        case ColumnKind.MOMENT:
            return to_datetime(value)
        case ColumnKind.VECTOR:
            return f"{{{str(_numbers(value))[1:-1]}}}"
        case _:
            return value


def _value(kind: ColumnKind, value: Any) -> Value:
    if value is None:
        return None
    match kind:
        case ColumnKind.MOMENT:
            return to_instant(value)
        case ColumnKind.VECTOR:
            return struct.pack(f"<{len(value)}f", *value)
        case _:
            return value  # type: ignore[no-any-return]


def _numbers(vector: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(vector) // 4}f", vector))
