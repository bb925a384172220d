"""Trees that are larger than one commit go to the archive all the same as a whole, or not at all.

    every member is frozen as it was read ──▶ a mark: from here on it goes ──▶ members are moved, commit by commit

A frozen job takes no child and no retry, so nothing of the tree comes back to life in between. Whoever dies before the
mark leaves ice that is broken after a minute; whoever dies after it leaves the rest to `release`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

from holdfast.clock import MICROS, Instant
from holdfast.lifecycle import TERMINAL
from holdfast.stores.dynamodb import items, leftovers, moving, outbox
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.commit import Cancelled, Commit, replace, update
from holdfast.stores.dynamodb.expressions import absent, equals, unchanged
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import ROOT, Table
from holdfast.stores.dynamodb.outbox import Mark, MarkKind
from holdfast.stores.dynamodb.table import Failed
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane

_TOGETHER = 16
_MOVED_AT_ONCE = 90
THAW_MICROS = 60 * MICROS  # nobody freezes for so long without a mark


async def retire(ground: Ground, root: str, members: Sequence[Item], now: Instant) -> int:
    stamp = secrets.token_hex(8)
    frozen: list[Item] = []
    for start in range(0, len(members), _TOGETHER):
        batch = members[start : start + _TOGETHER]
        held = await asyncio.gather(*(_freeze(ground, item, stamp, now) for item in batch))
        frozen += [item for item, done in zip(batch, held, strict=True) if done]
        if not all(held):
            await asyncio.gather(*(_unfreeze(ground, item, stamp) for item in frozen))
            return 0
    mark = outbox.new_mark(MarkKind.TREE, root, now, stamp=stamp)
    commit = Commit(ground.tables, "retire", now)
    commit.write(outbox.written(mark))
    await commit.run(Lane.IDLE)
    return await go_on(ground, mark, now)


async def _freeze(ground: Ground, item: Item, stamp: str, now: Instant) -> bool:
    standing = equals("version", item["version"]) & unchanged(item, "awaited", "children", "open") & absent("frozen")
    write = update(Table.JOBS, (item["job_id"],), sets={"frozen": stamp, "frozen_at": now}, condition=standing)
    try:
        await ground.tables.update(write, lane=Lane.IDLE)
    except Failed as failed:
        return failed.item is not None and failed.item.get("frozen") == stamp  # an earlier try of this write
    return True


async def _unfreeze(ground: Ground, item: Item, stamp: str) -> bool:
    write = update(Table.JOBS, (item["job_id"],), removes=("frozen", "frozen_at"), condition=equals("frozen", stamp))
    try:
        await ground.tables.update(write, lane=Lane.IDLE)
    except Failed:
        return False
    return True


async def thaw(ground: Ground, item: Item, now: Instant) -> bool:
    """Break old ice that no mark stands for."""
    if abs(now - item.get("frozen_at", 0)) <= THAW_MICROS:
        return False
    root = item.get("root_job_id") or item["job_id"]
    [mark] = await ground.tables.get(Table.RECORDS, [outbox.place(MarkKind.TREE, root)], lane=Lane.IDLE)
    if mark is not None and mark.get("stamp") == item["frozen"]:
        return False
    return await _unfreeze(ground, item, item["frozen"])


async def go_on(ground: Ground, mark: Mark, now: Instant) -> int:
    """Move what is left of a tree whose mark stands; how many."""
    moved = 0
    stamp = mark.item["stamp"]
    while members := await _left(ground, mark.name, stamp):
        for start in range(0, len(members), _MOVED_AT_ONCE):
            batch = members[start : start + _MOVED_AT_ONCE]
            moved += await _move(ground, batch, now)
    await outbox.finish(ground.tables, mark)
    return moved


async def _left(ground: Ground, root: str, stamp: str) -> list[Item]:
    ids = {root: None}
    ask = Ask(table=Table.JOBS, index=ROOT.name, hash=root)
    async for row in ground.tables.ask(ask, lane=Lane.IDLE):
        ids[row["job_id"]] = None
    found = await ground.tables.get(Table.JOBS, [(job_id,) for job_id in ids], lane=Lane.IDLE)
    return [
        item
        for item in found
        if item is not None
        and moving.is_there(item)
        and item.get("frozen") == stamp
        and moving.status_of(item) in TERMINAL
    ]


async def _move(ground: Ground, batch: Sequence[Item], now: Instant) -> int:
    commit = Commit(ground.tables, "retire", now)
    commit.write(*(replace(item, items.archived(item, now), also=equals("frozen", item["frozen"])) for item in batch))
    try:
        await commit.run(Lane.IDLE)
    except Cancelled:
        return 0  # another goes on from the same mark
    await leftovers.remove(ground, batch)
    return len(batch)
