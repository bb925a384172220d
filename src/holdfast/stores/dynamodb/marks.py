"""Marks in `waiting`: a key or a rate that keeps jobs out of sight has one, by which these are looked at again."""

from __future__ import annotations

from holdfast.stores.dynamodb import keys
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.commit import update
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane


async def first(ground: Ground, begins: str, most: int) -> tuple[list[Item], bool]:
    """And whether there are more."""
    return await _after(ground, begins, most, None)


async def in_turn(ground: Ground, begins: str, most: int, walk: str) -> list[Item]:
    """All that there are; of very many, those after the last ones that anybody looked at on this walk."""
    marks, more = await first(ground, begins, most)
    if more:
        place = keys.turn(walk)
        [last] = await ground.tables.get(Table.RECORDS, [place], lane=Lane.IDLE)
        marks, more = await _after(ground, begins, most, None if last is None else last.get("after"))
        after = {"sets": {"after": marks[-1]["sk"]}} if more else {"removes": ("after",)}
        await ground.tables.update(update(Table.RECORDS, place, **after), lane=Lane.IDLE)
    return marks


async def _after(ground: Ground, begins: str, most: int, after: str | None) -> tuple[list[Item], bool]:
    ask = Ask(table=Table.RECORDS, hash=keys.WAITING, begins=begins, above=after, page=most, consistent=True)
    marks, then = await ground.tables.page(ask, lane=Lane.IDLE)
    return marks, then is not None
