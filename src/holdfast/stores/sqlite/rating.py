"""Rate keys: how many of their jobs may start, kept in one bucket per key; the others are parked out of sight.

A key that has parked jobs has a time at which they are looked at again: when its bucket has room for one, or NO_TIME
where as many are in sight as may start. Then whatever takes one out of sight gives it a time.
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
RATE_OF = load("rate_of")
SAVE = load("rate_save")
NO_TIME: Instant = 2**62
_BUCKET = "SELECT full_at, due_at, set_at FROM rate WHERE rate_key = ?"
_LEFT = "UPDATE rate SET due_at = ? WHERE +due_at = ? AND rate_key IN (SELECT value FROM json_each(?))"
_KEYS_OF = "SELECT DISTINCT rate_key FROM job WHERE job_id IN (SELECT value FROM json_each(?)) AND rate_key IS NOT NULL"
_FORGET = "DELETE FROM rate WHERE full_at < ? AND due_at IS NULL"
_NEXT = "SELECT min(due_at) FROM rate INDEXED BY rate_due WHERE due_at < ?"
_JUMPED = "SELECT EXISTS (SELECT 1 FROM rate WHERE set_at > ?)"
_KEYS_MAX = 1_000  # looked at in one promotion
_IN_SIGHT_MAX = 2 * CLAIM_LIMIT  # of a queue and type: more than one claim takes, and few enough to be counted often
_SET_BACK = 60 * MICROS  # a call may be late, but not so late: the clock was set back, and what it left behind is too


def _bucket(connection: apsw.Connection, key: str, now: Instant) -> tuple[Instant, Instant | None]:
    """When it is full again, and when its parked jobs are to be looked at."""
    row = sql.row(connection, _BUCKET, (key,))
    if row is None:
        return 0, None
    full, due, set_at = row
    return (full - (set_at - now) if set_at - now > _SET_BACK else full), due


def has_to_wait(tx: Tx, job: NewJob, now: Instant) -> bool:
    """Whether a job that is just stored is to be parked; if so, its key has a time to be looked at."""
    if job.rate_key is None or job.rate is None:
        return False
    full, due = _bucket(tx.connection, job.rate_key, now)
    room = min(rates.room(job.rate, full, now), _IN_SIGHT_MAX)
    if tx.value(IN_SIGHT, (job.rate_key, job.queue, job.job_type, job.payload_version, room)) < room:
        return False
    if due is None:
        _save(tx, job.rate_key, full, NO_TIME if room else rates.due_at(job.rate, full, now), now)
    tx.signals.add(Signal.DUE)
    return True


def _save(tx: Tx, key: str, full: Instant, due: Instant | None, now: Instant) -> None:
    tx.execute(SAVE, (key, full, due, now))
    if due is not None and due < NO_TIME:
        tx.signals.add(Signal.DUE)


class Buckets:
    """The buckets that one claim draws from."""

    def __init__(self, tx: Tx, now: Instant) -> None:
        self._tx = tx
        self._now = now
        self._room: dict[str, int] = {}
        self._taken: dict[str, tuple[Rate, int]] = {}
        self._refused: dict[str, Rate] = {}

    def admit(self, key: str, rate: Rate) -> bool:
        """Whether one more may start; if so it is counted."""
        if key not in self._room:
            self._room[key] = rates.room(rate, _bucket(self._tx.connection, key, self._now)[0], self._now)
        if self._room[key] <= 0:
            self._refused[key] = rate
            return False
        self._room[key] -= 1
        self._taken[key] = (rate, self._taken.get(key, (rate, 0))[1] + 1)
        return True

    def write(self) -> None:
        for key in {**self._taken, **self._refused}:
            full, due = _bucket(self._tx.connection, key, self._now)
            rate, starts = self._taken.get(key) or (self._refused[key], 0)
            if starts:  # who is refused may be late: what others took since stands
                full = rates.take(rate, full, self._now, starts)
            waits = due is not None or key in self._refused
            _save(self._tx, key, full, rates.due_at(rate, full, self._now) if waits else None, self._now)


def left_sight(tx: Tx, keys: Collection[str], now: Instant) -> None:
    """Jobs of these keys are no longer in sight, and did not start: others may take their places."""
    tx.execute(_LEFT, (now, NO_TIME, msgspec.json.encode(list(keys)).decode()))
    if tx.connection.changes():
        tx.signals.add(Signal.DUE)


def left_sight_by_id(tx: Tx, job_ids: Collection[str], now: Instant) -> None:
    found = tx.rows(
        "SELECT DISTINCT rate_key FROM job WHERE job_id IN (SELECT value FROM json_each(?)) AND rate_key IS NOT NULL",
        (msgspec.json.encode(list(job_ids)).decode(),),
    )
    if found:
        left_sight(tx, [key for (key,) in found], now)


def unpark_due(tx: Tx, now: Instant) -> int:
    """Let those back in sight that may start now."""
    due = tx.rows(DUE, (now, now + _SET_BACK, _KEYS_MAX))
    changed = sum(_unpark(tx, key, now) for (key,) in due)
    if changed:
        tx.signals.add(Signal.READY)
    tx.execute(_FORGET, (now,))  # a full bucket is as good as none
    return changed


def _unpark(tx: Tx, key: str, now: Instant) -> int:
    changed = 0
    full, _ = _bucket(tx.connection, key, now)
    lanes = tx.rows(LANES, (key,))
    if lanes:
        rate = Rate(*tx.rows(RATE_OF, (key,))[0])
        room = min(rates.room(rate, full, now), _IN_SIGHT_MAX)
        for lane in lanes:
            missing = room - tx.value(IN_SIGHT, (key, *lane, room))
            if missing > 0:
                tx.execute(UNPARK, (key, *lane, missing))
                changed += tx.connection.changes()
        _save(tx, key, full, NO_TIME if room else rates.due_at(rate, full, now), now)
    if not lanes or not tx.rows(LANES, (key,)):
        tx.execute("UPDATE rate SET full_at = ?, due_at = NULL, set_at = ? WHERE rate_key = ?", (full, now, key))
    return changed


def next_due(connection: apsw.Connection, now: Instant) -> Instant | None:
    """When parked jobs of any rate key are to be looked at."""
    if sql.value(connection, _JUMPED, (now + _SET_BACK,)):
        return now
    due: Instant | None = sql.value(connection, _NEXT, (NO_TIME,))
    return due


def rate_due(connection: apsw.Connection, key: str, now: Instant) -> Instant | None:
    row = sql.row(connection, RATE_OF, (key,))
    if row is None:
        return None
    due = rates.due_at(Rate(row[0], row[1]), _bucket(connection, key, now)[0], now)
    return due if due > now else None
