"""Rate keys: how many of their jobs may start, kept in a bucket for each key and rate; the others are parked.

A bucket that has parked jobs has a time at which they are looked at again: when it has room for one, or NO_TIME where
as many are in sight as may start. Then whatever takes one out of sight gives it a time.
"""

from __future__ import annotations

from collections.abc import Collection

import apsw
import msgspec

from holdfast import rates
from holdfast.clock import MICROS, Instant
from holdfast.limits import CLAIM_LIMIT
from holdfast.store.types import NewJob, Rate, Signal
from holdfast.stores.sqlite import sql
from holdfast.stores.sqlite.sql import load
from holdfast.stores.sqlite.tx import Tx

DUE = load("rate_due")
LANES = load("rate_lanes")
IN_SIGHT = load("rate_in_sight")
UNPARK = load("rate_unpark")
SAVE = load("rate_save")
NO_TIME: Instant = 2**62
_BUCKET = "SELECT full_at, due_at, set_at FROM rate WHERE rate_key = ? AND rate_count = ? AND rate_micros = ?"
_SETTLED = (
    "UPDATE rate SET full_at = ?, due_at = NULL, set_at = ? WHERE rate_key = ? AND rate_count = ? AND rate_micros = ?"
)
_LEFT = "UPDATE rate SET due_at = ? WHERE +due_at = ? AND rate_key IN (SELECT value FROM json_each(?))"
_KEYS_OF = "SELECT DISTINCT rate_key FROM job WHERE job_id IN (SELECT value FROM json_each(?)) AND rate_key IS NOT NULL"
_RATE_OF = "SELECT rate_key, rate_count, rate_micros FROM job WHERE job_id = ? AND rate_count IS NOT NULL"
_FORGET = "DELETE FROM rate WHERE full_at < ? AND due_at IS NULL"
_NEXT = "SELECT min(due_at) FROM rate INDEXED BY rate_due WHERE due_at < ?"
_JUMPED = "SELECT EXISTS (SELECT 1 FROM rate WHERE set_at > ?)"
_BUCKETS_MAX = 1_000  # looked at in one promotion
_IN_SIGHT_MAX = 2 * CLAIM_LIMIT  # of a queue and type: more than one claim takes, and few enough to be counted often
_SET_BACK = 60 * MICROS  # a call may be late, but not so late: the clock was set back, and what it left behind is too

Bucket = tuple[str, Rate]  # the key, and the rate that its jobs were submitted with


def _names(bucket: Bucket) -> tuple[str, int, int]:
    key, rate = bucket
    return key, rate.count, rate.micros


def _level(connection: apsw.Connection, bucket: Bucket, now: Instant) -> tuple[Instant, Instant | None]:
    """When it is full again, and when its parked jobs are to be looked at."""
    row = sql.row(connection, _BUCKET, _names(bucket))
    if row is None:
        return 0, None
    full, due, set_at = row
    return (full - (set_at - now) if set_at - now > _SET_BACK else full), due


def has_to_wait(tx: Tx, job: NewJob, now: Instant) -> bool:
    """Whether a job that is just stored is to be parked; if so, its bucket has a time to be looked at."""
    if job.rate_key is None or job.rate is None:
        return False
    bucket = (job.rate_key, job.rate)
    full, due = _level(tx.connection, bucket, now)
    room = min(rates.room(job.rate, full, now), _IN_SIGHT_MAX)
    # Less urgent ones that are in sight keep it from nothing: they are parked when it is claimed.
    lane = (job.queue, job.job_type, job.payload_version)
    if tx.value(IN_SIGHT, (*_names(bucket), *lane, job.priority, room)) < room:
        return False
    if due is None:
        _save(tx, bucket, full, NO_TIME if room else rates.due_at(job.rate, full, now), now)
    tx.signals.add(Signal.DUE)
    return True


def _save(tx: Tx, bucket: Bucket, full: Instant, due: Instant | None, now: Instant) -> None:
    tx.execute(SAVE, (*_names(bucket), full, due, now))
    if due is not None and due < NO_TIME:
        tx.signals.add(Signal.DUE)


class Buckets:
    """The buckets that one claim draws from."""

    def __init__(self, tx: Tx, now: Instant) -> None:
        self._tx = tx
        self._now = now
        self._room: dict[Bucket, int] = {}
        self._taken: dict[Bucket, int] = {}
        self._refused: set[Bucket] = set()

    def admit(self, bucket: Bucket) -> bool:
        """Whether one more may start; if so it is counted."""
        if bucket not in self._room:
            self._room[bucket] = rates.room(bucket[1], _level(self._tx.connection, bucket, self._now)[0], self._now)
        if self._room[bucket] <= 0:
            self._refused.add(bucket)
            return False
        self._room[bucket] -= 1
        self._taken[bucket] = self._taken.get(bucket, 0) + 1
        return True

    def write(self) -> None:
        for bucket in self._room:
            full, due = _level(self._tx.connection, bucket, self._now)
            if starts := self._taken.get(bucket, 0):  # who is refused may be late: what others took since stands
                full = rates.take(bucket[1], full, self._now, starts)
            waits = due is not None or bucket in self._refused
            _save(self._tx, bucket, full, rates.due_at(bucket[1], full, self._now) if waits else None, self._now)


def left_sight(tx: Tx, keys: Collection[str], now: Instant) -> None:
    """Jobs of these keys are no longer in sight, and did not start: others may take their places."""
    tx.execute(_LEFT, (now, NO_TIME, msgspec.json.encode(list(keys)).decode()))
    if tx.connection.changes():
        tx.signals.add(Signal.DUE)


def left_sight_by_id(tx: Tx, job_ids: Collection[str], now: Instant) -> None:
    if found := tx.rows(_KEYS_OF, (msgspec.json.encode(list(job_ids)).decode(),)):
        left_sight(tx, [key for (key,) in found], now)


def unpark_due(tx: Tx, now: Instant) -> int:
    """Let those back in sight that may start now."""
    due = tx.rows(DUE, (now, now + _SET_BACK, _BUCKETS_MAX))
    changed = sum(_unpark(tx, (key, Rate(count, micros)), now) for key, count, micros in due)
    if changed:
        tx.signals.add(Signal.READY)
    tx.execute(_FORGET, (now,))  # a full bucket is as good as none
    return changed


def _unpark(tx: Tx, bucket: Bucket, now: Instant) -> int:
    changed = 0
    full, _ = _level(tx.connection, bucket, now)
    lanes = tx.rows(LANES, _names(bucket))
    if lanes:
        rate = bucket[1]
        room = min(rates.room(rate, full, now), _IN_SIGHT_MAX)
        for lane in lanes:
            tx.execute(UNPARK, (*_names(bucket), *lane, room))
            changed += tx.connection.changes()
        _save(tx, bucket, full, NO_TIME if room else rates.due_at(rate, full, now), now)
    if not lanes or not tx.rows(LANES, _names(bucket)):
        tx.execute(_SETTLED, (full, now, *_names(bucket)))
    return changed


def next_due(connection: apsw.Connection, now: Instant) -> Instant | None:
    """When parked jobs of any bucket are to be looked at."""
    if sql.value(connection, _JUMPED, (now + _SET_BACK,)):
        return now
    due: Instant | None = sql.value(connection, _NEXT, (NO_TIME,))
    return due


def rate_due(connection: apsw.Connection, job_id: str, now: Instant) -> Instant | None:
    row = sql.row(connection, _RATE_OF, (job_id,))
    if row is None:
        return None
    key, count, micros = row
    bucket = (key, Rate(count, micros))
    due = rates.due_at(bucket[1], _level(connection, bucket, now)[0], now)
    return due if due > now else None
