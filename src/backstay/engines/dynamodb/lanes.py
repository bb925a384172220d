"""The lanes of a claim that asks for many queues and types: those that have pending jobs, on DynamoDB.

The ready index has all jobs of a shard in one partition, by lane. A query continues behind the last lane that it has
seen, at the next one that was asked for, so that neither the pairs without jobs nor the jobs of others cost anything:
a poll that finds nothing is one query per shard, however many queues and types it asks for.

Where there are more lanes than one claim looks at, each claim starts its walks at random places. Its order is then
that of the lanes it has seen, and no lane is left out for good.
"""

from __future__ import annotations

import asyncio
import bisect
import random
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from backstay.engines.dynamodb import schema
from backstay.engines.dynamodb.expressions import Ask
from backstay.engines.dynamodb.schema import READY, Table
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.transport import Lane as Urgency
from backstay.engines.lanes import Pair

WALKS = 4  # at the same time, each through a part of the lanes
_LANES_MAX = 25  # in one walk
_QUERIES_MAX = 30  # in one walk: it may meet lanes that were not asked for
_PAGE = 10  # rows of a query: so many fit into the smallest unit that it is charged for


class Found(msgspec.Struct):
    heads: dict[Pair, str] = {}  # queue and type: the place of the first job
    is_cut: bool = False  # there are others


class _Names(msgspec.Struct, frozen=True):
    """Queues and types as they are in keys, in the order of keys, and what they stand for."""

    queues: dict[str, str]
    types: dict[str, str]
    in_order: tuple[list[str], list[str]]

    def at(self, number: int) -> Pair:
        queues, types = self.in_order
        return queues[number // len(types)], types[number % len(types)]

    def after(self, pair: Pair) -> Pair | None:
        """Return the next pair that was asked for."""
        queues, types = self.in_order
        queue, job_type = pair
        if queue in self.queues and (place := bisect.bisect_right(types, job_type)) < len(types):
            return queue, types[place]
        if (place := bisect.bisect_right(queues, queue)) < len(queues):
            return queues[place], types[0]
        return None

    def pair(self, found: Pair) -> Pair | None:
        """Return the queue and type, if they were asked for."""
        queue, job_type = self.queues.get(found[0]), self.types.get(found[1])
        return None if queue is None or job_type is None else (queue, job_type)


def _names(queues: Sequence[str], types: Sequence[str]) -> _Names:
    of_queues = {schema.in_lane(name): name for name in queues}
    of_types = {schema.in_lane(name): name for name in types}
    return _Names(of_queues, of_types, (sorted(of_queues), sorted(of_types)))


async def with_jobs(session: Session, queues: Sequence[str], types: Sequence[str]) -> Found:
    """Return the lanes of these queues and types of which the index shows jobs without a fairness key."""
    if not queues or not types:
        return Found()
    names = _names(queues, types)
    found = Found()
    for each in await asyncio.gather(*(_of_shard(session, names, shard) for shard in range(session.shards))):
        found.is_cut = found.is_cut or each.is_cut
        for pair, head in each.heads.items():
            found.heads[pair] = min(head, found.heads.get(pair, head))
    return found


async def _of_shard(session: Session, names: _Names, shard: int) -> Found:
    """Return the lanes of a shard that have jobs. One query is enough if few jobs wait; if there are more, several walk
    at the same time."""
    first = await _walk(session, names, shard, names.at(0), None, 1)
    if not first.is_cut:
        return first
    number = len(names.queues) * len(names.types)
    begin = random.randrange(number)
    cuts = sorted({0, number, *((begin + walk * number // WALKS) % number for walk in range(WALKS))})
    walks = await asyncio.gather(
        *(
            _walk(session, names, shard, names.at(start), names.at(end) if end < number else None, _QUERIES_MAX)
            for start, end in pairwise(cuts)
        )
    )
    found = Found(is_cut=any(each.is_cut for each in walks))
    for each in walks:
        found.heads.update(each.heads)
    return found


async def _walk(session: Session, names: _Names, shard: int, start: Pair, end: Pair | None, queries: int) -> Found:
    """Walk the index from one pair up to another."""
    found = Found()
    up_to = None if end is None else "".join(end)
    at: Pair | None = start
    while at is not None and (end is None or at < end):
        if queries == 0 or len(found.heads) >= _LANES_MAX:
            found.is_cut = True
            break
        queries -= 1
        ask = Ask(
            table=Table.JOBS,
            index=READY.name,
            hash=schema.ready_hash(shard),
            above="".join(at),
            up_to=up_to,
            page=_PAGE,
        )
        rows, then = await session.tables.page(ask, lane=Urgency.IDLE)
        last = at
        for row in rows:
            lane, place = schema.lane_and_place(row["gq"])
            last = max(last, lane)
            if (pair := names.pair(lane)) is not None:
                found.heads.setdefault(pair, place)
        at = None if then is None else names.after(last)
    return found
