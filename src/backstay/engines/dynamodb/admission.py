"""Admission on DynamoDB: the gates of concurrency keys, rates and queue limits.

A gate is an item that is changed in the commit that starts or stores a job, on condition that it is as it was read;
what core.admission has decided before is a proposal. A key's gate holds the ids of running jobs. A rate's gate holds a
bucket and a nonce, and a mark in `waiting` says when its parked jobs are checked again. A queue's gate holds how many
more jobs may be submitted, as counted a moment ago.

The status index shows new jobs late, so admitted ids are also written next to the queue's gate; a read of the table
tells whether those that the index does not show yet are waiting. A batch in the journal counts in full from its
acceptance, though its jobs are stored little by little.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

import msgspec

from backstay.clock import MICROS, Instant
from backstay.core import admission
from backstay.core.admission import NO_TIME, Admission, Bucket, Gates, Level, RunLimits, Turn
from backstay.core.dumps import INTO, is_closed, refusal
from backstay.core.records import NewJob
from backstay.core.states import Status
from backstay.engines.dynamodb import outbox, schema
from backstay.engines.dynamodb.board import BoardState
from backstay.engines.dynamodb.expressions import Ask, Write, delete, equals, join_set, leave_set, put, update
from backstay.engines.dynamodb.schema import STATUS, Item, Key, Table, size
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.table import Tables
from backstay.engines.dynamodb.transport import Lane
from backstay.errors import StoreMoved

FRESH_MICROS = 5 * MICROS  # longer than an index lags
HOLDERS_MAX = 8_000  # holders of one key: their ids are in one item, which holds 400 KB
COMMIT_ITEMS_MAX = 90  # of the 100 items that a transaction can hold
COMMIT_BYTES_MAX = 3_000_000  # of its 4 MB, without index attributes


class Entry(msgspec.Struct, frozen=True):
    """A job that an index proposes; `order` is its position among the heads of all lanes."""

    job_id: str
    order: str
    turn: Turn | None = None


class Head(msgspec.Struct, frozen=True):
    """A job at the head of its lane, as it was read."""

    item: Item
    turn: Turn | None = None

    @property
    def job_id(self) -> str:
        return str(self.item["job_id"])

    @property
    def job_type(self) -> str:
        return str(self.item["job_type"])

    @property
    def concurrency_key(self) -> str | None:
        return self.item.get("concurrency_key")

    @property
    def concurrency_limit(self) -> int | None:
        limit = self.item.get("concurrency_limit")
        return None if limit is None else min(limit, HOLDERS_MAX)

    @property
    def rate_key(self) -> str | None:
        return self.item.get("rate_key")

    @property
    def rate_count(self) -> int | None:
        return self.item.get("rate_count")

    @property
    def rate_micros(self) -> int | None:
        return self.item.get("rate_micros")

    @property
    def rate_cost(self) -> int | None:
        return self.item.get("rate_cost")


def bucket_of(item: Item) -> Bucket | None:
    return admission.bucket_of(Head(item))


def limited_key(item: Item) -> tuple[str, int] | None:
    return admission.limited_key(Head(item))


# The commit of a claim


class CommitRoom:
    """The room of one commit: each job that starts writes its own item, and those of its gates that no earlier job of
    the commit writes."""

    def __init__(self, limits: RunLimits) -> None:
        self._limits = limits
        self._items = 0
        self._bytes = 0
        self._gates: set[tuple[str, ...]] = set()

    def fits(self, head: Head) -> bool:
        """Return whether there is room for one more; if so it is counted."""
        new = {name: items for name, items in _gates_of(head, self._limits).items() if name not in self._gates}
        items, bytes_more = self._items + 1 + sum(new.values()), size(head.item)
        if items > COMMIT_ITEMS_MAX or (self._items and self._bytes + bytes_more > COMMIT_BYTES_MAX):
            return False
        self._items = items
        self._bytes += bytes_more
        self._gates |= new.keys()
        return True


def _gates_of(head: Head, limits: RunLimits) -> dict[tuple[str, ...], int]:
    """Return how many items each gate of a job is in a commit."""
    gates: dict[tuple[str, ...], int] = {}
    if (limited := admission.limited_key(head)) is not None:
        gates["key", limited[0]] = 1
    lot = admission.bucket_of(head)
    for bucket in (lot, lot and limits.bucket(lot), limits.bucket_of_type(head.job_type)):
        if bucket is not None:
            # the gate, and its mark, which is deleted at one time and written at another
            gates["rate", *map(str, bucket)] = 3
    if is_gated(head.job_type, limits):
        gates["type", head.job_type] = 1
    if head.turn is not None:
        gates["lane", *head.turn.lane] = 1
        gates["turn", *head.turn.lane, head.turn.key] = 1
    return gates


def is_gated(job_type: str, limits: RunLimits) -> bool:
    """Return whether running jobs of a type are counted, because they are limited at run time."""
    row = limits.of_type(job_type)
    return row is not None and row.concurrency is not None


def types_entered(started: Iterable[Head], limits: RunLimits) -> list[Write]:
    """Return the writes that count the jobs which start of types that are limited at run time."""
    ids: dict[str, set[str]] = {}
    for head in started:
        if is_gated(head.job_type, limits):
            ids.setdefault(head.job_type, set()).add(head.job_id)
    writes: list[Write] = []
    for job_type, new in ids.items():
        row = limits.of_type(job_type)
        most = None if row is None or row.concurrency is None else min(row.concurrency, HOLDERS_MAX)
        writes.append(join_set(Table.RECORDS, schema.type_gate(job_type), _HOLDERS, new, most=most))
    return writes


def entries(started: Iterable[Head], limits: RunLimits) -> list[tuple[str, int, set[str]]]:
    """Return the keys that get new holders, each with how many may hold it then and the new ids. Jobs of one key can
    have different limits: each is checked against its own."""
    new: dict[str, set[str]] = {}
    before: dict[str, int] = {}  # how many may hold the key already if all of them are to fit
    for head in started:
        if (limited := admission.limited_key(head)) is not None:
            key, limit = limited
            limit = min(limits.allowed(key, limit), HOLDERS_MAX)
            ids = new.setdefault(key, set())
            ids.add(head.job_id)
            before[key] = min(before.get(key, limit), limit - len(ids))
    return [(key, before[key] + len(ids), ids) for key, ids in new.items()]


# Buckets


class RateGate(Level, frozen=True):
    """A bucket as it was read. A write compares `nonce`."""

    nonce: str | None = None
    parked_at: Instant = 0  # about when a job was last parked: for a while an index may not show it

    def is_fresh(self, now: Instant) -> bool:
        return abs(now - self.parked_at) <= FRESH_MICROS


def rate_gate(item: Item | None, now: Instant) -> RateGate:
    if item is None:
        return RateGate()
    full_at = admission.by_this_clock(item["full_at"], item["set_at"], now)
    return RateGate(full_at, item.get("due_at"), item.get("wanted", 1), item["nonce"], item.get("parked_at", 0))


class Drawn(msgspec.Struct, frozen=True):
    """A change of a bucket: the gate as read, and the new one."""

    bucket: Bucket
    was: RateGate
    full_at: Instant
    due_at: Instant | None
    parked_at: Instant = 0
    wanted: int | None = None  # None: as it was

    @property
    def waits_for(self) -> int:
        return self.was.wanted if self.wanted is None else self.wanted


def drawn(decided: Admission[Head], rates: Mapping[Bucket, RateGate], now: Instant) -> list[Drawn]:
    """Return the changes that a claim makes: of buckets that were drawn from, or that were empty."""
    changes: list[Drawn] = []
    for draw in decided.draws():
        was, due_at = rates[draw.bucket], draw.level.due_at
        parked_at = now if draw.refused else was.parked_at
        is_noted = due_at is None or (due_at == was.due_at and parked_at - was.parked_at <= FRESH_MICROS // 2)
        wanted = None if draw.level.wanted == was.wanted else draw.level.wanted
        if draw.spent or not is_noted or wanted is not None:
            changes.append(Drawn(draw.bucket, was, draw.level.full_at, due_at, parked_at, wanted))
    return changes


def looked_again_at(drawn: Iterable[Drawn]) -> bool:
    """Return whether a later check is needed for jobs that had to wait."""
    return any(each.due_at is not None and each.due_at < NO_TIME for each in drawn)


class GateStates(msgspec.Struct):
    """The gates that some jobs have to pass, as read."""

    running: dict[str, int] = msgspec.field(default_factory=dict)  # how many jobs of a key run
    rates: dict[Bucket, RateGate] = msgspec.field(default_factory=dict)


# Queues


LATE_MICROS = 10 * MICROS  # an index hardly ever lags this much, nor do two clocks differ by this much
_IDS_MAX = 5_000  # in one record, which holds 400 KB

_Recent = dict[str, str | None]  # recently admitted ids, each with the journal it may still be in


def given(queue: str, job_ids: Sequence[str], name: str, now: Instant, *, journal: bool = False) -> list[Item]:
    """Return the records of admitted jobs; `name` is that of the journal if they are a batch in it."""
    records: list[Item] = []
    for number, start in enumerate(range(0, len(job_ids), _IDS_MAX)):
        pk, sk = schema.given(queue, now, name, number)
        record: Item = {"pk": pk, "sk": sk, "at": now, "ids": list(job_ids[start : start + _IDS_MAX])}
        records.append({**record, "journal": name} if journal else record)
    return records


async def room(session: Session, queue: str, count: int, limit: int, now: Instant) -> int:
    """Return how many more jobs the queue accepts. May be too low if it is enough for `count`: an exact number costs
    reads."""
    recent = await _recent(session, queue, now)
    shown, unseen = await _shown(session, queue, limit, recent)
    sure = limit - shown - len(unseen)
    if count <= sure or count > limit - shown:
        return sure if count <= sure else limit - shown
    return limit - shown - await _still_waiting(session, queue, unseen, recent)


async def _recent(session: Session, queue: str, now: Instant) -> _Recent:
    """Return recently admitted ids. Older ones are in the index, and their record is deleted unless their journal is
    not fully stored."""
    ask = Ask(table=Table.RECORDS, hash=schema.queue_gate(queue)[0], begins="given|", consistent=True)
    records = [record async for record in session.tables.ask(ask)]
    names = sorted({record["journal"] for record in records if "journal" in record})
    marks = await session.tables.get(Table.RECORDS, [outbox.place(outbox.MarkKind.INSERT, name) for name in names])
    unfinished = {name for name, mark in zip(names, marks, strict=True) if mark is not None}
    recent: _Recent = {}
    over = []
    for record in records:
        journal = record.get("journal")
        journal = journal if journal in unfinished else None
        if journal is None and abs(now - record["at"]) > LATE_MICROS:
            over.append((record["pk"], record["sk"]))
        else:
            recent.update(dict.fromkeys(record["ids"], journal))
    await session.tables.delete_many(Table.RECORDS, over, lane=Lane.IDLE)
    return recent


async def _shown(session: Session, queue: str, limit: int, recent: _Recent) -> tuple[int, set[str]]:
    """Return how many jobs the index shows, up to the limit, and which recent ones it does not show yet."""
    count, unseen = 0, set(recent)
    for hash_value in schema.all_shards(Status.PENDING.value, session.shards):
        ask = Ask(
            table=Table.JOBS,
            index=STATUS.name,
            hash=hash_value,
            only=("job_id", STATUS.range),
            where=equals("queue", queue),
        )
        async for row in session.tables.ask(ask):
            count += 1
            unseen.discard(row["job_id"])
            if count >= limit:
                return count, unseen
    return count, unseen


async def _still_waiting(session: Session, queue: str, unseen: set[str], recent: _Recent) -> int:
    ids = sorted(unseen)
    found = await session.tables.get(Table.JOBS, [(job_id,) for job_id in ids], only=("status", "queue"))
    return sum(
        recent[job_id] is not None
        if item is None
        else item.get("status") == Status.PENDING and item.get("queue") == queue
        for job_id, item in zip(ids, found, strict=True)
    )


_HOLDERS = "holders"
_COUNTED_MICROS = 5 * MICROS  # how long a count of a queue is valid: retried jobs return to it without passing the gate


def nonce() -> str:
    return secrets.token_hex(6)


# Reading


async def read(
    tables: Tables, items: Sequence[Item], limits: RunLimits, now: Instant, lane: Lane = Lane.USUAL
) -> GateStates:
    """Read the gates that these jobs have to pass, and the buckets that they are parked under."""
    limited = {found[0] for item in items if (found := limited_key(item)) is not None}
    lots = {bucket for item in items if (bucket := bucket_of(item)) is not None}
    return await read_named(tables, limited, lots | set(map(limits.bucket, lots)), now, lane)


async def read_missing(
    tables: Tables, gates: Gates, rates: dict[Bucket, RateGate], heads: Sequence[Head], now: Instant
) -> None:
    """Read the gates of these jobs that have not been read for earlier ones of the same claim."""
    read = await read_named(tables, *gates.missing(heads), now, Lane.IDLE)
    for job_type in gates.limited_types(heads):
        gates.of_type[job_type] = len(await holders_of_type(tables, job_type, now))
    gates.running.update(read.running)
    gates.levels.update(read.rates)
    rates.update(read.rates)


async def read_named(
    tables: Tables, limited: Iterable[str], buckets: Iterable[Bucket], now: Instant, lane: Lane = Lane.USUAL
) -> GateStates:
    named, drawn = list(limited), list(buckets)
    if not named and not drawn:
        return GateStates()
    places: list[Key] = [schema.key_gate(key) for key in named] + [schema.rate_gate(*bucket) for bucket in drawn]
    found = await tables.get(Table.RECORDS, places, lane=lane)
    return GateStates(
        {key: len(_holders(item)) for key, item in zip(named, found, strict=False)},
        {bucket: rate_gate(item, now) for bucket, item in zip(drawn, found[len(named) :], strict=True)},
    )


def _holders(item: Item | None) -> set[str]:
    return set() if item is None else set(item.get(_HOLDERS, ()))


async def holders(tables: Tables, key: str, lane: Lane = Lane.USUAL) -> set[str]:
    [item] = await tables.get(Table.RECORDS, [schema.key_gate(key)], lane=lane)
    return _holders(item)


# Types that are limited at run time


async def holders_of_type(tables: Tables, job_type: str, now: Instant) -> set[str]:
    """Return the running jobs of a type that is limited at run time. When the limit was set, some ran already."""
    key = schema.type_gate(job_type)
    [item] = await tables.get(Table.RECORDS, [key], lane=Lane.IDLE)
    if item is not None and "counted_at" in item:
        return _holders(item)
    running = {row["job_id"] async for row in _running(tables, job_type)}
    await tables.update(
        update(Table.RECORDS, key, sets={"counted_at": now}, adds={_HOLDERS: running} if running else None),
        lane=Lane.IDLE,
    )
    return _holders(item) | running


async def _running(tables: Tables, job_type: str) -> AsyncIterator[Item]:
    for hash_value in schema.all_shards(Status.PROCESSING.value, tables.shards):
        ask = Ask(
            table=Table.JOBS,
            index=STATUS.name,
            hash=hash_value,
            only=("job_id", STATUS.range),
            where=equals("job_type", job_type),
        )
        async for row in tables.ask(ask, lane=Lane.IDLE):
            yield row


# Keys


def enter(key: str, limit: int, job_ids: set[str]) -> Write:
    return join_set(Table.RECORDS, schema.key_gate(key), _HOLDERS, job_ids, most=limit)


def leave(item: Item) -> list[Write]:
    """Return the write for the commit in which a running job stops running."""
    limited = limited_key(item)
    held = [] if limited is None else [schema.key_gate(limited[0])]
    if item.get("gated"):
        held.append(schema.type_gate(item["job_type"]))
    return [leave_set(Table.RECORDS, gate, _HOLDERS, {item["job_id"]}) for gate in held]


def forget_holders(gate: Key, job_ids: set[str]) -> Write:
    return leave_set(Table.RECORDS, gate, _HOLDERS, job_ids)


# Rates


def rate_mark(bucket: Bucket, due_at: Instant) -> Key:
    """Return the key of the mark of a rate, which says when its parked jobs are to be checked; marks are sorted by this
    time."""
    return (schema.WAITING, f"r|{schema.at(due_at)}|{schema.rate_name(*bucket)}")


def draw(drawn: Drawn, now: Instant) -> list[Write]:
    """Return the write of a new bucket state, if the bucket is unchanged since it was read."""
    rate_key, count, micros = drawn.bucket
    pk, sk = schema.rate_gate(*drawn.bucket)
    said = {"rate_key": rate_key, "rate_count": count, "rate_micros": micros, "set_at": now, "due_at": drawn.due_at}
    gate = {
        "pk": pk,
        "sk": sk,
        **said,
        "full_at": drawn.full_at,
        "wanted": None if drawn.waits_for == 1 else drawn.waits_for,
        "nonce": nonce(),
        "parked_at": drawn.parked_at or None,
    }
    writes = [put(Table.RECORDS, _without_none(gate), equals("nonce", drawn.was.nonce))]
    if drawn.due_at is not None or drawn.was.due_at is not None:
        # A job that is being parked may have read the gate a moment ago and relies on the mark: the mark stays, and is
        # deleted when it is old.
        due = NO_TIME if drawn.due_at is None else drawn.due_at
        mark_pk, mark_sk = rate_mark(drawn.bucket, due)
        writes.append(put(Table.RECORDS, {"pk": mark_pk, "sk": mark_sk, **said, "due_at": due, "nonce": nonce()}))
        if drawn.was.due_at is not None and drawn.was.due_at != due:
            writes.append(delete(Table.RECORDS, rate_mark(drawn.bucket, drawn.was.due_at)))
    return writes


def _without_none(item: Item) -> Item:
    return {name: value for name, value in item.items() if value is not None}


# Queues


async def queue_room(
    session: Session, jobs: Sequence[NewJob], now: Instant, *, journal: str | None = None
) -> list[Write]:
    """Return the writes for the commit that stores these pending jobs; raise QueueFull if a queue is full. A concurrent
    submit makes the commit fail: then read again. `journal`: where a batch is stored that this commit only accepts."""
    board = await session.board.read(fresh=True)
    refuse_moved(board, jobs)
    writes: list[Write] = []
    for queue, (limit, job_ids) in _limited(board, jobs, now).items():
        writes.append(await _take_room(session, queue, len(job_ids), limit, now))
        if journal is None:
            writes += [put(Table.RECORDS, record) for record in given(queue, job_ids, nonce(), now)]
        else:
            await session.tables.put_many(Table.RECORDS, given(queue, job_ids, journal, now, journal=True))
    return writes


def _limited(board: BoardState, jobs: Sequence[NewJob], now: Instant) -> dict[str, tuple[int, list[str]]]:
    """Return the limited queues of these jobs, each with its limit and the jobs."""
    found: dict[str, tuple[int, list[str]]] = {}
    for job in jobs:
        row = board.queues.get(job.queue)
        if row is not None and row.max_pending is not None and job.scheduled_for <= now:
            found.setdefault(job.queue, (row.max_pending, []))[1].append(job.job_id)
    return found


def refuse_moved(board: BoardState, jobs: Sequence[NewJob]) -> None:
    """Refuse submits while a queue is transferred, except children of running jobs."""
    move = board.move
    if move is None or (move.role == INTO and move.done):
        return
    if is_closed(move) or any(job.parent_job_id is None for job in jobs):
        raise StoreMoved(refusal(move))


async def _take_room(session: Session, queue: str, count: int, limit: int, now: Instant) -> Write:
    place = schema.queue_gate(queue)
    [gate] = await session.tables.get(Table.RECORDS, [place])
    gate = gate or {}
    free, counted_at = gate.get("room", 0), gate.get("counted_at", 0)
    if free < count or gate.get("limit") != limit or abs(now - counted_at) > _COUNTED_MICROS:
        free, counted_at = await room(session, queue, count, limit, now), now
    admission.refuse_over_limit(queue, limit, free, count)
    sets = {"room": free - count, "counted_at": counted_at, "limit": limit, "nonce": nonce()}
    return update(Table.RECORDS, place, sets=sets, condition=equals("nonce", gate.get("nonce")))
