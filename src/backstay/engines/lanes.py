"""The lanes a claim looks at when it asks for many: those that have pending jobs.

A pair of a queue and a type is a lane. An engine walks its indexes of pending jobs from lane to lane and jumps over
what was not asked for, so that neither the pairs that are empty nor the jobs of others cost anything. A walk is cut off
after CLAIM_LANES_MAX lanes. Where there are more, each claim starts at a random one: its order is then that of the part
it looked at, and no lane is left out for good.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from backstay.clock import Instant
from backstay.core.admission import Head
from backstay.core.records import ClaimRequest
from backstay.limits import CLAIM_LANES_FEW, CLAIM_LANES_MAX

Order = tuple[int, Instant, str]  # as jobs are claimed: priority downwards, then the due time, then the id
Pair = tuple[str, str]  # queue and type
FIRST: Order = (-(2**31), 0, "")
LOOKED = ("looked", "looked for turns")  # kinds of rows that only tell how far a walk has come: the lane may be empty
PLAIN, KEYED, FAIR = "plain", "keyed", "fair"  # jobs for which no limit is looked at, or one is, or a turn


# A claim makes thousands of the objects below. They refer to nothing that could refer to them, so the garbage collector
# need not know of them: it looked at everything that the process has, for 20 ms and more, every 66 claims.


class Lane(msgspec.Struct, frozen=True, gc=False):
    """A queue and a type; no job of theirs comes before `head`."""

    queue: str
    job_type: str
    head: Order = FIRST
    kinds: frozenset[str] = frozenset()  # of the jobs that wait in it; none where nothing was looked at


class Candidate(Head, Protocol):
    """A job at the head of its lane, as a claim on SQLite or PostgreSQL reads it."""

    due: Instant

    @property
    def priority(self) -> int: ...
    @property
    def job_id(self) -> str: ...


def order(candidate: Candidate) -> Order:
    # Jobs that take turns are one block with one due time: later sorting must not change their order.
    return -candidate.priority, candidate.due, "" if candidate.turn is not None else candidate.job_id


def as_a_block(turns: Sequence[Candidate]) -> None:
    """Give jobs of one priority, in the order of turns, the due time of the first that became due."""
    due = min((candidate.due for candidate in turns), default=0)
    for candidate in turns:
        candidate.due = due


class Row(msgspec.Struct, frozen=True, gc=False):
    """What a walk finds in a lane: its first job of a kind."""

    kind: str
    queue: str
    job_type: str
    priority: int = 0
    due: Instant = 0
    job_id: str = ""


class Asked(msgspec.Struct, frozen=True):
    """What a claim has room for, in the order of the indexes."""

    queues: list[str]
    types: list[str]

    @property
    def is_few(self) -> bool:
        """Whether looking at each pair costs less than a walk."""
        return len(self.queues) * len(self.types) <= CLAIM_LANES_FEW

    def pairs(self) -> list[Lane]:
        return [Lane(queue, job_type) for job_type in self.types for queue in self.queues]

    def random_start(self) -> Pair:
        return random.choice(self.queues), random.choice(self.types)

    def after(self, pair: Pair) -> Pair | None:
        queue, job_type = pair
        if (place := bisect.bisect_right(self.types, job_type)) < len(self.types):
            return queue, self.types[place]
        if (place := bisect.bisect_right(self.queues, queue)) < len(self.queues):
            return self.queues[place], self.types[0]
        return None


def asked(request: ClaimRequest) -> Asked:
    types = sorted(job_type for job_type, slots in request.slots.items() if min(slots, request.limit) > 0)
    return Asked(sorted(set(request.queues)), types)


Ask = Callable[[Pair], Awaitable[Iterable[Row]]]  # walks from a pair on


async def pages(wanted: Asked, ask: Ask) -> AsyncIterator[list[Lane]]:
    """Yield the lanes that have pending jobs by their first job, in one page if they are few.

    A caller that finds nothing to claim in a page continues with the next one."""
    start, begin = wanted.random_start(), (wanted.queues[0], wanted.types[0])
    found: list[Lane] = []
    for first, until in ((start, None), (begin, start)):
        at: Pair | None = first
        while at is not None and (until is None or at < until):
            lanes, cut_at = page_of(await ask(at), until)
            found += lanes
            if cut_at is not None:
                yield by_head(found)
                found = []
            at = None if cut_at is None else wanted.after(cut_at)
    yield by_head(found)


def page_of(rows: Iterable[Row], until: Pair | None = None) -> tuple[list[Lane], Pair | None]:
    """Return the lanes before `until`, and the last of them if the walk was cut off there.

    Each kind has a walk of its own. Beyond the place where the first of them was cut off, the others are ignored."""
    by_kind: dict[str, list[Row]] = {}
    for row in rows:
        by_kind.setdefault(row.kind, []).append(row)
    cut_at = min(
        ((each[-1].queue, each[-1].job_type) for each in by_kind.values() if len(each) >= CLAIM_LANES_MAX), default=None
    )
    if cut_at is not None and until is not None and cut_at >= until:
        cut_at = None
    found: dict[str, dict[str, Lane]] = {}  # by queue and type
    for kind, each in by_kind.items():
        if kind in LOOKED:
            continue
        for row in each:
            pair = row.queue, row.job_type
            if (cut_at is None or pair <= cut_at) and (until is None or pair < until):
                lanes = found.setdefault(row.queue, {})
                lanes[row.job_type] = _with(lanes.get(row.job_type), row)
    return [lane for lanes in found.values() for lane in lanes.values()], cut_at


_ONLY = {kind: frozenset({kind}) for kind in (PLAIN, KEYED, FAIR)}


def _with(lane: Lane | None, row: Row) -> Lane:
    head = -row.priority, row.due, row.job_id
    if lane is None:
        return Lane(row.queue, row.job_type, head, _ONLY[row.kind])
    return Lane(lane.queue, lane.job_type, min(head, lane.head), lane.kinds | _ONLY[row.kind])


def by_head(lanes: Sequence[Lane]) -> list[Lane]:
    """Sort the lanes. Those that take turns may have an earlier job than the first that was seen, which is only the
    first of one key. A few of them are looked at in any case; of many, the first that was seen has to do."""
    if sum(FAIR in lane.kinds for lane in lanes) <= CLAIM_LANES_FEW:
        lanes = [
            msgspec.structs.replace(lane, head=(lane.head[0], 0, "")) if FAIR in lane.kinds else lane for lane in lanes
        ]
    return sorted(lanes, key=lambda lane: lane.head)
