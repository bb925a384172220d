"""Admission: which jobs start now, which are parked and until when, and whose turn it is. Pure.

An engine reads the first jobs of its lanes and the gates that they have to pass, this module decides, and the engine
writes the decision in the transaction in which it claims the jobs. A lane is a queue and a type.

- A concurrency key has room for a job while fewer jobs of the key run than that job's own limit.
- A rate key has a bucket for each rate that its jobs were submitted with. A bucket is one number: the instant at which
  it would be full again. Every start moves it forward by one share of the span, or by as many as the job costs; a job
  may start as long as that leaves the bucket within one span of now. A job that costs more than there is holds back the
  others of its bucket, so that cheaper ones behind it do not take what it waits for.
- What was set at run time takes the place of what jobs were submitted with. A limit of a key holds instead of theirs:
  the bucket that they are parked under stays, and only says when to look again. A limit of a type holds for all its
  jobs, whatever their keys, and instead of their own where the key is the name of the type, as it is without one. Jobs
  over a limit of their type are not parked: a claim takes fewer of the lane.
- Fairness keys take turns within a priority. A key has a position, which every start moves forward by a step divided by
  its weight; the key that is furthest behind is next, and jobs without a key count as one more key. A key that was idle
  starts where the lane is: absence earns nothing.
- A queue may limit how many of its jobs are pending.

A job that finds no room is parked, so that the next claim does not find it again. A bucket with parked jobs has a time
at which they are checked: when it has room for one, or NO_TIME if as many are claimable as may start. Then each
claimable job that leaves gives it a time.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from backstay.clock import MICROS, Instant
from backstay.core.records import LimitOf, LimitRow, Rate
from backstay.errors import InvalidOption, QueueFull
from backstay.limits import IN_SIGHT_MAX

BY_KEY, BY_RATE = 1, 2  # what parked a job
NO_TIME: Instant = 2**62
SET_BACK = 60 * MICROS  # no call is this late: the clock was set back, and what was written is from before
_STEP = 1_000_000  # of a turn: divided by the weight

# Rates

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_RATE = re.compile(r"(\d{1,9})/(\d{1,6})?(s|m|h|d)")


def parse(text: str | Rate | None) -> Rate | None:
    """Parse a rate such as 10/s, 100/m, 5/30s or 1000/h."""
    if text is None or isinstance(text, Rate):
        return text
    found = _RATE.fullmatch(text.replace(" ", "")) if isinstance(text, str) else None
    if found is None or int(found[1]) == 0 or int(found[2] or 1) == 0:
        raise InvalidOption(f'rate={text!r:.60}: write "10/s", "100/m", "5/30s", "1000/h"')
    return Rate(int(found[1]), int(found[2] or 1) * _UNITS[found[3]] * MICROS)


def room(rate: Rate, full_at: Instant, now: Instant) -> int:
    """Return how many jobs may start now."""
    spent = min(max(full_at - now, 0), rate.micros)  # a clock that jumped can leave more than a span
    return (rate.micros - spent) * rate.count // rate.micros


def take(rate: Rate, full_at: Instant, now: Instant, starts: int) -> Instant:
    """Return when the bucket is full again after this many starts, or starts that cost this much."""
    full_at = min(max(full_at, now), now + rate.micros)
    return full_at + -(-starts * rate.micros // rate.count)


def due_at(rate: Rate, full_at: Instant, now: Instant, cost: int = 1) -> Instant:
    """Return when the next job may start."""
    share = -(-cost * rate.micros // rate.count)
    return max(now, min(full_at, now + rate.micros) + share - rate.micros)


def by_this_clock(full_at: Instant, set_at: Instant, now: Instant) -> Instant:
    """Return when a bucket that was written at `set_at` is full again. If the clock was set back since, a bucket that
    had been spent would otherwise stay empty until it is that late again."""
    return full_at - (set_at - now) if set_at - now > SET_BACK else full_at


class Bucket(NamedTuple):
    """What the jobs of one rate key that were submitted with one rate draw from."""

    key: str
    starts: int
    micros: int

    @property
    def rate(self) -> Rate:
        return Rate(self.starts, self.micros)


class Level(msgspec.Struct, frozen=True):
    """A bucket as read: when it is full again, and when its parked jobs are to be checked; None means it has none."""

    full_at: Instant = 0
    due_at: Instant | None = None
    wanted: int = 1  # the cost of the job that waits first: less than that is in the bucket, nothing starts

    def room(self, bucket: Bucket, now: Instant) -> int:
        """Return how much may be spent now."""
        found = room(bucket.rate, self.full_at, now)
        return found if found >= self._at_once(bucket) else 0

    def places(self, bucket: Bucket, now: Instant) -> int:
        """Return how many jobs of a queue, type and version may be claimable now. The others are parked, except those
        that come before a claimable one."""
        return min(self.room(bucket, now) // self._at_once(bucket), IN_SIGHT_MAX)

    def _at_once(self, bucket: Bucket) -> int:
        return min(self.wanted, bucket.starts)

    def next_start(self, bucket: Bucket, now: Instant, cost: int = 1) -> Instant:
        """Return when a job of this cost may start, if no other does before."""
        return due_at(bucket.rate, self.full_at, now, min(max(self.wanted, cost), bucket.starts))

    def check_at(self, bucket: Bucket, now: Instant) -> Instant:
        """Return when parked jobs are to be checked if as many are claimable as may be."""
        return NO_TIME if self.room(bucket, now) else self.next_start(bucket, now)

    def checked(self, due_at: Instant | None) -> Level:
        """Return the level after a check of the parked jobs: when the next one is, None if none of them is left."""
        return Level(self.full_at) if due_at is None else Level(self.full_at, due_at, self.wanted)


class Draw(msgspec.Struct, frozen=True):
    """What a claim does to a bucket that it looked at."""

    bucket: Bucket
    level: Level  # the new one
    spent: int
    refused: bool  # at least one job


# Turns


class Turn(NamedTuple):
    """Whose turn it is in a lane. Jobs without a fairness key have one of their own."""

    lane: tuple[str, str]
    key: str
    weight: int


class LaneTurns(msgspec.Struct):
    """How far a lane and its keys have come; a key without a position is where the lane is."""

    position: int = 0
    positions: dict[str, int] = msgspec.field(default_factory=dict)

    def of(self, key: str) -> int:
        return max(self.position, self.positions.get(key, 0))


class TurnOrder:
    """The order of turns among the keys of a lane in which jobs of one priority wait.

    The caller takes the next job of the key that `next` names and tells whether there was one."""

    def __init__(self, lane: LaneTurns, weights: Mapping[str, int]) -> None:
        self._line = [(lane.of(key), key, weight) for key, weight in weights.items()]
        heapq.heapify(self._line)

    def next(self) -> str | None:
        return self._line[0][1] if self._line else None

    def started(self) -> None:
        position, key, weight = self._line[0]
        heapq.heapreplace(self._line, (position + _STEP // weight, key, weight))

    def has_none(self) -> None:
        """Note that no further job of the key waits: its turns are left to the others."""
        heapq.heappop(self._line)


def after_turns(lane: LaneTurns, turns: Iterable[Turn]) -> LaneTurns:
    """Return the lane's new position and those of the keys that had these turns."""
    positions: dict[str, int] = {}
    reached = lane.position
    for turn in turns:
        position = positions.get(turn.key)
        if position is None:
            position = lane.of(turn.key)
        # The lane is at the position of the last key that had a turn: new keys start there.
        reached = max(reached, position)
        positions[turn.key] = position + _STEP // turn.weight
    return LaneTurns(reached, positions)


# Claims


class Head(Protocol):
    """A job at the head of its lane, as far as gates are concerned."""

    @property
    def job_type(self) -> str: ...
    @property
    def concurrency_key(self) -> str | None: ...
    @property
    def concurrency_limit(self) -> int | None: ...
    @property
    def rate_key(self) -> str | None: ...
    @property
    def rate_count(self) -> int | None: ...
    @property
    def rate_micros(self) -> int | None: ...
    @property
    def rate_cost(self) -> int | None: ...
    @property
    def turn(self) -> Turn | None: ...


AnyHead = TypeVar("AnyHead", bound=Head)


def limited_key(head: Head) -> tuple[str, int] | None:
    """Return the concurrency key of a job and its limit, if it has both."""
    key, limit = head.concurrency_key, head.concurrency_limit
    return None if key is None or limit is None else (key, limit)


def bucket_of(head: Head) -> Bucket | None:
    """Return the bucket that a job draws from, if it has a rate."""
    key, count, micros = head.rate_key, head.rate_count, head.rate_micros
    return None if key is None or count is None or micros is None else Bucket(key, count, micros)


def cost_of(head: Head, bucket: Bucket) -> int:
    """Return what a start takes. A job that costs more than its bucket holds takes all of it."""
    return min(head.rate_cost or 1, bucket.starts)


class RunLimits(msgspec.Struct):
    """What was set at run time, as far as it was read."""

    rows: dict[tuple[LimitOf, str], LimitRow] = msgspec.field(default_factory=dict)

    def add(self, rows: Iterable[LimitRow]) -> None:
        self.rows.update(((row.of, row.name), row) for row in rows)

    def of_type(self, job_type: str) -> LimitRow | None:
        return self.rows.get((LimitOf.TYPE, job_type)) if self.rows else None

    def allowed(self, key: str, own: int) -> int:
        """Return how many jobs of a key may run at once; `own` is what they were submitted with."""
        return next((row.concurrency for row in self._named(key) if row.concurrency is not None), own)

    def bucket(self, own: Bucket) -> Bucket:
        """Return what jobs draw from that were submitted with this bucket."""
        rate = next((row.rate for row in self._named(own.key) if row.rate is not None), None)
        return own if rate is None else Bucket(own.key, rate.count, rate.micros)

    def bucket_of_type(self, job_type: str) -> Bucket | None:
        """Return what all jobs of a type draw from."""
        row = self.of_type(job_type)
        rate = None if row is None else row.rate
        return None if rate is None else Bucket(job_type, rate.count, rate.micros)

    def _named(self, name: str) -> list[LimitRow]:
        found = [self.rows.get((of, name)) for of in (LimitOf.KEY, LimitOf.TYPE)] if self.rows else []
        return [row for row in found if row is not None]


class Gates(msgspec.Struct):
    """The gates that some jobs have to pass, as read: how many jobs of each concurrency key run, and of each type that
    is limited at run time, the levels of the buckets, the turns of the lanes whose keys take turns, and what was set at
    run time."""

    running: dict[str, int] = msgspec.field(default_factory=dict)
    levels: dict[Bucket, Level] = msgspec.field(default_factory=dict)
    turns: dict[tuple[str, str], LaneTurns] = msgspec.field(default_factory=dict)
    limits: RunLimits = msgspec.field(default_factory=RunLimits)
    of_type: dict[str, int] = msgspec.field(default_factory=dict)

    def missing(self, heads: Iterable[Head]) -> tuple[set[str], set[Bucket]]:
        """Return the concurrency keys and buckets of these jobs that have not been read."""
        keys: set[str] = set()
        buckets: set[Bucket] = set()
        for head in heads:
            if head.concurrency_key is not None and (limited := limited_key(head)) is not None:
                keys.add(limited[0])
            if head.rate_key is not None and (bucket := bucket_of(head)) is not None:
                buckets |= {bucket, self.limits.bucket(bucket)}
            if self.limits.rows and (bucket := self.limits.bucket_of_type(head.job_type)) is not None:
                buckets.add(bucket)
        return keys.difference(self.running), buckets.difference(self.levels)

    def limited_types(self, heads: Iterable[Head]) -> set[str]:
        """Return the types of these jobs whose running ones have to be counted, and have not been."""
        if not self.limits.rows:
            return set()
        rows = {self.limits.of_type(head.job_type) for head in heads}
        return {row.name for row in rows if row is not None and row.concurrency is not None}.difference(self.of_type)


class Admission(Generic[AnyHead]):
    """The decision on one claim: heads start in their order while there is room in the claim, in the slots of their
    type, at their gates, and in the commit.

    `fits` tells whether the commit has room for one more job, and counts it; an engine whose commits have any size
    leaves it out."""

    def __init__(
        self,
        gates: Gates,
        limit: int,
        slots: Mapping[str, int],
        now: Instant,
        fits: Callable[[AnyHead], bool] | None = None,
    ) -> None:
        self.started: list[AnyHead] = []
        self.key_full: list[AnyHead] = []  # to be parked by their concurrency key …
        self.over_rate: list[AnyHead] = []  # … and by their rate
        self.cut = False  # more may start than fit into one commit
        self._gates = gates
        self._limits = gates.limits
        self._set = gates.limits.rows  # mostly empty: asked for every job
        self._limit = limit
        self._slots = dict(slots)
        self._now = now
        self._fits = fits
        self._entered: dict[str, int] = {}  # how many start of each concurrency key
        self._entered_types: dict[str, int] = {}  # … and of each type that is limited at run time
        self._lots: dict[Bucket, Bucket] = {}  # what heads are parked under, if that is not what they draw from
        self._room: dict[Bucket, int] = {}
        self._taken: dict[Bucket, int] = {}
        self._refused: dict[Bucket, int] = {}  # with what the first that was refused waits for

    @property
    def is_full(self) -> bool:
        return self.cut or len(self.started) >= self._limit

    @property
    def parks(self) -> bool:
        return bool(self.key_full or self.over_rate)

    def consider(self, heads: Iterable[AnyHead]) -> None:
        """Decide on heads whose gates have been read, until the claim is full."""
        started, slots, limit = self.started, self._slots, self._limit
        for head in heads:
            if len(started) >= limit or self.cut:
                return
            free = slots.get(head.job_type, 0)
            if free > 0 and self._may_start(head):
                slots[head.job_type] = free - 1
                started.append(head)

    def _may_start(self, head: AnyHead) -> bool:
        key, bucket = None, None
        if head.concurrency_key is not None and (limited := limited_key(head)) is not None:
            key, limit = limited
            limit = self._limits.allowed(key, limit)
            if self._gates.running[key] + self._entered.get(key, 0) >= limit:
                self.key_full.append(head)
                return False
        if head.rate_key is not None and (bucket := bucket_of(head)) is not None:
            lot, bucket = bucket, self._limits.bucket(bucket)
            if lot != bucket:
                self._lots[lot] = bucket
            if not self._has_room(bucket, cost_of(head, bucket)):
                self.over_rate.append(head)
                return False
        if self._set and not self._type_has_room(head, bucket):
            return False
        if self._fits is not None and not self._fits(head):
            self.cut = True
            return False
        if key is not None:
            self._entered[key] = self._entered.get(key, 0) + 1
        if bucket is not None:
            self._spend(bucket, cost_of(head, bucket))
        if self._set:
            self._entered_types[head.job_type] = self._entered_types.get(head.job_type, 0) + 1
            if (of_type := self._limits.bucket_of_type(head.job_type)) is not None and of_type != bucket:
                self._spend(of_type, cost_of(head, of_type))
        return True

    def _type_has_room(self, head: AnyHead, bucket: Bucket | None) -> bool:
        row = self._limits.of_type(head.job_type)
        if row is None:
            return True
        if row.paused_at is not None:
            return False
        if row.concurrency is not None:
            entered = self._entered_types.get(head.job_type, 0)
            if self._gates.of_type[head.job_type] + entered >= row.concurrency:
                return False
        of_type = self._limits.bucket_of_type(head.job_type)
        if of_type is None or of_type == bucket:
            return True
        # These jobs are not parked: every claim sees the first of them, and need not hold a place for it.
        self._room.setdefault(of_type, room(of_type.rate, self._gates.levels[of_type].full_at, self._now))
        return self._has_room(of_type, cost_of(head, of_type))

    def _has_room(self, bucket: Bucket, cost: int) -> bool:
        """Return whether a bucket holds as much; if not, nothing more is taken from it."""
        if bucket not in self._room:
            self._room[bucket] = self._gates.levels[bucket].room(bucket, self._now)
        if bucket not in self._refused and self._room[bucket] >= cost:
            return True
        self._refused.setdefault(bucket, max(cost, self._held_for(bucket)))
        return False

    def _spend(self, bucket: Bucket, cost: int) -> None:
        self._room[bucket] -= cost
        self._taken[bucket] = self._taken.get(bucket, 0) + cost

    def _held_for(self, bucket: Bucket) -> int:
        """Return what a job that is not among the heads waits for, if that is more than there is."""
        level = self._gates.levels[bucket]
        return 1 if level.room(bucket, self._now) else level.wanted

    def draws(self) -> list[Draw]:
        """Return the new levels of the buckets that were looked at."""
        drawn = {bucket: self._draw(bucket) for bucket in self._room}
        lots = (self._look_again(lot, drawn[bucket]) for lot, bucket in self._lots.items())
        return [*drawn.values(), *(draw for draw in lots if draw is not None and draw.bucket not in drawn)]

    def _look_again(self, lot: Bucket, draw: Draw) -> Draw | None:
        """Return when to look at the jobs again that are parked under a bucket that they do not draw from."""
        was = self._gates.levels[lot]
        if not draw.refused and was.due_at is None:
            return None
        due = due_at(draw.bucket.rate, draw.level.full_at, self._now, draw.level.wanted)
        return Draw(lot, Level(was.full_at, due, was.wanted), 0, draw.refused)

    def _draw(self, bucket: Bucket) -> Draw:
        was, spent, refused = self._gates.levels[bucket], self._taken.get(bucket, 0), bucket in self._refused
        # This call may be late: newer starts of other claims stay counted.
        full = take(bucket.rate, was.full_at, self._now, spent) if spent else was.full_at
        wanted = self._refused.get(bucket, 1)
        due = due_at(bucket.rate, full, self._now, wanted) if refused or was.due_at is not None else None
        return Draw(bucket, Level(full, due, wanted), spent, refused)

    def turns(self) -> dict[tuple[str, str], LaneTurns]:
        """Return the new positions in the lanes that had turns, of the keys that had one."""
        if not self._gates.turns:
            return {}
        taken: dict[tuple[str, str], list[Turn]] = {}
        for head in self.started:
            if head.turn is not None:
                taken.setdefault(head.turn.lane, []).append(head.turn)
        return {lane: after_turns(self._gates.turns[lane], turns) for lane, turns in taken.items()}

    def left_sight(self) -> set[Bucket]:
        """Return the buckets with a job that is parked by its concurrency key: another job of the rate may become
        claimable instead."""
        return {bucket for head in self.key_full if (bucket := bucket_of(head)) is not None}


# Queues


def refuse_over_limit(queue: str, limit: int, free: int, coming: int) -> None:
    """Raise QueueFull if more jobs come than the queue has room for."""
    if coming > free:
        raise QueueFull(
            f"the queue {queue} accepts {limit:,} pending jobs and has room for {max(0, free):,}:"
            " nothing was stored; submit again when workers have caught up",
            queue=queue,
        )
