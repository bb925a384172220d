"""Edges: which job waits on which. Those of a job with many dependencies are registered after it is stored.

Such a job is stored waiting on every one of them and one more, with a mark. Then each edge is registered in one commit
with its parent, which counts those that wait on it; one whose parent has ended meanwhile is met at once. The last
commit takes the one more away, and the mark. Each step may be repeated: an edge is registered once. A job that runs
again, and waits again for many, goes the same way: its edges are there, and each is counted anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import failpoints
from holdfast.clock import Instant
from holdfast.lifecycle import ACTIVE, TERMINAL, Status
from holdfast.stores.dynamodb import bodies, broods, following, items, keys, looking, moving, outbox
from holdfast.stores.dynamodb.commit import Cancelled, Commit, Write, check, put_new, update
from holdfast.stores.dynamodb.deciding import Touched
from holdfast.stores.dynamodb.expressions import absent, differs, one_of
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.outbox import Mark, MarkKind
from holdfast.stores.dynamodb.plan import Plan
from holdfast.stores.dynamodb.rounds import Rounds
from holdfast.stores.dynamodb.table import Ask
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane

TOGETHER_MAX = 40  # an edge and its parent each

_active = sorted(status.value for status in ACTIVE)


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
    again = "again" in mark.item
    if again:
        parents = [parent for parent in parents if parent != child.get("joined")]
    for start in range(0, len(parents), TOGETHER_MAX):
        some = parents[start : start + TOGETHER_MAX]
        await _register(ground, mark.name, some, now, mark.nonce if again else None)
        failpoints.hit("link.between")
    return await _let_go(ground, mark, now)


async def _register(
    ground: Ground, child_id: str, parents: Sequence[str], now: Instant, anew: str | None = None
) -> None:
    """`anew`: these edges are there, and count once more, for a job that runs again. They are told by it which of them
    have been counted."""
    rounds = Rounds("insert")
    while True:
        known = await ground.tables.get(Table.RECORDS, [keys.edge(parent, child_id) for parent in parents])
        missing = [
            parent
            for parent, found in zip(parents, known, strict=True)
            if found is None or (anew is not None and found.get("anew") != anew)
        ]
        if not missing:
            return
        found = await looking.get_jobs(ground, [child_id, *missing])
        child = found.get(child_id)
        if child is None or not moving.is_there(child):
            return
        commit = Commit(ground.tables, "insert", now)
        made = Plan()
        moved = moving.Moved(child, child)
        for parent in missing:
            item = found.get(parent)
            status = Status.COMPLETED if item is None else moving.status_of(item)
            joined = child.get("joined") == parent
            if anew is not None:
                commit.write(*_edge_anew(parent, child_id, status, anew))
            else:
                commit.write(edge(parent, child_id, met=status in TERMINAL, joined=joined))
                if item is not None and moving.is_there(item):
                    commit.write(Touched(item, awaited=1).write())
            if status not in ACTIVE:
                donor = await looking.with_result(ground, item) if item is not None and joined else None
                moved = _then(moved, moving.released(moved.item, parent, status, donor, now, items.new_wid()))
        made.move(moved, now)
        await broods.settle(ground, made, now)
        made.into(commit)
        await bodies.put(ground.tables, made.texts)
        try:
            await commit.run(Lane.USUAL)
        except Cancelled:
            await rounds.again()
            continue
        ground.board.committed(commit.signals)
        await following.go_on(ground, made.marks, now, TOGETHER_MAX)
        return


def _edge_anew(parent: str, child: str, status: Status, anew: str) -> list[Write]:
    place = keys.edge(parent, child)
    once = absent("anew") | differs("anew", anew)
    if status in TERMINAL:
        return [update(Table.RECORDS, place, sets={"anew": anew, "met": 1}, condition=once)]
    still = check(Table.JOBS, (parent,), one_of("status", _active))
    return [update(Table.RECORDS, place, sets={"anew": anew}, removes=("met",), condition=once), still]


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
        made = Plan()
        if child is not None:
            made.move(moving.let_go(child, now, items.new_wid()), now)
            await broods.settle(ground, made, now)
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
        await following.go_on(ground, made.marks, now, TOGETHER_MAX)
        return 1
