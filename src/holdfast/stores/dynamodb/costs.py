"""What DynamoDB charges, as far as this engine can tell it beforehand. Pure.

The prices are Amazon's list prices on demand in us-east-1 since November 2024; other regions cost up to a half more.

Whether entries of indexes are charged double inside transactions, as the items themselves are, Amazon's documents do
not say; DynamoDB Local says they are. So every figure is a range, from the one to the other.
"""

from __future__ import annotations

import msgspec

from holdfast.limits import LEASE_SECONDS

PRICES_OF = "us-east-1, November 2024"
WRITES_PER_MILLION = 0.625  # dollars for a million write units
READS_PER_MILLION = 0.125


class Step(msgspec.Struct, frozen=True):
    """What is written of one plain job with a small payload, as keys.py lays it out: itself, and an index entry for
    each that comes, goes or changes; an entry that moves is two."""

    entries: int
    counted: bool  # a counter is in the same commit, shared by all jobs of it


SUBMIT = Step(entries=3, counted=True)  # by state, by type, ready
CLAIM = Step(entries=5, counted=False)  # by state moves, by worker, no longer ready, by time
COMPLETE = Step(entries=5, counted=True)  # by state and by worker move, no longer by time
READ_UNITS_OF_JOB = 2.5

# Read units of a worker that finds nothing: the board and the head of each lane at a poll; what is due, what ran out,
# the marks and the other workers at a sweep.
POLL_UNITS = 1.0
LANE_UNITS = 0.5
SWEEP_UNITS = 10.0
WAKE_UNITS = 0.5  # a look whether anything happened
BEAT_UNITS = 1.0  # written, three times a lease

_SECONDS_OF_DAY = 86_400


class Range(msgspec.Struct, frozen=True):
    least: float
    most: float

    def __str__(self) -> str:
        return f"${self.least:.2f} to ${self.most:.2f}"


def units_of_job(batch: int) -> Range:
    """Write units of a job from its submission to its completion, where so many go together."""
    return Range(_units(batch, entry=1), _units(batch, entry=2))


def _units(batch: int, *, entry: int) -> float:
    total = 0.0
    for step in (SUBMIT, CLAIM, COMPLETE):
        in_transaction = batch > 1 or step.counted  # one job alone is claimed by a plain update
        total += 2 + entry * step.entries if in_transaction else 1 + step.entries
        total += 2 / batch if step.counted else 0
    return total


def dollars(units: Range) -> Range:
    """Of a million jobs that write so many units each."""
    reads = READ_UNITS_OF_JOB * READS_PER_MILLION
    return Range(units.least * WRITES_PER_MILLION + reads, units.most * WRITES_PER_MILLION + reads)


def dollars_of_idle_day(lanes: int, poll_seconds: float, wake_ceiling: float) -> float:
    """A worker that finds nothing, for a day, with so many queues and types."""
    polls = (POLL_UNITS + LANE_UNITS * lanes + SWEEP_UNITS) / poll_seconds + WAKE_UNITS / wake_ceiling
    beats = BEAT_UNITS / (LEASE_SECONDS / 3)
    return (polls * READS_PER_MILLION + beats * WRITES_PER_MILLION) * _SECONDS_OF_DAY / 1_000_000
