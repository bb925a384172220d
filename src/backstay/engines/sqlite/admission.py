"""Admission on SQLite: the gates that core.admission decides on, what is parked, and queue limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import apsw
import msgspec

from backstay.clock import MICROS, Instant
from backstay.core import admission
from backstay.core.admission import NO_TIME, SET_BACK, Bucket, LaneTurns, Level, RunLimits, Turn, TurnOrder
from backstay.core.records import NewJob, Signal
from backstay.engines import lanes, sql_rows
from backstay.engines.sqlite import connection as sqlite_connection
from backstay.engines.sqlite.connection import Candidate, load
from backstay.engines.sqlite.writer import Tx
from backstay.limits import FAIR_KEY_SECONDS, FAIR_KEYS_MAX, RATES_DUE_MAX

LIMITS_NAMED = load("limits_named")
LOOK_AGAIN = load("rate_look_again")
DUE = load("rate_due")
LANES = load("rate_lanes")
IN_SIGHT = load("rate_in_sight")
UNPARK = load("rate_unpark")
SAVE = load("rate_save")
PARK = load("park")
BRING_BACK = load("bring_back")
BUCKET = load("rate_bucket")
LEFT_SIGHT = load("rate_left_sight")
RATE_OF = load("rate_of")
FORGET = load("rate_forget")
NEXT = load("rate_next")
JUMPED = load("rate_jumped")


_candidates = msgspec.json.Decoder(list[Candidate]).decode


# Buckets


def in_force(connection: apsw.Connection, names: Collection[str]) -> RunLimits:
    """Return what was set at run time for types and keys of these names."""
    found = RunLimits()
    found.add(map(sql_rows.limit, sqlite_connection.rows(connection, LIMITS_NAMED, (_json(names),))))
    return found


def _json(names: Collection[str]) -> str:
    return msgspec.json.encode(list(names)).decode()


def level(connection: apsw.Connection, bucket: Bucket, now: Instant) -> Level:
    row = sqlite_connection.row(connection, BUCKET, bucket)
    if row is None:
        return Level()
    full, due, wanted, set_at = row
    return Level(admission.by_this_clock(full, set_at, now), due, wanted)


def save(tx: Tx, bucket: Bucket, new: Level, now: Instant) -> None:
    tx.connection.execute(SAVE, (*bucket, new.full_at, new.due_at, new.wanted, now))
    if new.due_at is not None and new.due_at < NO_TIME:
        tx.signals.add(Signal.DUE)


# Parking


def has_to_wait(tx: Tx, job: NewJob, now: Instant) -> bool:
    """Return whether a new job is to be parked; if so, its bucket gets a time for the next check."""
    if job.rate_key is None or job.rate is None:
        return False
    lot = Bucket(job.rate_key, job.rate.count, job.rate.micros)
    bucket = in_force(tx.connection, [lot.key]).bucket(lot)
    was = level(tx.connection, bucket, now)
    places = was.places(bucket, now)
    # Claimable jobs that come later do not block it: they are parked when it is claimed.
    lane, place = (job.queue, job.job_type, job.payload_version), (job.priority, job.scheduled_for, job.job_id)
    if tx.value(IN_SIGHT, (*lot, *lane, *place, places)) < places:
        return False
    parked = was if lot == bucket else level(tx.connection, lot, now)
    if parked.due_at is None:
        save(tx, lot, Level(parked.full_at, was.check_at(bucket, now), parked.wanted), now)
    tx.signals.add(Signal.DUE)
    return True


def left_sight(tx: Tx, keys: Collection[str], now: Instant, *, gone: bool) -> None:
    """Note that jobs of these rate keys are no longer claimable and did not start: others may be unparked. `gone`: they
    have left the line, and one of them may have been what its bucket waits for."""
    tx.connection.execute(LEFT_SIGHT, (now, NO_TIME, msgspec.json.encode(list(keys)).decode(), gone))
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
    due = tx.rows(DUE, (now, now + SET_BACK, RATES_DUE_MAX))
    changed = sum(_unpark(tx, Bucket(*row), now) for row in due)
    if due:  # jobs over the rate of their type were not parked
        tx.signals.add(Signal.READY)
    tx.connection.execute(FORGET, (now,))  # a full bucket is the same as no bucket
    return changed


def _unpark(tx: Tx, lot: Bucket, now: Instant) -> int:
    """Unpark jobs that were submitted with a bucket, as many as what they draw from allows."""
    bucket = in_force(tx.connection, [lot.key]).bucket(lot)
    was = level(tx.connection, bucket, now)
    places = was.places(bucket, now)
    changed = 0
    for lane in tx.rows(LANES, lot):
        changed += bring_back(tx, tx.value(UNPARK, (*lot, *lane, places)), admission.BY_RATE)
    own = was if lot == bucket else level(tx.connection, lot, now)
    save(tx, lot, own.checked(was.check_at(bucket, now) if tx.rows(LANES, lot) else None), now)
    return changed


def look_again(tx: Tx, key: str, now: Instant) -> None:
    """Have the parked jobs of a rate key checked, because what they draw from has changed."""
    tx.connection.execute(LOOK_AGAIN, (now, key))
    tx.signals |= {Signal.DUE, Signal.READY}


def next_due(connection: apsw.Connection, now: Instant) -> Instant | None:
    """Return when parked jobs of any bucket are to be checked."""
    if sqlite_connection.value(connection, JUMPED, (now + SET_BACK,)):
        return now
    due: Instant | None = sqlite_connection.value(connection, NEXT, (NO_TIME,))
    return due


def rate_due(connection: apsw.Connection, job_id: str, now: Instant) -> Instant | None:
    row = sqlite_connection.row(connection, RATE_OF, (job_id,))
    if row is None:
        return None
    job_type, key, count, micros, cost = row
    limits = in_force(connection, [each for each in (job_type, key) if each is not None])
    found = {limits.bucket_of_type(job_type), None if count is None else limits.bucket(Bucket(key, count, micros))}
    dues = [level(connection, bucket, now).next_start(bucket, now, cost) for bucket in found if bucket is not None]
    due = max(dues, default=now)
    return due if due > now else None


# Turns

LEVEL = load("fair_level")
KEYS = load("fair_keys")
HEAD = load("fair_head")
PLAIN_HEAD = load("plain_head")
_ABOVE_ALL = 101  # above every priority
POSITION = load("fair_position")
LANE = load("fair_lane")
SAVE_AFTER = load("save_fair_after")
SAVE_LANE = load("save_fair_lane")
SAVE_FAIR_KEY = load("save_fair_key")
FORGET_IDLE = load("forget_idle_keys")
# What a claim may bring: the newest payload version, the highest suspicion, and after when a job may expire.
Reads = tuple[int, int, Instant]


def heads(
    tx: Tx, queue: str, job_type: str, limit: int, reads: Reads, turns: dict[tuple[str, str], LaneTurns]
) -> list[Candidate]:
    """Return the first jobs of a lane in the order of turns, and note in `turns` how far the lane has come."""
    found: list[Candidate] = []
    position, after = tx.row(LANE, (queue, job_type)) or (0, "")
    own: int = tx.value(POSITION, (queue, job_type, "")) or 0
    lane = turns[queue, job_type] = LaneTurns(position, {"": own})
    priority = _ABOVE_ALL
    while len(found) < limit:
        priority = tx.value(LEVEL, (queue, job_type, priority))
        if priority < 0:
            break
        weights = _weights(tx, queue, job_type, priority, after, reads, lane)
        at_level = _in_turn(tx, queue, job_type, priority, limit - len(found), reads, lane, weights)
        lanes.as_a_block(at_level)
        found += at_level
    return found


def _in_turn(
    tx: Tx,
    queue: str,
    job_type: str,
    priority: int,
    limit: int,
    reads: Reads,
    lane: LaneTurns,
    weights: dict[str, int],
) -> list[Candidate]:
    turns = TurnOrder(lane, weights)
    # A key cannot get more than all slots, so its share is read at once; most get far less.
    share = -(-limit // len(weights))
    waiting: dict[str, list[Candidate]] = {}
    seen: Counter[str] = Counter()
    taken: list[Candidate] = []
    while len(taken) < limit and (key := turns.next()) is not None:
        if not waiting.get(key):
            waiting[key] = _read(tx, queue, job_type, priority, key, seen[key], share, reads)[::-1]
            seen[key] += len(waiting[key])
        if not waiting[key]:
            turns.has_none()
            continue
        candidate = waiting[key].pop()
        candidate.turn = Turn((queue, job_type), key, weights[key])
        taken.append(candidate)
        turns.started()
    return taken


def _weights(
    tx: Tx, queue: str, job_type: str, priority: int, after: str, reads: Reads, lane: LaneTurns
) -> dict[str, int]:
    """Return the keys that take part, with their weights; note their positions. If there are too many for one claim,
    the next one continues after the last, so that none is left out."""
    keys = tx.rows(KEYS, (queue, job_type, priority, FAIR_KEYS_MAX, after, *reads))
    if after and len(keys) < FAIR_KEYS_MAX:
        again = tx.rows(KEYS, (queue, job_type, priority, FAIR_KEYS_MAX - len(keys), "", *reads))
        keys += [each for each in again if each[0] <= after]
    if len(keys) == FAIR_KEYS_MAX:
        tx.connection.execute(SAVE_AFTER, (queue, job_type, keys[-1][0]))
    lane.positions.update((key, position) for key, _, position in keys)
    return {"": 1} | {key: weight for key, weight, _ in keys}


def _read(
    tx: Tx, queue: str, job_type: str, priority: int, key: str, seen: int, more: int, reads: Reads
) -> list[Candidate]:
    """Return the next jobs of a key after those already chosen in this claim."""
    if key:
        head = tx.value(HEAD, (queue, job_type, priority, key, seen + more, *reads))
    else:
        head = tx.value(PLAIN_HEAD, (queue, job_type, priority, seen + more, *reads))
    return _candidates(head)[seen:]


def count_turns(tx: Tx, turns: dict[tuple[str, str], LaneTurns], now: Instant) -> None:
    """Store the new positions of lanes and keys."""
    for (queue, job_type), lane in turns.items():
        tx.connection.execute(SAVE_LANE, (queue, job_type, lane.position))
        tx.connection.executemany(
            SAVE_FAIR_KEY,
            [(queue, job_type, key, position, now) for key, position in lane.positions.items()],
        )


def forget_idle(tx: Tx, now: Instant) -> None:
    """Delete rows of idle keys. A key at the position of its lane is where a new key would start, so its row is
    redundant. So is the row of a key whose last turn was long ago: it is at most one step ahead of its lane."""
    tx.connection.execute(FORGET_IDLE, (now - FAIR_KEY_SECONDS * MICROS,))


# Queues

PENDING_IN = load("pending_in")


def refuse_over_limit(tx: Tx, limited: list[tuple[Any, ...]], jobs: Sequence[NewJob], now: Instant) -> None:
    """Raise QueueFull if these would be more than a queue takes. Jobs for later do not wait in it yet."""
    coming = Counter(job.queue for job in jobs if job.scheduled_for <= now)
    for queue, limit in limited:
        if not coming[queue]:
            continue
        # Counted once per transaction: a thousand jobs with keys must not count the queue a thousand times.
        room = tx.room.get(queue)
        if room is None:
            room = limit - tx.value(PENDING_IN, (queue, limit))
        tx.room[queue] = room - coming[queue]
        admission.refuse_over_limit(queue, limit, room, coming[queue])
