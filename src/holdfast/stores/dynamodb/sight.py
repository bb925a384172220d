"""What claims can see of a concurrency key or a rate, and putting parked jobs back where they can.

Both indexes have the same order: `in|lane|place` for jobs in sight, `out|lane|place` for parked ones.
"""

from __future__ import annotations

import asyncio

import msgspec

from holdfast.lifecycle import Status
from holdfast.limits import CLAIM_LIMIT
from holdfast.stores.dynamodb import keys, moving
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.commit import change
from holdfast.stores.dynamodb.expressions import Condition, equals
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Index, Table
from holdfast.stores.dynamodb.table import Failed, Tables
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane

IN_SIGHT_MAX = 2 * CLAIM_LIMIT  # of a queue and type: more than one claim takes, and few enough to be counted often
_LANES_MAX = 200  # of one key or rate looked at in one call
_TOGETHER = 16


class Parked(msgspec.Struct, frozen=True):
    job_id: str
    urgency: str


async def in_sight(
    tables: Tables, index: Index, hash_value: str, lane: str, urgency: str, most: int, lane_of_wire: Lane = Lane.USUAL
) -> int:
    """How many of a lane are in sight and no less urgent, up to `most`."""
    ask = Ask(
        table=Table.JOBS,
        index=index.name,
        hash=hash_value,
        begins=f"in|{lane}|",
        up_to=f"in|{lane}|{urgency}{keys.HIGH}",
    )
    return await tables.count(ask, stop_at=most, lane=lane_of_wire)


async def parked_lanes(
    tables: Tables, index: Index, hash_value: str, most: int, wire_lane: Lane, where: Condition | None = None
) -> dict[str, list[Parked]]:
    """The first `most` parked jobs of each lane, in claim order."""
    lanes: dict[str, list[Parked]] = {}
    above: str | None = None
    while len(lanes) < _LANES_MAX:
        ask = Ask(
            table=Table.JOBS, index=index.name, hash=hash_value, begins="out|", above=above, page=most + 1, where=where
        )
        above = None
        async for row in tables.ask(ask, lane=wire_lane):
            _, *lane_parts, urgency, _, _ = row[index.range].split("|")
            lane = "|".join(lane_parts)
            listed = lanes.setdefault(lane, [])
            if len(listed) == most:
                above = f"out|{lane}|{keys.HIGH}"
                break
            listed.append(Parked(row["job_id"], urgency))
        if above is None:
            break
    return lanes


async def back_in_sight(
    ground: Ground,
    index: Index,
    hash_value: str,
    by: str,
    room: int,
    wire_lane: Lane = Lane.USUAL,
    where: Condition | None = None,
) -> tuple[int, bool]:
    """Put parked jobs of each lane back in sight, in claim order: each that is among the first `room` of those parked
    and those in sight. What is in sight and less urgent keeps nobody out. How many, and whether any are left."""
    lanes = await parked_lanes(ground.tables, index, hash_value, room + 1, wire_lane, where)
    changed, left = 0, False
    for lane, parked in lanes.items():
        seen = await _in_sight_indeed(ground.tables, index, hash_value, lane, room, wire_lane) if room > 0 else []
        chosen = [
            each.job_id
            for place, each in enumerate(parked[:room], start=1)
            if place + sum(urgency <= each.urgency for urgency in seen) <= room
        ]
        left = left or len(chosen) < len(parked)
        changed += await _unpark(ground, chosen, by, wire_lane)
    return changed, left


async def _in_sight_indeed(
    tables: Tables, index: Index, hash_value: str, lane: str, most: int, wire_lane: Lane
) -> list[str]:
    """The urgencies of the first `most` of a lane that are in sight. An index that is behind still shows who has just
    started, and he would keep the next one out."""
    begins = f"in|{lane}|"
    ask = Ask(table=Table.JOBS, index=index.name, hash=hash_value, begins=begins, page=most)
    shown: dict[str, str] = {}
    async for row in tables.ask(ask, lane=wire_lane):
        shown[row["job_id"]] = str(row[index.range])[len(begins) :].partition("|")[0]
        if len(shown) == most:
            break
    items = await tables.get(Table.JOBS, [(job_id,) for job_id in shown], only=("status", "parked"), lane=wire_lane)
    there = zip(shown.values(), items, strict=True)
    return [
        urgency
        for urgency, item in there
        if item is not None and item.get("status") == Status.PENDING and "parked" not in item
    ]


async def _unpark(ground: Ground, job_ids: list[str], by: str, wire_lane: Lane) -> int:
    items = await ground.tables.get(Table.JOBS, [(job_id,) for job_id in job_ids], lane=wire_lane)
    parked = [
        item for item in items if item is not None and item.get("status") == Status.PENDING and item.get("parked") == by
    ]
    changed = 0
    for start in range(0, len(parked), _TOGETHER):
        batch = parked[start : start + _TOGETHER]
        changed += sum(await asyncio.gather(*(_unpark_one(ground, item, by, wire_lane) for item in batch)))
    return changed


async def _unpark_one(ground: Ground, item: Item, by: str, wire_lane: Lane) -> bool:
    condition = equals("status", Status.PENDING.value) & equals("parked", by)
    try:
        write = change(item, moving.parked(item, None), also=condition)
        await ground.tables.update(write, lane=wire_lane, verb="release")
    except Failed:
        return False
    return True
