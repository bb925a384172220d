"""Rows of result tables: put by running attempts, read of the committed one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from holdfast.clock import Instant
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
from holdfast.stores import declaring, moments, paging
from holdfast.stores.sqlite import sql, tables
from holdfast.stores.sqlite.sql import load
from holdfast.stores.sqlite.tx import Tx
from holdfast.stores.transitions import held

HOLDER = load("rows_holder")
ADD_TABLE = load("rows_add_table")
SOURCE = load("rows_source")
LATEST = load("rows_latest")


def put_rows(tx: Tx, batches: Sequence[RowBatch], now: Instant) -> list[Verdict]:
    return [_put(tx, batch, now) for batch in batches]


def _put(tx: Tx, batch: RowBatch, now: Instant) -> Verdict:
    table, hold = batch.table, batch.hold
    stored = declaring.writable(tables.find(tx.connection, table.name), table)
    verdict = _marked(tx, hold, table.name)
    if verdict is not Verdict.APPLIED or not batch.rows:
        return verdict
    timed = [column.kind is ColumnKind.MOMENT for column in table.columns]
    own = (hold.job_id, hold.attempt, batch.part, moments.text(now), *msgspec.structs.astuple(batch.origin))
    before = tx.connection.total_changes()
    tx.connection.executemany(
        tables.put(table, stored),
        ((*own, *(kept(value, moment) for value, moment in zip(row, timed, strict=True))) for row in batch.rows),
    )
    if tx.connection.total_changes() - before < len(batch.rows):
        _refuse_duplicate(tx, batch)
    return Verdict.APPLIED


def _marked(tx: Tx, hold: Hold, table: str) -> Verdict:
    """The job names the table before a row is in it: retention goes by that."""
    row = tx.row(HOLDER, (hold.job_id,))
    verdict = held(hold, None if row is None else row[:3])
    if row is not None and verdict is Verdict.APPLIED and table not in msgspec.json.decode(row[3] or "[]"):
        tx.execute(ADD_TABLE, (table, hold.job_id))
    return verdict


def _refuse_duplicate(tx: Tx, batch: RowBatch) -> None:
    """Nobody but this attempt can have put the row that stood in the way: it holds the job, and none is newer."""
    at = paging.key_position(batch.table)
    for row in batch.rows:
        if tx.row(tables.standing(batch.table), (batch.hold.job_id, row[at])) != (batch.hold.attempt, batch.part):
            raise declaring.duplicate(batch.table, row[at], batch.hold.job_id)


def rows(connection: apsw.Connection, table: ResultTable, ask: RowQuery) -> RowPage:
    known = tuple(declaring.readable(tables.find(connection, table.name), table))
    source, attempt = paging.source(ask, sql.row(connection, SOURCE, (ask.job_id,)))
    if source is None:
        return RowPage(())
    statement = tables.page(table, known, ask.key is not None, ask.after is not None, ask.subject is not None)
    found = sql.rows(
        connection,
        statement,
        {
            "job_id": source,
            "attempt": attempt,
            "key": ask.after if ask.key is None else ask.key,
            "subject": ask.subject,
            "limit": ask.limit + 1,
        },
    )
    return paging.page(table, [row_of(table.columns, each) for each in found], ask.limit, attempt)


def rows_by_subject(
    connection: apsw.Connection, table: ResultTable, subject: str, after: str | None, limit: int
) -> RowPage:
    known = tuple(declaring.readable(tables.find(connection, table.name), table))
    bindings: dict[str, Any] = {"subject": subject, "limit": limit + 1}
    if after is not None:
        created_at, job_id, key = paging.place(after)
        bindings |= {"created_at": moments.text(created_at), "job_id": job_id, "key": key}
    found = sql.rows(connection, tables.by_subject(table, known, after is not None), bindings)
    return paging.page_by_subject(table, [row_of(table.columns, each) for each in found], limit)


def latest(connection: apsw.Connection, subject: str, job_type: str) -> str | None:
    found = sql.value(connection, LATEST, (subject, job_type))
    return None if found is None else str(found)


def drop_rows(tx: Tx, job_id: str, limit: int) -> int:
    named = tx.value("SELECT details ->> 'result_tables' FROM archive WHERE job_id = ?", (job_id,))
    dropped = 0
    for name in msgspec.json.decode(named or "[]"):
        table = tables.find(tx.connection, name)
        if dropped < limit and table is not None:
            tx.execute(tables.drop(table), (job_id, limit - dropped))
            dropped += tx.connection.changes()
    return dropped


def row_of(columns: Sequence[Column], row: tuple[Any, ...]) -> StoredRow:
    job_id, created_at, *origin = row[:5]
    values = tuple(_value(column.kind, value) for column, value in zip(columns, row[5:], strict=True))
    return StoredRow(job_id, moments.instant(created_at), RowOrigin(*origin), values)


def kept(value: Value, moment: bool) -> Value:
    return moments.text(value) if moment and isinstance(value, int) else value


def _value(kind: ColumnKind, value: Any) -> Value:
    if value is None:
        return None
    match kind:
        case ColumnKind.BOOLEAN:
            return bool(value)
        case ColumnKind.MOMENT:
            return moments.instant(value)
        case _:
            return value  # type: ignore[no-any-return]
