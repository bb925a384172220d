"""A queue that moves, as the board tells everyone: each claim and each submit reads it anyway.

Between such a look and the commit lies a moment. So a queue is taken to stand still only once it has been frozen for
longer than any call lasts; what others then still change of it, they change against what they know.
"""

from __future__ import annotations

import time

import msgspec

from holdfast.errors import MoveFailed
from holdfast.lifecycle import Status
from holdfast.store.moves import SEALED, TAKEN_OVER, MoveState, refuse_freezing
from holdfast.stores.dynamodb import keys
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.expressions import absent, equals
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.items import new_wid
from holdfast.stores.dynamodb.layout import STATUS, Table
from holdfast.stores.dynamodb.table import Failed
from holdfast.stores.dynamodb.values import Item

SETTLING_SECONDS = 10.0  # longer than a verb tries


async def freeze(ground: Ground, state: MoveState | None) -> int:
    if state is None:
        await ground.tables.delete_many(Table.RECORDS, [keys.MOVE_KEY])
        await ground.board.read(fresh=True)
        return 0
    before = await stored(ground)
    refuse_freezing(state_of(before), state)
    if state.kind == SEALED and (left := await _under_way(ground, before)):
        return left
    await keep(ground, state, before)
    return 0


async def keep(ground: Ground, state: MoveState, before: Item | None) -> None:
    """Store how far a move is, unless another run of it has stored something since `before` was read."""
    pk, sk = keys.MOVE_KEY
    frozen_at = int(time.time()) if before is None else before["frozen_at"]
    text = msgspec.json.encode(state).decode()
    item = {"pk": pk, "sk": sk, "state": text, "frozen_at": frozen_at, "wid": new_wid()}
    try:
        await ground.tables.put(
            Table.RECORDS, item, absent("pk") if before is None else equals("state", before["state"])
        )
    except Failed:
        raise MoveFailed(TAKEN_OVER) from None
    await ground.board.read(fresh=True)


async def stored(ground: Ground) -> Item | None:
    [item] = await ground.tables.get(Table.RECORDS, [keys.MOVE_KEY])
    return item


def state_of(item: Item | None) -> MoveState | None:
    return None if item is None else msgspec.json.decode(item["state"], type=MoveState)


async def moving(ground: Ground) -> MoveState | None:
    return (await ground.board.read(fresh=True)).move


async def _under_way(ground: Ground, before: Item | None) -> int:
    """What would be half done if the queue stood still now."""
    settling = before is None or time.time() < before["frozen_at"] + SETTLING_SECONDS
    running = 0
    for shard in keys.all_shards(Status.PROCESSING.value, ground.shards):
        running += await ground.tables.count(Ask(table=Table.JOBS, index=STATUS.name, hash=shard))
    marks = 0
    for slot in range(keys.SLOTS):
        marks += await ground.tables.count(Ask(table=Table.RECORDS, hash=keys.outbox(slot), consistent=True))
    return running + marks or int(settling and SETTLING_SECONDS > 0)
