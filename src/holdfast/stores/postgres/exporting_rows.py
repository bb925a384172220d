"""Rows of result tables that move: all of a table by job and key, whatever attempt they are of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from holdfast.clock import to_datetime
from holdfast.store import dumps
from holdfast.store.dumps import Dump, RowDump
from holdfast.store.tables import ResultTable
from holdfast.stores import dumping, paging
from holdfast.stores.postgres import rows, tables
from holdfast.stores.postgres.tx import Tx

SOME = 50  # rows that are read at once: of the largest there are, what fits into memory


async def export(tx: Tx, after: str | None, limit: int) -> AsyncIterator[tuple[Dump, str]]:
    begun_with, *place = dumping.position(after, ("",))
    for table in sorted(await tables.result_tables(tx), key=lambda each: each.name):
        if table.name < begun_with:
            continue
        if table.name > begun_with:
            place = []
        async for dump in _of_table(tx, table, place, limit):
            yield dump, dumping.cursor(table.name, dump.job_id, dump.values[paging.key_position(table)])


async def _of_table(tx: Tx, table: ResultTable, place: Sequence[Any], limit: int) -> AsyncIterator[RowDump]:
    while limit > 0:
        found = await tx.connection.fetch(_everything(tx, table, bool(place)), min(SOME, limit), *place)
        for row in found:
            stored = rows.row_of(table.columns, tuple(row)[2:])
            place = (stored.job_id, stored.values[paging.key_position(table)])
            yield RowDump.of(table.name, row[0], row[1], stored)
        if len(found) < min(SOME, limit):
            return
        limit -= len(found)


def _everything(tx: Tx, table: ResultTable, begun: bool) -> str:
    """A page by job and key. Index: the table's primary key."""
    order = f"r.job_id, r.{tables.quoted(table.key)}"
    after = f" WHERE ({order}) > ($2, $3)" if begun else ""
    name = tables.name_of(tx.sql.schema, table.name)
    return (
        f"SELECT r.hf_attempt, r.hf_part, {tables.selected(table.columns)}"  # noqa: S608
        f" FROM {name} AS r{after} ORDER BY {order} LIMIT $1::integer"
    )


async def restore(tx: Tx, items: Sequence[bytes]) -> None:
    known = {table.name: table for table in await tables.result_tables(tx)}
    for together, group in groupby(dumps.all_unpacked(dumps.ROWS, items, RowDump), _put_together):
        table = known[together[0]]
        columns = [
            [rows.sent(column.kind, value) for value in values]
            for column, values in zip(table.columns, zip(*(dump.values for dump in group), strict=True), strict=True)
        ]
        _, job_id, attempt, part, created_at, origin = together
        own = (job_id, attempt, part, to_datetime(created_at), *msgspec.structs.astuple(origin))
        await tx.connection.execute(tables.put(tx.sql.schema, table, table), *own, *columns)


def _put_together(dump: RowDump) -> tuple[Any, ...]:
    return dump.table, dump.job_id, dump.attempt, dump.part, dump.created_at, dump.origin
