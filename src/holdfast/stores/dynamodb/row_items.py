"""Rows of result tables as items: attributes have the names of the fields, and what is empty is absent. Pure.

Numbers are N where DynamoDB keeps them exactly, else texts: it knows no negative zero, and none beyond 1E±126.
"""

from __future__ import annotations

import math
from typing import Any

from holdfast.clock import Instant
from holdfast.store.tables import ColumnKind, ResultTable, RowBatch, RowOrigin, StoredRow, Value
from holdfast.stores import moments
from holdfast.stores.dynamodb.values import Item

_ORIGIN = RowOrigin.__struct_fields__
_SMALLEST, _LARGEST = 1e-130, 9.9e125


def item(batch: RowBatch, row: tuple[Value, ...], now: Instant) -> Item:
    table = batch.table
    made: Item = {
        "job_id": batch.hold.job_id,
        "hf_attempt": batch.hold.attempt,
        "hf_part": batch.part,
        "created_at": moments.text(now),
    }
    made |= {name: value for name in _ORIGIN if (value := getattr(batch.origin, name)) is not None}
    for column, value in zip(table.columns, row, strict=True):
        if value is None:
            continue
        if column.name == table.subject and value == "":
            made["hf_empty"] = 1  # a key of an index may not be the empty text
        else:
            made[column.name] = _kept(column.kind, value)
    return made


def stored(table: ResultTable, found: Item) -> StoredRow:
    values = tuple(
        "" if column.name == table.subject and "hf_empty" in found else _value(column.kind, found.get(column.name))
        for column in table.columns
    )
    origin = RowOrigin(**{name: found[name] for name in _ORIGIN if name in found})
    return StoredRow(found["job_id"], moments.instant(found["created_at"]), origin, values)


def _kept(kind: ColumnKind, value: Any) -> Any:
    match kind:
        case ColumnKind.MOMENT:
            return moments.text(value)
        case ColumnKind.NUMBER:
            return value if _is_exact(value) else repr(value)
        case _:
            return value


def _is_exact(number: float) -> bool:
    if number == 0:
        return math.copysign(1, number) > 0
    return _SMALLEST <= abs(number) <= _LARGEST


def _value(kind: ColumnKind, value: Any) -> Value:
    if value is None:
        return None
    match kind:
        case ColumnKind.MOMENT:
            return moments.instant(value)
        case ColumnKind.NUMBER:
            return float(value)
        case _:
            return value  # type: ignore[no-any-return]
