"""Turns within a priority, as on every engine: each fairness key goes as far as its weight says.

Whoever takes turns in a lane holds its name until the commit: two claims at once would count the same turn twice.
"""

from __future__ import annotations

import heapq
from typing import Any

from holdfast.clock import MICROS, Instant
from holdfast.limits import FAIR_KEY_SECONDS, FAIR_KEYS_MAX
from holdfast.stores.postgres.tx import Tx

_STEP = 1_000_000
_ABOVE_ALL = 101  # no priority is


async def hold(tx: Tx, lanes: list[tuple[str, str]]) -> None:
    if lanes:
        await tx.rows("lock_names", [f"holdfast turns {queue} {job_type}" for queue, job_type in lanes])


async def heads(tx: Tx, queue: str, job_type: str, limit: int, version: int) -> list[list[Any]]:
    """The first jobs of a lane in the order of their turns, each with the key whose turn it is at its end."""
    found: list[list[Any]] = []
    level = _ABOVE_ALL
    while len(found) < limit:
        level = await tx.value("fair_level", queue, job_type, level)
        if level < 0:
            break
        turns = await _at_level(tx, queue, job_type, level, limit - len(found), version)
        if turns:
            due = min(candidate[1] for candidate in turns)
            for candidate in turns:
                candidate[1] = due  # merged with other types as one block: sorting keeps the turns
        found += turns
    return found


async def _at_level(tx: Tx, queue: str, job_type: str, level: int, limit: int, version: int) -> list[list[Any]]:
    lane, after = await tx.row("fair_lane", queue, job_type) or (0, "")
    keys = await _keys(tx, queue, job_type, level, after, version)
    waiting = [(max(lane, position), key, weight) for key, weight, position in keys]
    own: int = await tx.value("fair_position", queue, job_type, "") or 0
    waiting.append((max(lane, own), "", 1))
    share = max(1, -(-limit // len(waiting)))
    heapq.heapify(waiting)
    taken: list[list[Any]] = []
    read: dict[str, list[list[Any]]] = {}
    seen: dict[str, list[int]] = {}
    while waiting and len(taken) < limit:
        position, key, weight = heapq.heappop(waiting)
        if not read.get(key):
            read[key] = await _read(tx, queue, job_type, level, key, share, version, seen.setdefault(key, []))
            if not read[key]:
                continue
            seen[key] += [row[3] for row in read[key]]
        taken.append([*read[key].pop(0), key, weight])
        heapq.heappush(waiting, (position + _STEP // weight, key, weight))
    return taken


async def _keys(tx: Tx, queue: str, job_type: str, level: int, after: str, version: int) -> list[Any]:
    """The keys that take part. Of more than fit, each claim looks at those beyond the last: nobody is left out."""
    keys = await tx.rows("fair_keys", queue, job_type, level, FAIR_KEYS_MAX, after, version)
    if after and len(keys) < FAIR_KEYS_MAX:
        again = await tx.rows("fair_keys", queue, job_type, level, FAIR_KEYS_MAX - len(keys), "", version)
        keys = [*keys, *(each for each in again if each[0] <= after)]
    if len(keys) == FAIR_KEYS_MAX:
        await tx.execute("save_fair_after", queue, job_type, keys[-1][0])
    return keys


async def _read(
    tx: Tx, queue: str, job_type: str, level: int, key: str, count: int, version: int, seen: list[int]
) -> list[list[Any]]:
    """The next jobs of a key beyond those it has given already in this claim."""
    if not key:
        return await without_turns(tx, queue, job_type, count, version, level, seen)
    return [list(row) for row in await tx.rows("fair_head", queue, job_type, level, key, count, version, seen)]


async def without_turns(
    tx: Tx, queue: str, job_type: str, count: int, version: int, level: int | None, seen: list[int]
) -> list[list[Any]]:
    """The head of a lane among jobs without a fairness key, from the two indexes that hold them."""
    found: list[list[Any]] = []
    for name in ("candidates", "candidates_keyed"):
        found += [list(row) for row in await tx.rows(name, queue, job_type, count, version, level, seen)]
    found.sort(key=lambda row: (-row[0], row[1], row[2]))
    return found[:count]


async def count_turns(tx: Tx, queue: str, job_type: str, taken: list[tuple[str, int]], now: Instant) -> None:
    """Keep how far each key of a lane has come, for jobs that were really claimed."""
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
