"""Rate keys: how many of their jobs may start, kept in a bucket for each key and rate; the others are parked.

A bucket that has parked jobs has a time at which they are looked at again: when it has room for one, or NO_TIME where
as many are in sight as may start. Then whatever takes one out of sight gives it a time. Whoever reads a bucket in order
to write it holds the key's name until the commit. `insert_special` in the migrations parks what is over the rate.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast import rates
from holdfast.clock import MICROS, Instant
from holdfast.limits import CLAIM_LIMIT
from holdfast.store.types import Rate, Signal
from holdfast.stores.postgres.tx import Tx

NO_TIME: Instant = 2**62
_BUCKETS_MAX = 1_000  # looked at in one promotion
_IN_SIGHT_MAX = 2 * CLAIM_LIMIT  # of a queue and type: more than one claim takes, and few enough to be counted often
_SET_BACK = 60 * MICROS  # a call may be late, but not so late: the clock was set back, and what it left behind is too

Bucket = tuple[str, Rate]  # the key, and the rate that its jobs were submitted with


def name_of(key: str) -> str:
    return f"holdfast rate {key}"


def _names(bucket: Bucket) -> tuple[str, int, int]:
    key, rate = bucket
    return key, rate.count, rate.micros


async def _level(tx: Tx, bucket: Bucket, now: Instant) -> tuple[Instant, Instant | None]:
    """When it is full again, and when its parked jobs are to be looked at."""
    full, due = await tx.row("rate_bucket", *_names(bucket), now) or (0, None)
    return full, due


async def _save(tx: Tx, bucket: Bucket, full: Instant, due: Instant | None, now: Instant) -> None:
    await tx.execute("save_rate", *_names(bucket), full, due, now)
    if due is not None and due < NO_TIME:
        tx.signals.add(Signal.DUE)


class Buckets:
    """The buckets that one claim draws from. Their names are held."""

    def __init__(self, tx: Tx, now: Instant) -> None:
        self._tx = tx
        self._now = now
        self._room: dict[Bucket, int] = {}
        self._taken: dict[Bucket, int] = {}
        self._refused: set[Bucket] = set()

    async def admit(self, bucket: Bucket) -> bool:
        """Whether one more may start; if so it is counted."""
        if bucket not in self._room:
            self._room[bucket] = rates.room(bucket[1], (await _level(self._tx, bucket, self._now))[0], self._now)
        if self._room[bucket] <= 0:
            self._refused.add(bucket)
            return False
        self._room[bucket] -= 1
        self._taken[bucket] = self._taken.get(bucket, 0) + 1
        return True

    async def write(self) -> None:
        for bucket in self._room:
            full, due = await _level(self._tx, bucket, self._now)
            if starts := self._taken.get(bucket, 0):  # who is refused may be late: what others took since stands
                full = rates.take(bucket[1], full, self._now, starts)
            waits = due is not None or bucket in self._refused
            due_at = rates.due_at(bucket[1], full, self._now) if waits else None
            await _save(self._tx, bucket, full, due_at, self._now)


async def left_sight(tx: Tx, keys: Collection[str], now: Instant) -> None:
    """Jobs of these keys, whose names are held, are no longer in sight and did not start: others may take their
    places."""
    if keys and await tx.execute("left_sight", sorted(keys), now, NO_TIME):
        tx.signals.add(Signal.DUE)


async def unpark_due(tx: Tx, now: Instant) -> int:
    """Let those back in sight that may start now."""
    rows = await tx.rows("rate_due", now, now + _SET_BACK, _BUCKETS_MAX)
    changed = 0
    if rows:
        await tx.rows("lock_names", [name_of(key) for key, _, _ in rows])
        for key, count, micros in rows:
            changed += await _unpark(tx, (key, Rate(count, micros)), now)
    if changed:
        tx.signals.add(Signal.READY)
    await tx.execute("forget_full_rates", now)
    return changed


async def _unpark(tx: Tx, bucket: Bucket, now: Instant) -> int:
    changed = 0
    full, _ = await _level(tx, bucket, now)
    lanes = await tx.rows("rate_lanes", *_names(bucket))
    if lanes:
        rate = bucket[1]
        room = min(rates.room(rate, full, now), _IN_SIGHT_MAX)
        for lane in lanes:
            changed += await tx.execute("rate_unpark", *_names(bucket), *lane, room)
        await _save(tx, bucket, full, NO_TIME if room else rates.due_at(rate, full, now), now)
    if not lanes or not await tx.rows("rate_lanes", *_names(bucket)):
        await tx.execute("settle_rate", *_names(bucket), full, now)
    return changed


async def next_due(tx: Tx, now: Instant) -> Instant | None:
    """When parked jobs of any bucket are to be looked at."""
    due: Instant | None = await tx.value("rate_next_due", now, now + _SET_BACK, NO_TIME)
    return due


async def rate_due(tx: Tx, job_id: str, now: Instant) -> Instant | None:
    row = await tx.row("rate_of_job", job_id)
    if row is None:
        return None
    key, count, micros = row
    bucket = (key, Rate(count, micros))
    due = rates.due_at(bucket[1], (await _level(tx, bucket, now))[0], now)
    return due if due > now else None
