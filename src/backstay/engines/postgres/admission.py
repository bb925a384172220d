"""Admission on PostgreSQL: rate limits, and fair turns between fairness keys.

A bucket with parked jobs has a time at which they are checked again: when it has room for one, or NO_TIME if as many
are claimable as may start. Then each claimable job that leaves gives it a time. A transaction that reads a bucket in
order to write it locks the key's name until the commit. `insert_round` in the migrations
parks what is over the rate.

A claim that takes turns in a lane locks its name until the commit: two claims at once would count the same turn twice.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from typing import Any

from backstay.clock import MICROS, Instant
from backstay.core import admission
from backstay.core.records import Rate, Signal
from backstay.engines.postgres.connection import Tx
from backstay.limits import CLAIM_LIMIT, FAIR_KEY_SECONDS, FAIR_KEYS_MAX

NO_TIME: Instant = 2**62
_BUCKETS_MAX = 1_000  # buckets checked in one promotion
# claimable jobs per queue and type: more than one claim takes, and few enough to be counted often; the same number is
# in backstay.unpark_rate
_IN_SIGHT_MAX = 2 * CLAIM_LIMIT
_SET_BACK = 60 * MICROS  # no call is this late: the clock was set back, and this value is from before

Bucket = tuple[str, Rate]  # the key, and the rate of its jobs


def name_of(key: str) -> str:
    return f"backstay rate {key}"


def _names(bucket: Bucket) -> tuple[str, int, int]:
    key, rate = bucket
    return key, rate.count, rate.micros


async def _level(tx: Tx, bucket: Bucket, now: Instant) -> tuple[Instant, Instant | None]:
    """Return when the bucket is full again, and when its parked jobs are to be checked."""
    full, due = await tx.row("rate_bucket", *_names(bucket), now) or (0, None)
    return full, due


async def _save(tx: Tx, bucket: Bucket, full: Instant, due: Instant | None, now: Instant) -> None:
    await tx.execute("save_rate", *_names(bucket), full, due, now)
    if due is not None and due < NO_TIME:
        tx.signals.add(Signal.DUE)


class Buckets:
    """The buckets that one claim draws from. Their names are locked."""

    def __init__(self, tx: Tx, now: Instant) -> None:
        self._tx = tx
        self._now = now
        self._room: dict[Bucket, int] = {}
        self._taken: dict[Bucket, int] = {}
        self._refused: set[Bucket] = set()

    async def admit(self, bucket: Bucket) -> bool:
        """Return whether one more job may start; if so it is counted."""
        if bucket not in self._room:
            self._room[bucket] = admission.room(bucket[1], (await _level(self._tx, bucket, self._now))[0], self._now)
        if self._room[bucket] <= 0:
            self._refused.add(bucket)
            return False
        self._room[bucket] -= 1
        self._taken[bucket] = self._taken.get(bucket, 0) + 1
        return True

    async def write(self) -> None:
        for bucket in self._room:
            full, due = await _level(self._tx, bucket, self._now)
            if starts := self._taken.get(bucket, 0):  # this call may be late: newer starts of others stay counted
                full = admission.take(bucket[1], full, self._now, starts)
            waits = due is not None or bucket in self._refused
            due_at = admission.due_at(bucket[1], full, self._now) if waits else None
            await _save(self._tx, bucket, full, due_at, self._now)


async def left_sight(tx: Tx, keys: Collection[str], now: Instant) -> None:
    """Note that jobs of these keys, whose names are locked, are no longer claimable and did not start: others may be
    unparked."""
    if keys and await tx.execute("left_sight", sorted(keys), now, NO_TIME):
        tx.signals.add(Signal.DUE)


async def unpark_due(tx: Tx, now: Instant) -> int:
    """Unpark jobs that may start now."""
    rows = await tx.rows("rate_due", now, now + _SET_BACK, _BUCKETS_MAX)
    changed = 0
    if rows:
        await tx.rows("lock_names", [name_of(key) for key, _, _ in rows])
        for key, count, micros in rows:
            changed += await tx.value("unpark_rate", key, count, micros, now)
    if changed:
        tx.signals.add(Signal.READY)
    await tx.execute("forget_full_rates", now)
    return changed


async def next_due(tx: Tx, now: Instant) -> Instant | None:
    """Return when parked jobs of any bucket are to be checked."""
    due: Instant | None = await tx.value("rate_next_due", now, now + _SET_BACK, NO_TIME)
    return due


async def rate_due(tx: Tx, job_id: str, now: Instant) -> Instant | None:
    row = await tx.row("rate_of_job", job_id)
    if row is None:
        return None
    key, count, micros = row
    bucket = (key, Rate(count, micros))
    due = admission.due_at(bucket[1], (await _level(tx, bucket, now))[0], now)
    return due if due > now else None


_STEP = 1_000_000
_ABOVE_ALL = 101  # above every priority
Reads = tuple[int, int]  # what a claim may bring: the newest payload version, and the highest suspicion


async def hold(tx: Tx, lanes: list[tuple[str, str]]) -> None:
    if lanes:
        await tx.rows("lock_names", [f"backstay turns {queue} {job_type}" for queue, job_type in lanes])


async def heads(tx: Tx, queue: str, job_type: str, limit: int, reads: Reads) -> list[list[Any]]:
    """Return the first jobs of a lane in the order of turns; the last column is the key whose turn it is."""
    found: list[list[Any]] = []
    level: int | None = _ABOVE_ALL
    while len(found) < limit:
        level = await tx.value("fair_level", queue, job_type, level)
        if level is None:
            break
        turns = await _at_level(tx, queue, job_type, level, limit - len(found), reads)
        if turns:
            due = min(candidate[1] for candidate in turns)
            for candidate in turns:
                candidate[1] = due  # sorted with other types as one block, which keeps the order of turns
        found += turns
    return found


async def _at_level(tx: Tx, queue: str, job_type: str, level: int, limit: int, reads: Reads) -> list[list[Any]]:
    lane, after = await tx.row("fair_lane", queue, job_type) or (0, "")
    keys = await _keys(tx, queue, job_type, level, after, reads)
    waiting = [(max(lane, position), key, weight) for key, weight, position in keys]
    own: int = await tx.value("fair_position", queue, job_type, "") or 0
    waiting.append((max(lane, own), "", 1))
    share = max(1, -(-limit // len(waiting)))
    heapq.heapify(waiting)
    taken: list[list[Any]] = []
    read: dict[str, list[list[Any]]] = {}
    seen: dict[str, list[str]] = {}
    while waiting and len(taken) < limit:
        position, key, weight = heapq.heappop(waiting)
        if not read.get(key):
            read[key] = await _read(tx, queue, job_type, level, key, share, reads, seen.setdefault(key, []))
            if not read[key]:
                continue
            seen[key] += [row[2] for row in read[key]]
        taken.append([*read[key].pop(0), key, weight])
        heapq.heappush(waiting, (position + _STEP // weight, key, weight))
    return taken


async def _keys(tx: Tx, queue: str, job_type: str, level: int, after: str, reads: Reads) -> list[Any]:
    """Return the keys that take part. If there are too many for one claim, the next one continues after the last, so
    that none is left out."""
    keys = await tx.rows("fair_keys", queue, job_type, level, FAIR_KEYS_MAX, after, *reads)
    if after and len(keys) < FAIR_KEYS_MAX:
        again = await tx.rows("fair_keys", queue, job_type, level, FAIR_KEYS_MAX - len(keys), "", *reads)
        keys = [*keys, *(each for each in again if each[0] <= after)]
    if len(keys) == FAIR_KEYS_MAX:
        await tx.execute("save_fair_after", queue, job_type, keys[-1][0])
    return keys


async def _read(
    tx: Tx, queue: str, job_type: str, level: int, key: str, count: int, reads: Reads, seen: list[str]
) -> list[list[Any]]:
    """Return the next jobs of a key after those already chosen in this claim."""
    if not key:
        return await without_turns(tx, queue, job_type, count, reads, level, seen)
    return [list(row) for row in await tx.rows("fair_head", queue, job_type, level, key, count, *reads, seen)]


async def without_turns(
    tx: Tx, queue: str, job_type: str, count: int, reads: Reads, level: int | None, seen: list[str]
) -> list[list[Any]]:
    """Return the first jobs of a lane without a fairness key, from both of its lines."""
    found: list[list[Any]] = []
    for line in (0, 1):
        found += [list(row) for row in await tx.rows("candidates", queue, job_type, count, *reads, level, seen, line)]
    found.sort(key=lambda row: (-row[0], row[1], row[2]))
    return found[:count]


async def count_turns(tx: Tx, queue: str, job_type: str, taken: list[tuple[str, int]], now: Instant) -> None:
    """Store the position of each key of a lane, for the jobs that were claimed."""
    lane, _ = await tx.row("fair_lane", queue, job_type) or (0, "")
    positions: dict[str, int] = {}
    reached = lane
    for key, weight in taken:
        if key not in positions:
            positions[key] = max(lane, await tx.value("fair_position", queue, job_type, key) or 0)
        reached = max(reached, positions[key])
        positions[key] += _STEP // weight
    await tx.execute("save_fair_lane", queue, job_type, reached)
    await tx.execute("save_fair_keys", queue, job_type, list(positions), list(positions.values()), now)


async def forget_idle(tx: Tx, now: Instant) -> None:
    await tx.execute("forget_idle_keys", now - FAIR_KEY_SECONDS * MICROS)
