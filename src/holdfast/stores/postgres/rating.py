"""Rate keys: how many of their jobs may start, kept in one bucket per key; the others are parked out of sight.

A key that has parked jobs has a time at which they are looked at again: when its bucket has room for one, or NO_TIME
where as many are in sight as may start. Then whatever takes one out of sight gives it a time. Whoever reads a bucket in
order to write it holds the key's name until the commit. `insert_special` in the migrations parks what is over the rate.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast import rates
from holdfast.clock import MICROS, Instant
from holdfast.limits import CLAIM_LIMIT
from holdfast.store.types import Rate, Signal
from holdfast.stores.postgres.tx import Tx

NO_TIME: Instant = 2**62
_KEYS_MAX = 1_000  # looked at in one promotion
_IN_SIGHT_MAX = 2 * CLAIM_LIMIT  # of a queue and type: more than one claim takes, and few enough to be counted often
_CLOCKS_DIFFER = MICROS  # beyond this the clock was set back: what it has left behind is set back too


def name_of(key: str) -> str:
    return f"holdfast rate {key}"


async def _bucket(tx: Tx, key: str, now: Instant) -> tuple[Instant, Instant | None]:
    """When it is full again, and when its parked jobs are to be looked at."""
    full, due = await tx.row("rate_bucket", key, now) or (0, None)
    return full, due


async def _save(tx: Tx, key: str, full: Instant, due: Instant | None, now: Instant) -> None:
    await tx.execute("save_rate", key, full, due, now)
    if due is not None and due < NO_TIME:
        tx.signals.add(Signal.DUE)


class Buckets:
    """The buckets that one claim draws from. Their names are held."""

    def __init__(self, tx: Tx, now: Instant) -> None:
        self._tx = tx
        self._now = now
        self._room: dict[str, int] = {}
        self._taken: dict[str, tuple[Rate, int]] = {}
        self._refused: dict[str, Rate] = {}

    async def admit(self, key: str, rate: Rate) -> bool:
        """Whether one more may start; if so it is counted."""
        if key not in self._room:
            self._room[key] = rates.room(rate, (await _bucket(self._tx, key, self._now))[0], self._now)
        if self._room[key] <= 0:
            self._refused[key] = rate
            return False
        self._room[key] -= 1
        self._taken[key] = (rate, self._taken.get(key, (rate, 0))[1] + 1)
        return True

    async def write(self) -> None:
        for key in {**self._taken, **self._refused}:
            full, due = await _bucket(self._tx, key, self._now)
            rate, starts = self._taken.get(key) or (self._refused[key], 0)
            full = rates.take(rate, full, self._now, starts)
            waits = due is not None or key in self._refused
            await _save(self._tx, key, full, rates.due_at(rate, full, self._now) if waits else None, self._now)


async def left_sight(tx: Tx, keys: Collection[str], now: Instant) -> None:
    """Jobs of these keys, whose names are held, are no longer in sight and did not start: others may take their
    places."""
    if keys and await tx.execute("left_sight", sorted(keys), now, NO_TIME):
        tx.signals.add(Signal.DUE)


async def unpark_due(tx: Tx, now: Instant) -> int:
    """Let those back in sight that may start now."""
    due = [row[0] for row in await tx.rows("rate_due", now, now + _CLOCKS_DIFFER, _KEYS_MAX)]
    changed = 0
    if due:
        await tx.rows("lock_names", [name_of(key) for key in due])
        for key in due:
            changed += await _unpark(tx, key, now)
    if changed:
        tx.signals.add(Signal.READY)
    await tx.execute("forget_full_rates", now)
    return changed


async def _unpark(tx: Tx, key: str, now: Instant) -> int:
    changed = 0
    full, _ = await _bucket(tx, key, now)
    lanes = await tx.rows("rate_lanes", key)
    rate_of = await tx.row("rate_of", key)
    if lanes and rate_of is not None:
        rate = Rate(*rate_of)
        room = min(rates.room(rate, full, now), _IN_SIGHT_MAX)
        for lane in lanes:
            missing = room - await tx.value("rate_in_sight", key, *lane, room)
            if missing > 0:
                changed += await tx.execute("rate_unpark", key, *lane, missing)
        await _save(tx, key, full, NO_TIME if room else rates.due_at(rate, full, now), now)
    if not lanes or not await tx.rows("rate_lanes", key):
        await tx.execute("settle_rate", key, full, now)
    return changed


async def next_due(tx: Tx, now: Instant) -> Instant | None:
    """When parked jobs of any rate key are to be looked at."""
    due: Instant | None = await tx.value("rate_next_due", now, now + _CLOCKS_DIFFER, NO_TIME)
    return due


async def rate_due(tx: Tx, key: str, now: Instant) -> Instant | None:
    row = await tx.row("rate_of", key)
    if row is None:
        return None
    due = rates.due_at(Rate(row[0], row[1]), (await _bucket(tx, key, now))[0], now)
    return due if due > now else None
