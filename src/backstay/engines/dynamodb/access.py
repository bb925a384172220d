"""API keys, the audit trail and counter totals on DynamoDB.

Keys are few, in one partition. Audit entries are stored by id in partitions of thirty days, which are listed: a page is
read from the newest back, and never by a scan.

Totals: hours that are over are added to the sums, once, before they are dropped. Each sum says up to when it counts, so
that adding an hour twice changes nothing. The hour of `meta / summed` follows when all sums have been written: the
counters are read from there on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence

import msgspec

from backstay import ids
from backstay.clock import MICROS, Instant
from backstay.core.dumps import TotalDump
from backstay.core.records import ApiKey, AuditEntry, AuditPage, Total, Verdict
from backstay.core.states import Counted
from backstay.engines import sql_rows
from backstay.engines.dynamodb import items, schema, table
from backstay.engines.dynamodb.expressions import Ask, absent, at_most, below, put, put_new, update
from backstay.engines.dynamodb.schema import Item, Table
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.table import HOUR, Failed, Sums, Tables
from backstay.engines.dynamodb.transport import Lane
from backstay.limits import AUDIT_DAYS


async def save_key(session: Session, key: ApiKey, new: bool) -> Verdict:
    pk, sk = schema.api_key(key.key_id)
    fields = {name: value for name, value in msgspec.to_builtins(key).items() if value is not None}
    item = {**fields, "pk": pk, "sk": sk, "wid": items.new_wid()}
    try:
        await session.tables.update(put_new(Table.RECORDS, item) if new else put(Table.RECORDS, item), verb="save_key")
    except Failed as failed:
        return Verdict.APPLIED if failed.item is not None and _key(failed.item) == key else Verdict.STALE
    return Verdict.APPLIED


async def keys(session: Session, ids: Sequence[str]) -> list[ApiKey]:
    found: list[Item | None]
    if ids:
        found = await session.tables.get(Table.RECORDS, [schema.api_key(each) for each in dict.fromkeys(ids)])
    else:
        found = [
            row async for row in session.tables.ask(Ask(table=Table.RECORDS, hash=schema.API_KEYS, consistent=True))
        ]
    return sorted((_key(item) for item in found if item is not None), key=lambda key: key.key_id)


def _key(item: Item) -> ApiKey:
    return msgspec.convert(item, ApiKey)


async def drop_keys(session: Session, ids: Sequence[str]) -> None:
    await session.tables.delete_many(Table.RECORDS, [schema.api_key(each) for each in ids])


DAY = 24 * 3600 * MICROS
PERIOD_MILLIS = 30 * DAY // 1000


async def audit(session: Session, entries: Sequence[AuditEntry]) -> None:
    for period in {_period(entry.entry_id) for entry in entries} - session.trails:
        pk, sk = schema.trail_listed(period)
        await session.tables.put(Table.RECORDS, {"pk": pk, "sk": sk, "period": period})
        session.trails.add(period)
    await session.tables.put_many(Table.RECORDS, [_item(entry) for entry in entries])


def _period(entry_id: str) -> int:
    """Return the period of an entry, from the time in its id."""
    return int(entry_id[:8] + entry_id[9:13], 16) // PERIOD_MILLIS


def _item(entry: AuditEntry) -> Item:
    fields = {name: value for name, value in msgspec.structs.asdict(entry).items() if value is not None}
    return {**fields, "pk": schema.trail(_period(entry.entry_id)), "sk": entry.entry_id}


async def audited(session: Session, after: str | None, limit: int) -> AuditPage:
    found: list[AuditEntry] = []
    newest = None if after is None else _period(after)
    for period in await _periods(session, backwards=True):
        if newest is not None and period > newest:
            continue
        ask = Ask(
            table=Table.RECORDS,
            hash=schema.trail(period),
            below=after,
            backwards=True,
            page=limit + 1 - len(found),
            consistent=True,
        )
        async for item in session.tables.ask(ask):
            found.append(msgspec.convert(item, AuditEntry))
            if len(found) > limit:
                return sql_rows.audit_page(found, limit)
    return sql_rows.audit_page(found, limit)


async def entries(session: Session, after: str | None) -> AsyncIterator[AuditEntry]:
    """Return all entries after an id, oldest first."""
    first = 0 if after is None else _period(after)
    for period in await _periods(session):
        if period >= first:
            ask = Ask(table=Table.RECORDS, hash=schema.trail(period), above=after, consistent=True)
            async for item in session.tables.ask(ask):
                yield msgspec.convert(item, AuditEntry)


async def _periods(session: Session, *, backwards: bool = False, lane: Lane = Lane.USUAL) -> list[int]:
    ask = Ask(table=Table.RECORDS, hash=schema.TRAILS, backwards=backwards, consistent=True)
    return [item["period"] async for item in session.tables.ask(ask, lane=lane)]


async def drop(session: Session, now: Instant, limit: int) -> None:
    """Delete expired entries. Their period is removed last, and only once no process writes to it any more."""
    cutoff = ids.floor(now - AUDIT_DAYS * DAY)
    for period in await _periods(session, lane=Lane.IDLE):
        if period > _period(cutoff):
            return
        ask = Ask(
            table=Table.RECORDS, hash=schema.trail(period), below=cutoff, page=limit, only=("pk", "sk"), consistent=True
        )
        found, more = await session.tables.page(ask, lane=Lane.IDLE)
        await session.tables.delete_many(Table.RECORDS, [(item["pk"], item["sk"]) for item in found], lane=Lane.IDLE)
        if more is not None:
            return
        if period < _period(cutoff):
            await session.tables.delete_many(Table.RECORDS, [schema.trail_listed(period)], lane=Lane.IDLE)
            session.trails.discard(period)


_TOGETHER = 16
_EVER = schema.NO_TIME // HOUR
_Kind = tuple[str, str, str]  # type, queue, outcome


async def totals(tables: Tables) -> list[Total]:
    return _totals(await _read(tables, await _summed(tables), _EVER))


async def export(tables: Tables) -> list[TotalDump]:
    """Return the totals as if an interrupted addition of an hour had been finished."""
    first = await _summed(tables)
    until = max([first, *(hour for hour, _ in (await _sums(tables)).values())])
    return [TotalDump(each, until * HOUR) for each in _totals(await _read(tables, first, until))]


async def restore(tables: Tables, dumps: Sequence[TotalDump]) -> None:
    made = []
    for dump in dumps:
        total = dump.total
        kind = (total.job_type, total.queue, total.outcome.value)
        pk, sk = schema.summed(*kind)
        numbers = table.sums(total.count, total.ran_micros, total.waited_micros, total.buckets)
        made.append({"pk": pk, "sk": sk, **_names(kind, dump.until // HOUR), **numbers})
    await tables.put_many(Table.RECORDS, made)
    await _summed_until(tables, dumps[0].until // HOUR)


def _totals(found: dict[_Kind, Sums]) -> list[Total]:
    return [
        Total(job_type, queue, Counted(outcome), sums["n"], sums["ran"], sums["waited"], sums.buckets)
        for (job_type, queue, outcome), sums in sorted(found.items())
    ]


async def _read(tables: Tables, first: int, end: int) -> dict[_Kind, Sums]:
    """Return the sums, plus the counters of the hours in [first, end) that are not yet in them."""
    until, found = {}, {}
    for kind, (hour, sums) in (await _sums(tables)).items():
        until[kind], found[kind] = hour, sums
    for hour, slot in await table.hours(tables, first, end - 1):
        for kind, sums in (await _counted(tables, [(hour, slot)])).items():
            if hour >= until.get(kind, 0):
                found.setdefault(kind, Sums()).add(sums)
    return found


async def _summed(tables: Tables) -> int:
    """Return the hour before which all counters are in the sums."""
    [item] = await tables.get(Table.RECORDS, [schema.SUMMED_KEY])
    return 0 if item is None else item["hour"]


async def _sums(tables: Tables) -> dict[_Kind, tuple[int, Sums]]:
    ask = Ask(table=Table.RECORDS, hash=schema.SUMS, consistent=True)
    return {
        (item["job_type"], item["queue"], item["what"]): (item["until"], table.sums_of(item))
        async for item in tables.ask(ask)
    }


async def _counted(tables: Tables, hours: Iterable[tuple[int, int]], lane: Lane = Lane.USUAL) -> dict[_Kind, Sums]:
    found: dict[_Kind, Sums] = {}
    for hour, slot in hours:
        ask = Ask(table=Table.RECORDS, hash=schema.counted(hour, slot), consistent=True)
        async for item in tables.ask(ask, lane=lane):
            kind = (item["job_type"], item["queue"], item["what"])
            found.setdefault(kind, Sums()).add(table.sums_of(item))
    return found


# Maintenance


async def keep_up(tables: Tables, now: Instant) -> None:
    first = await _summed(tables)
    listed = await table.hours(tables, first, sql_rows.closed(now) // HOUR - 1)
    for hour in sorted({hour for hour, _ in listed})[: sql_rows.SPAN_MAX // HOUR]:
        found = await _counted(tables, [each for each in listed if each[0] == hour], Lane.IDLE)
        kinds = list(found.items())
        for start in range(0, len(kinds), _TOGETHER):
            await asyncio.gather(*(_add(tables, kind, sums, hour) for kind, sums in kinds[start : start + _TOGETHER]))
        first = hour + 1
        await _summed_until(tables, first)
    await table.drop_before(tables, sql_rows.droppable(first * HOUR, now))


async def _add(tables: Tables, kind: _Kind, sums: Sums, hour: int) -> None:
    condition = absent("until") | at_most("until", hour)
    with contextlib.suppress(Failed):
        await tables.update(
            update(Table.RECORDS, schema.summed(*kind), sets=_names(kind, hour + 1), adds=sums, condition=condition),
            lane=Lane.IDLE,
        )


def _names(kind: _Kind, until: int) -> dict[str, str | int]:
    job_type, queue, outcome = kind
    return {"job_type": job_type, "queue": queue, "what": outcome, "until": until}


async def _summed_until(tables: Tables, hour: int) -> None:
    condition = absent("hour") | below("hour", hour)
    with contextlib.suppress(Failed):
        await tables.update(
            update(Table.RECORDS, schema.SUMMED_KEY, sets={"hour": hour}, condition=condition), lane=Lane.IDLE
        )
