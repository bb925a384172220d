"""Parking on DynamoDB: hides jobs that cannot start now from claims, and brings them back when they can.

Parking is advice that affects only speed: gates decide at the claim. A mark in `waiting` is written before anything is
parked, and stays until a sweep finds that nothing is, so that whatever is parked is checked again. Both indexes have
the same order: `in|lane|place` for claimable jobs, `out|lane|place` for parked ones.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from backstay.clock import MICROS, Instant
from backstay.core.admission import NO_TIME, SET_BACK, Admission, Bucket, RunLimits
from backstay.core.records import Signal
from backstay.core.states import Status
from backstay.engines.dynamodb import admission as dynamodb_admission
from backstay.engines.dynamodb import schema, transitions
from backstay.engines.dynamodb.admission import (
    FRESH_MICROS,
    Drawn,
    Head,
    RateGate,
    bucket_of,
    limited_key,
    looked_again_at,
)
from backstay.engines.dynamodb.commit import Cancelled, Commit
from backstay.engines.dynamodb.expressions import (
    Ask,
    Condition,
    above,
    absent,
    any_of,
    change,
    check,
    delete,
    differs,
    equals,
    update,
)
from backstay.engines.dynamodb.schema import KEY, RATE, Index, Item, Key, Table
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.table import Failed, Tables
from backstay.engines.dynamodb.transport import Lane
from backstay.limits import IN_SIGHT_MAX, RATES_DUE_MAX

_LANES_MAX = 200  # lanes of one key or rate examined in one call
_TOGETHER = 16


class Parked(msgspec.Struct, frozen=True):
    job_id: str
    place: str  # in claim order, as schema.place() writes it


async def in_sight(
    tables: Tables, index: Index, hash_value: str, lane: str, most: int, wire_lane: Lane = Lane.USUAL
) -> dict[str, str]:
    """Return the first `most` claimable jobs of a lane, as the index shows them, with their places in claim order."""
    begins = f"in|{lane}|"
    ask = Ask(table=Table.JOBS, index=index.name, hash=hash_value, begins=begins, page=most)
    shown: dict[str, str] = {}
    async for row in tables.ask(ask, lane=wire_lane):
        shown[row["job_id"]] = str(row[index.range])[len(begins) :]
        if len(shown) == most:
            break
    return shown


async def parked_lanes(
    tables: Tables, index: Index, hash_value: str, most: int, wire_lane: Lane, where: Condition | None = None
) -> dict[str, list[Parked]]:
    """Return the first `most` parked jobs of each lane, in claim order."""
    lanes: dict[str, list[Parked]] = {}
    above: str | None = None
    while len(lanes) < _LANES_MAX:
        ask = Ask(
            table=Table.JOBS, index=index.name, hash=hash_value, begins="out|", above=above, page=most + 1, where=where
        )
        above = None
        async for row in tables.ask(ask, lane=wire_lane):
            _, *lane_parts, urgency, due, short_id = row[index.range].split("|")
            lane = "|".join(lane_parts)
            listed = lanes.setdefault(lane, [])
            if len(listed) == most:
                above = f"out|{lane}|{schema.HIGH}"
                break
            listed.append(Parked(row["job_id"], f"{urgency}|{due}|{short_id}"))
        if above is None:
            break
    return lanes


async def back_in_sight(
    session: Session,
    index: Index,
    hash_value: str,
    by: str,
    room: int,
    wire_lane: Lane = Lane.USUAL,
    where: Condition | None = None,
) -> tuple[int, bool]:
    """Unpark jobs of each lane, in claim order: each that is among the first `room` of the parked and claimable ones.
    Claimable jobs that come later do not count. Return how many, and whether any are left."""
    lanes = await parked_lanes(session.tables, index, hash_value, room + 1, wire_lane, where)
    changed, left = 0, False
    for lane, parked in lanes.items():
        seen = await _in_sight_indeed(session.tables, index, hash_value, lane, room, wire_lane) if room > 0 else []
        chosen = [
            each.job_id
            for place, each in enumerate(parked[:room], start=1)
            if place + sum(other < each.place for other in seen) <= room
        ]
        left = left or len(chosen) < len(parked)
        changed += await _unpark(session, chosen, by, wire_lane)
    return changed, left


async def _in_sight_indeed(
    tables: Tables, index: Index, hash_value: str, lane: str, most: int, wire_lane: Lane
) -> list[str]:
    """Return the places of the first `most` claimable jobs of a lane. They are read again: a lagging index still
    shows jobs that have just started, which would block the next one."""
    shown = await in_sight(tables, index, hash_value, lane, most, wire_lane)
    items = await tables.get(Table.JOBS, [(job_id,) for job_id in shown], only=("status", "parked"), lane=wire_lane)
    there = zip(shown.values(), items, strict=True)
    return [
        place
        for place, item in there
        if item is not None and item.get("status") == Status.PENDING and "parked" not in item
    ]


async def _unpark(session: Session, job_ids: list[str], by: str, wire_lane: Lane) -> int:
    items = await session.tables.get(Table.JOBS, [(job_id,) for job_id in job_ids], lane=wire_lane)
    parked = [
        item for item in items if item is not None and item.get("status") == Status.PENDING and item.get("parked") == by
    ]
    changed = 0
    for start in range(0, len(parked), _TOGETHER):
        batch = parked[start : start + _TOGETHER]
        changed += sum(await asyncio.gather(*(_unpark_one(session, item, by, wire_lane) for item in batch)))
    return changed


async def _unpark_one(session: Session, item: Item, by: str, wire_lane: Lane) -> bool:
    condition = equals("status", Status.PENDING.value) & equals("parked", by)
    try:
        write = change(item, transitions.parked(item, None), also=condition)
        await session.tables.update(write, lane=wire_lane, verb="release")
    except Failed:
        return False
    return True


async def first(session: Session, begins: str, most: int) -> tuple[list[Item], bool]:
    """Return the first items, and whether there are more."""
    return await _after(session, begins, most, None)


async def in_turn(session: Session, begins: str, most: int, walk: str) -> list[Item]:
    """Return all lanes; if there are too many, those after the last ones examined in this sweep."""
    marks, more = await first(session, begins, most)
    if more:
        place = schema.turn(walk)
        [last] = await session.tables.get(Table.RECORDS, [place], lane=Lane.IDLE)
        marks, more = await _after(session, begins, most, None if last is None else last.get("after"))
        after = {"sets": {"after": marks[-1]["sk"]}} if more else {"removes": ("after",)}
        await session.tables.update(update(Table.RECORDS, place, **after), lane=Lane.IDLE)
    return marks


async def _after(session: Session, begins: str, most: int, after: str | None) -> tuple[list[Item], bool]:
    ask = Ask(table=Table.RECORDS, hash=schema.WAITING, begins=begins, above=after, page=most, consistent=True)
    marks, then = await session.tables.page(ask, lane=Lane.IDLE)
    return marks, then is not None


_TRIES = 5  # tries for a gate that others change at the same time; then it is left to them
_PAGE = 100  # marks read per query
_LOOK_AGAIN_MICROS = MICROS
_SWEPT_MAX = 100  # rates checked in one sweep


async def save(session: Session, drawn: Collection[Drawn], now: Instant, lane: Lane) -> bool:
    """Write new gate states; return False, with nothing changed, if one has changed since it was read."""
    commit = Commit(session.tables, "rate", now)
    for each in drawn:
        commit.write(*dynamodb_admission.draw(each, now))
    if looked_again_at(drawn):
        commit.signals.add(Signal.DUE)
    try:
        await commit.run(lane)
    except Cancelled:
        return False
    session.board.committed(commit.signals)
    return True


async def _read(session: Session, bucket: Bucket, now: Instant, lane: Lane) -> RateGate:
    return (await dynamodb_admission.read_named(session.tables, (), [bucket], now, lane)).rates[bucket]


async def mark(
    session: Session, states: dict[Bucket, RateGate], bucket: Bucket, check_at: Instant, now: Instant
) -> bool:
    """Write the mark by which jobs of this rate that are about to be parked are checked again, unless it has one;
    return False if they must stay claimable."""
    for _ in range(_TRIES):
        was = states[bucket]
        if was.due_at is not None and abs(now - was.parked_at) <= FRESH_MICROS // 2:
            return True
        due = check_at if was.due_at is None else was.due_at
        saved = await save(session, [Drawn(bucket, was, was.full_at, due, now)], now, Lane.USUAL)
        states[bucket] = await _read(session, bucket, now, Lane.USUAL)
        if saved:
            return True
    return False


async def left_sight(session: Session, buckets: Collection[Bucket], now: Instant, *, gone: bool) -> set[Signal]:
    """Note that jobs of these rates are no longer claimable and did not start: others may be unparked. `gone`: they
    have left the line, and one of them may have been what its bucket waits for."""
    signals: set[Signal] = set()
    for bucket in buckets:
        for _ in range(_TRIES):
            was = await _read(session, bucket, now, Lane.USUAL)
            if was.due_at != NO_TIME and not (gone and was.wanted > 1):
                break
            wanted = 1 if gone else None
            if await save(session, [Drawn(bucket, was, was.full_at, now, was.parked_at, wanted)], now, Lane.USUAL):
                signals.add(Signal.DUE)
                break
    return signals


# Promotion


async def unpark_due(session: Session, now: Instant) -> tuple[set[Signal], Instant | None]:
    """Unpark jobs that may start now; return when the next check is due."""
    marked = await _earliest(session, now)
    later = [mark["due_at"] for mark in marked if not _is_due(mark, now)]
    due_now = [_bucket(mark) for mark in marked if _is_due(mark, now)]
    if len(due_now) >= RATES_DUE_MAX:
        later.append(now)  # there are more: check again at once
    for start in range(0, len(due_now), _TOGETHER):
        batch = due_now[start : start + _TOGETHER]
        for _, due in await asyncio.gather(*(_look(session, bucket, now) for bucket in batch)):
            if due is not None:
                later.append(due)
    next_due = min((due for due in later if due < NO_TIME), default=None)
    # Jobs over the rate of their type were not parked.
    return ({Signal.READY} if due_now else set()), next_due


async def _earliest(session: Session, now: Instant) -> list[Item]:
    """Return the due marks, the longest due first, and some of those that follow."""
    ask = Ask(table=Table.RECORDS, hash=schema.WAITING, begins="r|", page=_PAGE, consistent=True)
    found: list[Item] = []
    async for each in session.tables.ask(ask, lane=Lane.IDLE):
        found.append(each)
        if len(found) % _PAGE == 0 and (len(found) >= RATES_DUE_MAX or each["due_at"] > now):
            break
    return found


def _is_due(mark: Item, now: Instant) -> bool:
    return bool(mark["due_at"] <= now or mark["set_at"] - now > SET_BACK)


def _bucket(each: Item) -> Bucket:
    return Bucket(each["rate_key"], each["rate_count"], each["rate_micros"])


async def in_force(session: Session) -> RunLimits:
    """Return what was set at run time, as it was known a moment ago."""
    return (await session.board.read(fresh=False)).run_limits


async def _both(session: Session, lot: Bucket, now: Instant) -> tuple[RateGate, Bucket, RateGate]:
    """Return a bucket that jobs were submitted with, as read, and what they draw from instead, likewise."""
    bucket = (await in_force(session)).bucket(lot)
    found = (await dynamodb_admission.read_named(session.tables, (), {lot, bucket}, now, Lane.IDLE)).rates
    return found[lot], bucket, found[bucket]


async def look_again(session: Session, key: str, now: Instant) -> None:
    """Have the parked jobs of a rate key checked, because what they draw from has changed; and those that are parked by
    a concurrency key of this name."""
    async for mark in session.tables.ask(Ask(table=Table.RECORDS, hash=schema.WAITING, consistent=True)):
        if mark.get("rate_key") == key:
            was = await _read(session, _bucket(mark), now, Lane.USUAL)
            await save(session, [Drawn(_bucket(mark), was, was.full_at, now, was.parked_at)], now, Lane.USUAL)
        elif mark.get("key") == key:
            await _unpark_marked(session, mark, now)
    session.board.committed({Signal.DUE, Signal.READY})


async def _look(session: Session, lot: Bucket, now: Instant) -> tuple[int, Instant | None]:
    """Unpark jobs that may start; return how many, and when to check again (None: none is left)."""
    changed = 0
    for _ in range(_TRIES):
        was, bucket, level = await _both(session, lot, now)
        room = level.places(bucket, now)
        count, left = await back_in_sight(session, RATE, schema.rate_name(*lot), "r", room, Lane.IDLE)
        changed += count
        due = level.check_at(bucket, now) if left else None
        if was.is_fresh(now) and (not left or (room and not changed)):
            due = now + _LOOK_AGAIN_MICROS  # the index may not yet show a job that was parked a moment ago
        wanted = None if left else 1
        if await save(session, [Drawn(lot, was, was.full_at, due, was.parked_at, wanted)], now, Lane.IDLE):
            return changed, due
    return changed, now


async def unpark_marked_rates(session: Session, now: Instant) -> int:
    """Unpark jobs of rates without a time of their next check, because the process that parked a job died before it
    wrote one. Old marks without parked jobs are removed."""
    changed = 0
    for each in await in_turn(session, f"r|{schema.at(NO_TIME)}|", _SWEPT_MAX, "rates"):
        lot = _bucket(each)
        was, bucket, level = await _both(session, lot, now)
        if was.due_at is not None and was.due_at < NO_TIME:
            await _forget(session, each, now)  # it has another mark, with a time
            continue
        room = level.places(bucket, now)
        count, left = await back_in_sight(session, RATE, schema.rate_name(*lot), "r", room, Lane.IDLE)
        changed += count
        if left and (was.due_at is None or not room):
            due = level.check_at(bucket, now)
            await save(session, [Drawn(lot, was, was.full_at, due, was.parked_at)], now, Lane.IDLE)
        elif not left and was.due_at is None:
            await _forget(session, each, now)
    return changed


async def _forget(session: Session, mark: Item, now: Instant) -> None:
    if abs(now - mark["set_at"]) > SET_BACK:
        gone = delete(Table.RECORDS, (mark["pk"], mark["sk"]), equals("nonce", mark["nonce"]))
        with contextlib.suppress(Failed):
            await session.tables.update(gone, lane=Lane.IDLE)


async def rate_due(session: Session, job_id: str, now: Instant) -> Instant | None:
    [item] = await session.tables.get(Table.JOBS, [(job_id,)])
    if item is None:
        return None
    limits, lot = (await session.board.read(fresh=True)).run_limits, bucket_of(item)
    found = {None if lot is None else limits.bucket(lot), limits.bucket_of_type(item["job_type"])}
    read = await dynamodb_admission.read_named(session.tables, (), {each for each in found if each}, now, Lane.USUAL)
    cost = item.get("rate_cost", 1)
    due = max((level.next_start(bucket, now, cost) for bucket, level in read.rates.items()), default=now)
    return due if due > now else None


BY_KEY, BY_RATE = "c", "r"
TOGETHER = 16
MARKS_MAX = 100  # keys checked in one sweep
DEAD_MAX = 50  # holders that do not run, removed in one commit
MARK_MICROS = 60 * MICROS  # a mark this old does not belong to a job that is about to be parked


# Parking


async def park(session: Session, decided: Admission[Head], now: Instant) -> set[Signal]:
    """Park jobs that a claim could not start. Rates without room are marked already."""
    await mark_keys(session, (head.item for head in decided.key_full), now)
    parked = [(head.item, BY_KEY) for head in decided.key_full] + [(head.item, BY_RATE) for head in decided.over_rate]
    for start in range(0, len(parked), TOGETHER):
        await asyncio.gather(*(_park(session, item, by) for item, by in parked[start : start + TOGETHER]))
    return await left_sight(session, decided.left_sight(), now, gone=False)


async def _park(session: Session, item: Item, by: str) -> None:
    condition = equals("status", Status.PENDING.value) & equals("parked", None)
    with contextlib.suppress(Failed):  # its state has changed: nothing to do
        await session.tables.update(change(item, transitions.parked(item, by), also=condition), lane=Lane.IDLE)


async def mark_keys(session: Session, items: Iterable[Item], now: Instant) -> None:
    """Mark keys before their jobs are parked, so that the sweep finds them."""
    for key, limit in dict.fromkeys(found for item in items if (found := limited_key(item)) is not None):
        pk, sk = schema.waiting_key(key, limit)
        mark = {"pk": pk, "sk": sk, "key": key, "limit": limit, "set_at": now, "nonce": dynamodb_admission.nonce()}
        await session.tables.put(Table.RECORDS, mark)


class _Line(msgspec.Struct):
    """The places of the first claimable jobs of a lane, as read once, plus those of the batch itself."""

    read: int = 0  # how many were asked for
    places: list[str] = msgspec.field(default_factory=list)
    own: list[str] = msgspec.field(default_factory=list)

    def before(self, place: str) -> int:
        return sum(each < place for each in (*self.places, *self.own))


class _Lines:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._lines: dict[tuple[str, str, str], _Line] = {}

    async def has_place(self, index: Index, hash_value: str, item: Item, room: int) -> bool:
        """Return whether a new item would be among the first `room` of its lane. Claimable jobs that come later do not
        count: they are parked when it is claimed."""
        if room <= 0:
            return False
        lane = schema.lane_of(item)
        line = self._lines.setdefault((index.name, hash_value, lane), _Line())
        if line.read < room:
            line.read = room
            line.places = list((await in_sight(self._session.tables, index, hash_value, lane, room)).values())
        return line.before(_place(item)) < room

    def add(self, index: Index, hash_value: str, item: Item) -> None:
        line = self._lines.setdefault((index.name, hash_value, schema.lane_of(item)), _Line())
        line.own.append(_place(item))


def _place(item: Item) -> str:
    return schema.place(item["priority"], item["scheduled_for"], item["job_id"])


async def decide_at_entry(session: Session, items: Sequence[Item], now: Instant) -> dict[str, str | None]:
    """Return which of these jobs, all about to be pending, are to be stored as parked, and by what. Writes their
    marks."""
    limits = await in_force(session)
    states = await dynamodb_admission.read(session.tables, items, limits, now)
    lines = _Lines(session)
    decided: dict[str, str | None] = {}
    full: list[Item] = []
    for item in items:
        by = None
        limited, lot = limited_key(item), bucket_of(item)
        if limited is not None:
            room = min(limits.allowed(*limited) - states.running.get(limited[0], 0), IN_SIGHT_MAX)
            if not await lines.has_place(KEY, limited[0], item, room):
                by = BY_KEY
                full.append(item)
        if by is None and lot is not None:
            bucket = limits.bucket(lot)
            level = states.rates[bucket]
            has_place = await lines.has_place(RATE, schema.rate_name(*lot), item, level.places(bucket, now))
            if not has_place and await mark(session, states.rates, lot, level.check_at(bucket, now), now):
                by = BY_RATE
        if by is None:
            if limited is not None:
                lines.add(KEY, limited[0], item)
            if lot is not None:
                lines.add(RATE, schema.rate_name(*lot), item)
        decided[item["job_id"]] = by
    await mark_keys(session, full, now)
    return decided


# Unparking


async def after_leaving(
    session: Session, limits: Mapping[str, int], buckets: Collection[Bucket], now: Instant
) -> set[Signal]:
    """Unpark the next jobs of keys and rates whose jobs have left or changed position. `limits` are concurrency keys
    with their limits, `buckets` the rates of jobs that left the queue without starting."""
    changed = 0
    alone: list[tuple[str, int]] = []
    named = list(limits.items())
    for start in range(0, len(named), TOGETHER):
        batch = named[start : start + TOGETHER]
        for each, (count, left) in zip(
            batch, await asyncio.gather(*(unpark(session, *limited) for limited in batch)), strict=True
        ):
            changed += count
            if not count and not left:
                alone.append(each)
    signals = await left_sight(session, buckets, now, gone=True)
    if changed or await _are_parked_just_now(session, alone, now):
        signals = signals | {Signal.READY}
    return signals


async def _are_parked_just_now(session: Session, limited: Sequence[tuple[str, int]], now: Instant) -> bool:
    """Return whether the index may not yet show a job that was just parked. A claim that finds nothing looks for it."""
    found = await session.tables.get(Table.RECORDS, [schema.waiting_key(*each) for each in limited])
    return any(mark is not None and _is_fresh(mark, now) for mark in found)


def _is_fresh(mark: Item, now: Instant) -> bool:
    return abs(now - int(mark["set_at"])) <= FRESH_MICROS


async def unpark_fresh(session: Session, now: Instant) -> int:
    """Unpark jobs that were parked while the job that they waited for was leaving."""
    found, _ = await first(session, "c|", MARKS_MAX)
    return sum([await _unpark_marked(session, mark, now) for mark in found if _is_fresh(mark, now)])


async def unpark(session: Session, key: str, limit: int, lane: Lane = Lane.USUAL) -> tuple[int, bool]:
    """Unpark as many jobs as could run, for each queue, type and version separately: jobs that no worker here runs must
    not take the room. Return how many, and whether any are left."""
    ask = Ask(table=Table.JOBS, index=KEY.name, hash=key, begins="out|", page=1)
    if not await session.tables.count(ask, stop_at=1, lane=lane):
        return 0, False
    running = len(await dynamodb_admission.holders(session.tables, key, lane))
    allowed = (await in_force(session)).allowed(key, 0)  # 0: nothing was set at run time
    room = (allowed or limit) - running
    if room <= 0:
        return 0, True
    may_run = None if allowed else above("concurrency_limit", running)  # other jobs of the key may have another limit
    return await back_in_sight(session, KEY, key, BY_KEY, min(room, IN_SIGHT_MAX), lane, may_run)


async def unpark_marked_keys(session: Session, now: Instant) -> int:
    """Unpark jobs of keys with unused room, because the process that freed it died before it unparked others, or did so
    too early."""
    marked = await in_turn(session, "c|", MARKS_MAX, "keys")
    changed = 0
    for start in range(0, len(marked), TOGETHER):
        batch = marked[start : start + TOGETHER]
        changed += sum(await asyncio.gather(*(_unpark_marked(session, mark, now) for mark in batch)))
    return changed


async def _unpark_marked(session: Session, mark: Item, now: Instant) -> int:
    count, left = await unpark(session, mark["key"], mark["limit"], Lane.IDLE)
    if not count and not left and abs(now - mark["set_at"]) > MARK_MICROS:
        unchanged = equals("nonce", mark["nonce"])
        with contextlib.suppress(Failed):
            await session.tables.update(delete(Table.RECORDS, (mark["pk"], mark["sk"]), unchanged), lane=Lane.IDLE)
    return count


async def drop_dead_holders(session: Session, now: Instant) -> None:
    for mark in await in_turn(session, "c|", MARKS_MAX, "holders"):
        await _drop_dead_holders(session, mark["key"], mark["limit"], now)


async def drop_dead_of_types(session: Session, limits: RunLimits, types: Iterable[str], now: Instant) -> bool:
    """Remove holders of types limited at run time that do not run: those that ran before the limit was set do not leave
    by themselves. Return whether there were any."""
    dropped = False
    for job_type in types:
        row = limits.of_type(job_type)
        if row is None or row.concurrency is None or not session.remembered.may_look(job_type, now):
            continue
        held = sorted(await dynamodb_admission.holders_of_type(session.tables, job_type, now))
        if len(held) >= row.concurrency:
            found = await _drop_dead(session, schema.type_gate(job_type), held, "job_type", job_type, now)
            dropped = dropped or found.dead > 0
            if found.leave:
                session.remembered.need_not_look(job_type, now)
    return dropped


async def _drop_dead_holders(session: Session, key: str, limit: int, now: Instant) -> None:
    """Remove holders that do not run: they would occupy their place forever. This should not happen, because both
    change in one commit; it is a safety net."""
    held = sorted(await dynamodb_admission.holders(session.tables, key, Lane.IDLE))
    if len(held) >= limit:
        await _drop_dead(session, schema.key_gate(key), held, "concurrency_key", key, now)


class _Held(NamedTuple):
    dead: int  # how many holders did not run
    leave: bool  # whether all that run leave by themselves


async def _drop_dead(session: Session, gate: Key, held: Sequence[str], name: str, value: str, now: Instant) -> _Held:
    only = ("status", name, "gated")
    found = await session.tables.get(Table.JOBS, [(each,) for each in held], only=only, lane=Lane.IDLE)
    dead = [
        job_id
        for job_id, item in zip(held, found, strict=True)
        if item is None or item.get("status") != Status.PROCESSING or item.get(name) != value
    ][:DEAD_MAX]
    if not dead:
        return _Held(0, all(item is not None and "gated" in item for item in found))
    runs_not = any_of(absent("status"), differs("status", Status.PROCESSING.value), absent(name), differs(name, value))
    commit = Commit(session.tables, "release", now)
    commit.write(
        dynamodb_admission.forget_holders(gate, set(dead)), *(check(Table.JOBS, (job_id,), runs_not) for job_id in dead)
    )
    with contextlib.suppress(Cancelled):  # one of them has started since: the next sweep checks again
        await commit.run(Lane.IDLE)
    return _Held(len(dead), leave=False)
