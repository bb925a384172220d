"""What the per-minute counters add up to, in slots of time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.clock import MICROS, Instant
from holdfast.counted import BOUNDS, BUCKETS, Counted, spans_of
from holdfast.store.types import Counter

_ATTEMPTS = (Counted.COMPLETED, Counted.FAILED, Counted.RETRIED)


@dataclass(frozen=True, slots=True)
class Window:
    """A span that one can look at, and how finely it is divided."""

    name: str
    says: str
    seconds: int
    slot_seconds: int

    @property
    def slots(self) -> int:
        return self.seconds // self.slot_seconds

    def starts(self, now: Instant) -> list[Instant]:
        """When its slots begin; the last is the one that runs."""
        width = self.slot_seconds * MICROS
        last = now - now % width
        return [last - back * width for back in range(self.slots - 1, -1, -1)]


WINDOWS = {
    window.name: window
    for window in (
        Window("1h", "1 h", 3_600, 60),
        Window("24h", "24 h", 86_400, 900),
        Window("7d", "7 d", 604_800, 7_200),
    )
}


class Sums:
    """Of some kind of job, in some span."""

    __slots__ = ("attempts", "counts", "ran", "ran_micros", "waited", "waited_micros")

    def __init__(self) -> None:
        self.counts = dict.fromkeys(Counted, 0)
        self.ran = [0] * BUCKETS  # attempts by how long they ran, and by how long they waited
        self.waited = [0] * BUCKETS
        self.attempts = self.ran_micros = self.waited_micros = 0

    def add(self, counter: Counter) -> None:
        self.counts[counter.outcome] += counter.count
        if counter.outcome is Counted.REUSED:
            self.attempts -= counter.count  # it is counted as completed too, and no attempt was made
        if counter.outcome in _ATTEMPTS:
            self.attempts += counter.count
            self.ran_micros += counter.ran_micros
            self.waited_micros += counter.waited_micros
        for bucket, count in counter.buckets:
            ran, waited = spans_of(bucket)
            self.ran[ran] += count
            self.waited[waited] += count

    def merge(self, other: Sums) -> None:
        for outcome, count in other.counts.items():
            self.counts[outcome] += count
        for place in range(BUCKETS):
            self.ran[place] += other.ran[place]
            self.waited[place] += other.waited[place]
        self.attempts += other.attempts
        self.ran_micros += other.ran_micros
        self.waited_micros += other.waited_micros

    @property
    def submitted(self) -> int:
        return self.counts[Counted.SUBMITTED]

    @property
    def completed(self) -> int:
        return self.counts[Counted.COMPLETED]

    @property
    def failed(self) -> int:
        return self.counts[Counted.FAILED]

    @property
    def retried(self) -> int:
        return self.counts[Counted.RETRIED]

    @property
    def cancelled(self) -> int:
        return self.counts[Counted.CANCELLED]

    @property
    def failing(self) -> float | None:
        """The share of attempts that failed, whether they are made again or not."""
        bad = self.failed + self.retried
        return bad / (bad + self.completed) if bad + self.completed else None

    @property
    def average_seconds(self) -> float | None:
        return self.ran_micros / self.attempts / MICROS if self.attempts > 0 else None


Kind = tuple[str, str]  # queue and type
Slot = Mapping[Kind, Sums]


def divided(counters: Iterable[Counter], starts: Sequence[Instant], slot_seconds: int) -> dict[Instant, Slot]:
    """The counters of a span by the slots that they fall into; a slot in which nothing happened is empty."""
    width = slot_seconds * MICROS
    slots: dict[Instant, dict[Kind, Sums]] = {start: {} for start in starts}
    for counter in counters:
        slot = slots.get(counter.minute - counter.minute % width)
        if slot is not None:
            kind = (counter.queue, counter.job_type)
            if kind not in slot:
                slot[kind] = Sums()
            slot[kind].add(counter)
    return dict(slots)


def summed(slot: Slot, sees: Callable[[str], bool]) -> Sums:
    """All of a slot that someone sees."""
    total = Sums()
    for (queue, _), sums in slot.items():
        if sees(queue):
            total.merge(sums)
    return total


def by_kind(slots: Iterable[Slot], sees: Callable[[str], bool]) -> list[tuple[Kind, Sums]]:
    """What happened to each type in each queue, the busiest first."""
    found: dict[Kind, Sums] = {}
    for slot in slots:
        for kind, sums in slot.items():
            if sees(kind[0]):
                found.setdefault(kind, Sums()).merge(sums)
    return sorted(found.items(), key=lambda each: (-sum(each[1].counts.values()), each[0]))


def percentile(buckets: Sequence[int], share: float) -> float | None:
    """In seconds: under which this share of the attempts was, as well as the buckets tell. The last bucket has no upper
    bound, and is taken for its lower one."""
    total = sum(buckets)
    if not total:
        return None
    wanted, passed = share * total, 0
    for place, count in enumerate(buckets):
        if count and passed + count >= wanted:
            lower = BOUNDS[place - 1] if place else 0.0
            upper = BOUNDS[place] if place < len(BOUNDS) else lower
            return lower + (upper - lower) * (wanted - passed) / count
        passed += count
    return BOUNDS[-1]
