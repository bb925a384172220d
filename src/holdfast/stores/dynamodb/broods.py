"""What becomes of parents when their children change: in the commit that changes the children.

    a child ends ──▶ its parent does not wait for it: numbers alone
                 ├─▶ it waits, and other children are open: numbers, if others still are
                 ├─▶ it waits, and this was the last: it goes on, in the same commit
                 └─▶ … but what it waited for did not come: numbers and a mark, from which it is ended by itself

The last has a commit of its own because an end has dependents, and a parent above it. Numbers have no version, so that
a thousand children that end one after another do not refuse one another; each write rests on what was decided by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from holdfast.clock import Instant
from holdfast.stores.dynamodb import items, moving, outbox
from holdfast.stores.dynamodb.commit import Write, add
from holdfast.stores.dynamodb.expressions import Condition, above, absent, equals, present
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.outbox import MarkKind
from holdfast.stores.dynamodb.plan import Plan, signals
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane
from holdfast.trees import Brood

Parents = Mapping[str, Item | None]


async def read(ground: Ground, parents: Iterable[str]) -> Parents:
    wanted = list(dict.fromkeys(parents))
    found = await ground.tables.get(Table.JOBS, [(each,) for each in wanted], lane=Lane.URGENT)
    return dict(zip(wanted, found, strict=True))


async def settle(ground: Ground, made: Plan, now: Instant) -> None:
    """Add to the plan what it does to the parents of those that it moves."""
    elsewhere = [parent for parent in made.broods if parent not in made.moved]
    decide(made, await read(ground, elsewhere) if elsewhere else {}, now)


def decide(made: Plan, parents: Parents, now: Instant) -> None:
    for parent_id, brood in list(made.broods.items()):
        if parent_id in made.moved:
            # Its own change is guarded by its version, and none that is in one commit with a child's waits after it.
            made.writes.append(_numbers(parent_id, brood, None))
            continue
        parent = parents.get(parent_id)
        if parent is not None and moving.is_there(parent):
            _decide_one(made, parent, brood, now)


def _decide_one(made: Plan, parent: Item, brood: Brood, now: Instant) -> None:
    parent_id = parent["job_id"]
    if moving.awaits(parent) is None:
        made.writes.append(_numbers(parent_id, brood, present("status") & absent("awaits")))
        return
    moved = moving.joined(parent, brood, now, items.new_wid())
    if moved is None:
        # What was read may be old. It waits on as long as one is open, whatever else has changed.
        made.writes.append(_numbers(parent_id, brood, present("awaits") & above("open", -brood.open)))
    elif moved.ended:
        last = present("awaits") & equals("open", parent.get("open"))
        made.writes.append(_numbers(parent_id, brood, last))
        made.mark(outbox.new_mark(MarkKind.JOIN, parent_id, now))
    else:
        item = items.fit(moved.item)
        made.writes.append(moving.written(msgspec.structs.replace(moved, item=item)))
        made.signals |= signals(item)


def _numbers(parent_id: str, brood: Brood, condition: Condition | None) -> Write:
    return add(Table.JOBS, (parent_id,), moving.added(brood), condition)
