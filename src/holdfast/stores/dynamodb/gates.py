"""The gates of keys, rates and queues: items that are changed in the commit that starts or stores a job.

A key's gate holds the ids of those that run. A rate's gate holds a bucket and a nonce, and a mark in `waiting` says
when its parked jobs are to be looked at. A queue's gate holds how many more may come, as counted a moment ago.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

from holdfast.clock import MICROS, Instant
from holdfast.errors import QueueFull, StoreMoved
from holdfast.store.moves import INTO, is_closed, refusal
from holdfast.store.types import NewJob
from holdfast.stores.dynamodb import keys, pending
from holdfast.stores.dynamodb.admitting import Bucket, Drawn, GateStates, bucket_of, limited_key, rate_gate
from holdfast.stores.dynamodb.board import BoardState
from holdfast.stores.dynamodb.commit import Write, delete, join_set, leave_set, put, update
from holdfast.stores.dynamodb.expressions import equals
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Key, Table
from holdfast.stores.dynamodb.table import Tables
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane

_HOLDERS = "holders"
_COUNTED_MICROS = 5 * MICROS  # how long a count of a queue is trusted: jobs come back into one without asking


def nonce() -> str:
    return secrets.token_hex(6)


# Reading


async def read(tables: Tables, items: Sequence[Item], now: Instant, lane: Lane = Lane.USUAL) -> GateStates:
    """The gates that these jobs have to pass."""
    limited = {found[0] for item in items if (found := limited_key(item)) is not None}
    buckets = {bucket for item in items if (bucket := bucket_of(item)) is not None}
    return await read_named(tables, limited, buckets, now, lane)


async def read_named(
    tables: Tables, limited: Iterable[str], buckets: Iterable[Bucket], now: Instant, lane: Lane = Lane.USUAL
) -> GateStates:
    named, drawn = list(limited), list(buckets)
    if not named and not drawn:
        return GateStates()
    places: list[Key] = [keys.key_gate(key) for key in named] + [keys.rate_gate(*bucket) for bucket in drawn]
    found = await tables.get(Table.RECORDS, places, lane=lane)
    return GateStates(
        {key: len(_holders(item)) for key, item in zip(named, found, strict=False)},
        {bucket: rate_gate(item, now) for bucket, item in zip(drawn, found[len(named) :], strict=True)},
    )


def _holders(item: Item | None) -> set[str]:
    return set() if item is None else set(item.get(_HOLDERS, ()))


async def holders(tables: Tables, key: str, lane: Lane = Lane.USUAL) -> set[str]:
    [item] = await tables.get(Table.RECORDS, [keys.key_gate(key)], lane=lane)
    return _holders(item)


# Keys


def enter(key: str, limit: int, job_ids: set[str]) -> Write:
    return join_set(Table.RECORDS, keys.key_gate(key), _HOLDERS, job_ids, most=limit)


def leave(item: Item) -> list[Write]:
    """What goes into the commit in which a running job stops running."""
    limited = limited_key(item)
    if limited is None:
        return []
    return [leave_set(Table.RECORDS, keys.key_gate(limited[0]), _HOLDERS, {item["job_id"]})]


def forget_holders(key: str, job_ids: set[str]) -> Write:
    return leave_set(Table.RECORDS, keys.key_gate(key), _HOLDERS, job_ids)


# Rates


def rate_mark(bucket: Bucket, due_at: Instant) -> Key:
    """The item that says when the parked jobs of a rate are to be looked at; they lie in the order of these times."""
    return (keys.WAITING, f"r|{keys.at(due_at)}|{keys.rate_name(*bucket)}")


def draw(drawn: Drawn, now: Instant) -> list[Write]:
    """A bucket as it is to be, if it still is as it was read."""
    rate_key, count, micros = drawn.bucket
    pk, sk = keys.rate_gate(*drawn.bucket)
    said = {"rate_key": rate_key, "rate_count": count, "rate_micros": micros, "set_at": now, "due_at": drawn.due_at}
    gate = {"pk": pk, "sk": sk, **said, "full_at": drawn.full_at, "nonce": nonce(), "looks": drawn.looks or None}
    writes = [put(Table.RECORDS, _without_none(gate), equals("nonce", drawn.was.nonce))]
    if drawn.due_at is not None or drawn.was.due_at is not None:
        # A job may be on its way that saw the gate a moment ago and counts on being looked at: the mark stays, and goes
        # when it is old.
        due = keys.NO_TIME if drawn.due_at is None else drawn.due_at
        mark_pk, mark_sk = rate_mark(drawn.bucket, due)
        writes.append(put(Table.RECORDS, {"pk": mark_pk, "sk": mark_sk, **said, "due_at": due, "nonce": nonce()}))
        if drawn.was.due_at is not None and drawn.was.due_at != due:
            writes.append(delete(Table.RECORDS, rate_mark(drawn.bucket, drawn.was.due_at)))
    return writes


def _without_none(item: Item) -> Item:
    return {name: value for name, value in item.items() if value is not None}


# Queues


async def queue_room(
    ground: Ground, jobs: Sequence[NewJob], now: Instant, *, journal: str | None = None
) -> list[Write]:
    """What goes into the commit that stores these jobs, which will wait in their queues; QueueFull where one takes no
    more. Who stores at the same moment makes the commit fail: then look again. `journal`: where a batch lies that this
    commit only accepts."""
    board = await ground.board.read(fresh=True)
    refuse_moved(board, jobs)
    writes: list[Write] = []
    for queue, (limit, job_ids) in _limited(board, jobs, now).items():
        writes.append(await _take_room(ground, queue, len(job_ids), limit, now))
        if journal is None:
            writes += [put(Table.RECORDS, record) for record in pending.given(queue, job_ids, nonce(), now)]
        else:
            await ground.tables.put_many(Table.RECORDS, pending.given(queue, job_ids, journal, now, journal=True))
    return writes


def _limited(board: BoardState, jobs: Sequence[NewJob], now: Instant) -> dict[str, tuple[int, list[str]]]:
    """The queues with a limit that these come into: it, and who comes."""
    found: dict[str, tuple[int, list[str]]] = {}
    for job in jobs:
        row = board.queues.get(job.queue)
        if row is not None and row.max_pending is not None and job.scheduled_for <= now:
            found.setdefault(job.queue, (row.max_pending, []))[1].append(job.job_id)
    return found


def refuse_moved(board: BoardState, jobs: Sequence[NewJob]) -> None:
    """While a queue moves, children come with what still runs, and nothing else does."""
    move = board.move
    if move is None or (move.role == INTO and move.done):
        return
    if is_closed(move) or any(job.parent_job_id is None for job in jobs):
        raise StoreMoved(refusal(move))


async def _take_room(ground: Ground, queue: str, count: int, limit: int, now: Instant) -> Write:
    place = keys.queue_gate(queue)
    [gate] = await ground.tables.get(Table.RECORDS, [place])
    gate = gate or {}
    room, counted_at = gate.get("room", 0), gate.get("counted_at", 0)
    if room < count or gate.get("limit") != limit or abs(now - counted_at) > _COUNTED_MICROS:
        room, counted_at = await pending.room(ground, queue, count, limit, now), now
    if count > room:
        raise QueueFull(
            f"the queue {queue} takes {limit:,} pending jobs and has room for {max(0, room):,}:"
            " nothing was stored; submit again when workers have caught up",
            queue=queue,
        )
    sets = {"room": room - count, "counted_at": counted_at, "limit": limit, "nonce": nonce()}
    return update(Table.RECORDS, place, sets=sets, condition=equals("nonce", gate.get("nonce")))
