"""What the end of a job sets free: those that depend on it.

    ends ──▶ one commit with all its dependents, where they fit
         └─▶ one commit with a mark, then dependents in commits of their own: `release` goes on from the mark

Each edge is met once, and each child is compared with what was read of it, so two parents that end at once both count.
A child that ends too, and is awaited itself, has a mark of its own in the commit that ends it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from holdfast import failpoints
from holdfast.clock import Instant
from holdfast.lifecycle import TERMINAL
from holdfast.stores.dynamodb import bodies, broods, items, keys, looking, moving, outbox
from holdfast.stores.dynamodb.commit import Cancelled, Commit, check, update
from holdfast.stores.dynamodb.expressions import absent, equals, present
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.outbox import Mark
from holdfast.stores.dynamodb.plan import Plan
from holdfast.stores.dynamodb.rounds import Rounds
from holdfast.stores.dynamodb.table import Ask
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane

TOGETHER_MAX = 40  # children of one commit: each is two items, or three


async def unmet(ground: Ground, parent: str, most: int) -> list[str]:
    """Children whose edge is not met yet, up to `most`."""
    children = []
    ask = Ask(table=Table.RECORDS, hash=keys.edges(parent), where=absent("met"), consistent=True)
    async for row in ground.tables.ask(ask, lane=Lane.URGENT):
        children.append(row["sk"])
        if len(children) == most:
            break
    return children


async def plan(ground: Ground, parent: Item, children: Sequence[str], now: Instant) -> Plan:
    """What the end of `parent`, which has its result as text where it has one, does to these that depend on it."""
    made = Plan()
    outcome = moving.status_of(parent)
    parent_id = parent["job_id"]
    found = await looking.get_jobs(ground, children)
    donor = parent
    if any(child.get("joins") == parent_id for child in found.values()):
        donor = await looking.with_result(ground, parent)
    for child_id in children:
        met = update(
            Table.RECORDS, keys.edge(parent_id, child_id), sets={"met": 1}, condition=present("pk") & absent("met")
        )
        made.writes.append(met)
        if child_id in found:
            made.move(moving.released(found[child_id], parent_id, outcome, donor, now, items.new_wid()), now)
    return made


async def go_on(ground: Ground, mark: Mark, now: Instant, limit: int, then: deque[Mark]) -> int:
    """Release up to `limit` that depend on the job of this mark; what follows from that is put into `then`."""
    children = await unmet(ground, mark.name, limit + 1)
    due = children[:limit]
    for start in range(0, len(due), TOGETHER_MAX):
        if not await _release(ground, mark.name, due[start : start + TOGETHER_MAX], now, then):
            await outbox.finish(ground.tables, mark)
            return start  # retried by hand since: its dependents wait on
        failpoints.hit("outbox.between")
    if len(children) <= limit:
        await outbox.finish(ground.tables, mark)
    return len(due)


async def _release(ground: Ground, parent_id: str, children: Sequence[str], now: Instant, then: deque[Mark]) -> bool:
    """These children in one commit, or two halves where that is too large; False when the parent runs again."""
    rounds = Rounds("release")
    while True:
        [parent] = await ground.tables.get(Table.JOBS, [(parent_id,)], lane=Lane.URGENT)
        if parent is None or moving.status_of(parent) not in TERMINAL:
            return False
        if rounds.lost:  # others are at it too: only what is left
            left = set(await unmet(ground, parent_id, len(children) * 4))
            children = [child for child in children if child in left]
            if not children:
                return True
        made = await plan(ground, parent, children, now)
        await broods.settle(ground, made, now)
        commit = Commit(ground.tables, "release", now)
        made.into(commit)
        still = check(Table.JOBS, (parent_id,), equals("version", parent.get("version")))
        if not commit.takes(still) and len(children) > 1:
            half = len(children) // 2
            first = await _release(ground, parent_id, children[:half], now, then)
            return first and await _release(ground, parent_id, children[half:], now, then)
        commit.write(still)
        await bodies.put(ground.tables, made.texts)
        try:
            await commit.run(Lane.URGENT)
        except Cancelled:
            await rounds.again()
            continue
        ground.board.committed(commit.signals)
        then.extend(made.marks)
        return True
