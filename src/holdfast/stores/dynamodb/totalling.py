"""Totals of the counters, and their upkeep: hours that are over are added to the sums, once, before they are dropped.

Each sum says itself until when it goes, so that whoever adds an hour that another has added changes nothing. The hour
of `meta / summed` follows when all sums have been written: from there on the counters are read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence

from holdfast.clock import Instant
from holdfast.lifecycle import Counted
from holdfast.store.dumps import TotalDump
from holdfast.store.types import Total
from holdfast.stores import summing
from holdfast.stores.dynamodb import counting, keys
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.counting import HOUR, Sums
from holdfast.stores.dynamodb.expressions import absent, at_most, below
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.table import Failed, Tables
from holdfast.stores.dynamodb.wire import Lane
from holdfast.stores.dynamodb.writes import update

_TOGETHER = 16
_EVER = keys.NO_TIME // HOUR
_Kind = tuple[str, str, str]  # type, queue, outcome


async def totals(tables: Tables) -> list[Total]:
    return _totals(await _read(tables, await _summed(tables), _EVER))


async def export(tables: Tables) -> list[TotalDump]:
    """As if the hour in which an upkeep was interrupted had been added to all sums."""
    first = await _summed(tables)
    until = max([first, *(hour for hour, _ in (await _sums(tables)).values())])
    return [TotalDump(each, until * HOUR) for each in _totals(await _read(tables, first, until))]


async def restore(tables: Tables, dumps: Sequence[TotalDump]) -> None:
    made = []
    for dump in dumps:
        total = dump.total
        kind = (total.job_type, total.queue, total.outcome.value)
        pk, sk = keys.summed(*kind)
        numbers = counting.sums(total.count, total.ran_micros, total.waited_micros, total.buckets)
        made.append({"pk": pk, "sk": sk, **_names(kind, dump.until // HOUR), **numbers})
    await tables.put_many(Table.RECORDS, made)
    await _summed_until(tables, dumps[0].until // HOUR)


def _totals(found: dict[_Kind, Sums]) -> list[Total]:
    return [
        Total(job_type, queue, Counted(outcome), sums["n"], sums["ran"], sums["waited"], sums.buckets)
        for (job_type, queue, outcome), sums in sorted(found.items())
    ]


async def _read(tables: Tables, first: int, end: int) -> dict[_Kind, Sums]:
    """The sums, and of the hours in [first, end) what is not in them."""
    until, found = {}, {}
    for kind, (hour, sums) in (await _sums(tables)).items():
        until[kind], found[kind] = hour, sums
    for hour, slot in await counting.hours(tables, first, end - 1):
        for kind, sums in (await _counted(tables, [(hour, slot)])).items():
            if hour >= until.get(kind, 0):
                found.setdefault(kind, Sums()).add(sums)
    return found


async def _summed(tables: Tables) -> int:
    """The counters of all hours before this are in the sums."""
    [item] = await tables.get(Table.RECORDS, [keys.SUMMED_KEY])
    return 0 if item is None else item["hour"]


async def _sums(tables: Tables) -> dict[_Kind, tuple[int, Sums]]:
    ask = Ask(table=Table.RECORDS, hash=keys.SUMS, consistent=True)
    return {
        (item["job_type"], item["queue"], item["what"]): (item["until"], counting.sums_of(item))
        async for item in tables.ask(ask)
    }


async def _counted(tables: Tables, hours: Iterable[tuple[int, int]], lane: Lane = Lane.USUAL) -> dict[_Kind, Sums]:
    found: dict[_Kind, Sums] = {}
    for hour, slot in hours:
        ask = Ask(table=Table.RECORDS, hash=keys.counted(hour, slot), consistent=True)
        async for item in tables.ask(ask, lane=lane):
            kind = (item["job_type"], item["queue"], item["what"])
            found.setdefault(kind, Sums()).add(counting.sums_of(item))
    return found


# Upkeep


async def keep_up(tables: Tables, now: Instant) -> None:
    first = await _summed(tables)
    listed = await counting.hours(tables, first, summing.closed(now) // HOUR - 1)
    for hour in sorted({hour for hour, _ in listed})[: summing.SPAN_MAX // HOUR]:
        found = await _counted(tables, [each for each in listed if each[0] == hour], Lane.IDLE)
        kinds = list(found.items())
        for start in range(0, len(kinds), _TOGETHER):
            await asyncio.gather(*(_add(tables, kind, sums, hour) for kind, sums in kinds[start : start + _TOGETHER]))
        first = hour + 1
        await _summed_until(tables, first)
    await counting.drop_before(tables, summing.droppable(first * HOUR, now))


async def _add(tables: Tables, kind: _Kind, sums: Sums, hour: int) -> None:
    condition = absent("until") | at_most("until", hour)
    with contextlib.suppress(Failed):
        await tables.update(
            update(Table.RECORDS, keys.summed(*kind), sets=_names(kind, hour + 1), adds=sums, condition=condition),
            lane=Lane.IDLE,
        )


def _names(kind: _Kind, until: int) -> dict[str, str | int]:
    job_type, queue, outcome = kind
    return {"job_type": job_type, "queue": queue, "what": outcome, "until": until}


async def _summed_until(tables: Tables, hour: int) -> None:
    condition = absent("hour") | below("hour", hour)
    with contextlib.suppress(Failed):
        await tables.update(
            update(Table.RECORDS, keys.SUMMED_KEY, sets={"hour": hour}, condition=condition), lane=Lane.IDLE
        )
