"""What DynamoDB charges, as far as this engine can tell it beforehand. Pure.

The figures are Amazon's list prices on demand in us-east-1 as of November 2024; other regions cost up to a half more.
"""

from __future__ import annotations

PRICES_OF = "us-east-1, November 2024"
WRITES_PER_MILLION = 0.625  # dollars for a million write units
READS_PER_MILLION = 0.125

# Write units of one plain job with a small payload, as keys.py lays it out: an index costs a unit for each entry that
# comes, goes or changes, and whatever is in a transaction costs double.
SUBMIT_UNITS = 5
CLAIM_UNITS = 7
COMPLETE_UNITS = 7
COUNTER_UNITS = 4  # shared by all jobs of a batch
READ_UNITS_OF_JOB = 2.5

# Read units of a worker that finds nothing: the board and the head of each lane at a poll; what is due, what ran out,
# the marks and the other workers at a sweep.
POLL_UNITS = 1.0
LANE_UNITS = 0.5
SWEEP_UNITS = 10.0

_SECONDS_OF_DAY = 86_400


def units_of_job(batch: int) -> float:
    """Write units of a job from its submission to its completion, where so many go together."""
    claim = CLAIM_UNITS if batch > 1 else CLAIM_UNITS - 1  # a single one is no transaction
    return SUBMIT_UNITS + claim + COMPLETE_UNITS + COUNTER_UNITS / batch


def dollars_of_million_jobs(batch: int) -> float:
    return units_of_job(batch) * WRITES_PER_MILLION + READ_UNITS_OF_JOB * READS_PER_MILLION


def dollars_of_idle_day(lanes: int, poll_seconds: float) -> float:
    """A worker that finds nothing, for a day, with so many queues and types."""
    units = POLL_UNITS + LANE_UNITS * lanes + SWEEP_UNITS
    return units * _SECONDS_OF_DAY / poll_seconds * READS_PER_MILLION / 1_000_000
