"""A queue that moves, as the board tells everyone: each claim and each submit reads it anyway.

Between such a look and the commit lies a moment. So a queue is taken to stand still only once it has been frozen for
longer than any call lasts; what others then still change of it, they change against what they know.
"""

from __future__ import annotations

import time

import msgspec

from holdfast.lifecycle import Status
from holdfast.store.moves import SEALED, MoveState
from holdfast.stores.dynamodb import keys
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import STATUS, Table

SETTLING_SECONDS = 10.0  # longer than a verb tries


async def freeze(ground: Ground, state: MoveState | None) -> int:
    if state is None:
        await ground.tables.delete_many(Table.RECORDS, [keys.MOVE_KEY])
        await ground.board.read(fresh=True)
        return 0
    if state.kind == SEALED and (left := await _under_way(ground)):
        return left
    await keep(ground, state)
    return 0


async def keep(ground: Ground, state: MoveState) -> None:
    pk, sk = keys.MOVE_KEY
    [before] = await ground.tables.get(Table.RECORDS, [keys.MOVE_KEY])
    frozen_at = int(time.time()) if before is None else before["frozen_at"]
    text = msgspec.json.encode(state).decode()
    await ground.tables.put(Table.RECORDS, {"pk": pk, "sk": sk, "state": text, "frozen_at": frozen_at})
    await ground.board.read(fresh=True)


async def moving(ground: Ground) -> MoveState | None:
    return (await ground.board.read(fresh=True)).move


async def _under_way(ground: Ground) -> int:
    """What would be half done if the queue stood still now."""
    [before] = await ground.tables.get(Table.RECORDS, [keys.MOVE_KEY])
    settling = before is None or time.time() < before["frozen_at"] + SETTLING_SECONDS
    running = 0
    for shard in keys.all_shards(Status.PROCESSING.value, ground.shards):
        running += await ground.tables.count(Ask(table=Table.JOBS, index=STATUS.name, hash=shard))
    marks = 0
    for slot in range(keys.SLOTS):
        marks += await ground.tables.count(Ask(table=Table.RECORDS, hash=keys.outbox(slot), consistent=True))
    return running + marks or int(settling and SETTLING_SECONDS > 0)
