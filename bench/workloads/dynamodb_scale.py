"""Simulates how many shards a rate of jobs needs on DynamoDB, and what it costs, because no machine of ours can run it.

    scripts/bench dynamodb-scale                       # 10,000 jobs/s, 1 to 128 shards
    scripts/bench dynamodb-scale --rate 2000 --workers 20 --lag 0.5

It simulates this engine's protocol (engines/dynamodb/claim.py and schema.py): submits, claims and completions
as transactions, each with its writes to the table's indexes; heads of a shard from a random start; a consistent read of
what the index proposed; a commit that is refused when an item is in another's, or was taken. Assumptions about
DynamoDB: a partition accepts 1,000 writes a second and throttles the whole commit beyond that, an index follows the
table after a lag, calls take some milliseconds. Partitions that split under heat are not assumed: a key's own cannot.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from backstay.engines.dynamodb import maintenance
from backstay.engines.dynamodb.claim import CROWDED_WINDOW, SHARDS_AT_ONCE

SHARDS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 128)
PAGES_MAX = 5  # tries on an index that shows claimed jobs, before the claim uses another shard
SERVED = 0.98  # of the offered rate, to count as served: the last jobs are still under way
SPARE = 4
REFUSED_UNITS = 2  # a refused commit is charged for its items anyway
TABLE_UNITS = 2  # an item in a transaction
COUNTER_SLOTS = 4
SECONDS_OF_DAY = 86_400


@dataclass(frozen=True, slots=True)
class World:
    rate: float
    seconds: float
    workers: int
    shards: int
    lag: float  # mean lag of an index, exponential
    concurrency: int
    handler: float
    call: float  # a read
    commit: float  # a transaction
    batch: int
    partition: float  # writes a second per partition
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    shards: int
    offered: float  # submitted per second, over the second half
    served: float  # completed per second, over the same
    wait_p50: float  # seconds from the submit's commit to the claim's
    wait_p99: float
    throttled: float  # share of refused commits
    refused: float  # share of claims that conflicted with others
    units: float  # write units per completed job
    busiest: float  # share of its capacity that the busiest partition used


class Partition:
    """A second's worth of writes, refilled continuously."""

    __slots__ = ("at", "left", "rate", "used")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.left = self.at = self.used = 0.0

    def has(self, now: float, units: int) -> bool:
        self.left = min(self.rate, self.left + (now - self.at) * self.rate)
        self.at = now
        return self.left >= units

    def take(self, units: int) -> None:
        self.left -= units
        self.used += units


@dataclass(slots=True)
class Job:
    shard: int
    submitted: float
    shown: float  # when it appears in the index
    claimed: float | None = None
    hidden: float = float("inf")  # when it disappears from the index
    held: float = 0.0  # end of the commit under way on it


class Simulation:
    def __init__(self, world: World) -> None:
        self.world = world
        self.random = random.Random(world.seed)  # repeatable, not secret
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.number = 0
        self.partitions: defaultdict[str, Partition] = defaultdict(lambda: Partition(world.partition))
        self.ready = [deque[Job]() for _ in range(world.shards)]
        self.waits: list[float] = []
        self.offered: list[float] = []
        self.ended: list[float] = []
        self.tally: Counter[str] = Counter()
        self.running = [0] * world.workers

    def run(self) -> Outcome:
        self.at(0.0, self.submit)
        for worker in range(self.world.workers):
            self.at(self.random.uniform(0, 0.1), lambda now, worker=worker: self.claim(now, worker))
        now = 0.0
        while self.events and now < self.world.seconds:
            now, _, act = heapq.heappop(self.events)
            act(now)
        return self.outcome()

    def at(self, moment: float, act: Callable[[float], None]) -> None:
        self.number += 1
        heapq.heappush(self.events, (moment, self.number, act))

    def pay(self, now: float, units: Counter[str], table_units: int) -> bool:
        """Charge all partitions or none: a hot index throttles the table."""
        self.tally["commits"] += 1
        if not all(self.partitions[name].has(now, count) for name, count in units.items()):
            self.tally["throttled"] += 1
            return False
        for name, count in units.items():
            self.partitions[name].take(count)
        self.tally["units"] += sum(units.values()) + table_units
        return True

    def lag(self) -> float:
        return self.random.expovariate(1 / self.world.lag) if self.world.lag else 0.0

    def backoff(self, tries: int) -> float:
        return self.random.uniform(0.5, 1.0) * min(1.0, 0.025 * 2**tries)

    # Submitting

    def submit(self, now: float) -> None:
        world = self.world
        self.at(now + self.random.expovariate(world.rate / world.batch), self.submit)
        self.offered += [now] * world.batch
        self.store(now, [self.random.randrange(world.shards) for _ in range(world.batch)], 0)

    def store(self, now: float, shards: list[int], tries: int) -> None:
        units: Counter[str] = Counter({f"counter.{self.random.randrange(COUNTER_SLOTS)}": 2})
        for shard in shards:
            units.update((f"pending.{shard}", f"type.{shard}", f"ready.{shard}"))
        if not self.pay(now, units, TABLE_UNITS * len(shards)):
            self.at(now + self.backoff(tries), lambda later: self.store(later, shards, tries + 1))
            return
        done = now + self.world.commit
        for shard in shards:
            self.ready[shard].append(Job(shard, done, done + self.lag()))

    # Claiming

    def claim(self, now: float, worker: int, lost: int = 0) -> None:
        room = min(self.world.batch, self.world.concurrency - self.running[worker])
        jobs = self.propose(now, room, lost > 0) if room > 0 else []
        if not jobs:
            self.at(now + self.random.uniform(0.05, 0.2), lambda later: self.claim(later, worker))
            return
        # The query, the consistent read, then the commit of what was still pending.
        self.at(now + 2 * self.world.call, lambda later: self.take(later, worker, jobs, lost, 0))

    def propose(self, now: float, room: int, crowded: bool) -> list[Job]:
        """Return the heads of a shard; a claim that lost a race takes a random slice."""
        shards = self.world.shards
        start = self.random.randrange(shards)
        found: list[Job] = []
        for offset in range(shards):
            if offset >= SHARDS_AT_ONCE and len(found) >= room:
                break
            head = self.ready[(start + offset) % shards]
            while head and head[0].hidden <= now:
                head.popleft()
            wanted = (room + SPARE) * (CROWDED_WINDOW if crowded else 1)
            pages = PAGES_MAX * wanted
            for job in head:
                if wanted == 0 or pages == 0:
                    break
                if job.shown <= now < job.hidden:
                    pages -= 1
                    # otherwise already claimed, as the consistent read shows
                    if job.claimed is None or job.claimed > now:
                        found.append(job)
                        wanted -= 1
        found.sort(key=lambda job: job.submitted)
        skip = self.random.randrange(max(1, len(found) - room - SPARE + 1)) if crowded else 0
        return found[skip : skip + room + SPARE]

    def take(self, now: float, worker: int, jobs: list[Job], lost: int, tries: int) -> None:
        if tries == 0:
            jobs = [job for job in jobs if job.claimed is None or job.claimed > now - self.world.call]
            jobs = jobs[: min(self.world.batch, self.world.concurrency - self.running[worker])]
        if not jobs:
            self.claim(now, worker, lost)
            return
        self.tally["claims"] += 1
        gone = [job for job in jobs if job.claimed is not None]
        if gone or any(job.held > now for job in jobs):
            self.tally["refused"] += 1
            self.tally["units"] += REFUSED_UNITS * len(jobs)
            left = [job for job in jobs if job.claimed is None]
            if gone:  # read again
                self.at(now + self.backoff(0), lambda later: self.claim(later, worker, lost + 1))
            else:  # repeat the same
                self.at(now + self.backoff(tries), lambda later: self.take(later, worker, left, lost, tries + 1))
            return
        units: Counter[str] = Counter()
        for job in jobs:
            names = (f"pending.{job.shard}", f"processing.{job.shard}", f"ready.{job.shard}", f"lease.{job.shard}")
            units.update(names)
        units[f"worker.{worker}"] += len(jobs)
        if not self.pay(now, units, TABLE_UNITS * len(jobs)):
            self.at(now + self.backoff(tries + 4), lambda later: self.take(later, worker, jobs, lost, tries + 1))
            return
        done = now + self.world.commit
        for job in jobs:
            job.held = done
            job.claimed, job.hidden = done, done + self.lag()
            self.waits.append(done - job.submitted)
        self.running[worker] += len(jobs)
        self.at(done + self.world.handler, lambda later: self.settle(later, worker, jobs, 0))
        self.at(done, lambda later: self.claim(later, worker))

    # Completing

    def settle(self, now: float, worker: int, jobs: list[Job], tries: int) -> None:
        units: Counter[str] = Counter({f"counter.{self.random.randrange(COUNTER_SLOTS)}": 2})
        for job in jobs:
            units.update((f"processing.{job.shard}", f"completed.{job.shard}", f"lease.{job.shard}"))
        units[f"worker.{worker}"] += 2 * len(jobs)
        if not self.pay(now, units, TABLE_UNITS * len(jobs)):
            self.at(now + self.backoff(tries), lambda later: self.settle(later, worker, jobs, tries + 1))
            return
        self.running[worker] -= len(jobs)
        self.ended += [now + self.world.commit] * len(jobs)

    def outcome(self) -> Outcome:
        seconds = self.world.seconds
        half = seconds / 2
        waits = sorted(self.waits[len(self.waits) // 2 :]) or [float("inf")]
        return Outcome(
            shards=self.world.shards,
            offered=sum(half <= moment < seconds for moment in self.offered) / half,
            served=sum(half <= moment < seconds for moment in self.ended) / half,
            wait_p50=waits[len(waits) // 2],
            wait_p99=waits[len(waits) * 99 // 100],
            throttled=self.tally["throttled"] / max(1, self.tally["commits"]),
            refused=self.tally["refused"] / max(1, self.tally["claims"]),
            units=self.tally["units"] / max(1, len(self.ended)),
            busiest=max(each.used for each in self.partitions.values()) / (seconds * self.world.partition),
        )


def dollars_of_million(units: float) -> float:
    return units * maintenance.WRITES_PER_MILLION + maintenance.READ_UNITS_OF_JOB * maintenance.READS_PER_MILLION


def report(rate: float, outcomes: list[Outcome]) -> None:
    print(
        "shards  offered/s   served/s   wait p50   wait p99  throttled  refused  units/job  busiest  $ per million jobs"
    )
    for each in outcomes:
        wait = f"{each.wait_p50:8.3f} s {each.wait_p99:8.3f} s"
        print(
            f"{each.shards:6d} {each.offered:10,.0f} {each.served:10,.0f} {wait} {each.throttled:9.1%}"
            f" {each.refused:8.1%} {each.units:10.1f} {each.busiest:8.0%} {dollars_of_million(each.units):19.2f}"
        )
    enough = next((each for each in outcomes if each.served >= SERVED * each.offered), None)
    if enough is None:
        print(f"\nno shard count of these serves {rate:,.0f} jobs/s")
        return
    dollars = dollars_of_million(enough.units)
    print(
        f"\n{enough.shards} shards serve {rate:,.0f} jobs/s: {dollars:.2f} dollars per million jobs,"
        f" {dollars * rate * SECONDS_OF_DAY / 1e6:,.0f} a day at that rate ({maintenance.PRICES_OF}, on demand)"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="How many shards a rate of jobs needs on DynamoDB.")
    parser.add_argument("--rate", type=float, default=10_000.0, help="jobs submitted per second")
    parser.add_argument("--seconds", type=float, default=12.0, help="simulated")
    parser.add_argument("--workers", type=int, default=60)
    parser.add_argument("--concurrency", type=int, default=200, help="jobs that a worker runs at once")
    parser.add_argument("--shards", type=int, action="append", help="instead of a row of them")
    parser.add_argument("--lag", type=float, default=0.05, help="mean seconds by which indexes are late")
    parser.add_argument("--handler", type=float, default=0.2, help="seconds that a job runs")
    parser.add_argument("--call", type=float, default=0.008, help="seconds of a read")
    parser.add_argument("--commit", type=float, default=0.025, help="seconds of a transaction")
    parser.add_argument("--batch", type=int, default=25, help="jobs submitted, claimed and completed together")
    parser.add_argument("--partition", type=float, default=1_000.0, help="writes per second that a partition takes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the outcomes to this file, too")
    given = parser.parse_args()
    outcomes = []
    for shards in given.shards or SHARDS:
        fields = {name: value for name, value in vars(given).items() if name not in ("json", "shards")}
        outcomes.append(Simulation(World(shards=shards, **fields)).run())
    report(given.rate, outcomes)
    if given.json is not None:
        settings = {name: value for name, value in vars(given).items() if name not in ("json", "shards")}
        text = json.dumps({"settings": settings, "outcomes": [asdict(each) for each in outcomes]}, indent=1)
        given.json.write_text(f"{text}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
