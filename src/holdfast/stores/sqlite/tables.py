"""Result tables: which there are, and the statements on each. They are made of names that were checked when the table
was declared, and quoted here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import apsw
import msgspec

from holdfast.store.tables import Column, ColumnKind, ResultTable
from holdfast.stores import declaring
from holdfast.stores.sqlite import sql
from holdfast.stores.sqlite.tx import Tx

_TYPES = {
    ColumnKind.INTEGER: "INTEGER",
    ColumnKind.NUMBER: "REAL",
    ColumnKind.TEXT: "TEXT",
    ColumnKind.BOOLEAN: "INTEGER",
    ColumnKind.BYTES: "BLOB",
    ColumnKind.MOMENT: "TEXT",  # ISO 8601, as in created_at: for whoever looks with another tool
    ColumnKind.UUID: "TEXT",
    ColumnKind.DECIMAL: "TEXT",
    ColumnKind.JSON: "TEXT",
    ColumnKind.VECTOR: "BLOB",  # numbers of 32 bits, as sqlite-vec's functions take them
}
_OWN = ("job_id", "hf_attempt", "hf_part", "created_at", "parent_job_id", "root_job_id", "job_stage")
ORIGIN = ("job_id", "created_at", "parent_job_id", "root_job_id", "job_stage")


def declare(tx: Tx, tables: Sequence[ResultTable]) -> list[str]:
    changed = []
    for table in tables:
        stored = find(tx.connection, table.name)
        wanted = declaring.declared(stored, table)
        if stored == wanted:
            continue
        if stored is None:
            declaring.refuse_too_many(tx.value("SELECT count(*) FROM result_table"), table.name)
            tx.execute(_create(wanted))
        else:
            for column in declaring.missing(stored, table):
                tx.execute(f"ALTER TABLE {_name(table)} ADD COLUMN {_definition(column)}")
        if wanted.subject_index and not (stored is not None and stored.subject_index):
            tx.execute(_create_index(wanted))
        definition = msgspec.json.encode(wanted).decode()
        tx.execute("INSERT OR REPLACE INTO result_table (name, definition) VALUES (?, ?)", (wanted.name, definition))
        changed.append(table.name)
    return changed


def result_tables(connection: apsw.Connection) -> list[ResultTable]:
    found = sql.rows(connection, "SELECT definition FROM result_table ORDER BY name")
    return [msgspec.json.decode(definition, type=ResultTable) for (definition,) in found]


def find(connection: apsw.Connection, name: str) -> ResultTable | None:
    definition = sql.value(connection, "SELECT definition FROM result_table WHERE name = ?", (name,))
    return None if definition is None else msgspec.json.decode(definition, type=ResultTable)


def _create(table: ResultTable) -> str:
    columns = ", ".join(_definition(column, needed=column.name == table.key) for column in table.columns)
    return (
        f"CREATE TABLE {_name(table)} (job_id TEXT NOT NULL, hf_attempt INTEGER NOT NULL, hf_part INTEGER NOT NULL,"
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
    """One row, over one of an older attempt or an earlier try; what it does not bring is empty afterwards."""
    names = [*_OWN, *(quoted(column.name) for column in table.columns)]
    news = [f"{name} = excluded.{name}" for name in names if name not in ("job_id", quoted(table.key))]
    olds = [f"{quoted(column.name)} = NULL" for column in declaring.missing(table, stored)]
    return (
        f"INSERT INTO {_name(stored)} AS r ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        f" ON CONFLICT (job_id, {quoted(table.key)}) DO UPDATE SET {', '.join(news + olds)}"
        " WHERE excluded.hf_attempt > r.hf_attempt"
        " OR (excluded.hf_attempt = r.hf_attempt AND excluded.hf_part = r.hf_part)"
    )


@lru_cache(maxsize=256)
def page(table: ResultTable, known: tuple[Column | None, ...], key: bool, after: bool, subject: bool) -> str:
    """Rows of one attempt of one job, by key. Index: the table's primary key."""
    narrowed = f" AND r.{quoted(table.key)} {'=' if key else '>'} :key" if key or after else ""
    filtered = f" AND r.{quoted(table.subject or '')} = :subject" if subject else ""
    return (
        f"SELECT {_selected(known)} FROM {_name(table)} AS r WHERE r.job_id = :job_id{narrowed}"
        f" AND r.hf_attempt = :attempt{filtered} ORDER BY r.{quoted(table.key)} LIMIT :limit"
    )


@lru_cache(maxsize=256)
def by_subject(table: ResultTable, known: tuple[Column | None, ...], after: bool) -> str:
    """Rows of a subject over all completed jobs, in the order in which they came. Index: the table's subject index."""
    order = f"r.created_at, r.job_id, r.{quoted(table.key)}"
    narrowed = f" AND ({order}) > (:created_at, :job_id, :key)" if after else ""
    return (
        f"SELECT {_selected(known)} FROM {_name(table)} AS r INDEXED BY {_index(table)} CROSS JOIN job"
        f" WHERE r.{quoted(table.subject or '')} = :subject{narrowed}"
        " AND job.job_id = r.job_id AND job.status || '' = 'completed' AND job.attempt = r.hf_attempt"
        f" ORDER BY {order} LIMIT :limit"
    )


def standing(table: ResultTable) -> str:
    """By which attempt and part a row was put."""
    return f"SELECT hf_attempt, hf_part FROM {_name(table)} WHERE job_id = ? AND {quoted(table.key)} = ?"


def drop(table: ResultTable) -> str:
    """By the key, not by rowid: that may be a column of the table's own."""
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
