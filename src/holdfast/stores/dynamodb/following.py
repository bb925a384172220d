"""What follows from the end of jobs beyond their own commits: dependents that are released, and parents that end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from holdfast.clock import Instant
from holdfast.store.types import Signal
from holdfast.stores.dynamodb import joining, releasing
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.outbox import Mark, MarkKind


async def go_on(ground: Ground, marks: Iterable[Mark], now: Instant, limit: int) -> int:
    """Breadth first, because a cancelled dependent has dependents of its own, and a failed parent a parent above it. At
    most `limit` changes: what is left keeps its mark."""
    queue = deque(marks)
    done = 0
    while queue and done < limit:
        mark = queue.popleft()
        if mark.kind == MarkKind.JOIN:
            done += await joining.go_on(ground, mark, now, queue)
        else:
            done += await releasing.go_on(ground, mark, now, limit - done, queue)
    if done >= limit:
        ground.board.committed({Signal.UNFINISHED})
    return done
