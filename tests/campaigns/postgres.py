"""Restarts PostgreSQL, kills workers and loses replies, with large counts, on a server of its own."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg

from tests.campaigns.fleet import Fleet
from tests.campaigns.kills import EXTERNAL, IN_SUBMITTERS, IN_WORKERS, Killing, Plan, Report
from tests.campaigns.outages import FIRST_CLAIM_SECONDS, Suffered, lose_replies, restart
from tests.campaigns.places import Schema
from tests.campaigns.rounds import in_a_folder, say, versions
from tests.support.servers.postgres import Postgres
from tests.support.servers.proxy import Proxy

LEASE_SECONDS = 0.8
RESTARTS_AT_ONCE = 5  # in one round, so that the checker reads its history in seconds
REPLIES_AT_ONCE = 50
AT_EACH_POINT = 3


@dataclass
class Tally:
    """The sum of all rounds."""

    restarts: Counter[str] = field(default_factory=Counter)
    first_claims: list[float] = field(default_factory=list)
    lost_replies: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    jobs: Counter[str] = field(default_factory=Counter)
    operations: int = 0
    unknown: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def worker_kills(self) -> int:
        return self.kills.total() - sum(self.kills[point] for point in IN_SUBMITTERS)

    def add(self, suffered: Suffered) -> None:
        self.restarts += suffered.restarts
        self.first_claims += suffered.first_claims
        self.lost_replies += suffered.lost_replies
        self._count(suffered)
        self.faults += suffered.faults

    def add_kills(self, report: Report, errors: str) -> None:
        self.kills += report.kills
        self._count(report)
        self.faults += [*map(str, report.violations), *report.deaths]
        if report.violations or report.deaths:
            self.faults.append(errors)

    def _count(self, round_: Suffered | Report) -> None:
        self.jobs += round_.jobs
        self.operations += round_.operations
        self.unknown += round_.unknown


async def outages(seed: int, kills: int, restarts: int, replies: int) -> dict[str, Any]:
    """Restart the server: half of the restarts are fast, the others immediate or kill -9."""
    tally, started = Tally(), time.monotonic()
    ways = [("fast", "immediate", "fast", "kill")[number % 4] for number in range(restarts)]
    random.Random(seed).shuffle(ways)
    with Postgres() as server:
        connection = await asyncpg.connect(server.url())
        release = await connection.fetchval("SHOW server_version")
        await connection.close()
        await _restart(tally, server, ways)
        await _lose_replies(tally, server, replies)
        await _kill(tally, server, kills, seed)
    done = (tally.restarts.total(), tally.lost_replies, tally.worker_kills)
    complete = all(count >= asked for count, asked in zip(done, (restarts, replies, kills), strict=True))
    return {
        "what": "postgres",
        "verdict": "passed" if complete and not tally.faults else "failed",
        "asked": {"kills": kills, "restarts": restarts, "replies": replies, "seed": seed},
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - started),
        "versions": {**versions(), "postgresql": release},
        "restarts under load": dict(tally.restarts),
        "first claim after a return, in seconds": {
            "allowed": FIRST_CLAIM_SECONDS,
            "longest": round(max(tally.first_claims, default=0.0), 3),
            "mean": round(sum(tally.first_claims) / max(1, len(tally.first_claims)), 3),
        },
        "replies lost after the commit": tally.lost_replies,
        "workers killed": {
            "total": tally.worker_kills,
            "at random moments": tally.kills[EXTERNAL],
            "fewest at one point": min(tally.kills[point] for point in IN_WORKERS),
        },
        "submitters killed": sum(tally.kills[point] for point in IN_SUBMITTERS),
        "jobs": dict(tally.jobs),
        "operations": {"recorded": tally.operations, "outcome unknown": tally.unknown},
        "lost": sum("S1:" in fault for fault in tally.faults),
        "completed twice": sum("S4:" in fault for fault in tally.faults),
        "stale writes accepted": sum("S5:" in fault for fault in tally.faults),
        "faults": tally.faults[:50],
    }


async def _restart(tally: Tally, server: Postgres, ways: list[str]) -> None:
    for start in range(0, len(ways), RESTARTS_AT_ONCE):
        some = ways[start : start + RESTARTS_AT_ONCE]

        async def run(folder: Path, some: list[str] = some) -> None:
            tally.add(await restart(folder, server, some))

        await _round(tally, f"restart-{start}", run)
        say(f"{tally.restarts.total()} of {len(ways)} restarts")


async def _lose_replies(tally: Tally, server: Postgres, replies: int) -> None:
    while tally.lost_replies < replies and not tally.faults:
        count = min(REPLIES_AT_ONCE, replies - tally.lost_replies)

        async def run(folder: Path, count: int = count) -> None:
            tally.add(await lose_replies(folder, server, count))

        await _round(tally, f"replies-{tally.lost_replies}", run)
        say(f"{tally.lost_replies} of {replies} replies")


async def _kill(tally: Tally, server: Postgres, kills: int, seed: int) -> None:
    """Kill processes, also behind the proxy, which occasionally loses a reply."""
    while tally.worker_kills < kills and not tally.faults:
        plan = Plan(at_each_point=AT_EACH_POINT, from_outside=10, graceful=3, seed=seed)

        async def run(folder: Path, plan: Plan = plan) -> None:
            with Proxy(server.port) as proxy:
                place = Schema.new(server, proxy)
                async with Fleet.open(folder, lease=LEASE_SECONDS, place=place) as fleet:
                    killing = Killing(fleet, plan, lambda report: proxy.swallow())
                    report = await killing.run(within=60 + 2 * plan.kills)
                    tally.add_kills(report, fleet.errors())
                    tally.lost_replies += proxy.swallowed

        await _round(tally, f"kill-{seed}", run)
        say(f"{tally.worker_kills} of {kills} kills")
        seed += 1


async def _round(tally: Tally, name: str, run: Any) -> None:
    if not tally.faults:
        await in_a_folder(tally.faults, name, run)
