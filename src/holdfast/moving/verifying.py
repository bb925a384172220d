"""Both sides are read again and compared: how many there are of each kind, and the sum of their hashes.

A sum, because two engines need not have the same order; whatever is lost, there twice or changed changes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from decimal import Decimal
from typing import Any

import msgspec

from holdfast.errors import MoveFailed
from holdfast.limits import MOVE_PAGE
from holdfast.moving import places
from holdfast.store import dumps
from holdfast.store.dumps import RowDump
from holdfast.store.port import Store
from holdfast.store.tables import ColumnKind, ResultTable

SHOWN = 5  # items that are named where two sides differ
_MODULUS = 2**256


class Sum(msgspec.Struct):
    count: int = 0
    total: int = 0
    shortened: int = 0

    def add(self, digest: bytes) -> None:
        self.count += 1
        self.total = (self.total + int.from_bytes(digest)) % _MODULUS


async def pages(
    store: Store, kind: str, after: str | None = None
) -> AsyncIterator[tuple[tuple[bytes, ...], str | None]]:
    """Pages of a kind, each with where the next one begins."""
    while True:
        page = await store.export(kind, after, MOVE_PAGE)
        yield page.items, page.next
        if page.next is None:
            return
        after = page.next


async def verified(source: Store, target: Store, kind: str, read: Callable[[int], None]) -> Sum:
    """What both sides have of a kind; MoveFailed where they differ. `read` is told how many were."""
    columns = {table.name: table for table in await source.result_tables()} if kind == dumps.ROWS else {}
    here, there = Sum(), Sum()
    async for items, _ in pages(source, kind):
        for item in items:
            kept = target.fit(kind, item)
            here.shortened += kept != item
            here.add(digest(kind, kept, columns))
        read(len(items))
    async for items, _ in pages(target, kind):
        for item in items:
            there.add(digest(kind, item, columns))
        read(len(items))
    if (here.count, here.total) != (there.count, there.total):
        raise MoveFailed(await _difference(source, target, kind, here.count, there.count, columns))
    return here


def digest(kind: str, item: bytes, tables: Mapping[str, ResultTable]) -> bytes:
    """Of an item as it must be on both sides."""
    if kind == dumps.JOBS:
        item = places.placeless(item)
    elif kind == dumps.ROWS:
        item = _row(item, tables)
    return hashlib.sha256(item).digest()


def _row(item: bytes, tables: Mapping[str, ResultTable]) -> bytes:
    """Numbers by their value: an engine may write 1.50 as 1.5, and has one zero."""
    dump = dumps.unpacked(dumps.ROWS, item, RowDump)
    kinds = [column.kind for column in tables[dump.table].columns]
    values = tuple(_plain(kind, value) for kind, value in zip(kinds, dump.values, strict=True))
    return dumps.packed(msgspec.structs.replace(dump, values=values))


def _plain(kind: ColumnKind, value: Any) -> Any:
    if value is None:
        return None
    match kind:
        case ColumnKind.DECIMAL:
            number = Decimal(value)
            return str(number.normalize()) if number else "0"
        case ColumnKind.NUMBER:
            return float(value) + 0.0
        case _:
            return value


async def _difference(
    source: Store, target: Store, kind: str, here: int, there: int, tables: Mapping[str, ResultTable]
) -> str:
    """In words, with some of the items that only one side has. A second pass: it is made only where something is
    wrong."""
    left: dict[bytes, str] = {}
    async for items, _ in pages(source, kind):
        for item in items:
            left[digest(kind, target.fit(kind, item), tables)] = dumps.name_of(kind, item)
    added: list[str] = []
    async for items, _ in pages(target, kind):
        for item in items:
            if left.pop(digest(kind, item, tables), None) is None and len(added) < SHOWN:
                added.append(dumps.name_of(kind, item))
    names = dict.fromkeys([*list(left.values())[:SHOWN], *added])
    return (
        f"{kind} differ: {here:,} in {source.location}, {there:,} in {target.location}; among those that differ:"
        f" {', '.join(names) or 'some that are there twice'}. Nothing was opened, and nothing is lost: empty"
        f" {target.location} and move again, or go on with {source.location} by --thaw"
    )
