"""Result tables on SQLite: declare them, write rows of running attempts, read rows of committed ones.

Statements are built from names that were checked when the table was declared, and are quoted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import apsw
import msgspec

from backstay.clock import Instant
from backstay.core import result_tables as core_result_tables
from backstay.core.records import Hold, Verdict
from backstay.core.result_tables import (
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
from backstay.engines.sql_rows import holds_by_key
from backstay.engines.sqlite import connection as sqlite_connection
from backstay.engines.sqlite.connection import load
from backstay.engines.sqlite.writer import Tx

_TYPES = {
    ColumnKind.INTEGER: "INTEGER",
    ColumnKind.NUMBER: "REAL",
    ColumnKind.TEXT: "TEXT",
    ColumnKind.BOOLEAN: "INTEGER",
    ColumnKind.BYTES: "BLOB",
    ColumnKind.MOMENT: "TEXT",  # ISO 8601, as in created_at, for readers with other tools
    ColumnKind.UUID: "TEXT",
    ColumnKind.DECIMAL: "TEXT",
    ColumnKind.JSON: "TEXT",
    ColumnKind.VECTOR: "BLOB",  # 32-bit numbers, as sqlite-vec's functions expect them
}
COUNT_TABLES = load("count_tables")
IS_TAKEN = load("is_taken")
SAVE_TABLE = load("save_table")
TABLES = load("tables")
TABLE = load("table")
ARCHIVED_TABLES = load("archived_tables")
_OWN = ("job_id", "bs_attempt", "bs_part", "created_at", "parent_job_id", "root_job_id", "job_stage")
ORIGIN = ("job_id", "created_at", "parent_job_id", "root_job_id", "job_stage")


def declare(tx: Tx, tables: Sequence[ResultTable]) -> list[str]:
    changed = []
    for table in tables:
        stored = find(tx.connection, table.name)
        wanted = core_result_tables.declared(stored, table)
        if stored == wanted:
            continue
        if stored is None:
            core_result_tables.refuse_too_many(tx.value(COUNT_TABLES), table.name)
            if tx.value(IS_TAKEN, (f"result_{table.name}",)):
                raise core_result_tables.not_ours(f"result_{table.name}")
            tx.connection.execute(_create(wanted))
        else:
            for column in core_result_tables.missing(stored, table):
                tx.connection.execute(f"ALTER TABLE {_name(table)} ADD COLUMN {_definition(column)}")
        if wanted.subject_index and not (stored is not None and stored.subject_index):
            tx.connection.execute(_create_index(wanted))
        definition = msgspec.json.encode(wanted).decode()
        tx.connection.execute(SAVE_TABLE, (wanted.name, definition))
        changed.append(table.name)
    return changed


def result_tables(connection: apsw.Connection) -> list[ResultTable]:
    found = sqlite_connection.rows(connection, TABLES)
    return [msgspec.json.decode(definition, type=ResultTable) for (definition,) in found]


def find(connection: apsw.Connection, name: str) -> ResultTable | None:
    definition = sqlite_connection.value(connection, TABLE, (name,))
    return None if definition is None else msgspec.json.decode(definition, type=ResultTable)


def _create(table: ResultTable) -> str:
    columns = ", ".join(_definition(column, needed=column.name == table.key) for column in table.columns)
    return (
        f"CREATE TABLE {_name(table)} (job_id TEXT NOT NULL, bs_attempt INTEGER NOT NULL, bs_part INTEGER NOT NULL,"
        " created_at TEXT NOT NULL, parent_job_id TEXT, root_job_id TEXT, job_stage TEXT,"
        f" {columns}, PRIMARY KEY (job_id, {quoted(table.key)})) STRICT"
    )


def _create_index(table: ResultTable) -> str:
    return (
        f"CREATE INDEX {_index(table)} ON {_name(table)}"
        f" ({quoted(table.subject or '')}, created_at, job_id, {quoted(table.key)})"
    )


def _definition(column: Column, *, needed: bool = False) -> str:
    return f"{quoted(column.name)} {_TYPES[column.kind]}{' NOT NULL' if needed else ''}"


@lru_cache(maxsize=256)
def put(table: ResultTable, stored: ResultTable) -> str:
    """Return the statement that stores a row, replacing one of an older attempt or earlier try; columns without a value
    become NULL."""
    names = [*_OWN, *(quoted(column.name) for column in table.columns)]
    news = [f"{name} = excluded.{name}" for name in names if name not in ("job_id", quoted(table.key))]
    olds = [f"{quoted(column.name)} = NULL" for column in core_result_tables.missing(table, stored)]
    return (
        f"INSERT INTO {_name(stored)} AS r ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        f" ON CONFLICT (job_id, {quoted(table.key)}) DO UPDATE SET {', '.join(news + olds)}"
        " WHERE excluded.bs_attempt > r.bs_attempt"
        " OR (excluded.bs_attempt = r.bs_attempt AND excluded.bs_part = r.bs_part)"
    )


@lru_cache(maxsize=256)
def page(table: ResultTable, known: tuple[Column | None, ...], key: bool, after: bool, subject: bool) -> str:
    """Return the statement for rows of one attempt of one job, by key. Index: the table's primary key."""
    narrowed = f" AND r.{quoted(table.key)} {'=' if key else '>'} :key" if key or after else ""
    filtered = f" AND r.{quoted(table.subject or '')} = :subject" if subject else ""
    return (
        f"SELECT {_selected(known)} FROM {_name(table)} AS r WHERE r.job_id = :job_id{narrowed}"
        f" AND r.bs_attempt = :attempt{filtered} ORDER BY r.{quoted(table.key)} LIMIT :limit"
    )


@lru_cache(maxsize=256)
def by_subject(table: ResultTable, known: tuple[Column | None, ...], after: bool) -> str:
    """Return the statement for rows of a subject across all completed jobs, in order of storage. Index: the table's
    subject index."""
    order = f"r.created_at, r.job_id, r.{quoted(table.key)}"
    narrowed = f" AND ({order}) > (:created_at, :job_id, :key)" if after else ""
    return (
        f"SELECT {_selected(known)} FROM {_name(table)} AS r INDEXED BY {_index(table)} CROSS JOIN job"
        " CROSS JOIN ended ON ended.seq = job.seq"
        f" WHERE r.{quoted(table.subject or '')} = :subject{narrowed}"
        " AND job.job_id = r.job_id AND ended.status || '' = 'completed' AND ended.attempt = r.bs_attempt"
        f" ORDER BY {order} LIMIT :limit"
    )


def standing(table: ResultTable) -> str:
    """Return the statement for the attempt and part that wrote a row."""
    return f"SELECT bs_attempt, bs_part FROM {_name(table)} WHERE job_id = ? AND {quoted(table.key)} = ?"


def drop(table: ResultTable) -> str:
    """Return the statement that deletes rows, by key and not by rowid, which may be a column of the table."""
    name, key = _name(table), quoted(table.key)
    return f"DELETE FROM {name} WHERE job_id = ?1 AND {key} IN (SELECT {key} FROM {name} WHERE job_id = ?1 LIMIT ?2)"


def _selected(known: tuple[Column | None, ...]) -> str:
    named = ("NULL" if column is None else f"r.{quoted(column.name)}" for column in known)
    return ", ".join([*(f"r.{name}" for name in ORIGIN), *named])


def _name(table: ResultTable) -> str:
    return quoted(f"result_{table.name}")


def _index(table: ResultTable) -> str:
    return quoted(f"result_{table.name}_subject")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


HOLDER = load("rows_holder")
ADD_TABLE = load("rows_add_table")
SOURCE = load("rows_source")
LATEST = load("rows_latest")


def put_rows(tx: Tx, batches: Sequence[RowBatch], now: Instant) -> list[Verdict]:
    return [_put(tx, batch, now) for batch in batches]


def _put(tx: Tx, batch: RowBatch, now: Instant) -> Verdict:
    table, hold = batch.table, batch.hold
    stored = core_result_tables.writable(find(tx.connection, table.name), table)
    verdict = _marked(tx, hold, table.name)
    if verdict is not Verdict.APPLIED or not batch.rows:
        return verdict
    timed = [column.kind is ColumnKind.MOMENT for column in table.columns]
    own = (hold.job_id, hold.attempt, batch.part, core_result_tables.text(now), *msgspec.structs.astuple(batch.origin))
    before = tx.connection.total_changes()
    tx.connection.executemany(
        put(table, stored),
        ((*own, *(kept(value, moment) for value, moment in zip(row, timed, strict=True))) for row in batch.rows),
    )
    if tx.connection.total_changes() - before < len(batch.rows):
        _refuse_duplicate(tx, batch)
    return Verdict.APPLIED


def _marked(tx: Tx, hold: Hold, table: str) -> Verdict:
    """Record the table in the job before a row is stored: retention relies on it."""
    found = tx.row(HOLDER, (hold.job_id,))
    if found is None:
        return holds_by_key(hold, None)
    attempt, token, tables = found
    verdict = holds_by_key(hold, (attempt, token))
    if verdict is Verdict.APPLIED and table not in msgspec.json.decode(tables or "[]"):
        tx.connection.execute(ADD_TABLE, (table, hold.job_id))
    return verdict


def _refuse_duplicate(tx: Tx, batch: RowBatch) -> None:
    """Raise DuplicateRow for the conflicting row. Only this attempt can have written it: it holds the job, and none is
    newer."""
    at = core_result_tables.key_position(batch.table)
    for row in batch.rows:
        if tx.row(standing(batch.table), (batch.hold.job_id, row[at])) != (batch.hold.attempt, batch.part):
            raise core_result_tables.duplicate(batch.table, row[at], batch.hold.job_id)


def rows(connection: apsw.Connection, table: ResultTable, ask: RowQuery) -> RowPage:
    known = tuple(core_result_tables.readable(find(connection, table.name), table))
    source, attempt = core_result_tables.source(ask, sqlite_connection.row(connection, SOURCE, (ask.job_id,)))
    if source is None:
        return RowPage(())
    statement = page(table, known, ask.key is not None, ask.after is not None, ask.subject is not None)
    found = sqlite_connection.rows(
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
    return core_result_tables.page(table, [row_of(table.columns, each) for each in found], ask.limit, attempt)


def rows_by_subject(
    connection: apsw.Connection, table: ResultTable, subject: str, after: str | None, limit: int
) -> RowPage:
    known = tuple(core_result_tables.readable(find(connection, table.name), table))
    bindings: dict[str, Any] = {"subject": subject, "limit": limit + 1}
    if after is not None:
        created_at, job_id, key = core_result_tables.place(after)
        bindings |= {"created_at": core_result_tables.text(created_at), "job_id": job_id, "key": key}
    found = sqlite_connection.rows(connection, by_subject(table, known, after is not None), bindings)
    return core_result_tables.page_by_subject(table, [row_of(table.columns, each) for each in found], limit)


def latest(connection: apsw.Connection, subject: str, job_type: str) -> str | None:
    found = sqlite_connection.value(connection, LATEST, (subject, job_type))
    return None if found is None else str(found)


def drop_rows(tx: Tx, job_id: str, limit: int) -> int:
    named = tx.value(ARCHIVED_TABLES, (job_id,))
    dropped = 0
    for name in msgspec.json.decode(named or "[]"):
        table = find(tx.connection, name)
        if dropped < limit and table is not None:
            tx.connection.execute(drop(table), (job_id, limit - dropped))
            dropped += tx.connection.changes()
    return dropped


def row_of(columns: Sequence[Column], row: tuple[Any, ...]) -> StoredRow:
    job_id, created_at, *origin = row[:5]
    values = tuple(_value(column.kind, value) for column, value in zip(columns, row[5:], strict=True))
    return StoredRow(job_id, core_result_tables.instant(created_at), RowOrigin(*origin), values)


def kept(value: Value, moment: bool) -> Value:
    return core_result_tables.text(value) if moment and isinstance(value, int) else value


def _value(kind: ColumnKind, value: Any) -> Value:
    if value is None:
        return None
    match kind:
        case ColumnKind.BOOLEAN:
            return bool(value)
        case ColumnKind.MOMENT:
            return core_result_tables.instant(value)
        case _:
            return value  # type: ignore[no-any-return]
