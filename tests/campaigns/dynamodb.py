"""Kills, stops and throttles workers on DynamoDB, loses responses and delays indexes, on a server of its own."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from backstay.core.port import Store
from tests.campaigns.fleet import Fleet
from tests.campaigns.kills import EXTERNAL, IN_SUBMITTERS, IN_WORKERS, Killing, Plan, Report
from tests.campaigns.outages import BETWEEN, Suffered, some_are_completed, under_load
from tests.campaigns.places import Tables
from tests.campaigns.rounds import in_a_folder, say, versions
from tests.campaigns.stalls import STALLS, stall
from tests.support.servers.dynamo_proxy import DynamoProxy
from tests.support.servers.dynamodb import DynamoDB, folder_of_jar

LEASE_SECONDS = 2.0
STALE_SECONDS = 5.0
THROTTLED = 0.3
CONFLICTING = 0.2
# Faults of the connection while jobs are submitted and run.
TROUBLES: dict[str, Callable[[DynamoProxy], None]] = {
    "30 % of all calls throttled": lambda line: line.throttle(THROTTLED),
    "20 % of all transactions in conflict": lambda line: line.conflict(CONFLICTING),
    "replies lost after they were applied": lambda line: line.lose(50),
    "errors after writes were applied": lambda line: line.reply_500_after(50),
    "indexes stale by 5 s": lambda line: line.stale(STALE_SECONDS),
    "all of it": lambda line: _all_of_it(line),
}


def _all_of_it(line: DynamoProxy) -> None:
    line.throttle(THROTTLED)
    line.lose(25)
    line.reply_500_after(25)
    line.stale(STALE_SECONDS)


@dataclass
class Tally:
    """The sum of all rounds."""

    kills: Counter[str] = field(default_factory=Counter)
    graceful: int = 0
    stops: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    lost_replies: int = 0
    troubles: list[str] = field(default_factory=list)
    jobs: Counter[str] = field(default_factory=Counter)
    operations: int = 0
    unknown: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def worker_kills(self) -> int:
        return self.kills.total() - sum(self.kills[point] for point in IN_SUBMITTERS)

    def add(self, round_: Suffered | Report) -> None:
        self.jobs += round_.jobs
        self.operations += round_.operations
        self.unknown += round_.unknown


async def bad_days(seed: int, kills: int, stops: int) -> dict[str, Any]:
    tally, started = Tally(), time.monotonic()
    with DynamoDB() as server:
        await _stop(tally, server, stops)
        for name, trouble in TROUBLES.items():
            await _suffer(tally, server, name, trouble)
        await _kill(tally, server, kills, seed)
    done = (tally.worker_kills, tally.stops.total(), len(tally.troubles))
    complete = all(count >= asked for count, asked in zip(done, (kills, stops, len(TROUBLES)), strict=True))
    return {
        "what": "dynamodb",
        "verdict": "passed" if complete and not tally.faults else "failed",
        "asked": {"kills": kills, "stops": stops, "seed": seed},
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - started),
        "versions": {**versions(), "dynamodb local": folder_of_jar().name},
        "workers killed": {
            "total": tally.worker_kills,
            "at random moments": tally.kills[EXTERNAL],
            "fewest at one point": min(tally.kills[point] for point in IN_WORKERS),
        },
        "submitters killed": sum(tally.kills[point] for point in IN_SUBMITTERS),
        "workers stopped past their lease": dict(tally.stops),
        "refused when they went on": dict(tally.refused),
        "suffered": tally.troubles,
        "replies lost after the commit": tally.lost_replies,
        "jobs": dict(tally.jobs),
        "operations": {"recorded": tally.operations, "outcome unknown": tally.unknown},
        "lost": sum("S1:" in fault for fault in tally.faults),
        "completed twice": sum("S4:" in fault for fault in tally.faults),
        "stale writes accepted": sum("S5:" in fault for fault in tally.faults),
        "faults": tally.faults[:50],
    }


async def _stop(tally: Tally, server: DynamoDB, stops: int) -> None:
    each = -(-stops // len(STALLS))
    for where in STALLS:

        async def run(folder: Path, where: str = where) -> None:
            report = await stall(folder, where, each, LEASE_SECONDS, Tables.new(server))
            tally.stops[where] += report.stops
            tally.refused["settlements"] += report.settlements_refused
            tally.refused["extensions"] += report.extensions_refused
            tally.faults += [*report.accepted, *report.deaths, *map(str, report.violations)]

        await _round(tally, f"stop-{where}", run)
        say(f"{tally.stops.total()} of {stops} stops")


async def _suffer(tally: Tally, server: DynamoDB, name: str, trouble: Callable[[DynamoProxy], None]) -> None:
    async def run(folder: Path) -> None:
        suffered = await suffer(folder, server, trouble)
        tally.add(suffered)
        tally.lost_replies += suffered.lost_replies
        tally.faults += suffered.faults
        tally.troubles.append(name)

    await _round(tally, "suffer", run)
    say(name)


async def suffer(
    folder: Path,
    server: DynamoDB,
    trouble: Callable[[DynamoProxy], None],
    workers: int = 3,
    between: int = BETWEEN,
) -> Suffered:
    """Run jobs before, during and after the fault."""
    with DynamoProxy(server.port) as line:

        async def meanwhile(fleet: Fleet, store: Store, suffered: Suffered) -> None:
            await some_are_completed(fleet, store, between)
            trouble(line)
            await some_are_completed(fleet, store, between)
            line.heal()
            suffered.lost_replies = line.unheard
            await some_are_completed(fleet, store, between)

        suffered, _ = await under_load(folder, Tables.new(server, line), workers, meanwhile)
    return suffered


async def _kill(tally: Tally, server: DynamoDB, kills: int, seed: int) -> None:
    """Kill processes whose connection occasionally loses a response."""
    while tally.worker_kills < kills and not tally.faults:
        plan = Plan(at_each_point=1, from_outside=20, graceful=3, seed=seed, workers=3, backlog=30)

        async def run(folder: Path, plan: Plan = plan) -> None:
            report, errors, lost = await kill(folder, server, plan)
            tally.kills += report.kills
            tally.graceful += report.graceful
            tally.lost_replies += lost
            tally.add(report)
            tally.faults += [*map(str, report.violations), *report.deaths]
            if tally.faults:
                tally.faults.append(errors)

        await _round(tally, f"kill-{seed}", run)
        say(f"{tally.worker_kills} of {kills} kills")
        seed += 1


async def kill(folder: Path, server: DynamoDB, plan: Plan, within: float = 300) -> tuple[Report, str, int]:
    """Return the outcome, the output of the processes, and how many responses were lost."""
    with DynamoProxy(server.port) as line:
        async with Fleet.open(folder, lease=LEASE_SECONDS, place=Tables.new(server, line)) as fleet:
            report = await Killing(fleet, plan, lambda report: line.lose()).run(within=within)
            return report, fleet.errors(), line.unheard


async def _round(tally: Tally, name: str, run: Any) -> None:
    if not tally.faults:
        await in_a_folder(tally.faults, name, run)
