"""Children of running jobs: at once, staged, and listed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from holdfast.clock import Instant
from holdfast.lifecycle import Status
from holdfast.store.types import Hold, Inserted, NewJob, Page, Verdict
from holdfast.stores.dynamodb import holding, inserting, keys, moving, reading, unpacking
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.commit import Cancelled, Commit, check
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.storing import ElseRefused
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane


async def insert_children(ground: Ground, hold: Hold, jobs: Sequence[NewJob], now: Instant) -> list[Inserted] | None:
    # Look first: what a lost claim asks for is not refused for other reasons.
    if await holding.verdict(ground, hold) is not Verdict.APPLIED:
        return None
    still = check(Table.JOBS, (hold.job_id,), holding.holds(hold))
    try:
        return await inserting.insert(ground, jobs, now, verb="insert_children", also=[still])
    except ElseRefused:
        return None


async def stage(ground: Ground, hold: Hold, part: int, jobs: Sequence[NewJob], now: Instant) -> Verdict:
    """The mark first, so that pieces are found whatever becomes of this; the part's name last, so that it is whole."""
    verdict = await holding.verdict(ground, hold)
    if verdict is not Verdict.APPLIED:
        return verdict
    await ground.tables.update(unpacking.noted(hold.job_id, hold.attempt, None, now))
    await unpacking.put_part(ground, hold.job_id, hold.attempt, part, jobs)
    commit = Commit(ground.tables, "stage", now)
    commit.write(
        unpacking.noted(hold.job_id, hold.attempt, part, now), check(Table.JOBS, (hold.job_id,), holding.holds(hold))
    )
    try:
        await commit.run(Lane.USUAL)
    except Cancelled:
        return await holding.verdict(ground, hold)
    return Verdict.APPLIED


async def children(ground: Ground, job_id: str, after: str | None, limit: int, status: Status | None) -> Page:
    found: list[Item] = []
    async for item in _children(ground, job_id, after, limit + 1):
        if status is None or item["status"] == status:
            found.append(item)
            if len(found) > limit:
                break
    shown = await reading.full(ground, found[:limit])
    return Page(tuple(shown), shown[-1].job_id if len(found) > limit else None)


async def _children(ground: Ground, job_id: str, after: str | None, page: int) -> AsyncIterator[Item]:
    """In order of their ids, as they stand."""
    ask = Ask(table=Table.RECORDS, hash=keys.kids(job_id), above=after, page=page, consistent=True)
    start = None
    while True:
        rows, start = await ground.tables.page(ask, start)
        for item in await ground.tables.get(Table.JOBS, [(row["sk"],) for row in rows]):
            if item is not None and moving.is_there(item):
                yield item
        if start is None:
            return
