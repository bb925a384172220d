"""How many jobs a second a server and its workers can drain, from what a job costs: the model of `scale-out`.

The least of these limits is the rate:

- workers: processes × their share of a core ÷ the CPU time that a job takes in one of them;
- the server: its cores ÷ the CPU time of a job there. It grows with every further process, because a claim has to
  walk past the jobs that the claims of others hold at the head of the line: `crowd_micros`;
- commits: a process has one claim under way at a time, and its jobs are claimed once the commit is on disk;
- the write-ahead log: what the disk writes a second ÷ the bytes of a job.

Costs are measured while one process works, and what a claim costs while others are under way; the rest is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Limit = Literal["workers", "server", "commits", "log"]
BATCH = 100  # jobs of a claim
# A commit finds a flush under way, on average half done, and then takes part in the next one.
FLUSHES = 1.5
CLAIM_SHARE = 0.5  # of the server's time for a job


@dataclass(frozen=True, slots=True)
class Costs:
    """What a job costs, from its claim to its completion."""

    server_micros: float  # CPU time of the server, while one process works
    crowd_micros: float  # more of it for every further process that claims from the same line
    client_micros: float  # CPU time of the worker
    log_bytes: float

    def server_micros_of(self, processes: int) -> float:
        return self.server_micros + self.crowd_micros * (processes - 1)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the jobs are drained."""

    server_cores: float
    processes: int
    process_cores: float = 1.0  # that each process gets; Python uses one at most
    flush_ms: float = 1.0  # that the disk takes for a flush
    log_bytes_per_second: float = float("inf")


@dataclass(frozen=True, slots=True)
class Prediction:
    rate: float
    limit: Limit


def predict(cost: Costs, place: Place) -> Prediction:
    server = cost.server_micros_of(place.processes)
    speed = min(1.0, place.server_cores)  # of a single statement
    claim_seconds = FLUSHES * place.flush_ms / 1e3 + BATCH * CLAIM_SHARE * server / speed / 1e6
    limits: dict[Limit, float] = {
        "workers": place.processes * place.process_cores * 1e6 / cost.client_micros,
        "server": place.server_cores * 1e6 / server,
        "commits": place.processes * BATCH / claim_seconds,
        "log": place.log_bytes_per_second / cost.log_bytes,
    }
    limit = min(limits, key=lambda each: limits[each])
    return Prediction(limits[limit], limit)


def best(cost: Costs, places: Sequence[Place]) -> Place:
    """Return the place with the highest rate; of two that are as fast, the one with fewer processes. More are no gain
    from there on: each only makes the claims of the others dearer."""
    return max(places, key=lambda place: (predict(cost, place).rate, -place.processes))
