"""Going on from marks: whatever a process has begun and died over is finished by any other."""

from __future__ import annotations

from holdfast.clock import Instant
from holdfast.stores.dynamodb import following, journal, linking, outbox, retiring_trees, unpacking
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.outbox import Mark, MarkKind


async def go_on(ground: Ground, now: Instant, limit: int) -> int:
    """Up to `limit` changes, over all marks that stand."""
    done = 0
    for mark in [each async for each in outbox.marks(ground.tables, limit)]:
        if done >= limit:
            break
        done += await _go_on_from(ground, mark, now, limit - done)
    return done


async def _go_on_from(ground: Ground, mark: Mark, now: Instant, limit: int) -> int:
    match MarkKind(mark.kind):
        case MarkKind.ENDED | MarkKind.JOIN:
            return await following.go_on(ground, [mark], now, limit)
        case MarkKind.INSERT:
            return await journal.go_on(ground, mark, now)
        case MarkKind.LINK:
            return await linking.go_on(ground, mark, now)
        case MarkKind.UNPACK:
            return await unpacking.go_on(ground, mark, now, limit)
        case MarkKind.STAGED:
            return await unpacking.clear(ground, mark)
        case MarkKind.TREE:
            return await retiring_trees.go_on(ground, mark, now)
