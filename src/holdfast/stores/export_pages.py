"""Pages of an export, from what an engine on a server reads bit by bit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable

from holdfast.limits import MOVE_PAGE_BYTES_MAX
from holdfast.store import dumps
from holdfast.store.dumps import Dump
from holdfast.store.moves import Exported

Source = AsyncIterator[tuple[Dump, str]]  # each with the cursor behind it


async def page(source: Source, limit: int) -> Exported:
    """Pages end at their size, too: `limit` large jobs would not fit into anybody's memory."""
    items: list[bytes] = []
    size, cursor = 0, None
    async for dump, place in source:
        if len(items) == limit or size >= MOVE_PAGE_BYTES_MAX:
            return Exported(tuple(items), cursor)
        items.append(dumps.packed(dump))
        size, cursor = size + len(items[-1]), place
    return Exported(tuple(items))


async def whole(read: Awaitable[Iterable[Dump]], after: str | None) -> Source:
    """Of what there is little: counted through."""
    for number, dump in enumerate(await read):
        if number >= int(after or 0):
            yield dump, str(number + 1)
