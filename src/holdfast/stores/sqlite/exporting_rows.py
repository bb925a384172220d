"""Rows of result tables that move: all of a table by job and key, whatever attempt they are of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import apsw
import msgspec

from holdfast.store import dumps
from holdfast.store.dumps import Dump, RowDump
from holdfast.store.tables import ColumnKind, ResultTable
from holdfast.stores import dumping, moments
from holdfast.stores.sqlite import rows, tables
from holdfast.stores.sqlite.tx import Tx


def export(connection: apsw.Connection, after: str | None, limit: int) -> Iterator[tuple[Dump, str]]:
    begun_with, *place = dumping.position(after, ("",))
    for table in sorted(tables.result_tables(connection), key=lambda each: each.name):
        if table.name < begun_with:
            continue
        begun = table.name == begun_with
        key = [column.name for column in table.columns].index(table.key)
        for row in connection.execute(_everything(table, begun), (*(place if begun else ()), limit)):
            stored = rows.row_of(table.columns, row[2:])
            yield (
                RowDump.of(table.name, int(str(row[0])), int(str(row[1])), stored),
                dumping.cursor(table.name, stored.job_id, stored.values[key]),
            )


def _everything(table: ResultTable, begun: bool) -> str:
    """A page by job and key. Index: the table's primary key."""
    columns = ", ".join([*tables.ORIGIN, *(tables.quoted(column.name) for column in table.columns)])
    order = f"job_id, {tables.quoted(table.key)}"
    after = f" WHERE ({order}) > (?, ?)" if begun else ""
    name = tables.quoted(f"result_{table.name}")
    return f"SELECT hf_attempt, hf_part, {columns} FROM {name}{after} ORDER BY {order} LIMIT ?"  # noqa: S608


def restore(tx: Tx, items: Sequence[bytes]) -> None:
    known = {table.name: table for table in tables.result_tables(tx.connection)}
    for dump in dumps.all_unpacked(dumps.ROWS, items, RowDump):
        table = known[dump.table]
        own = (dump.job_id, dump.attempt, dump.part, moments.text(dump.created_at))
        kept = (
            rows.kept(value, column.kind is ColumnKind.MOMENT)
            for column, value in zip(table.columns, dump.values, strict=True)
        )
        tx.execute(tables.put(table, table), (*own, *msgspec.structs.astuple(dump.origin), *kept))
