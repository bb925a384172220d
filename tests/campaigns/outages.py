"""Stops the server and loses replies, while jobs are submitted and run.

The workers are not restarted: each has to recover by itself.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from backstay.core.port import Store
from backstay.testing.history import Evidence, Operation, Outcome
from backstay.testing.history.checker import Violation, check, unfinished
from tests.campaigns.fleet import Fleet, opened
from tests.campaigns.places import Schema, Tables
from tests.support.servers.postgres import Postgres
from tests.support.servers.proxy import Proxy

LEASE_SECONDS = 2.0
BETWEEN = 60  # jobs completed between two faults
STEP_SECONDS = 60.0  # for as many jobs to be completed, or a reply to be lost
FIRST_CLAIM_SECONDS = 10.0  # after the server is back


@dataclass
class Suffered:
    """The faults of a fleet, and their outcome."""

    restarts: Counter[str] = field(default_factory=Counter)
    lost_replies: int = 0
    first_claims: list[float] = field(default_factory=list)  # seconds after the server was back
    jobs: Counter[str] = field(default_factory=Counter)
    operations: int = 0
    unknown: int = 0
    faults: list[str] = field(default_factory=list)


Trouble = Callable[[Fleet, Store, Suffered], Awaitable[None]]


async def restart(folder: Path, server: Postgres, ways: Sequence[str], workers: int = 3) -> Suffered:
    """Restart the server in these ways: fast, immediate or kill."""
    returns: list[int] = []

    async def again_and_again(fleet: Fleet, store: Store, suffered: Suffered) -> None:
        for way in ways:
            await some_are_completed(fleet, store)
            await asyncio.to_thread(server.restart, way)
            returns.append(time.monotonic_ns())
            suffered.restarts[way] += 1
        # The others are fast: under load until the last of them has recovered, or time is up.
        while (
            len(claimers(fleet.operations(), returns[-1])) < workers
            and seconds_since(returns[-1]) < FIRST_CLAIM_SECONDS
        ):
            await some_are_completed(fleet, store)

    suffered, evidence = await under_load(folder, Schema.new(server), workers, again_and_again)
    claims = [op for op in evidence.of("claim", Outcome.OK) if op.returned is not None]
    for back in returns:
        first = min((op.returned for op in claims if op.invoked > back or op.returned > back), default=None)
        suffered.first_claims.append(float("inf") if first is None else (first - back) / 1e9)
    suffered.faults += [
        f"first claim {late:.1f} s late" for late in suffered.first_claims if late > FIRST_CLAIM_SECONDS
    ]
    working_on = claimers(evidence.operations, returns[-1])
    if len(working_on) < workers:
        suffered.faults.append(f"after the last restart only {sorted(working_on)} claimed")
    return suffered


def claimers(operations: Iterable[Operation], since: int) -> set[str]:
    """Return the processes with a claim called and answered since then."""
    claims = (op for op in operations if op.verb == "claim" and op.outcome is Outcome.OK)
    return {op.process.partition(".")[0] for op in claims if op.invoked > since}


def seconds_since(moment: int) -> float:
    return (time.monotonic_ns() - moment) / 1e9


async def lose_replies(folder: Path, server: Postgres, count: int, workers: int = 3) -> Suffered:
    with Proxy(server.port) as proxy:

        async def one_by_one(fleet: Fleet, store: Store, suffered: Suffered) -> None:
            await some_are_completed(fleet, store)
            for number in range(1, count + 1):
                proxy.swallow()
                assert await asyncio.to_thread(proxy.await_swallowed, number, STEP_SECONDS), fleet.errors()
                suffered.lost_replies = proxy.swallowed
            await some_are_completed(fleet, store)

        suffered, _ = await under_load(folder, Schema.new(server, proxy), workers, one_by_one)
    return suffered


async def under_load(folder: Path, place: Schema | Tables, workers: int, trouble: Trouble) -> tuple[Suffered, Evidence]:
    suffered = Suffered()
    async with Fleet.open(folder, lease=LEASE_SECONDS, place=place) as fleet, opened(place.direct) as store:
        lanes = [await fleet.submitter(f"lane{n}", until=10**9, backlog=80) for n in range(2)]
        for _ in range(workers):
            await fleet.worker(concurrency=10)
        await trouble(fleet, store, suffered)
        for lane in lanes:
            lane.send(signal.SIGTERM)
            await lane.ended.wait()
        await fleet.all_ended(store, seconds=30)
        await fleet.terminate()
        evidence = await fleet.evidence(store)
        deaths = [f"{process.name}: {process.death}" for process in fleet.all if process.death != "exited 0"]
        violations: list[Violation] = check(evidence) + unfinished(evidence)
        suffered.faults += [*map(str, violations), *deaths]
        if suffered.faults:
            suffered.faults.append(fleet.errors())
    suffered.jobs = Counter(record.status.value for record in evidence.records)
    suffered.operations = len(evidence.operations)
    suffered.unknown = sum(operation.outcome is Outcome.INFO for operation in evidence.operations)
    return suffered, evidence


async def some_are_completed(fleet: Fleet, store: Store, count: int = BETWEEN) -> None:
    goal = (await store.counts())["completed"] + count
    await fleet.until(store, lambda counts: counts["completed"] >= goal, STEP_SECONDS)
