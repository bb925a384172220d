"""Several ordered streams as one: the shards of an index partition, or several partitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from holdfast.stores.dynamodb.values import Item


async def merged(streams: Sequence[AsyncIterator[Item]], name: str, *, backwards: bool = False) -> AsyncIterator[Item]:
    """By the attribute of this name. The first of each are asked for together."""
    heads = dict(enumerate(await asyncio.gather(*(anext(stream, None) for stream in streams))))
    choose = max if backwards else min
    while open_ones := {number: head for number, head in heads.items() if head is not None}:
        number = choose(open_ones, key=lambda each: str(open_ones[each][name]))
        yield open_ones[number]
        heads[number] = await anext(streams[number], None)
