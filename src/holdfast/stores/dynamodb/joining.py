"""The end of a parent that waited for its children and did not get what it waited for."""

from __future__ import annotations

from collections import deque

from holdfast.clock import Instant
from holdfast.stores.dynamodb import bodies, broods, items, moving, outbox
from holdfast.stores.dynamodb.commit import Cancelled, Commit
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.outbox import Mark
from holdfast.stores.dynamodb.plan import Plan
from holdfast.stores.dynamodb.rounds import Rounds
from holdfast.stores.dynamodb.wire import Lane
from holdfast.trees import Brood

_UNCHANGED = Brood()


async def go_on(ground: Ground, mark: Mark, now: Instant, then: deque[Mark]) -> int:
    """Judge the parent of this mark by its numbers. A child may have come, or run again, since: then it waits on, and
    the next that is the last makes a mark anew. What follows from its end is put into `then`."""
    rounds = Rounds("release")
    while True:
        [parent] = await ground.tables.get(Table.JOBS, [(mark.name,)], lane=Lane.URGENT)
        moved = None if parent is None else moving.joined(parent, _UNCHANGED, now, items.new_wid())
        if moved is None:
            await outbox.finish(ground.tables, mark)
            return 0
        made = Plan()
        made.move(moved, now)
        await broods.settle(ground, made, now)
        commit = Commit(ground.tables, "release", now)
        made.into(commit)
        commit.write(outbox.finished(mark))
        await bodies.put(ground.tables, made.texts)
        try:
            await commit.run(Lane.URGENT)
        except Cancelled as cancelled:
            if (Table.RECORDS, outbox.place(mark.kind, mark.name)) in cancelled.failed:
                return 0  # another was faster
            await rounds.again()
            continue
        ground.board.committed(commit.signals)
        then.extend(made.marks)
        return 1
