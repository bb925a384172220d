"""Turns within a priority: each fairness key goes as far as its weight says, jobs without a key as one key more.

A key has a position, which every start moves on by a step divided by its weight; the key that is least far comes next.
One that had nothing to do starts where the lane is: an absence earns nothing.
"""

from __future__ import annotations

import heapq
from typing import Any

import msgspec

from holdfast.clock import MICROS, Instant
from holdfast.limits import FAIR_KEY_SECONDS, FAIR_KEYS_MAX
from holdfast.stores.sqlite.sql import load
from holdfast.stores.sqlite.tx import Tx

ANY = load("fair_any")
LEVEL = load("fair_level")
KEYS = load("fair_keys")
HEAD = load("fair_head")
PLAIN_HEAD = load("plain_head")
_STEP = 1_000_000
_ABOVE_ALL = 101  # no priority is
_POSITION = "SELECT position FROM fair_key WHERE queue = ? AND job_type = ? AND fairness_key = ?"
_LANE = "SELECT position, after_key FROM fair_lane WHERE queue = ? AND job_type = ?"
_SAVE_LANE = (
    "INSERT INTO fair_lane (queue, job_type, position, after_key) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (queue, job_type) DO UPDATE SET"
)
_decode = msgspec.json.decode


def any_keys(tx: Tx, queue: str, job_type: str) -> bool:
    return bool(tx.value(ANY, (queue, job_type)))


def heads(tx: Tx, queue: str, job_type: str, limit: int, version: int) -> list[list[Any]]:
    """The first jobs of a lane in the order of their turns, each with the key whose turn it is at its end."""
    found: list[list[Any]] = []
    level = _ABOVE_ALL
    while len(found) < limit:
        level = tx.value(LEVEL, (queue, job_type, level))
        if level < 0:
            break
        turns = _at_level(tx, queue, job_type, level, limit - len(found), version)
        if turns:
            due = min(candidate[1] for candidate in turns)
            for candidate in turns:
                candidate[1] = due  # merged with other types as one block: sorting keeps the turns
        found += turns
    return found


def _at_level(tx: Tx, queue: str, job_type: str, level: int, limit: int, version: int) -> list[list[Any]]:
    lane, after = tx.row(_LANE, (queue, job_type)) or (0, "")
    waiting: list[tuple[int, str, int, list[list[Any]]]] = []
    for key, weight, position in _keys(tx, queue, job_type, level, after, version):
        waiting.append((max(lane, position), key, weight, []))
    own: int = tx.value(_POSITION, (queue, job_type, "")) or 0
    waiting.append((max(lane, own), "", 1, []))
    # A key cannot get more than the whole, so that its share is read at once; most get far less.
    share = max(1, -(-limit // len(waiting)))
    heapq.heapify(waiting)
    taken: list[list[Any]] = []
    offsets: dict[str, int] = {}
    while waiting and len(taken) < limit:
        position, key, weight, rows = heapq.heappop(waiting)
        if not rows:
            rows = _read(tx, queue, job_type, level, key, offsets.get(key, 0), share, version)
            if not rows:
                continue
            offsets[key] = offsets.get(key, 0) + len(rows)
        taken.append([*rows.pop(0), key, weight])
        heapq.heappush(waiting, (position + _STEP // weight, key, weight, rows))
    return taken


def _keys(tx: Tx, queue: str, job_type: str, level: int, after: str, version: int) -> list[tuple[Any, ...]]:
    """The keys that take part. Of more than fit, each claim looks at those beyond the last: nobody is left out."""
    keys = tx.rows(KEYS, (queue, job_type, level, FAIR_KEYS_MAX, after, version))
    if after and len(keys) < FAIR_KEYS_MAX:
        again = tx.rows(KEYS, (queue, job_type, level, FAIR_KEYS_MAX - len(keys), "", version))
        keys += [each for each in again if each[0] <= after]
    if len(keys) == FAIR_KEYS_MAX:
        tx.execute(f"{_SAVE_LANE} after_key = excluded.after_key", (queue, job_type, 0, keys[-1][0]))
    return keys


def _read(
    tx: Tx, queue: str, job_type: str, level: int, key: str, seen: int, more: int, version: int
) -> list[list[Any]]:
    """The next jobs of a key beyond those it has given already in this claim."""
    if key:
        head = tx.value(HEAD, (queue, job_type, level, key, seen + more, version))
    else:
        head = tx.value(PLAIN_HEAD, (queue, job_type, level, seen + more, version))
    rows: list[list[Any]] = _decode(head)
    return rows[seen:]


def count_turns(tx: Tx, queue: str, job_type: str, taken: list[tuple[str, int]], now: Instant) -> None:
    """Keep how far each key of a lane has come, for jobs that were really claimed."""
    lane, after = tx.row(_LANE, (queue, job_type)) or (0, "")
    positions: dict[str, int] = {}
    reached = lane
    for key, weight in taken:
        if key not in positions:
            positions[key] = max(lane, tx.value(_POSITION, (queue, job_type, key)) or 0)
        reached = max(reached, positions[key])
        positions[key] += _STEP // weight
    # The lane is as far as the last key whose turn it was: whoever comes new starts there.
    tx.execute(f"{_SAVE_LANE} position = excluded.position", (queue, job_type, reached, after))
    for key, position in positions.items():
        tx.execute(
            "INSERT OR REPLACE INTO fair_key (queue, job_type, fairness_key, position, turn_at) VALUES (?, ?, ?, ?, ?)",
            (queue, job_type, key, position, now),
        )


def forget_idle(tx: Tx, now: Instant) -> None:
    """A key that is no further than its lane is where a new one would start: its row says nothing. Nor does that of one
    whose last turn was long ago: it was one step ahead of its lane, and that may not have moved since."""
    tx.execute(
        "DELETE FROM fair_key WHERE turn_at < ? OR position <= "
        "(SELECT position FROM fair_lane AS l WHERE l.queue = fair_key.queue AND l.job_type = fair_key.job_type)",
        (now - FAIR_KEY_SECONDS * MICROS,),
    )
