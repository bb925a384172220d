"""The crash tests with large counts, and a file of figures.

    python -m tests.campaigns.run --kills 3000 --stops 500 --seed 1 --out bench/results/crash-campaign.json
    python -m tests.campaigns.run schedules --kills 200 --ticks 2000 --out bench/results/schedule-campaign.json
    python -m tests.campaigns.run retention --kills 200 --jobs 10000 --out bench/results/retention-campaign.json
    python -m tests.campaigns.run postgres --kills 200 --restarts 20 --out bench/results/postgres-campaign.json
    python -m tests.campaigns.run dynamodb --kills 200 --stops 40 --out bench/results/dynamodb-campaign.json
    python -m tests.campaigns.run move --kills 2 --jobs 100000 --out bench/results/move-campaign.json
    python -m tests.campaigns.run imports --kills 2 --jobs 100000 --out bench/results/import-campaign.json
    python -m tests.campaigns.run api --examples 100 --out bench/results/api-campaign.json
    python -m tests.campaigns.run lost-claims --engine postgres --workers 4 --out lost-claims.json
    python -m tests.campaigns.run approvals --engine postgres --out bench/results/approvals-postgres.json
    python -m tests.campaigns.run storm --engine postgres --minutes 20 --out bench/results/storm-postgres.json
    python -m tests.campaigns.run --replay bench/results/crash-campaign.json

Runs in rounds, each on a fresh file, schema or pair of tables, with the next seed; a round that fails keeps its folder
and says where it is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.campaigns.api import ask
from tests.campaigns.approval import campaign
from tests.campaigns.dynamodb import bad_days
from tests.campaigns.fleet import ROOT, Fleet
from tests.campaigns.imports import SOURCES, imports
from tests.campaigns.kills import EXTERNAL, POINTS, Killing, Plan, Report
from tests.campaigns.lost_claims import lost_claims
from tests.campaigns.move import move
from tests.campaigns.operations import retention, schedules
from tests.campaigns.postgres import outages
from tests.campaigns.rounds import in_a_folder, versions
from tests.campaigns.stalls import STALLS, stall
from tests.campaigns.storm.run import ENGINES, in_a_namespace, storm

WHAT = (
    "crashes",
    "schedules",
    "retention",
    "postgres",
    "dynamodb",
    "move",
    "imports",
    "api",
    "storm",
    "lost-claims",
    "approvals",
)
LEASE_SECONDS = 0.8
AT_EACH_POINT = 10  # in one round: about 300 kills, and a history that the checker reads in seconds
STALLED_AT_ONCE = 20


@dataclass
class Figures:
    seed: int
    kills_asked: int
    stops_asked: int
    disk_cycles_asked: int
    kills: Counter[str] = field(default_factory=Counter)
    graceful: int = 0
    jobs: Counter[str] = field(default_factory=Counter)
    dead_letters: Counter[str] = field(default_factory=Counter)
    operations: int = 0
    unknown: int = 0
    rescue_seconds: list[float] = field(default_factory=list)
    rescued_from_the_living: int = 0
    stops: Counter[str] = field(default_factory=Counter)
    disk: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)  # violations, unplanned deaths, other failures


def main() -> None:
    arguments = _arguments()
    match arguments.what:
        case "schedules":
            written = asyncio.run(schedules(arguments.seed, arguments.kills, arguments.ticks))
        case "retention":
            written = asyncio.run(retention(arguments.seed, arguments.kills, arguments.jobs))
        case "postgres":
            written = asyncio.run(outages(arguments.seed, arguments.kills, arguments.restarts, arguments.replies))
        case "dynamodb":
            written = asyncio.run(bad_days(arguments.seed, arguments.kills, arguments.stops))
        case "api":
            written = ask(arguments.seed, arguments.examples)
        case "storm":
            in_a_namespace()
            written = asyncio.run(storm(arguments.engine, arguments.minutes, arguments.seed))
        case "approvals":
            written = campaign(arguments.engine)
        case "lost-claims":
            engine, jobs, alone = arguments.engine, arguments.jobs, arguments.alone
            written = asyncio.run(lost_claims(engine, jobs, alone, arguments.workers, arguments.rounds))
        case "move":
            written = asyncio.run(move(arguments.seed, arguments.kills, arguments.jobs))
        case "imports":
            seed, kills, jobs = arguments.seed, arguments.kills, arguments.jobs
            written = asyncio.run(imports(seed, kills, jobs, arguments.sources, arguments.into))
        case _:
            written = _crash(arguments)
    text = json.dumps(written, indent=2) + "\n"
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text)
    print(text)
    sys.exit(0 if written["verdict"] == "passed" else 1)


def _crash(arguments: argparse.Namespace) -> dict[str, Any]:
    figures = Figures(arguments.seed, arguments.kills, arguments.stops, arguments.disk_cycles)
    started = time.monotonic()
    asyncio.run(_kill(figures))
    asyncio.run(_stall(figures))
    _fill_disks(figures)
    return _summary(figures, time.monotonic() - started)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.campaigns.run", description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=WHAT, default="crashes")
    parser.add_argument("--kills", type=int, help="default 3000; 200 of all but crashes; 2 of move and imports")
    parser.add_argument("--stops", type=int, help="workers stopped past their lease: 500; 40 of dynamodb")
    parser.add_argument("--disk-cycles", type=int, default=20 if os.getuid() == 0 else 0, help="crashes: full disks")
    parser.add_argument("--ticks", type=int, default=2000, help="schedules: ticks that make a job")
    parser.add_argument(
        "--jobs", type=int, help="retention: jobs that leave, 10,000; move and imports, 100,000; lost-claims, 3,000"
    )
    parser.add_argument("--restarts", type=int, default=20, help="postgres: of the server, under load")
    parser.add_argument("--replies", type=int, default=200, help="postgres: replies lost after the commit")
    parser.add_argument("--examples", type=int, default=100, help="api: drawn for each operation")
    parser.add_argument("--engine", choices=ENGINES, default="sqlite", help="storm, lost-claims, approvals")
    parser.add_argument("--workers", type=int, default=4, help="lost-claims")
    parser.add_argument("--rounds", type=int, default=5, help="lost-claims: of which the median counts")
    parser.add_argument("--alone", type=int, default=200, help="lost-claims: jobs that have to run alone")
    parser.add_argument("--sources", nargs="*", default=[], choices=SOURCES, help="imports: only these")
    parser.add_argument("--into", choices=ENGINES, help="imports: the engine; default: one for each source")
    parser.add_argument("--minutes", type=float, help="storm: its length; default: the short form of the gate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where the figures go")
    parser.add_argument("--replay", type=Path, help="run again with the counts and the seed of this file")
    arguments = parser.parse_args()
    if arguments.kills is None:
        arguments.kills = {"crashes": 3000, "move": 2, "imports": 2}.get(arguments.what, 200)
    if arguments.jobs is None:
        arguments.jobs = {"move": 100_000, "imports": 100_000, "lost-claims": 3_000}.get(arguments.what, 10_000)
    if arguments.stops is None:
        arguments.stops = 40 if arguments.what == "dynamodb" else 500
    if arguments.replay is not None:
        told = json.loads(arguments.replay.read_text())
        asked = {"what": told.get("what", "crashes"), **told["asked"]}
        for name, value in asked.items():
            setattr(arguments, name, value)
    return arguments


# Kills


async def _kill(figures: Figures) -> None:
    seed = figures.seed
    while figures.kills.total() < figures.kills_asked and not figures.faults:
        missing = figures.kills_asked - figures.kills.total()
        each = max(1, min(AT_EACH_POINT, round(missing / (len(POINTS) + 4))))
        outside = max(4 * each, missing - each * len(POINTS) if missing < 2 * each * len(POINTS) else 0)
        plan = Plan(at_each_point=each, from_outside=min(outside, 8 * each), graceful=each, seed=seed)
        await in_a_folder(figures.faults, f"kill-{seed}", lambda folder, plan=plan: _round(folder, plan, figures))
        seed += 1


async def _round(folder: Path, plan: Plan, figures: Figures) -> None:
    before = figures.kills.total()
    print(f"seed {plan.seed}: {plan.kills} kills", file=sys.stderr)

    def tell(report: Report) -> None:
        done = before + report.kills.total()
        print(f"\r{done:,} of {figures.kills_asked:,} kills ", end="", file=sys.stderr, flush=True)

    async with Fleet.open(folder, lease=LEASE_SECONDS) as fleet:
        report = await Killing(fleet, plan, tell).run(within=60 + plan.kills)
        errors = fleet.errors()
    figures.kills += report.kills
    figures.graceful += report.graceful
    figures.jobs += report.jobs
    figures.dead_letters += report.dead_letters
    figures.operations += report.operations
    figures.unknown += report.unknown
    figures.rescue_seconds += report.rescue_seconds
    figures.rescued_from_the_living += report.rescued_from_the_living
    figures.faults += [str(each) for each in report.violations] + report.deaths
    if report.violations or report.deaths:
        figures.faults.append(errors)


# Stops and full disks


async def _stall(figures: Figures) -> None:
    number = 0
    while figures.stops["stops"] < figures.stops_asked and not figures.faults:
        where = STALLS[number % len(STALLS)]
        count = min(STALLED_AT_ONCE, figures.stops_asked - figures.stops["stops"])
        await in_a_folder(
            figures.faults,
            f"stall-{number}",
            lambda folder, where=where, count=count: _stalls(folder, where, count, figures),
        )
        number += 1
        print(f"\r{figures.stops['stops']} of {figures.stops_asked} stops ", end="", file=sys.stderr, flush=True)


async def _stalls(folder: Path, where: str, count: int, figures: Figures) -> None:
    report = await stall(folder, where, count, LEASE_SECONDS)
    figures.stops["stops"] += report.stops
    figures.stops["settlements refused"] += report.settlements_refused
    figures.stops["extensions refused"] += report.extensions_refused
    figures.stops["accepted"] += len(report.accepted)
    figures.faults += [str(each) for each in report.violations] + report.accepted + report.deaths


def _fill_disks(figures: Figures) -> None:
    for number in range(figures.disk_cycles_asked):
        if figures.faults:
            return
        with tempfile.TemporaryDirectory(prefix="backstay-disk-") as folder:
            command = ("unshare", "--mount", sys.executable, "-m", "tests.campaigns.disk_full", folder, "1")
            ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            figures.faults.append(f"disk cycle {number}: {ended.stderr[-2000:]}")
            return
        (cycle,) = json.loads(ended.stdout)["cycles"]
        figures.disk["cycles"] += 1
        for name in ("acknowledged", "present", "refused", "settled_on_full_disk"):
            figures.disk[name] += cycle[name]
        sound = cycle["still_full"] and cycle["goes_on"] and cycle["acknowledged"] == cycle["present"]
        if not sound or cycle["violations"] or cycle["deaths"]:
            figures.faults.append(f"disk cycle {number}: {cycle}")
        print(f"\r{number + 1} of {figures.disk_cycles_asked} full disks ", end="", file=sys.stderr, flush=True)


# The file of figures


def _summary(figures: Figures, seconds: float) -> dict[str, Any]:
    kills = figures.kills.total()
    complete = kills >= figures.kills_asked and figures.stops["stops"] >= figures.stops_asked
    return {
        "verdict": "passed" if complete and not figures.faults else "failed",
        "asked": {
            "kills": figures.kills_asked,
            "stops": figures.stops_asked,
            "disk_cycles": figures.disk_cycles_asked,
            "seed": figures.seed,
        },
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds),
        "versions": versions(),
        "kills": {
            "total": kills,
            "at named points": kills - figures.kills[EXTERNAL],
            "at random moments": figures.kills[EXTERNAL],
            "fewest at one point": min((figures.kills[point] for point in POINTS), default=0),
            "by point": {point: figures.kills[point] for point in POINTS},
            "bound at 95 %": f"at most {3 / kills:.2%} of kills lose or repeat a job" if kills else None,
        },
        "graceful stops": figures.graceful,
        "jobs": dict(figures.jobs),
        "dead letters": dict(figures.dead_letters),
        "operations": {"recorded": figures.operations, "outcome unknown": figures.unknown},
        "lost": sum("S1:" in fault for fault in figures.faults),
        "completed twice": sum("S4:" in fault for fault in figures.faults),
        "stale writes accepted": sum("S5:" in fault for fault in figures.faults),
        "rescue seconds after a death": _percentiles(figures.rescue_seconds),
        "rescued from living workers that were late to extend": figures.rescued_from_the_living,
        "stops past the lease": dict(figures.stops),
        "full disks": dict(figures.disk),
        "faults": figures.faults[:50],
    }


def _percentiles(values: list[float]) -> dict[str, float | int]:
    if not values:
        return {"count": 0}
    ordered = sorted(values)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 3)

    return {"count": len(ordered), "p50": at(0.5), "p99": at(0.99), "max": round(ordered[-1], 3)}


if __name__ == "__main__":
    main()
