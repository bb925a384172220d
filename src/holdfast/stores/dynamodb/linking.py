"""Edges: which job waits on which. Those of a job with many dependencies are registered after it is stored.

Such a job is stored waiting on every one of them and one more, with a mark. Then each edge is registered in one commit
with its parent, which counts those that wait on it; one whose parent has ended meanwhile is met at once. The last
commit takes the one more away, and the mark. Each step may be repeated: an edge is registered once.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import failpoints
from holdfast.clock import Instant
from holdfast.lifecycle import ACTIVE, TERMINAL, Status
from holdfast.stores.dynamodb import items, keys, looking, moving, outbox, releasing
from holdfast.stores.dynamodb.commit import Cancelled, Commit, Write, put_new
from holdfast.stores.dynamodb.deciding import Touched
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.outbox import Mark, MarkKind
from holdfast.stores.dynamodb.rounds import Rounds
from holdfast.stores.dynamodb.table import Ask
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane

TOGETHER_MAX = 40  # an edge and its parent each


def edge(parent: str, child: str, *, met: bool, joined: bool) -> Write:
    pk, sk = keys.edge(parent, child)
    flags = {name: 1 for name, is_so in (("met", met), ("joined", joined)) if is_so}
    return put_new(Table.RECORDS, {"pk": pk, "sk": sk, **flags})


async def dependencies(ground: Ground, item: Item) -> list[str]:
    """All that a job depends on, wherever they are listed."""
    if "needs" not in item:
        return list(item.get("depends_on", ()))
    pk, _ = keys.needs(item["job_id"])
    ask = Ask(table=Table.RECORDS, hash=pk, consistent=True)
    return [parent async for row in ground.tables.ask(ask) for parent in row["parents"]]


async def go_on(ground: Ground, mark: Mark, now: Instant) -> int:
    """Where who stored the job has died, or is slow."""
    return await link(ground, mark, now) if outbox.is_left(mark, now) else 0


async def link(ground: Ground, mark: Mark, now: Instant) -> int:
    """Register the edges of a job that was stored without them; how many jobs changed by it."""
    [child] = await ground.tables.get(Table.JOBS, [(mark.name,)])
    if child is None or not moving.is_there(child):
        await outbox.finish(ground.tables, mark)
        return 0
    parents = await dependencies(ground, child)
    for start in range(0, len(parents), TOGETHER_MAX):
        await _register(ground, mark.name, parents[start : start + TOGETHER_MAX], now)
        failpoints.hit("link.between")
    return await _let_go(ground, mark, now)


async def _register(ground: Ground, child_id: str, parents: Sequence[str], now: Instant) -> None:
    rounds = Rounds("insert")
    while True:
        known = await ground.tables.get(Table.RECORDS, [keys.edge(parent, child_id) for parent in parents])
        missing = [parent for parent, found in zip(parents, known, strict=True) if found is None]
        if not missing:
            return
        found = await looking.get_jobs(ground, [child_id, *missing])
        child = found.get(child_id)
        if child is None or not moving.is_there(child):
            return
        commit = Commit(ground.tables, "insert", now)
        made = releasing.Plan(writes=[], texts=[], counted=[], signals=set(), marks=[])
        moved = moving.Moved(child, child)
        for parent in missing:
            item = found.get(parent)
            status = Status.COMPLETED if item is None else moving.status_of(item)
            joined = child.get("joined") == parent
            commit.write(edge(parent, child_id, met=status in TERMINAL, joined=joined))
            if item is not None and moving.is_there(item):
                commit.write(Touched(item, awaited=1).write())
            if status not in ACTIVE:
                donor = await looking.with_result(ground, item) if item is not None and joined else None
                moved = _then(moved, moving.released(moved.item, parent, status, donor, now, items.new_wid()))
        releasing.plan_child(made, moved, now)
        made.into(commit)
        await releasing.put_texts(ground, made)
        try:
            await commit.run(Lane.USUAL)
        except Cancelled:
            await rounds.again()
            continue
        ground.board.committed(commit.signals)
        await releasing.go_on(ground, made.marks, now, releasing.TOGETHER_MAX)
        return


def _then(first: moving.Moved, second: moving.Moved) -> moving.Moved:
    """Two moves of one item as one. Only the last can have moved it on: what moved on no longer waits."""
    if second.item is second.was:
        return first
    return msgspec.structs.replace(second, was=first.was)


async def _let_go(ground: Ground, mark: Mark, now: Instant) -> int:
    """All edges are registered: take away what held the job, and let it go where nothing else does."""
    rounds = Rounds("insert")
    while True:
        [child] = await ground.tables.get(Table.JOBS, [(mark.name,)])
        commit = Commit(ground.tables, "insert", now)
        made = releasing.Plan(writes=[], texts=[], counted=[], signals=set(), marks=[])
        if child is not None:
            releasing.plan_child(made, moving.let_go(child, now, items.new_wid()), now)
        made.into(commit)
        commit.write(outbox.finished(mark))
        try:
            await commit.run(Lane.USUAL)
        except Cancelled as cancelled:
            if (Table.RECORDS, outbox.place(MarkKind.LINK, mark.name)) in cancelled.failed:
                return 0  # another was faster
            await rounds.again()
            continue
        ground.board.committed(commit.signals)
        return 1
