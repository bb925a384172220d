"""Schedules: stored whole, and moved on past their ticks in the commit that inserts the jobs of these."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.clock import Instant, SystemClock
from holdfast.errors import InvalidSchedule
from holdfast.limits import SCHEDULES_MAX
from holdfast.store.types import Firing, Schedule, Signal, Verdict
from holdfast.stores.dynamodb import inserting, items, keys
from holdfast.stores.dynamodb.commit import Cancelled, Commit, delete, put_new, update
from holdfast.stores.dynamodb.expressions import absent, equals, present
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.storing import ElseRefused
from holdfast.stores.dynamodb.table import Ask, Failed
from holdfast.stores.dynamodb.values import Item, size
from holdfast.stores.dynamodb.wire import Lane
from holdfast.stores.dynamodb.writes import Write

SCHEDULE_BYTES_MAX = 390_000  # an item ends at 400 KB
_FIELDS = Schedule.__struct_fields__
_OF_TICKS = ("created_at", "last_at", "last_job_id")  # an editor leaves them as they are


async def save_schedule(ground: Ground, schedule: Schedule, expected_version: int | None) -> Verdict:
    _refuse_too_large(schedule)
    write = await _first(ground, schedule) if expected_version is None else _next(schedule, expected_version)
    try:
        await ground.tables.update(write, verb="save_schedule")
    except Failed as failed:
        return Verdict.GONE if failed.item is None else Verdict.STALE
    ground.board.committed({Signal.PLANNED})
    return Verdict.APPLIED


def _refuse_too_large(schedule: Schedule) -> None:
    """What its jobs are made from is kept as text within a text: a payload of quotes takes twice its length."""
    takes = size({name: value for name, value in msgspec.structs.asdict(schedule).items() if value is not None})
    if takes > SCHEDULE_BYTES_MAX:
        raise InvalidSchedule(
            f"schedule {schedule.name!r:.60} has {takes:,} bytes, and DynamoDB keeps {SCHEDULE_BYTES_MAX:,}: store its"
            " payload elsewhere and schedule its name"
        )


async def _first(ground: Ground, schedule: Schedule) -> Write:
    pk, sk = keys.schedule(schedule.name)
    stored = await ground.tables.count(Ask(table=Table.RECORDS, hash=keys.SCHEDULES, consistent=True), SCHEDULES_MAX)
    if stored >= SCHEDULES_MAX:
        raise InvalidSchedule(f"there are {SCHEDULES_MAX:,} schedules already (SCHEDULES_MAX): remove some first")
    fields = {name: value for name, value in msgspec.structs.asdict(schedule).items() if value is not None}
    return put_new(Table.RECORDS, {**fields, "pk": pk, "sk": sk, "wid": items.new_wid()})


def _next(schedule: Schedule, expected_version: int) -> Write:
    fields = {name: value for name, value in msgspec.structs.asdict(schedule).items() if name not in _OF_TICKS}
    return update(
        Table.RECORDS,
        keys.schedule(schedule.name),
        sets={**fields, "wid": items.new_wid()},
        removes=tuple(name for name, value in fields.items() if value is None),
        condition=equals("version", expected_version),
    )


async def drop_schedule(ground: Ground, name: str) -> Verdict:
    # A commit, whose token tells a repeat of ours from one that comes too late: what is gone carries no name.
    commit = Commit(ground.tables, "drop_schedule", SystemClock().now())
    commit.write(delete(Table.RECORDS, keys.schedule(name), present("pk")))
    try:
        await commit.run(Lane.URGENT)
    except Cancelled:
        return Verdict.GONE
    return Verdict.APPLIED


async def schedules(ground: Ground, names: Sequence[str]) -> list[Schedule]:
    found: list[Item | None]
    if names:
        found = await ground.tables.get(Table.RECORDS, [keys.schedule(name) for name in dict.fromkeys(names)])
    else:
        ask = Ask(table=Table.RECORDS, hash=keys.SCHEDULES, consistent=True)
        found = [row async for row in ground.tables.ask(ask)]
    rows = [_schedule(item) for item in found if item is not None]
    return sorted(rows, key=lambda schedule: schedule.name)


def _schedule(item: Item) -> Schedule:
    return Schedule(**{name: item[name] for name in _FIELDS if name in item})


async def fire(ground: Ground, firings: Sequence[Firing], now: Instant) -> list[Verdict]:
    return [await _fire(ground, firing, now) for firing in firings]


async def _fire(ground: Ground, firing: Firing, now: Instant) -> Verdict:
    last = firing.jobs[-1] if firing.jobs else None
    ticked = {"last_at": last.tick_at, "last_job_id": last.job_id} if last is not None else {}
    moves_on = update(
        Table.RECORDS,
        keys.schedule(firing.name),
        sets={"next_at": firing.next_at, **ticked},
        condition=equals("version", firing.version) & equals("next_at", firing.due_at) & absent("paused_at"),
    )
    # Look first: a tick that another has fired must not find its queue full.
    if (verdict := await _why_not(ground, firing)) is not None:
        return verdict
    try:
        await inserting.insert(ground, firing.jobs, now, verb="fire", also=[moves_on])
    except ElseRefused:
        return await _why_not(ground, firing) or Verdict.STALE
    return Verdict.APPLIED


async def _why_not(ground: Ground, firing: Firing) -> Verdict | None:
    [item] = await ground.tables.get(Table.RECORDS, [keys.schedule(firing.name)])
    if item is None:
        return Verdict.GONE
    as_read = (item["version"], item["next_at"], item.get("paused_at")) == (firing.version, firing.due_at, None)
    return None if as_read else Verdict.STALE
