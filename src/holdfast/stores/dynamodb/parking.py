"""Parking: jobs that could not start now are taken out of the claims' sight, and put back when they could.

It is advice, and nothing rests on it but pace: gates decide at the claim. A mark in `waiting` is put before anything is
parked, and stays until a sweep finds that nothing is, so that whatever is parked is looked at again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from holdfast.clock import MICROS, Instant
from holdfast.lifecycle import Status
from holdfast.limits import CLAIM_LIMIT
from holdfast.store.types import Signal
from holdfast.stores.dynamodb import gates, keys, marks, moving, rating
from holdfast.stores.dynamodb.admitting import Bucket, Head, bucket_of, limited_key
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.commit import Cancelled, Commit, change, check, delete
from holdfast.stores.dynamodb.expressions import above, absent, any_of, differs, equals
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import KEY, RATE, Index, Table
from holdfast.stores.dynamodb.sight import IN_SIGHT_MAX, back_in_sight, in_sight
from holdfast.stores.dynamodb.table import Failed
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane

__all__ = [
    "after_leaving",
    "bucket_of",
    "decide_at_entry",
    "drop_dead_holders",
    "limited_key",
    "mark_keys",
    "park",
    "unpark",
    "unpark_marked",
]

BY_KEY, BY_RATE = "c", "r"
TOGETHER = 16
MARKS_MAX = 100  # keys looked at in one sweep
FRESH_MICROS = 5 * MICROS  # longer than an index is behind
DEAD_MAX = 50  # holders that do not run, taken off in one commit
MARK_MICROS = 60 * MICROS  # a mark so old is nobody's who is about to park


# Putting out of sight


async def park(ground: Ground, key_full: Sequence[Head], over_rate: Sequence[Head], now: Instant) -> set[Signal]:
    """Those that a claim met and could not start. The rates that had no room are marked already."""
    await mark_keys(ground, (head.item for head in key_full), now)
    parked = [(head.item, BY_KEY) for head in key_full] + [(head.item, BY_RATE) for head in over_rate]
    for start in range(0, len(parked), TOGETHER):
        await asyncio.gather(*(_park(ground, item, by) for item, by in parked[start : start + TOGETHER]))
    left = {bucket for head in key_full if (bucket := bucket_of(head.item)) is not None}
    return await rating.left_sight(ground, left, now)


async def _park(ground: Ground, item: Item, by: str) -> None:
    condition = equals("status", Status.PENDING.value) & equals("parked", None)
    with contextlib.suppress(Failed):  # it moved on: not our affair any more
        await ground.tables.update(change(item, moving.parked(item, by), also=condition), lane=Lane.IDLE)


async def mark_keys(ground: Ground, items: Iterable[Item], now: Instant) -> None:
    """Before jobs are parked by their key: the sweep finds them by this."""
    for key, limit in dict.fromkeys(found for item in items if (found := limited_key(item)) is not None):
        pk, sk = keys.waiting_key(key, limit)
        mark = {"pk": pk, "sk": sk, "key": key, "limit": limit, "set_at": now, "nonce": gates.nonce()}
        await ground.tables.put(Table.RECORDS, mark)


class _Line(msgspec.Struct):
    """How many of a lane would be met before another, as it was read once and with the batch itself."""

    counted: dict[str, int] = msgspec.field(default_factory=dict)  # up to an urgency
    own: list[str] = msgspec.field(default_factory=list)

    def before(self, urgency: str) -> int:
        return self.counted[urgency] + sum(each <= urgency for each in self.own)


class _Lines:
    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._lines: dict[tuple[str, str, str], _Line] = {}

    async def has_place(self, index: Index, hash_value: str, item: Item, room: int) -> bool:
        """Whether an item that is about to be stored would be among the first `room` of its lane. Less urgent ones that
        are in sight keep it from nothing: they are parked when it is claimed."""
        if room <= 0:
            return False
        lane, urgency = keys.lane_of(item), keys.rank(item["priority"])
        line = self._lines.setdefault((index.name, hash_value, lane), _Line())
        if urgency not in line.counted:
            line.counted[urgency] = await in_sight(self._ground.tables, index, hash_value, lane, urgency, room)
        return line.before(urgency) < room

    def add(self, index: Index, hash_value: str, item: Item) -> None:
        line = self._lines.setdefault((index.name, hash_value, keys.lane_of(item)), _Line())
        line.own.append(keys.rank(item["priority"]))


async def decide_at_entry(ground: Ground, items: Sequence[Item], now: Instant) -> dict[str, str | None]:
    """Which of these jobs, all about to be pending, are to be stored parked, and by what. Their marks are put here."""
    states = await gates.read(ground.tables, items, now)
    lines = _Lines(ground)
    decided: dict[str, str | None] = {}
    full: list[Item] = []
    for item in items:
        by = None
        limited, bucket = limited_key(item), bucket_of(item)
        if limited is not None:
            room = min(limited[1] - states.running.get(limited[0], 0), IN_SIGHT_MAX)
            if not await lines.has_place(KEY, limited[0], item, room):
                by = BY_KEY
                full.append(item)
        if by is None and bucket is not None:
            gate = states.rates[bucket]
            room = min(gate.room(bucket, now), IN_SIGHT_MAX)
            has_place = await lines.has_place(RATE, keys.rate_name(*bucket), item, room)
            if not has_place and await rating.mark(ground, states.rates, bucket, room, now):
                by = BY_RATE
        if by is None:
            if limited is not None:
                lines.add(KEY, limited[0], item)
            if bucket is not None:
                lines.add(RATE, keys.rate_name(*bucket), item)
        decided[item["job_id"]] = by
    await mark_keys(ground, full, now)
    return decided


# Putting back


async def after_leaving(
    ground: Ground, limits: Mapping[str, int], buckets: Collection[Bucket], now: Instant
) -> set[Signal]:
    """Jobs have left, or changed their places: let the next ones of their keys and rates be claimed. `limits` are
    concurrency keys with their limits, `buckets` the rates of those that left the line without starting."""
    changed = 0
    alone: list[tuple[str, int]] = []
    named = list(limits.items())
    for start in range(0, len(named), TOGETHER):
        batch = named[start : start + TOGETHER]
        for each, (count, left) in zip(
            batch, await asyncio.gather(*(unpark(ground, *limited) for limited in batch)), strict=True
        ):
            changed += count
            if not count and not left:
                alone.append(each)
    signals = await rating.left_sight(ground, buckets, now)
    if changed or await _are_parked_just_now(ground, alone, now):
        signals = signals | {Signal.READY}
    return signals


async def _are_parked_just_now(ground: Ground, limited: Sequence[tuple[str, int]], now: Instant) -> bool:
    """Whether the index may be behind one who was parked a moment ago. A claim that finds nothing looks for him."""
    found = await ground.tables.get(Table.RECORDS, [keys.waiting_key(*each) for each in limited])
    return any(mark is not None and _is_fresh(mark, now) for mark in found)


def _is_fresh(mark: Item, now: Instant) -> bool:
    return abs(now - int(mark["set_at"])) <= FRESH_MICROS


async def unpark_fresh(ground: Ground, now: Instant) -> int:
    """Those that were parked a moment ago, while whoever they waited for was leaving."""
    found, _ = await marks.first(ground, "c|", MARKS_MAX)
    return sum([await _unpark_marked(ground, mark, now) for mark in found if _is_fresh(mark, now)])


async def unpark(ground: Ground, key: str, limit: int, lane: Lane = Lane.USUAL) -> tuple[int, bool]:
    """As many as could run, of each queue, type and version by itself: what nobody here runs must not keep the room.
    How many were put back, and whether any are left."""
    ask = Ask(table=Table.JOBS, index=KEY.name, hash=key, begins="out|", page=1)
    if not await ground.tables.count(ask, stop_at=1, lane=lane):
        return 0, False
    running = len(await gates.holders(ground.tables, key, lane))
    room = limit - running
    if room <= 0:
        return 0, True
    may_run = above("concurrency_limit", running)  # others of the key may have another limit
    return await back_in_sight(ground, KEY, key, BY_KEY, min(room, 2 * CLAIM_LIMIT), lane, may_run)


async def unpark_marked(ground: Ground, now: Instant) -> int:
    """The sweep: keys whose room went unused, because whoever left died before it could let others in, or too soon."""
    marked = await marks.in_turn(ground, "c|", MARKS_MAX, "keys")
    changed = 0
    for start in range(0, len(marked), TOGETHER):
        batch = marked[start : start + TOGETHER]
        changed += sum(await asyncio.gather(*(_unpark_marked(ground, mark, now) for mark in batch)))
    return changed


async def _unpark_marked(ground: Ground, mark: Item, now: Instant) -> int:
    count, left = await unpark(ground, mark["key"], mark["limit"], Lane.IDLE)
    if not count and not left and abs(now - mark["set_at"]) > MARK_MICROS:
        unchanged = equals("nonce", mark["nonce"])
        with contextlib.suppress(Failed):
            await ground.tables.update(delete(Table.RECORDS, (mark["pk"], mark["sk"]), unchanged), lane=Lane.IDLE)
    return count


async def drop_dead_holders(ground: Ground, now: Instant) -> None:
    for mark in await marks.in_turn(ground, "c|", MARKS_MAX, "holders"):
        await _drop_dead_holders(ground, mark["key"], mark["limit"], now)


async def _drop_dead_holders(ground: Ground, key: str, limit: int, now: Instant) -> None:
    """A gate that names a job which does not run would keep its place for ever. It cannot happen, for both change in
    one commit; if it does, this is where it ends."""
    held = sorted(await gates.holders(ground.tables, key, Lane.IDLE))
    if len(held) < limit:
        return
    found = await ground.tables.get(
        Table.JOBS, [(each,) for each in held], only=("status", "concurrency_key"), lane=Lane.IDLE
    )
    dead = [
        job_id
        for job_id, item in zip(held, found, strict=True)
        if item is None or item.get("status") != Status.PROCESSING or item.get("concurrency_key") != key
    ][:DEAD_MAX]
    if not dead:
        return
    runs_not = any_of(
        absent("status"),
        differs("status", Status.PROCESSING.value),
        absent("concurrency_key"),
        differs("concurrency_key", key),
    )
    commit = Commit(ground.tables, "release", now)
    commit.write(gates.forget_holders(key, set(dead)), *(check(Table.JOBS, (job_id,), runs_not) for job_id in dead))
    with contextlib.suppress(Cancelled):  # one of them has started since: the next sweep looks again
        await commit.run(Lane.IDLE)
