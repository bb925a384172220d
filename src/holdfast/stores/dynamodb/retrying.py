"""Whether an ended job may run once more: what it depends on has ended as its rule demands, and its key stands for no
other. Where something that it depends on runs again too, it may wait for that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import ACTIVE, Status, Transition
from holdfast.store.types import Verdict
from holdfast.stores.dynamodb import dedup, items, keys, linking, looking, moving, outbox
from holdfast.stores.dynamodb.commit import Write, check, update
from holdfast.stores.dynamodb.expressions import one_of, present
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.moving import Moved
from holdfast.stores.dynamodb.outbox import Mark, MarkKind
from holdfast.stores.dynamodb.values import Item
from holdfast.trees import TriggerRule, again

_active = sorted(status.value for status in ACTIVE)


class Again(msgspec.Struct, frozen=True):
    """How a job runs once more, and what else goes into its commit. `mark`: its edges are so many that they follow."""

    moved: Moved
    writes: list[Write] = []
    mark: Mark | None = None


async def run_again(ground: Ground, item: Item, t: Transition, now: Instant) -> Again | Verdict:
    standing = await _standing(ground, item)
    rule = TriggerRule(item.get("rule", TriggerRule.ALL_SUCCESS))
    may = again(rule=rule, outcomes=Counter(standing.values()))
    if may.blocked or (may.unmet and not t.rewait):
        return Verdict.BLOCKED
    guards = await _guards(ground, item, now)
    if isinstance(guards, Verdict):
        return guards
    if may.unmet:
        t = msgspec.structs.replace(t, target=Status.WAITING)
    moved = moving.applied(item, t, now, items.new_wid())
    if isinstance(moved, Verdict):
        return moved
    return _waiting(moved, guards, standing, now) if may.unmet else Again(moved, guards)


async def _standing(ground: Ground, item: Item) -> Mapping[str, Status]:
    """How those stand that it depends on; what is nowhere any more has completed. The job that it once joined is none
    of them."""
    wanted = [parent for parent in await linking.dependencies(ground, item) if parent != item.get("joined")]
    if not wanted:
        return {}
    named = ("job_id", "status", "archived_at", "ended")
    found = await ground.tables.get(Table.JOBS, [(parent,) for parent in wanted], only=named)
    return {
        parent: Status.COMPLETED if each is None else moving.status_of(each)
        for parent, each in zip(wanted, found, strict=True)
    }


async def _guards(ground: Ground, item: Item, now: Instant) -> list[Write] | Verdict:
    """So that its key stands for it again."""
    key = item.get("dedup_key")
    if key is None:
        return []
    [guard] = await ground.tables.get(Table.RECORDS, [keys.guard(key)])
    target = None if guard is None else (await looking.get_jobs(ground, [guard["job_id"]])).get(guard["job_id"])
    stands_for = dedup.stands_for(guard, target, now)
    if stands_for is None:
        return [dedup.guard(key, item["job_id"], None, guard)]
    return [] if stands_for == item["job_id"] else Verdict.TAKEN


def _waiting(moved: Moved, guards: list[Write], standing: Mapping[str, Status], now: Instant) -> Again:
    """Edges to those that are active count again, and those to the others no more."""
    job_id = moved.item["job_id"]
    if len(standing) > linking.TOGETHER_MAX:
        moved.item.update(unmet=len(standing) + 1, linking=1)
        mark = outbox.new_mark(MarkKind.LINK, job_id, now, again=1)
        return Again(moved, [*guards, outbox.written(mark)], mark)
    moved.item["unmet"] = sum(status in ACTIVE for status in standing.values())
    writes = list(guards)
    for parent, status in standing.items():
        place = keys.edge(parent, job_id)
        if status in ACTIVE:
            writes += [
                update(Table.RECORDS, place, removes=("met",), condition=present("pk")),
                check(Table.JOBS, (parent,), one_of("status", _active)),
            ]
        else:
            writes.append(update(Table.RECORDS, place, sets={"met": 1}))
    return Again(moved, writes)
