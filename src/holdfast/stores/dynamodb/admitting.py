"""Who of those at the head of the lanes may start. Pure: gates are data here, and what becomes of them is an answer.

A concurrency key has a gate with the ids of those that run, a rate has one with a bucket (see holdfast.rates). Both are
changed in the commit that starts a job, under a condition on what was read; what is decided here is a proposal until
then. Whoever does not get in is parked, so that the next claim does not meet it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from holdfast import rates
from holdfast.clock import MICROS, Instant
from holdfast.store.types import Rate
from holdfast.stores.dynamodb.keys import NO_TIME
from holdfast.stores.dynamodb.values import Item, size

Bucket = tuple[str, int, int]  # a rate key, and the rate that its jobs were submitted with: count, micros
SET_BACK = 60 * MICROS  # a call may be late, but not so late: the clock was set back, and what it left behind is too
HOLDERS_MAX = 8_000  # of one key at a time: their ids are one item, which holds 400 KB
COMMIT_ITEMS_MAX = 90  # of the 100 that one transaction takes
COMMIT_BYTES_MAX = 3_000_000  # of its 4 MB, index attributes apart


def bucket_of(item: Item) -> Bucket | None:
    """The rate that a job is held to, if any."""
    count = item.get("rate_count")
    return None if count is None else (item.get("rate_key", ""), count, item["rate_micros"])


def limited_key(item: Item) -> tuple[str, int] | None:
    """The concurrency key of a job and its limit, where it has both."""
    key, limit = item.get("concurrency_key"), item.get("concurrency_limit")
    return None if key is None or limit is None else (key, min(limit, HOLDERS_MAX))


def rate_of(bucket: Bucket) -> Rate:
    return Rate(bucket[1], bucket[2])


class RateGate(msgspec.Struct, frozen=True):
    """A bucket as it was read: when it is full again, and when its parked jobs are to be looked at (None: it has none;
    NO_TIME: as many as may start are in sight). `nonce` is what a write compares."""

    full_at: Instant = 0
    due_at: Instant | None = None
    nonce: str | None = None
    looks: int = 0  # in a row at which there was room, and nobody to be put back in sight

    def room(self, bucket: Bucket, now: Instant) -> int:
        return rates.room(rate_of(bucket), self.full_at, now)


def rate_gate(item: Item | None, now: Instant) -> RateGate:
    if item is None:
        return RateGate()
    full, set_at = item["full_at"], item["set_at"]
    if set_at - now > SET_BACK:
        full -= set_at - now
    return RateGate(full, item.get("due_at"), item["nonce"], item.get("looks", 0))


class GateStates(msgspec.Struct):
    """What was read of the gates that some jobs have to pass."""

    running: dict[str, int] = msgspec.field(default_factory=dict)  # how many jobs of a key run
    rates: dict[Bucket, RateGate] = msgspec.field(default_factory=dict)


class Turn(msgspec.Struct, frozen=True):
    """Whose turn it is in a lane with fairness keys; None stands for the jobs without one."""

    lane: tuple[str, str]  # queue and type
    key: str | None
    weight: int


class Entry(msgspec.Struct, frozen=True):
    """A job that an index proposes; `order` is its place among the heads of all lanes."""

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


class Drawn(msgspec.Struct, frozen=True):
    """What becomes of a bucket: the gate as it was read, and as it is to be."""

    bucket: Bucket
    was: RateGate
    full_at: Instant
    due_at: Instant | None
    looks: int = 0


class Admission:
    """Takes heads in order, as long as there is room for them: in the claim, its slots, the gates and the commit."""

    def __init__(self, gates: GateStates, limit: int, slots: Mapping[str, int], now: Instant) -> None:
        self.admitted: list[Head] = []
        self.key_full: list[Head] = []
        self.over_rate: list[Head] = []
        self.cut = False  # more may start than fit one commit
        self._gates = gates
        self._limit = limit
        self._slots = dict(slots)
        self._now = now
        self._most_before: dict[str, int] = {}  # how many of a key may run already, for all that it lets in to fit
        self._joins: dict[str, set[str]] = {}
        self._rate_room: dict[Bucket, int] = {}
        self._taken: dict[Bucket, int] = {}
        self._refused: set[Bucket] = set()
        self._beside: set[tuple[str, ...]] = set()  # what else the commit has to write
        self._items = 0
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return self.cut or len(self.admitted) >= self._limit

    def consider(self, heads: Iterable[Head]) -> None:
        for head in heads:
            if self.is_full:
                return
            if self._slots.get(head.item["job_type"], 0) > 0:
                self._consider(head)

    def _consider(self, head: Head) -> None:
        limited, bucket = limited_key(head.item), bucket_of(head.item)
        if limited is not None and not self._key_has_room(*limited):
            self.key_full.append(head)
            return
        if bucket is not None and not self._rate_has_room(bucket):
            self.over_rate.append(head)
            self._refused.add(bucket)
            return
        weight, bytes_more = self._weight(head, limited, bucket), size(head.item)
        too_large = self._bytes + bytes_more > COMMIT_BYTES_MAX and self.admitted
        if self._items + weight > COMMIT_ITEMS_MAX or too_large:
            self.cut = True
            return
        self._items += weight
        self._bytes += bytes_more
        self._admit(head, limited, bucket)

    def _key_has_room(self, key: str, limit: int) -> bool:
        """Each keeps to its own limit, where jobs of one key have several."""
        return self._gates.running.get(key, 0) + len(self._joins.get(key, ())) < limit

    def _rate_has_room(self, bucket: Bucket) -> bool:
        if bucket not in self._rate_room:
            self._rate_room[bucket] = self._gates.rates.get(bucket, RateGate()).room(bucket, self._now)
        return self._rate_room[bucket] > 0

    def _weight(self, head: Head, limited: tuple[str, int] | None, bucket: Bucket | None) -> int:
        """How many items of the commit it takes: itself, and what nobody before it has brought along."""
        beside: dict[tuple[str, ...], int] = {}
        if limited is not None:
            beside["key", limited[0]] = 1
        if bucket is not None:
            beside["rate", *map(str, bucket)] = 3  # the gate, and its mark that moves from one time to another
        if head.turn is not None:
            beside["lane", *head.turn.lane] = 1
            beside["turn", *head.turn.lane, f"{head.turn.key is None}", head.turn.key or ""] = 1
        new = {name: items for name, items in beside.items() if name not in self._beside}
        if self._items + 1 + sum(new.values()) <= COMMIT_ITEMS_MAX:
            self._beside |= new.keys()
        return 1 + sum(new.values())

    def _admit(self, head: Head, limited: tuple[str, int] | None, bucket: Bucket | None) -> None:
        if limited is not None:
            key, limit = limited
            joined = self._joins.setdefault(key, set())
            joined.add(head.job_id)
            self._most_before[key] = min(self._most_before.get(key, limit), limit - len(joined))
        if bucket is not None:
            self._rate_room[bucket] -= 1
            self._taken[bucket] = self._taken.get(bucket, 0) + 1
        self._slots[head.item["job_type"]] -= 1
        self.admitted.append(head)

    def joins(self) -> list[tuple[str, int, set[str]]]:
        """The keys that get holders: each with how many may run then, and who comes in."""
        return [(key, self._most_before[key] + len(ids), ids) for key, ids in self._joins.items()]

    def drawn(self) -> list[Drawn]:
        """The buckets that were drawn from, or that had nothing left."""
        return [drawn for bucket in self._rate_room if (drawn := self._draw(bucket)) is not None]

    def _draw(self, bucket: Bucket) -> Drawn | None:
        was, rate = self._gates.rates.get(bucket, RateGate()), rate_of(bucket)
        starts = self._taken.get(bucket, 0)  # who is refused may be late: what others took since stands
        full = rates.take(rate, was.full_at, self._now, starts) if starts else was.full_at
        waits = was.due_at is not None or bucket in self._refused
        due = rates.due_at(rate, full, self._now) if waits else None
        if not starts and (not waits or due == was.due_at):
            return None
        return Drawn(bucket, was, full, due)


def looked_again_at(drawn: Iterable[Drawn]) -> bool:
    """Whether someone has to come back for those that had to wait."""
    return any(each.due_at is not None and each.due_at < NO_TIME for each in drawn)
