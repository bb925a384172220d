"""Rates: when their parked jobs are looked at again, and who of them comes back in sight.

A gate whose jobs are parked has a time at which they are looked at: when it has room for one, or NO_TIME where as many
are in sight as may start. Then whatever takes one out of sight gives it a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection

from holdfast import rates
from holdfast.clock import MICROS, Instant
from holdfast.store.types import Signal
from holdfast.stores.dynamodb import gates, keys, marks
from holdfast.stores.dynamodb.admitting import (
    SET_BACK,
    Bucket,
    Drawn,
    RateGate,
    bucket_of,
    looked_again_at,
    rate_of,
)
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.commit import Cancelled, Commit, delete
from holdfast.stores.dynamodb.expressions import equals
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.keys import NO_TIME
from holdfast.stores.dynamodb.layout import RATE, Table
from holdfast.stores.dynamodb.sight import IN_SIGHT_MAX, back_in_sight
from holdfast.stores.dynamodb.table import Failed
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane

_TRIES = 5  # a gate that others change at the same moment is looked at so often, then left to them
_BUCKETS_MAX = 1_000  # looked at in one promotion; whoever has waited longest comes first
_PAGE = 100  # marks read at once
_TOGETHER = 16
_LOOKS = 2  # again where there is room and nobody to be put back in sight, before that is believed
_LOOK_AGAIN_MICROS = MICROS
_SWEPT_MAX = 100  # looked at in one sweep


async def save(ground: Ground, drawn: Collection[Drawn], now: Instant, lane: Lane) -> bool:
    """Keep gates as they are to be; False where one is no longer as it was read: nothing is changed then."""
    commit = Commit(ground.tables, "rate", now)
    for each in drawn:
        commit.write(*gates.draw(each, now))
    if looked_again_at(drawn):
        commit.signals.add(Signal.DUE)
    try:
        await commit.run(lane)
    except Cancelled:
        return False
    ground.board.committed(commit.signals)
    return True


async def _read(ground: Ground, bucket: Bucket, now: Instant, lane: Lane) -> RateGate:
    return (await gates.read_named(ground.tables, (), [bucket], now, lane)).rates[bucket]


async def mark(ground: Ground, states: dict[Bucket, RateGate], bucket: Bucket, room: int, now: Instant) -> bool:
    """See to it that jobs of this rate which are about to be parked are looked at again; False: leave them in sight."""
    for _ in range(_TRIES):
        was = states[bucket]
        if was.due_at is not None:
            return True
        due = NO_TIME if room else rates.due_at(rate_of(bucket), was.full_at, now)
        saved = await save(ground, [Drawn(bucket, was, was.full_at, due)], now, Lane.USUAL)
        states[bucket] = await _read(ground, bucket, now, Lane.USUAL)
        if saved:
            return True
    return False


async def left_sight(ground: Ground, buckets: Collection[Bucket], now: Instant) -> set[Signal]:
    """Jobs of these rates are no longer in sight, and did not start: others may take their places."""
    signals: set[Signal] = set()
    for bucket in buckets:
        for _ in range(_TRIES):
            was = await _read(ground, bucket, now, Lane.USUAL)
            if was.due_at != NO_TIME:
                break
            if await save(ground, [Drawn(bucket, was, was.full_at, now)], now, Lane.USUAL):
                signals.add(Signal.DUE)
                break
    return signals


# Promotion


async def unpark_due(ground: Ground, now: Instant) -> tuple[set[Signal], Instant | None]:
    """Let those back in sight that may start now; when the next are to be looked at."""
    changed = 0
    marked = await _earliest(ground, now)
    later = [mark["due_at"] for mark in marked if not _is_due(mark, now)]
    due_now = [_bucket(mark) for mark in marked if _is_due(mark, now)]
    if len(due_now) >= _BUCKETS_MAX:
        later.append(now)  # there are more: come again at once
    for start in range(0, len(due_now), _TOGETHER):
        batch = due_now[start : start + _TOGETHER]
        for count, due in await asyncio.gather(*(_look(ground, bucket, now) for bucket in batch)):
            changed += count
            if due is not None:
                later.append(due)
    next_due = min((due for due in later if due < NO_TIME), default=None)
    return ({Signal.READY} if changed else set()), next_due


async def _earliest(ground: Ground, now: Instant) -> list[Item]:
    """The marks whose time has come, the longest due first, and some of those that come next."""
    ask = Ask(table=Table.RECORDS, hash=keys.WAITING, begins="r|", page=_PAGE, consistent=True)
    found: list[Item] = []
    async for each in ground.tables.ask(ask, lane=Lane.IDLE):
        found.append(each)
        if len(found) % _PAGE == 0 and (len(found) >= _BUCKETS_MAX or each["due_at"] > now):
            break
    return found


def _is_due(mark: Item, now: Instant) -> bool:
    return bool(mark["due_at"] <= now or mark["set_at"] - now > SET_BACK)


def _bucket(each: Item) -> Bucket:
    return each["rate_key"], each["rate_count"], each["rate_micros"]


async def _look(ground: Ground, bucket: Bucket, now: Instant) -> tuple[int, Instant | None]:
    """Put back who may start; how many came, and when to look again (None: nobody is left)."""
    changed = 0
    for _ in range(_TRIES):
        was = await _read(ground, bucket, now, Lane.IDLE)
        rate = rate_of(bucket)
        room = min(was.room(bucket, now), IN_SIGHT_MAX)
        count, left = await back_in_sight(ground, RATE, keys.rate_name(*bucket), "r", room, Lane.IDLE)
        changed += count
        due, looks = None if not left else NO_TIME if room else rates.due_at(rate, was.full_at, now), 0
        if not changed and room and was.looks < _LOOKS:
            # Whoever is said to wait may have been parked a moment ago, and the index is behind.
            due, looks = now + _LOOK_AGAIN_MICROS, was.looks + 1
        if await save(ground, [Drawn(bucket, was, was.full_at, due, looks)], now, Lane.IDLE):
            return changed, due
    return changed, now


async def unpark_marked(ground: Ground, now: Instant) -> int:
    """The sweep: rates that have nobody's time, because whoever took a job out of sight died before it could say so. A
    mark that is old and stands for nobody goes."""
    changed = 0
    for each in await marks.in_turn(ground, f"r|{keys.at(NO_TIME)}|", _SWEPT_MAX, "rates"):
        bucket = _bucket(each)
        was = await _read(ground, bucket, now, Lane.IDLE)
        if was.due_at is not None and was.due_at < NO_TIME:
            await _forget(ground, each, now)  # it has another one, with a time
            continue
        room = min(was.room(bucket, now), IN_SIGHT_MAX)
        count, left = await back_in_sight(ground, RATE, keys.rate_name(*bucket), "r", room, Lane.IDLE)
        changed += count
        if left and (was.due_at is None or not room):
            due = NO_TIME if room else rates.due_at(rate_of(bucket), was.full_at, now)
            await save(ground, [Drawn(bucket, was, was.full_at, due)], now, Lane.IDLE)
        elif not left and was.due_at is None:
            await _forget(ground, each, now)
    return changed


async def _forget(ground: Ground, mark: Item, now: Instant) -> None:
    if abs(now - mark["set_at"]) > SET_BACK:
        gone = delete(Table.RECORDS, (mark["pk"], mark["sk"]), equals("nonce", mark["nonce"]))
        with contextlib.suppress(Failed):
            await ground.tables.update(gone, lane=Lane.IDLE)


async def rate_due(ground: Ground, job_id: str, now: Instant) -> Instant | None:
    [item] = await ground.tables.get(Table.JOBS, [(job_id,)])
    bucket = None if item is None else bucket_of(item)
    if bucket is None:
        return None
    due = rates.due_at(rate_of(bucket), (await _read(ground, bucket, now, Lane.USUAL)).full_at, now)
    return due if due > now else None
