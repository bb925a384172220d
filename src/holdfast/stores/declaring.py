"""How result tables that are declared, and those that are stored, go together. Pure; the same for every engine."""

from __future__ import annotations

import msgspec

from holdfast.errors import DuplicateRow, SchemaMismatch, UnknownTable
from holdfast.limits import RESULT_TABLES_MAX
from holdfast.store.tables import Column, ResultTable, Value


def declared(stored: ResultTable | None, table: ResultTable) -> ResultTable:
    """What is stored from here on. Columns are only added: older code beside newer declares fewer, and goes on."""
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


def refuse_too_many(stored: int, table: str) -> None:
    if stored >= RESULT_TABLES_MAX:
        raise SchemaMismatch(
            f"result table {table}: there are {stored} already, and the limit is {RESULT_TABLES_MAX}:"
            " keep rows of one kind in one table, whatever job they are of"
        )


def writable(stored: ResultTable | None, table: ResultTable) -> ResultTable:
    """The table as it is stored, where every column of the declared one is."""
    if stored is None or missing(stored, table):
        raise UnknownTable(f"result table {table.name} is not declared as it is used: open the app that declares it")
    _refuse_change(stored, table)
    return stored


def readable(stored: ResultTable | None, table: ResultTable) -> list[Column | None]:
    """The columns that can be asked for; None for one that nobody has declared yet: it has no values."""
    if stored is None:
        raise UnknownTable(
            f"there is no result table {table.name}: it is made when an app opens whose handler has results=[…] of it"
        )
    _refuse_change(stored, table)
    known = {column.name for column in stored.columns}
    return [column if column.name in known else None for column in table.columns]


def _refuse_change(stored: ResultTable, table: ResultTable) -> None:
    kinds = {column.name.lower(): column for column in stored.columns}  # Name and name are one to SQLite
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
