"""The audit trail: who changed what. Entries lie by id in partitions of thirty days, which are listed: a page is read
from the newest of them back, and never by a scan."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from holdfast import ids
from holdfast.clock import MICROS, Instant
from holdfast.limits import AUDIT_DAYS
from holdfast.store.types import AuditEntry, AuditPage
from holdfast.stores import access_rows
from holdfast.stores.dynamodb import keys
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.table import Ask
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane

DAY = 24 * 3600 * MICROS
PERIOD_MILLIS = 30 * DAY // 1000


async def audit(ground: Ground, entries: Sequence[AuditEntry]) -> None:
    for period in {_period(entry.entry_id) for entry in entries} - ground.trails:
        pk, sk = keys.trail_listed(period)
        await ground.tables.put(Table.RECORDS, {"pk": pk, "sk": sk, "period": period})
        ground.trails.add(period)
    await ground.tables.put_many(Table.RECORDS, [_item(entry) for entry in entries])


def _period(entry_id: str) -> int:
    """By the time that is in its id."""
    return int(entry_id[:8] + entry_id[9:13], 16) // PERIOD_MILLIS


def _item(entry: AuditEntry) -> Item:
    fields = {name: value for name, value in msgspec.structs.asdict(entry).items() if value is not None}
    return {**fields, "pk": keys.trail(_period(entry.entry_id)), "sk": entry.entry_id}


async def audited(ground: Ground, after: str | None, limit: int) -> AuditPage:
    found: list[AuditEntry] = []
    newest = None if after is None else _period(after)
    for period in await _periods(ground, backwards=True):
        if newest is not None and period > newest:
            continue
        ask = Ask(
            table=Table.RECORDS,
            hash=keys.trail(period),
            below=after,
            backwards=True,
            page=limit + 1 - len(found),
            consistent=True,
        )
        async for item in ground.tables.ask(ask):
            found.append(msgspec.convert(item, AuditEntry))
            if len(found) > limit:
                return access_rows.page(found, limit)
    return access_rows.page(found, limit)


async def entries(ground: Ground, after: str | None) -> AsyncIterator[AuditEntry]:
    """All after an id, oldest first."""
    first = 0 if after is None else _period(after)
    for period in await _periods(ground):
        if period >= first:
            ask = Ask(table=Table.RECORDS, hash=keys.trail(period), above=after, consistent=True)
            async for item in ground.tables.ask(ask):
                yield msgspec.convert(item, AuditEntry)


async def _periods(ground: Ground, *, backwards: bool = False, lane: Lane = Lane.USUAL) -> list[int]:
    ask = Ask(table=Table.RECORDS, hash=keys.TRAILS, backwards=backwards, consistent=True)
    return [item["period"] async for item in ground.tables.ask(ask, lane=lane)]


async def drop(ground: Ground, now: Instant, limit: int) -> None:
    """Entries over their time. Their period is forgotten last, and only once nobody writes into it any more."""
    cutoff = ids.floor(now - AUDIT_DAYS * DAY)
    for period in await _periods(ground, lane=Lane.IDLE):
        if period > _period(cutoff):
            return
        ask = Ask(
            table=Table.RECORDS, hash=keys.trail(period), below=cutoff, page=limit, only=("pk", "sk"), consistent=True
        )
        found, more = await ground.tables.page(ask, lane=Lane.IDLE)
        await ground.tables.delete_many(Table.RECORDS, [(item["pk"], item["sk"]) for item in found], lane=Lane.IDLE)
        if more is not None:
            return
        if period < _period(cutoff):
            await ground.tables.delete_many(Table.RECORDS, [keys.trail_listed(period)], lane=Lane.IDLE)
            ground.trails.discard(period)
