"""Rows of result tables that move: all of a table, whatever attempt they are of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from holdfast.store import dumps
from holdfast.store.dumps import Dump, RowDump
from holdfast.store.tables import ResultTable, RowBatch
from holdfast.store.types import Hold
from holdfast.stores import dumping
from holdfast.stores.dynamodb import row_items, row_tables, tables
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.table import Lane
from holdfast.stores.dynamodb.values import decode, encode

SCANNED = 200  # rows that one request reads


async def export(ground: Ground, after: str | None, _: int) -> AsyncIterator[tuple[Dump, str]]:
    begun_with, *place = dumping.position(after, ("",))
    for table in sorted(await tables.result_tables(ground), key=lambda each: each.name):
        if table.name < begun_with:
            continue
        begins = place[0] if table.name == begun_with else None
        async for dump, key in _of_table(ground, table, begins):
            yield dump, dumping.cursor(table.name, key)


async def _of_table(
    ground: Ground, table: ResultTable, after: dict[str, Any] | None
) -> AsyncIterator[tuple[RowDump, dict[str, Any]]]:
    """In the order in which DynamoDB keeps them; consistent."""
    body: dict[str, Any] = {
        "TableName": tables.name_of(ground.tables, table.name),
        "ConsistentRead": True,
        "Limit": SCANNED,
    }
    if after is not None:
        body["ExclusiveStartKey"] = encode(after)
    while True:
        reply = await ground.tables.call("Scan", body, lane=Lane.IDLE)
        for wired in reply.get("Items", ()):
            item = decode(wired)
            row = row_items.stored(table, item)
            key = {name: item[name] for name in ("job_id", table.key)}
            yield RowDump.of(table.name, item["hf_attempt"], item["hf_part"], row), key
        if not reply.get("LastEvaluatedKey"):
            return
        body = {**body, "ExclusiveStartKey": reply["LastEvaluatedKey"]}


async def restore(ground: Ground, packed: Sequence[bytes]) -> None:
    known = {table.name: table for table in await tables.result_tables(ground)}
    made: dict[str, list[dict[str, Any]]] = {}
    for dump in dumps.all_unpacked(dumps.ROWS, packed, RowDump):
        hold = Hold(dump.job_id, dump.attempt, "")
        batch = RowBatch(hold, known[dump.table], dump.part, (), dump.origin)
        made.setdefault(dump.table, []).append(row_items.item(batch, dump.values, dump.created_at))
    for name, rows in made.items():
        await row_tables.put_many(ground.tables, known[name], rows)
