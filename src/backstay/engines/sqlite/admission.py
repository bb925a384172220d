"""Admission on SQLite: rate limits, fair turns between fairness keys, paused queues and queue limits.

A rate bucket with parked jobs has a time at which they are checked again: when it has room for one, or NO_TIME if as
many are claimable as may start. Then each claimable job that leaves gives it a time.

A fairness key has a position within its priority, which every start moves forward by a step divided by its weight; the
key that is furthest behind is next, and jobs without a key count as one more key. A key that was idle starts where the
lane is: absence earns nothing.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import apsw
import msgspec

from backstay.clock import MICROS, Instant
from backstay.core import admission
from backstay.core.records import NewJob, Rate, Signal
from backstay.engines.sqlite import connection as sqlite_connection
from backstay.engines.sqlite.connection import load
from backstay.engines.sqlite.writer import Tx
from backstay.errors import QueueFull
from backstay.limits import CLAIM_LIMIT, FAIR_KEY_SECONDS, FAIR_KEYS_MAX

DUE = load("rate_due")
LANES = load("rate_lanes")
IN_SIGHT = load("rate_in_sight")
UNPARK = load("rate_unpark")
SAVE = load("rate_save")
PARK = load("park")
BRING_BACK = load("bring_back")
BY_KEY, BY_RATE = 1, 2  # why a job is parked
NO_TIME: Instant = 2**62
_BUCKET = "SELECT full_at, due_at, set_at FROM rate WHERE rate_key = ? AND rate_count = ? AND rate_micros = ?"
_SETTLED = (
    "UPDATE rate SET full_at = ?, due_at = NULL, set_at = ? WHERE rate_key = ? AND rate_count = ? AND rate_micros = ?"
)
_LEFT = "UPDATE rate SET due_at = ? WHERE +due_at = ? AND rate_key IN (SELECT value FROM json_each(?))"
_RATE_OF = "SELECT rate_key, rate_count, rate_micros FROM job WHERE job_id = ? AND rate_count IS NOT NULL"
_FORGET = "DELETE FROM rate WHERE full_at < ? AND due_at IS NULL"
_NEXT = "SELECT min(due_at) FROM rate INDEXED BY rate_due WHERE due_at < ?"
_JUMPED = "SELECT EXISTS (SELECT 1 FROM rate WHERE set_at > ?)"
_BUCKETS_MAX = 1_000  # buckets checked in one promotion
# claimable jobs per queue and type: more than one claim takes, and few enough to be counted often
_IN_SIGHT_MAX = 2 * CLAIM_LIMIT
_SET_BACK = 60 * MICROS  # no call is this late: the clock was set back, and this value is from before

Bucket = tuple[str, Rate]  # the key, and the rate of its jobs


def _names(bucket: Bucket) -> tuple[str, int, int]:
    key, rate = bucket
    return key, rate.count, rate.micros


def _level(connection: apsw.Connection, bucket: Bucket, now: Instant) -> tuple[Instant, Instant | None]:
    """Return when the bucket is full again, and when its parked jobs are to be checked."""
    row = sqlite_connection.row(connection, _BUCKET, _names(bucket))
    if row is None:
        return 0, None
    full, due, set_at = row
    return (full - (set_at - now) if set_at - now > _SET_BACK else full), due


def has_to_wait(tx: Tx, job: NewJob, now: Instant) -> bool:
    """Return whether a new job is to be parked; if so, its bucket gets a time for the next check."""
    if job.rate_key is None or job.rate is None:
        return False
    bucket = (job.rate_key, job.rate)
    full, due = _level(tx.connection, bucket, now)
    room = min(admission.room(job.rate, full, now), _IN_SIGHT_MAX)
    # Claimable jobs that come later do not block it: they are parked when it is claimed.
    lane, place = (job.queue, job.job_type, job.payload_version), (job.priority, job.scheduled_for, job.job_id)
    if tx.value(IN_SIGHT, (*_names(bucket), *lane, *place, room)) < room:
        return False
    if due is None:
        _save(tx, bucket, full, NO_TIME if room else admission.due_at(job.rate, full, now), now)
    tx.signals.add(Signal.DUE)
    return True


def _save(tx: Tx, bucket: Bucket, full: Instant, due: Instant | None, now: Instant) -> None:
    tx.connection.execute(SAVE, (*_names(bucket), full, due, now))
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
        """Return whether one more job may start; if so it is counted."""
        if bucket not in self._room:
            self._room[bucket] = admission.room(bucket[1], _level(self._tx.connection, bucket, self._now)[0], self._now)
        if self._room[bucket] <= 0:
            self._refused.add(bucket)
            return False
        self._room[bucket] -= 1
        self._taken[bucket] = self._taken.get(bucket, 0) + 1
        return True

    def write(self) -> None:
        for bucket in self._room:
            full, due = _level(self._tx.connection, bucket, self._now)
            if starts := self._taken.get(bucket, 0):  # this call may be late: newer starts of others stay counted
                full = admission.take(bucket[1], full, self._now, starts)
            waits = due is not None or bucket in self._refused
            _save(self._tx, bucket, full, admission.due_at(bucket[1], full, self._now) if waits else None, self._now)


def left_sight(tx: Tx, keys: Collection[str], now: Instant) -> None:
    """Note that jobs of these keys are no longer claimable and did not start: others may be unparked."""
    tx.connection.execute(_LEFT, (now, NO_TIME, msgspec.json.encode(list(keys)).decode()))
    if tx.connection.changes():
        tx.signals.add(Signal.DUE)


def bring_back(tx: Tx, jobs: str | None, why: int) -> int:
    """Make parked jobs claimable, given as JSON; return how many."""
    if jobs is None or jobs == "[]":
        return 0
    tx.connection.execute(BRING_BACK, (jobs, why))
    return tx.connection.changes()


def unpark_due(tx: Tx, now: Instant) -> int:
    """Unpark jobs that may start now."""
    due = tx.rows(DUE, (now, now + _SET_BACK, _BUCKETS_MAX))
    changed = sum(_unpark(tx, (key, Rate(count, micros)), now) for key, count, micros in due)
    if changed:
        tx.signals.add(Signal.READY)
    tx.connection.execute(_FORGET, (now,))  # a full bucket is the same as no bucket
    return changed


def _unpark(tx: Tx, bucket: Bucket, now: Instant) -> int:
    changed = 0
    full, _ = _level(tx.connection, bucket, now)
    lanes = tx.rows(LANES, _names(bucket))
    if lanes:
        rate = bucket[1]
        room = min(admission.room(rate, full, now), _IN_SIGHT_MAX)
        for lane in lanes:
            changed += bring_back(tx, tx.value(UNPARK, (*_names(bucket), *lane, room)), BY_RATE)
        _save(tx, bucket, full, NO_TIME if room else admission.due_at(rate, full, now), now)
    if not lanes or not tx.rows(LANES, _names(bucket)):
        tx.connection.execute(_SETTLED, (full, now, *_names(bucket)))
    return changed


def next_due(connection: apsw.Connection, now: Instant) -> Instant | None:
    """Return when parked jobs of any bucket are to be checked."""
    if sqlite_connection.value(connection, _JUMPED, (now + _SET_BACK,)):
        return now
    due: Instant | None = sqlite_connection.value(connection, _NEXT, (NO_TIME,))
    return due


def rate_due(connection: apsw.Connection, job_id: str, now: Instant) -> Instant | None:
    row = sqlite_connection.row(connection, _RATE_OF, (job_id,))
    if row is None:
        return None
    key, count, micros = row
    bucket = (key, Rate(count, micros))
    due = admission.due_at(bucket[1], _level(connection, bucket, now)[0], now)
    return due if due > now else None


LEVEL = load("fair_level")
KEYS = load("fair_keys")
HEAD = load("fair_head")
PLAIN_HEAD = load("plain_head")
_STEP = 1_000_000
_ABOVE_ALL = 101  # above every priority
_POSITION = "SELECT position FROM fair_key WHERE queue = ? AND job_type = ? AND fairness_key = ?"
_LANE = "SELECT position, after_key FROM fair_lane WHERE queue = ? AND job_type = ?"
_SAVE_LANE = (
    "INSERT INTO fair_lane (queue, job_type, position, after_key) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (queue, job_type) DO UPDATE SET"
)
_decode = msgspec.json.decode
Reads = tuple[int, int]  # what a claim may bring: the newest payload version, and the highest suspicion


def heads(tx: Tx, queue: str, job_type: str, limit: int, reads: Reads) -> list[list[Any]]:
    """Return the first jobs of a lane in the order of turns; the last column is the key whose turn it is."""
    found: list[list[Any]] = []
    level = _ABOVE_ALL
    while len(found) < limit:
        level = tx.value(LEVEL, (queue, job_type, level))
        if level < 0:
            break
        turns = _at_level(tx, queue, job_type, level, limit - len(found), reads)
        if turns:
            due = min(candidate[1] for candidate in turns)
            for candidate in turns:
                candidate[1] = due  # sorted with other types as one block, which keeps the order of turns
        found += turns
    return found


def _at_level(tx: Tx, queue: str, job_type: str, level: int, limit: int, reads: Reads) -> list[list[Any]]:
    lane, after = tx.row(_LANE, (queue, job_type)) or (0, "")
    waiting: list[tuple[int, str, int, list[list[Any]]]] = []
    for key, weight, position in _keys(tx, queue, job_type, level, after, reads):
        waiting.append((max(lane, position), key, weight, []))
    own: int = tx.value(_POSITION, (queue, job_type, "")) or 0
    waiting.append((max(lane, own), "", 1, []))
    # A key cannot get more than all slots, so its share is read at once; most get far less.
    share = max(1, -(-limit // len(waiting)))
    heapq.heapify(waiting)
    taken: list[list[Any]] = []
    offsets: dict[str, int] = {}
    while waiting and len(taken) < limit:
        position, key, weight, rows = heapq.heappop(waiting)
        if not rows:
            rows = _read(tx, queue, job_type, level, key, offsets.get(key, 0), share, reads)
            if not rows:
                continue
            offsets[key] = offsets.get(key, 0) + len(rows)
        taken.append([*rows.pop(0), key, weight])
        heapq.heappush(waiting, (position + _STEP // weight, key, weight, rows))
    return taken


def _keys(tx: Tx, queue: str, job_type: str, level: int, after: str, reads: Reads) -> list[tuple[Any, ...]]:
    """Return the keys that take part. If there are too many for one claim, the next one continues after the last, so
    that none is left out."""
    keys = tx.rows(KEYS, (queue, job_type, level, FAIR_KEYS_MAX, after, *reads))
    if after and len(keys) < FAIR_KEYS_MAX:
        again = tx.rows(KEYS, (queue, job_type, level, FAIR_KEYS_MAX - len(keys), "", *reads))
        keys += [each for each in again if each[0] <= after]
    if len(keys) == FAIR_KEYS_MAX:
        tx.connection.execute(f"{_SAVE_LANE} after_key = excluded.after_key", (queue, job_type, 0, keys[-1][0]))
    return keys


def _read(
    tx: Tx, queue: str, job_type: str, level: int, key: str, seen: int, more: int, reads: Reads
) -> list[list[Any]]:
    """Return the next jobs of a key after those already chosen in this claim."""
    if key:
        head = tx.value(HEAD, (queue, job_type, level, key, seen + more, *reads))
    else:
        head = tx.value(PLAIN_HEAD, (queue, job_type, level, seen + more, *reads))
    rows: list[list[Any]] = _decode(head)
    return rows[seen:]


def count_turns(tx: Tx, queue: str, job_type: str, taken: list[tuple[str, int]], now: Instant) -> None:
    """Store the position of each key of a lane, for the jobs that were claimed."""
    lane, after = tx.row(_LANE, (queue, job_type)) or (0, "")
    positions: dict[str, int] = {}
    reached = lane
    for key, weight in taken:
        if key not in positions:
            positions[key] = max(lane, tx.value(_POSITION, (queue, job_type, key)) or 0)
        reached = max(reached, positions[key])
        positions[key] += _STEP // weight
    # The lane is at the position of the last key that had a turn: new keys start there.
    tx.connection.execute(f"{_SAVE_LANE} position = excluded.position", (queue, job_type, reached, after))
    for key, position in positions.items():
        tx.connection.execute(
            "INSERT OR REPLACE INTO fair_key (queue, job_type, fairness_key, position, turn_at) VALUES (?, ?, ?, ?, ?)",
            (queue, job_type, key, position, now),
        )


def forget_idle(tx: Tx, now: Instant) -> None:
    """Delete rows of idle keys. A key at the position of its lane is where a new key would start, so its row is
    redundant. So is the row of a key whose last turn was long ago: it is at most one step ahead of its lane."""
    tx.connection.execute(
        "DELETE FROM fair_key WHERE turn_at < ? OR position <= "
        "(SELECT position FROM fair_lane AS l WHERE l.queue = fair_key.queue AND l.job_type = fair_key.job_type)",
        (now - FAIR_KEY_SECONDS * MICROS,),
    )


PENDING_IN = load("pending_in")
LIMITED = "SELECT name, max_pending FROM queue WHERE max_pending IS NOT NULL"


def refuse_over_limit(tx: Tx, limited: list[tuple[Any, ...]], jobs: Sequence[NewJob], now: Instant) -> None:
    """QueueFull where these would be more than a queue takes. Jobs for later do not wait in it yet."""
    coming = Counter(job.queue for job in jobs if job.scheduled_for <= now)
    for queue, limit in limited:
        if not coming[queue]:
            continue
        # Counted once per transaction: a thousand jobs with keys must not count the queue a thousand times.
        room = tx.room.get(queue)
        if room is None:
            room = limit - tx.value(PENDING_IN, (queue, limit))
        tx.room[queue] = room - coming[queue]
        if coming[queue] > room:
            raise QueueFull(
                f"the queue {queue} accepts {limit:,} pending jobs and has room for {max(0, room):,}:"
                " nothing was stored; submit again when workers have caught up",
                queue=queue,
            )
