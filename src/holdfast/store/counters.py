"""What was counted, as it crosses the port."""

from __future__ import annotations

import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import Counted

Buckets = tuple[tuple[int, int], ...]  # bucket (see counted.py) and how many, by bucket


class Counter(msgspec.Struct, frozen=True, array_like=True):
    """What happened within one minute to jobs of one kind."""

    minute: Instant  # its start
    job_type: str
    queue: str
    priority: int
    outcome: Counted
    count: int
    ran_micros: int  # sums
    waited_micros: int
    buckets: Buckets = ()  # of attempts that ended so


class Total(msgspec.Struct, frozen=True, array_like=True):
    """What ever happened to jobs of one type and queue."""

    job_type: str
    queue: str
    outcome: Counted
    count: int
    ran_micros: int  # sums
    waited_micros: int
    buckets: Buckets = ()
