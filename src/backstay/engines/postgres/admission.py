"""Admission on PostgreSQL: the buckets and turns that core.admission decides on.

A transaction that reads a bucket in order to write it locks the key's name until the commit. `insert_round` in the
migrations parks what is over the rate. A claim that takes turns in a lane locks its name until the commit: two claims
at once would count the same turn twice.
"""

from __future__ import annotations

from collections.abc import Collection

from backstay.clock import MICROS, Instant
from backstay.core import admission
from backstay.core.admission import NO_TIME, SET_BACK, Bucket, LaneTurns, Level, RunLimits, Turn, TurnOrder
from backstay.core.records import Signal
from backstay.engines import lanes, sql_rows
from backstay.engines.postgres.connection import Candidate, Tx
from backstay.limits import FAIR_KEY_SECONDS, FAIR_KEYS_MAX, RATES_DUE_MAX

# Buckets


def name_of(key: str) -> str:
    return f"backstay rate {key}"


async def in_force(tx: Tx, names: Collection[str]) -> RunLimits:
    """Return what was set at run time for types and keys of these names."""
    found = RunLimits()
    found.add(map(sql_rows.limit, await tx.rows("limits_named", sorted(names))))
    return found


async def levels(tx: Tx, buckets: Collection[Bucket], now: Instant) -> dict[Bucket, Level]:
    found = dict.fromkeys(buckets, Level())
    if buckets:
        for *bucket, full, due, wanted, set_at in await tx.rows("rate_buckets", *map(list, zip(*buckets, strict=True))):
            found[Bucket(*bucket)] = Level(admission.by_this_clock(full, set_at, now), due, wanted)
    return found


async def save(tx: Tx, bucket: Bucket, new: Level, now: Instant) -> None:
    await tx.execute("save_rate", *bucket, new.full_at, new.due_at, new.wanted, now)
    if new.due_at is not None and new.due_at < NO_TIME:
        tx.signals.add(Signal.DUE)


async def left_sight(tx: Tx, keys: Collection[str], now: Instant, *, gone: bool) -> None:
    """Note that jobs of these keys are no longer claimable and did not start: others may be unparked. `gone`: they have
    left the line, and one of them may have been what its bucket waits for."""
    if keys and await tx.execute("left_sight", sorted(keys), now, NO_TIME, gone):
        tx.signals.add(Signal.DUE)


async def unpark_due(tx: Tx, now: Instant) -> int:
    """Unpark jobs that may start now."""
    rows = await tx.rows("rate_due", now, now + SET_BACK, RATES_DUE_MAX)
    changed = 0
    if rows:
        await tx.rows("lock_names", [name_of(key) for key, _, _ in rows])
        for key, count, micros in rows:
            changed += await tx.value("unpark_rate", key, count, micros, now)
    if rows:  # jobs over the rate of their type were not parked
        tx.signals.add(Signal.READY)
    await tx.execute("forget_full_rates", now)
    return changed


async def next_due(tx: Tx, now: Instant) -> Instant | None:
    """Return when parked jobs of any bucket are to be checked."""
    due: Instant | None = await tx.value("rate_next_due", now, now + SET_BACK, NO_TIME)
    return due


async def rate_due(tx: Tx, job_id: str, now: Instant) -> Instant | None:
    row = await tx.row("rate_of_job", job_id)
    if row is None:
        return None
    job_type, key, count, micros, cost = row
    limits = await in_force(tx, {each for each in (job_type, key) if each is not None})
    found = {limits.bucket_of_type(job_type), None if count is None else limits.bucket(Bucket(key, count, micros))}
    named = [bucket for bucket in found if bucket is not None]
    dues = [level.next_start(bucket, now, cost) for bucket, level in (await levels(tx, named, now)).items()]
    due = max(dues, default=now)
    return due if due > now else None


async def look_again(tx: Tx, key: str, now: Instant) -> None:
    """Have the parked jobs of a rate key checked, because what they draw from has changed."""
    await tx.execute("look_again", key, now)
    tx.signals |= {Signal.DUE, Signal.READY}


# Turns

_ABOVE_ALL = 101  # above every priority
# What a claim may bring: the newest payload version, the highest suspicion, and after when a job may expire: after now
# by the store's clock, if it is None.
Reads = tuple[int, int, Instant | None]


async def hold(tx: Tx, pairs: list[tuple[str, str]]) -> None:
    if pairs:
        await tx.rows("lock_names", [f"backstay turns {queue} {job_type}" for queue, job_type in pairs])


async def heads(
    tx: Tx, queue: str, job_type: str, limit: int, reads: Reads, turns: dict[tuple[str, str], LaneTurns]
) -> list[Candidate]:
    """Return the first jobs of a lane in the order of turns, and note in `turns` how far the lane has come."""
    found: list[Candidate] = []
    position, after = await tx.row("fair_lane", queue, job_type) or (0, "")
    own: int = await tx.value("fair_position", queue, job_type, "") or 0
    lane = turns[queue, job_type] = LaneTurns(position, {"": own})
    priority: int | None = _ABOVE_ALL
    while len(found) < limit:
        priority = await tx.value("fair_level", queue, job_type, priority)
        if priority is None:
            break
        weights = await _weights(tx, queue, job_type, priority, after, reads, lane)
        at_level = await _in_turn(tx, queue, job_type, priority, limit - len(found), reads, lane, weights)
        lanes.as_a_block(at_level)
        found += at_level
    return found


async def _in_turn(
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
    seen: dict[str, list[str]] = {}
    taken: list[Candidate] = []
    while len(taken) < limit and (key := turns.next()) is not None:
        if not waiting.get(key):
            known = seen.setdefault(key, [])
            waiting[key] = (await _read(tx, queue, job_type, priority, key, share, reads, known))[::-1]
            known += [each.job_id for each in waiting[key]]
        if not waiting[key]:
            turns.has_none()
            continue
        candidate = waiting[key].pop()
        candidate.turn = Turn((queue, job_type), key, weights[key])
        taken.append(candidate)
        turns.started()
    return taken


async def _weights(
    tx: Tx, queue: str, job_type: str, priority: int, after: str, reads: Reads, lane: LaneTurns
) -> dict[str, int]:
    """Return the keys that take part, with their weights; note their positions. If there are too many for one claim,
    the next one continues after the last, so that none is left out."""
    keys = await tx.rows("fair_keys", queue, job_type, priority, FAIR_KEYS_MAX, after, *reads)
    if after and len(keys) < FAIR_KEYS_MAX:
        again = await tx.rows("fair_keys", queue, job_type, priority, FAIR_KEYS_MAX - len(keys), "", *reads)
        keys = [*keys, *(each for each in again if each[0] <= after)]
    if len(keys) == FAIR_KEYS_MAX:
        await tx.execute("save_fair_after", queue, job_type, keys[-1][0])
    lane.positions.update((key, position) for key, _, position in keys)
    return {"": 1} | {key: weight for key, weight, _ in keys}


async def _read(
    tx: Tx, queue: str, job_type: str, priority: int, key: str, count: int, reads: Reads, seen: list[str]
) -> list[Candidate]:
    """Return the next jobs of a key after those already chosen in this claim."""
    if key:
        rows = await tx.rows("fair_head", queue, job_type, priority, key, count, *reads, seen)
        return [Candidate(*row) for row in rows]
    found: list[Candidate] = []
    for line in (0, 1):  # jobs without a fairness key are in two lines
        rows = await tx.rows("candidates", queue, job_type, count, *reads, priority, seen, line)
        found += [Candidate(*row) for row in rows]
    found.sort(key=lanes.order)
    return found[:count]


async def count_turns(tx: Tx, turns: dict[tuple[str, str], LaneTurns], now: Instant) -> None:
    """Store the new positions of lanes and keys."""
    for (queue, job_type), lane in turns.items():
        await tx.execute("save_fair_lane", queue, job_type, lane.position)
        await tx.execute("save_fair_keys", queue, job_type, list(lane.positions), list(lane.positions.values()), now)


async def forget_idle(tx: Tx, now: Instant) -> None:
    await tx.execute("forget_idle_keys", now - FAIR_KEY_SECONDS * MICROS)
