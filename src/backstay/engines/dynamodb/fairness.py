"""Fair turns on DynamoDB: reads the keys of a lane that have jobs, and stores how far each has come.

A key is known by the sort key of its row. The lane's item has a nonce, which a claim compares: of two that take turns
in one lane at once, one looks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterable, Sequence

import msgspec

from backstay.clock import MICROS, Instant
from backstay.core.admission import LaneTurns, Turn, TurnOrder
from backstay.engines.dynamodb import schema
from backstay.engines.dynamodb.admission import Entry
from backstay.engines.dynamodb.expressions import Ask, Condition, Write, delete, equals, put, update
from backstay.engines.dynamodb.schema import READY, Item, Table
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.table import Failed
from backstay.engines.dynamodb.transport import Lane
from backstay.limits import FAIR_KEY_SECONDS, FAIR_KEYS_MAX

_FIRST_PAGE = 20  # enough if one key has all jobs, as is usual; with many keys, pages grow
_PAGE = 100
_QUERIES_MAX = 40  # per lane and claim; other keys have their turn in the next one
_ROWS_READ_MAX = 500  # keys that had a turn, read with the lane; if there are more, only those that wait
_FORGOTTEN_MAX = 5_000  # rows of keys that one sweep examines, and may remove, per lane
_TOGETHER = 16


class LaneState(LaneTurns):
    """The positions of a lane and its keys, as read."""

    after: str = ""  # the last key examined, if there are more keys than one claim examines
    nonce: str | None = None
    unread: bool = False  # there are more keys than those


class Waiting(msgspec.Struct, frozen=True):
    """A key that takes part, with its first jobs."""

    name: str  # of its row
    weight: int
    rows: Sequence[Item]


async def read(session: Session, queue: str, job_type: str) -> LaneState:
    """Read the lane, which sorts last, and its keys; if there are too many, `_learn` reads the others."""
    lane_state = LaneState()
    ask = Ask(
        table=Table.RECORDS, hash=schema.turns(queue, job_type), backwards=True, page=_ROWS_READ_MAX, consistent=True
    )
    rows, then = await session.tables.page(ask, lane=Lane.IDLE)
    for row in rows:
        if row["sk"] == "lane":
            lane_state.position, lane_state.after = row["position"], row.get("after", "")
            lane_state.nonce = row["nonce"]
        else:
            lane_state.positions[row["sk"]] = row["position"]
    lane_state.unread = then is not None
    return lane_state


async def _learn(session: Session, lane: tuple[str, str], waiting: Iterable[Waiting], lane_state: LaneState) -> None:
    """Read the positions of the keys that take part. A turn taken in the meantime changes the lane's nonce."""
    unknown = [each.name for each in waiting if each.name not in lane_state.positions]
    if lane_state.unread and unknown:
        partition = schema.turns(*lane)
        found = await session.tables.get(Table.RECORDS, [(partition, name) for name in unknown], lane=Lane.IDLE)
        lane_state.positions.update((row["sk"], row["position"]) for row in found if row is not None)


# The order of turns


async def heads(
    session: Session,
    lane: tuple[str, str],
    plain: Sequence[Item],
    limit: int,
    readable: Condition | None,
    lane_state: LaneState,
) -> list[Entry]:
    """Return the first jobs of a lane in the order of turns. `plain` are the first jobs without a key, each with its
    place in the lane as `gq`."""
    found: list[Entry] = []
    above = ""
    while len(found) < limit:
        level = await _next_level(session, lane, plain, above)
        if level is None:
            break
        above = level
        waiting = await _keys(session, lane, level, limit, readable, lane_state)
        of_level = [row for row in plain if row["gq"].startswith(f"{level}|")]
        waiting.append(Waiting(schema.turn_of(*lane, None)[1], 1, of_level))
        await _learn(session, lane, waiting, lane_state)
        turns = in_turn(waiting, lane_state, limit - len(found))
        if turns:
            due = min(str(row["gq"]).split("|")[-2] for _, row in turns)
            order = f"{level}|{due}|"  # sorted with other types as one block, which keeps the order of turns
            found += [Entry(row["job_id"], order, Turn(lane, each.name, each.weight)) for each, row in turns]
    return found


async def _next_level(session: Session, lane: tuple[str, str], plain: Sequence[Item], above: str) -> str | None:
    """Return the highest priority below the last one at which a job waits."""
    levels = [str(row["gq"])[:3] for row in plain if str(row["gq"])[:3] > above]
    for shard in range(session.shards):
        hash_value = schema.fair_hash(*lane, shard)
        after = f"{above}|{schema.HIGH}" if above else None
        rows, _ = await session.tables.page(
            Ask(table=Table.JOBS, index=READY.name, hash=hash_value, above=after, page=1), lane=Lane.IDLE
        )
        levels += [str(row["gq"])[:3] for row in rows]
    return min(levels, default=None)


async def _keys(
    session: Session,
    lane: tuple[str, str],
    level: str,
    limit: int,
    readable: Condition | None,
    lane_state: LaneState,
) -> list[Waiting]:
    """Return the keys that take part. If there are too many for one claim, the next one continues after the last, so
    that none is left out."""
    found: dict[str, list[Item]] = {}
    last = None
    place = f"{schema.fair_ready(*lane)}|{level}"
    after = session.remembered.left_off.pop(place, lane_state.after)
    for shard in range(session.shards):
        hash_value = schema.fair_hash(*lane, shard)
        last = await _walk(session, hash_value, level, after, None, limit, readable, found)
        if last is None and after:
            last = await _walk(session, hash_value, level, "", after, limit, readable, found)
        if last is not None:
            break
    lane_state.after = last or ""
    if last is not None and not found:  # all were too new for this worker: no claim would store the position
        session.remembered.left_off[place] = last
    return [
        Waiting(schema.turn_of(*lane, rows[0]["fairness_key"])[1], _weight(rows[0]), rows) for rows in found.values()
    ]


async def _walk(
    session: Session,
    hash_value: str,
    level: str,
    after: str,
    up_to: str | None,
    limit: int,
    readable: Condition | None,
    found: dict[str, list[Item]],
) -> str | None:
    """Collect keys and the first jobs of each; return the last key if there are more than one claim examines. A key
    that fills a page is skipped as soon as it has enough jobs: one query per such key, however many jobs it has."""
    above = f"{level}|{after}|{schema.HIGH}" if after else None
    name, page = after, _FIRST_PAGE if readable is None else _PAGE
    for _ in range(_QUERIES_MAX):
        ask = Ask(
            table=Table.JOBS,
            index=READY.name,
            hash=hash_value,
            begins=f"{level}|",
            above=above,
            up_to=None if up_to is None else f"{level}|{up_to}|{schema.HIGH}",
            page=page,
            where=readable,
        )
        read_rows, then = await session.tables.page(ask, lane=Lane.IDLE)
        for row in read_rows:
            before, name = name, _name(row)
            if name not in found and len(found) >= FAIR_KEYS_MAX:
                return before
            rows = found.setdefault(name, [])
            if len(rows) < limit:
                rows.append(row)
        if then is None:
            return None
        name = _name(then)
        given_enough = len(found.get(name, ())) >= min(limit, _PAGE)
        above = f"{level}|{name}|{schema.HIGH}" if given_enough else str(then["gq"])
        page = min(2 * page, _PAGE)
    return name


def _name(row: Item) -> str:
    return str(row["gq"]).split("|")[1]


def _weight(row: Item) -> int:
    return int(row.get("fairness_weight", 1))


def in_turn(waiting: Iterable[Waiting], lane_state: LaneTurns, limit: int) -> list[tuple[Waiting, Item]]:
    """Return the jobs in the order of turns. Pure."""
    keys = {each.name: each for each in waiting}
    rows = {name: iter(each.rows) for name, each in keys.items()}
    turns = TurnOrder(lane_state, {name: each.weight for name, each in keys.items()})
    taken: list[tuple[Waiting, Item]] = []
    while len(taken) < limit and (name := turns.next()) is not None:
        row = next(rows[name], None)
        if row is None:
            turns.has_none()
        else:
            taken.append((keys[name], row))
            turns.started()
    return taken


# Counting turns


def count_turns(lane: tuple[str, str], was: LaneState, new: LaneTurns, now: Instant) -> list[Write]:
    """Return the writes of the new positions of a lane and its keys, for the commit that claims the jobs."""
    pk, sk = schema.turns_lane(*lane)
    row = {"pk": pk, "sk": sk, "position": new.position, "after": was.after, "nonce": secrets.token_hex(6)}
    writes = [put(Table.RECORDS, row, equals("nonce", was.nonce))]
    for name, position in new.positions.items():
        writes.append(put(Table.RECORDS, {"pk": pk, "sk": name, "position": position, "turn_at": now}))
    return writes


async def forget_idle(session: Session, lanes: Iterable[tuple[str, str]], now: Instant) -> None:
    """Delete rows of idle keys. A key at the position of its lane is where a new key would start, so its row is
    redundant. So is the row of a key whose last turn was long ago: it is at most one step ahead of its lane. If there
    are many, each sweep continues after the last."""
    for lane in lanes:
        lane_state = await read(session, *lane)
        rows = await _rows_in_turn(session, lane)
        idle = [
            row
            for row in rows
            if row["turn_at"] < now - FAIR_KEY_SECONDS * MICROS or row["position"] <= lane_state.position
        ]
        for start in range(0, len(idle), _TOGETHER):
            await asyncio.gather(*(_forget(session, row) for row in idle[start : start + _TOGETHER]))


async def _rows_in_turn(session: Session, lane: tuple[str, str]) -> list[Item]:
    place = schema.turn(schema.turns(*lane))
    [last] = await session.tables.get(Table.RECORDS, [place], lane=Lane.IDLE)
    after = None if last is None else last.get("after")
    ask = Ask(
        table=Table.RECORDS,
        hash=schema.turns(*lane),
        begins="key|",
        above=after,
        page=_FORGOTTEN_MAX,
        consistent=True,
    )
    rows, then = await session.tables.page(ask, lane=Lane.IDLE)
    if then is not None:
        await session.tables.update(update(Table.RECORDS, place, sets={"after": then["sk"]}), lane=Lane.IDLE)
    elif after is not None:
        await session.tables.update(update(Table.RECORDS, place, removes=("after",)), lane=Lane.IDLE)
    return rows


async def _forget(session: Session, row: Item) -> None:
    unchanged = equals("position", row["position"]) & equals("turn_at", row["turn_at"])
    with contextlib.suppress(Failed):
        await session.tables.update(delete(Table.RECORDS, (row["pk"], row["sk"]), unchanged), lane=Lane.IDLE)
