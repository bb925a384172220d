"""promote, expired and release: what any worker does for all, a bounded batch at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from holdfast.clock import Instant
from holdfast.lifecycle import Status
from holdfast.store.types import ExpiredClaim, Promoted, Signal
from holdfast.stores.dynamodb import going_on, items, keys, moving, parking, rating, sweeping
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.commit import change
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import TIME, WORKER, Table
from holdfast.stores.dynamodb.merging import merged
from holdfast.stores.dynamodb.table import Failed
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane

_TOGETHER = 16
_DUE = (Status.SCHEDULED, Status.RETRYING)


# promote


async def promote(ground: Ground, now: Instant, limit: int) -> Promoted:
    promoted, next_due = await _promote_due(ground, now, limit)
    signals, next_rate = await rating.unpark_due(ground, now)
    if promoted:
        signals = signals | {Signal.READY}
    ground.board.committed(signals)
    if not promoted:
        ground.board.again_if_new(Signal.DUE)
    return Promoted(promoted, min((due for due in (next_due, next_rate) if due is not None), default=None))


async def _promote_due(ground: Ground, now: Instant, limit: int) -> tuple[int, Instant | None]:
    """The longest due first. Whom another promoted at the same moment does not count; those behind take its place."""
    done = 0
    batch: list[str] = []
    async for at, job_id in _by_time(ground, "due", page=limit + 1):
        if at > now:
            return done + await _promote_batch(ground, batch, now), at
        if done + len(batch) == limit:
            done += await _promote_batch(ground, batch, now)
            batch = []
            if done == limit:
                return done, at  # more are due: come again at once
        batch.append(job_id)
    return done + await _promote_batch(ground, batch, now), None


async def _promote_batch(ground: Ground, job_ids: Sequence[str], now: Instant) -> int:
    found = await ground.tables.get(Table.JOBS, [(job_id,) for job_id in job_ids], lane=Lane.IDLE)
    due = [item for item in found if item is not None and item.get("status") in _DUE and item["scheduled_for"] <= now]
    pairs = [(item, items.fit(moving.promoted(item, now, items.new_wid()))) for item in due]
    limited = [new for _, new in pairs if parking.limited_key(new) is not None or parking.bucket_of(new) is not None]
    # Or many of a full key that come due at once stand before everybody else until claims have put them aside.
    parked = await parking.decide_at_entry(ground, limited, now) if limited else {}
    done = 0
    for start in range(0, len(pairs), _TOGETHER):
        batch = [(old, moving.parked(new, parked.get(new["job_id"]))) for old, new in pairs[start : start + _TOGETHER]]
        done += sum(await asyncio.gather(*(_promote(ground, old, new) for old, new in batch)))
    return done


async def _promote(ground: Ground, item: Item, promoted: Item) -> bool:
    try:
        await ground.tables.update(change(item, promoted), lane=Lane.IDLE, verb="promote")
    except Failed:
        return False
    return True


async def _by_time(
    ground: Ground, kind: str, *, up_to: Instant | None = None, page: int
) -> AsyncIterator[tuple[Instant, str]]:
    """What the time index holds under `due` or `lease`, the earliest first, over all shards."""
    end = None if up_to is None else f"{keys.at(up_to)}|{keys.HIGH}"
    asks = [
        Ask(table=Table.JOBS, index=TIME.name, hash=hash_value, up_to=end, page=page)
        for hash_value in keys.all_shards(kind, ground.shards)
    ]
    async for row in merged([ground.tables.ask(ask, lane=Lane.IDLE) for ask in asks], TIME.range):
        yield int(str(row[TIME.range]).split("|")[0]), row["job_id"]


# expired


async def expired(ground: Ground, now: Instant, limit: int, dead_workers: Sequence[str] = ()) -> list[ExpiredClaim]:
    """The index and the workers' names propose; what a claim says of itself decides."""
    ids: dict[str, None] = {}
    async for _, job_id in _by_time(ground, "lease", up_to=now, page=limit):
        ids[job_id] = None
        if len(ids) == limit:
            break
    dead = frozenset(dead_workers)
    for worker_id in dead_workers:
        ask = Ask(table=Table.JOBS, index=WORKER.name, hash=worker_id, begins=Status.PROCESSING.value, page=limit)
        of_worker = 0
        async for row in ground.tables.ask(ask, lane=Lane.IDLE):
            ids[row["job_id"]] = None
            of_worker += 1
            if of_worker == limit:
                break
    found = await ground.tables.get(Table.JOBS, [(job_id,) for job_id in ids], lane=Lane.IDLE)
    over = [
        items.expired(item)
        for item in found
        if item is not None
        and item.get("status") == Status.PROCESSING
        and (item["lease_expires_at"] <= now or item.get("worker_id") in dead)
    ]
    return sorted(over, key=lambda claim: claim.lease_expires_at)[:limit]


# release


async def release(ground: Ground, now: Instant, limit: int) -> int:
    """Go on with what a commit has begun, then let in whom unused room waits for."""
    done = await going_on.go_on(ground, now, limit)
    await sweeping.sweep(ground, now)
    unparked = await parking.unpark_marked(ground, now) + await rating.unpark_marked(ground, now)
    if unparked:
        ground.board.committed({Signal.READY})
    return done + unparked
