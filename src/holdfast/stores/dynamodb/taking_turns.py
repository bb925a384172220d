"""Turns within a priority: each fairness key goes as far as its weight says, jobs without a key as one key more.

A key has a position, which every start moves on by a step divided by its weight; the key that is least far comes next.
One that had nothing to do starts where the lane is: an absence earns nothing. The lane's item has a nonce, which a
claim compares: of two that take turns in one lane at once, one looks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import secrets
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.clock import MICROS, Instant
from holdfast.limits import FAIR_KEY_SECONDS, FAIR_KEYS_MAX
from holdfast.stores.dynamodb import keys
from holdfast.stores.dynamodb.admitting import Entry, Turn
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.commit import Write, delete, put, update
from holdfast.stores.dynamodb.expressions import Condition, equals
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import READY, Table
from holdfast.stores.dynamodb.table import Failed
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane

_STEP = 1_000_000
_FIRST_PAGE = 20  # where one key has it all, as is usual, no more is read; where many do, pages grow
_PAGE = 100
_QUERIES_MAX = 40  # of one lane and claim; keys beyond have their turn in the next one
_ROWS_READ_MAX = 500  # keys that had a turn, read with the lane; where there are more, only those that wait
_FORGOTTEN_MAX = 5_000  # rows of keys that one sweep looks at, and may remove, in a lane
_TOGETHER = 16


class Standing(msgspec.Struct):
    """How far a lane and its keys have come, as it was read."""

    position: int = 0
    after: str = ""  # of more keys than are looked at in one claim, the last that was
    nonce: str | None = None
    positions: dict[str, int] = msgspec.field(default_factory=dict)  # by the sort key of the key's row
    unread: bool = False  # there are more keys than those


class Waiting(msgspec.Struct, frozen=True):
    """A key that takes part, and its first jobs."""

    name: str  # of its row
    key: str | None
    weight: int
    rows: Sequence[Item]


async def read(ground: Ground, queue: str, job_type: str) -> Standing:
    """The lane, which comes first from behind, and its keys: of very many some, and `_learn` asks for the others."""
    standing = Standing()
    ask = Ask(
        table=Table.RECORDS, hash=keys.turns(queue, job_type), backwards=True, page=_ROWS_READ_MAX, consistent=True
    )
    rows, then = await ground.tables.page(ask, lane=Lane.IDLE)
    for row in rows:
        if row["sk"] == "lane":
            standing.position, standing.after = row["position"], row.get("after", "")
            standing.nonce = row["nonce"]
        else:
            standing.positions[row["sk"]] = row["position"]
    standing.unread = then is not None
    return standing


async def _learn(ground: Ground, lane: tuple[str, str], waiting: Iterable[Waiting], standing: Standing) -> None:
    """How far those have come that take part now. Whoever takes a turn meanwhile changes the lane's nonce."""
    unknown = [each.name for each in waiting if each.name not in standing.positions]
    if standing.unread and unknown:
        partition = keys.turns(*lane)
        found = await ground.tables.get(Table.RECORDS, [(partition, name) for name in unknown], lane=Lane.IDLE)
        standing.positions.update((row["sk"], row["position"]) for row in found if row is not None)


# Whose turn it is


async def heads(
    ground: Ground,
    lane: tuple[str, str],
    plain: Sequence[Item],
    limit: int,
    readable: Condition | None,
    standing: Standing,
) -> list[Entry]:
    """The first jobs of a lane in the order of their turns. `plain` are the first of those without a key."""
    found: list[Entry] = []
    above = ""
    while len(found) < limit:
        level = await _next_level(ground, lane, plain, above)
        if level is None:
            break
        above = level
        waiting = await _keys(ground, lane, level, limit, readable, standing)
        of_level = [row for row in plain if row["gq"].startswith(f"{level}|")]
        waiting.append(Waiting(keys.turn_of(*lane, None)[1], None, 1, of_level))
        await _learn(ground, lane, waiting, standing)
        turns = in_turn(waiting, standing, limit - len(found))
        if turns:
            due = min(str(row["gq"]).split("|")[-2] for _, row in turns)
            order = f"{level}|{due}|"  # merged with other types as one block: sorting keeps the turns
            found += [Entry(row["job_id"], order, Turn(lane, each.key, each.weight)) for each, row in turns]
    return found


async def _next_level(ground: Ground, lane: tuple[str, str], plain: Sequence[Item], above: str) -> str | None:
    """The most urgent level below the last at which anything waits."""
    levels = [str(row["gq"])[:3] for row in plain if str(row["gq"])[:3] > above]
    for shard in range(ground.shards):
        hash_value = keys.ready_hash(*lane, shard, fair=True)
        after = f"{above}|{keys.HIGH}" if above else None
        rows, _ = await ground.tables.page(
            Ask(table=Table.JOBS, index=READY.name, hash=hash_value, above=after, page=1), lane=Lane.IDLE
        )
        levels += [str(row["gq"])[:3] for row in rows]
    return min(levels, default=None)


async def _keys(
    ground: Ground,
    lane: tuple[str, str],
    level: str,
    limit: int,
    readable: Condition | None,
    standing: Standing,
) -> list[Waiting]:
    """The keys that take part. Of more than fit, each claim looks at those beyond the last: nobody is left out."""
    found: dict[str, list[Item]] = {}
    last = None
    place = f"{keys.fair_ready(*lane)}|{level}"
    after = ground.remembered.left_off.pop(place, standing.after)
    for shard in range(ground.shards):
        hash_value = keys.ready_hash(*lane, shard, fair=True)
        last = await _walk(ground, hash_value, level, after, None, limit, readable, found)
        if last is None and after:
            last = await _walk(ground, hash_value, level, "", after, limit, readable, found)
        if last is not None:
            break
    standing.after = last or ""
    if last is not None and not found:  # all were too new for this worker: nobody writes down how far it came
        ground.remembered.left_off[place] = last
    return [
        Waiting(keys.turn_of(*lane, rows[0]["fairness_key"])[1], rows[0]["fairness_key"], _weight(rows[0]), rows)
        for rows in found.values()
    ]


async def _walk(
    ground: Ground,
    hash_value: str,
    level: str,
    after: str,
    up_to: str | None,
    limit: int,
    readable: Condition | None,
    found: dict[str, list[Item]],
) -> str | None:
    """Collect keys and the first jobs of each; the last one where there were more than one claim looks at. A key that
    fills a page is left as soon as it has given enough: one query for each such key, however many jobs it has."""
    above = f"{level}|{after}|{keys.HIGH}" if after else None
    name, page = after, _FIRST_PAGE if readable is None else _PAGE
    for _ in range(_QUERIES_MAX):
        ask = Ask(
            table=Table.JOBS,
            index=READY.name,
            hash=hash_value,
            begins=f"{level}|",
            above=above,
            up_to=None if up_to is None else f"{level}|{up_to}|{keys.HIGH}",
            page=page,
            where=readable,
        )
        read_rows, then = await ground.tables.page(ask, lane=Lane.IDLE)
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
        above = f"{level}|{name}|{keys.HIGH}" if given_enough else str(then["gq"])
        page = min(2 * page, _PAGE)
    return name


def _name(row: Item) -> str:
    return str(row["gq"]).split("|")[1]


def _weight(row: Item) -> int:
    return int(row.get("fairness_weight", 1))


def in_turn(waiting: Iterable[Waiting], standing: Standing, limit: int) -> list[tuple[Waiting, Item]]:
    """Pure: whose jobs come next, one after the other."""
    line = [
        (max(standing.position, standing.positions.get(each.name, 0)), each.name, 0, each)
        for each in waiting
        if each.rows
    ]
    heapq.heapify(line)
    taken: list[tuple[Waiting, Item]] = []
    while line and len(taken) < limit:
        position, name, given, each = heapq.heappop(line)
        taken.append((each, each.rows[given]))
        if given + 1 < len(each.rows):
            heapq.heappush(line, (position + _STEP // each.weight, name, given + 1, each))
    return taken


# Counting turns


def count_turns(lane: tuple[str, str], standing: Standing, taken: Iterable[Turn], now: Instant) -> list[Write]:
    """How far each key of a lane has come, for jobs that are claimed in the same commit."""
    positions: dict[str, int] = {}
    reached = standing.position
    for turn in taken:
        name = keys.turn_of(*lane, turn.key)[1]
        if name not in positions:
            positions[name] = max(standing.position, standing.positions.get(name, 0))
        reached = max(reached, positions[name])
        positions[name] += _STEP // turn.weight
    # The lane is as far as the last key whose turn it was: whoever comes new starts there.
    pk, sk = keys.turns_lane(*lane)
    row = {"pk": pk, "sk": sk, "position": reached, "after": standing.after, "nonce": secrets.token_hex(6)}
    writes = [put(Table.RECORDS, row, equals("nonce", standing.nonce))]
    for name, position in positions.items():
        writes.append(put(Table.RECORDS, {"pk": pk, "sk": name, "position": position, "turn_at": now}))
    return writes


async def forget_idle(ground: Ground, lanes: Iterable[tuple[str, str]], now: Instant) -> None:
    """A key that is no further than its lane is where a new one would start: its row says nothing. Nor does that of one
    whose last turn was long ago: it was one step ahead of its lane, and that may not have moved since. Of very many
    each sweep looks at those behind the last."""
    for lane in lanes:
        standing = await read(ground, *lane)
        rows = await _rows_in_turn(ground, lane)
        idle = [
            row
            for row in rows
            if row["turn_at"] < now - FAIR_KEY_SECONDS * MICROS or row["position"] <= standing.position
        ]
        for start in range(0, len(idle), _TOGETHER):
            await asyncio.gather(*(_forget(ground, row) for row in idle[start : start + _TOGETHER]))


async def _rows_in_turn(ground: Ground, lane: tuple[str, str]) -> list[Item]:
    place = keys.turn(keys.turns(*lane))
    [last] = await ground.tables.get(Table.RECORDS, [place], lane=Lane.IDLE)
    after = None if last is None else last.get("after")
    ask = Ask(
        table=Table.RECORDS,
        hash=keys.turns(*lane),
        begins="key|",
        above=after,
        page=_FORGOTTEN_MAX,
        consistent=True,
    )
    rows, then = await ground.tables.page(ask, lane=Lane.IDLE)
    if then is not None:
        await ground.tables.update(update(Table.RECORDS, place, sets={"after": then["sk"]}), lane=Lane.IDLE)
    elif after is not None:
        await ground.tables.update(update(Table.RECORDS, place, removes=("after",)), lane=Lane.IDLE)
    return rows


async def _forget(ground: Ground, row: Item) -> None:
    unchanged = equals("position", row["position"]) & equals("turn_at", row["turn_at"])
    with contextlib.suppress(Failed):
        await ground.tables.update(delete(Table.RECORDS, (row["pk"], row["sk"]), unchanged), lane=Lane.IDLE)
