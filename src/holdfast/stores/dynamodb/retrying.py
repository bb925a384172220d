"""Whether an ended job may run once more: what it depends on has completed, and its key stands for no other."""

from __future__ import annotations

from holdfast.clock import Instant
from holdfast.lifecycle import Status
from holdfast.store.types import Verdict
from holdfast.stores.dynamodb import dedup, keys, linking, looking, moving
from holdfast.stores.dynamodb.commit import Write
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.values import Item


async def may_run_again(ground: Ground, item: Item, now: Instant) -> tuple[Verdict | None, list[Write]]:
    """Why not; or what goes into its commit, so that its key stands for it again."""
    if await _is_blocked(ground, item):
        return Verdict.BLOCKED, []
    key = item.get("dedup_key")
    if key is None:
        return None, []
    [guard] = await ground.tables.get(Table.RECORDS, [keys.guard(key)])
    target = None if guard is None else (await looking.get_jobs(ground, [guard["job_id"]])).get(guard["job_id"])
    stands_for = dedup.stands_for(guard, target, now)
    if stands_for is None:
        return None, [dedup.guard(key, item["job_id"], None, guard)]
    return (None, []) if stands_for == item["job_id"] else (Verdict.TAKEN, [])


async def _is_blocked(ground: Ground, item: Item) -> bool:
    """By one that has not completed. What is nowhere any more blocks nobody, nor does the job that it once joined."""
    wanted = [parent for parent in await linking.dependencies(ground, item) if parent != item.get("joined")]
    if not wanted:
        return False
    named = ("job_id", "status", "archived_at", "ended")
    found = await ground.tables.get(Table.JOBS, [(parent,) for parent in wanted], only=named)
    return any(parent is not None and moving.status_of(parent) is not Status.COMPLETED for parent in found)
