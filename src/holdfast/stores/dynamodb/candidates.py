"""The heads of the asked lanes, as the index proposes them, and as they stand.

An index may be late: it may still show a job that was taken, or not yet one that came. So its entries are only looked
up here; what is taken is decided by the version that the claim compares.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import msgspec

from holdfast.lifecycle import Status
from holdfast.store.types import ClaimRequest
from holdfast.stores.dynamodb import keys, taking_turns
from holdfast.stores.dynamodb.admitting import Entry, Head
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.board import BoardState
from holdfast.stores.dynamodb.expressions import Condition, absent, at_most
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import READY, Table
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane

SHARDS_AT_ONCE = 1  # further ones only where it has too few: claimers that all look everywhere want the same jobs
CROWDED_WINDOW = 4  # times what is wanted is read by who lost against others, to take a part of its own
_TOGETHER = 16  # lanes that are read at once
_PAGE_MAX = 1_000  # rows of which a query filters what a worker cannot read
_READ_MAX = 4_000  # such rows of one lane and claim


class Proposed(msgspec.Struct):
    """What the index shows of the asked lanes, in claim order."""

    entries: list[Entry]
    turns: dict[tuple[str, str], taking_turns.Standing]  # of the lanes that have fairness keys
    more: bool  # a lane had more than was read of it


async def propose(
    ground: Ground, request: ClaimRequest, board: BoardState, limit: int, spare: int, crowded: bool = False
) -> Proposed:
    """`spare`: how many more to read than could be taken, for those that turn out to be gone or to have to wait.
    `crowded`: others want the same jobs, so that a random part of more is proposed first."""
    lanes = [
        (queue, job_type, min(slots, limit) * (CROWDED_WINDOW if crowded else 1) + spare)
        for job_type, slots in request.slots.items()
        if slots > 0
        for queue in request.queues
        if not _is_paused(board, queue)
    ]
    found: list[Entry] = []
    turns: dict[tuple[str, str], taking_turns.Standing] = {}
    more = False
    for start in range(0, len(lanes), _TOGETHER):
        batch = lanes[start : start + _TOGETHER]
        for (queue, job_type, want), (entries, standing) in zip(
            batch, await asyncio.gather(*(_lane(ground, request, board, *each) for each in batch)), strict=True
        ):
            found += entries
            more = more or len(entries) >= want
            if standing is not None:
                turns[queue, job_type] = standing
    found = _each_once(sorted(found, key=lambda entry: entry.order))
    return Proposed(_from_a_random_place(found, limit) if crowded and not turns else found, turns, more)


def _each_once(entries: list[Entry]) -> list[Entry]:
    """An index shows a job at two places while it moves from one to the other."""
    first: dict[str, Entry] = {}
    for entry in entries:
        first.setdefault(entry.job_id, entry)
    return list(first.values())


def _from_a_random_place(entries: list[Entry], limit: int) -> list[Entry]:
    """The order is rough then, and whoever asks for many still gets as many as there are."""
    start = random.randint(0, max(0, len(entries) - limit))
    return entries[start:] + entries[:start]


def _is_paused(board: BoardState, queue: str) -> bool:
    row = board.queues.get(queue)
    return row is not None and row.paused_at is not None


async def _lane(
    ground: Ground, request: ClaimRequest, board: BoardState, queue: str, job_type: str, want: int
) -> tuple[list[Entry], taking_turns.Standing | None]:
    readable = readable_by(request.versions.get(job_type))
    rows = await plain(ground, queue, job_type, want, readable)
    if (queue, job_type) not in board.fair:
        return [Entry(row["job_id"], row["gq"]) for row in rows], None
    standing = await taking_turns.read(ground, queue, job_type)
    return await taking_turns.heads(ground, (queue, job_type), rows, want, readable, standing), standing


def readable_by(version: int | None) -> Condition | None:
    """What a worker reads that knows payloads up to this version; 1 is not stored."""
    return None if version is None else absent("payload_version") | at_most("payload_version", version)


class _Patience(msgspec.Struct):
    """How many more rows a claim reads of a lane whose jobs are too new for it."""

    rows: int


async def plain(ground: Ground, queue: str, job_type: str, want: int, readable: Condition | None) -> list[Item]:
    """The first jobs of a lane that have no fairness key, in order as far as the shards that were asked go."""
    start = random.randrange(ground.shards)
    shards = [(start + i) % ground.shards for i in range(ground.shards)]
    rows: list[Item] = []
    patience = _Patience(_READ_MAX)
    while shards and len(rows) < want:
        asked, shards = shards[:SHARDS_AT_ONCE], shards[SHARDS_AT_ONCE:]
        for each in await asyncio.gather(
            *(_shard(ground, keys.ready_hash(queue, job_type, shard), want, readable, patience) for shard in asked)
        ):
            rows += each
        rows.sort(key=lambda row: str(row["gq"]))
    return rows[:want]


async def _shard(
    ground: Ground, hash_value: str, want: int, readable: Condition | None, patience: _Patience
) -> list[Item]:
    """The first of a shard. Behind many that are too new for this worker the next claim goes on where this one ended,
    so that whoever stands there is found some time, at a cost that does not grow with them."""
    rows: list[Item] = []
    left_off = ground.remembered.left_off
    page, above = want, None
    while True:
        ask = Ask(table=Table.JOBS, index=READY.name, hash=hash_value, above=above, page=page, where=readable)
        found, then = await ground.tables.page(ask, lane=Lane.IDLE)
        rows += found
        if len(rows) >= want:
            return rows[:want]
        if then is None:
            left_off.pop(hash_value, None)
            return rows
        patience.rows -= page
        above = str(then["gq"])
        if patience.rows <= 0:
            left_off[hash_value] = above
            return rows
        if page >= _PAGE_MAX // 4:
            above = max(above, left_off.get(hash_value, ""))
        page = min(4 * page, _PAGE_MAX)


async def verified(ground: Ground, entries: Sequence[Entry]) -> list[Head]:
    """Those that stand as the index says, as they are now."""
    items = await ground.tables.get(Table.JOBS, [(entry.job_id,) for entry in entries], lane=Lane.IDLE)
    return [
        Head(item, entry.turn)
        for entry, item in zip(entries, items, strict=True)
        if item is not None and item.get("status") == Status.PENDING and "parked" not in item
    ]
