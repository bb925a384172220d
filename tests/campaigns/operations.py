"""Runs schedules and retention with large counts, round by round until all requested faults have happened."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.campaigns.fleet import Fleet
from tests.campaigns.kills import EXTERNAL
from tests.campaigns.retention import KILL_POINTS, RetirePlan, RetireReport, Retiring
from tests.campaigns.rounds import in_a_folder, say, versions
from tests.campaigns.ticks import FIRE_POINTS, LEASE_SECONDS, RULES, WORKERS, Ticking, TickPlan, TickReport

ROUND_SECONDS = 300


@dataclass
class Tally:
    """The sum of all rounds."""

    kills: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    tables: dict[str, Counter[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add_table(self, name: str, table: Counter[str]) -> None:
        self.tables[name] = self.tables.get(name, Counter()) + table


async def schedules(seed: int, kills: int, ticks: int) -> dict[str, Any]:
    tally, started, number = Tally(), time.monotonic(), 0
    while not tally.faults and (tally.kills.total() < kills or tally.counts["jobs"] < ticks):
        plan = TickPlan(at_each_point=10, from_outside=10, stops=5, seed=seed + number, ticks=500, upsets=100)
        await in_a_folder(tally.faults, f"ticks-{plan.seed}", lambda folder, plan=plan: _tick(folder, plan, tally))
        number += 1
    return {
        **_head("schedules", tally, {"seed": seed, "kills": kills, "ticks": ticks}, started, FIRE_POINTS),
        "rounds": number,
        "worker processes at a time": WORKERS,
        "ticks that passed": dict(tally.tables["ticks"]),
        "jobs": dict(tally.tables["jobs"]),
        "policies": {rule.name: rule.cron for rule in RULES},
        "firings by answer": dict(tally.tables["firings"]),
        "clocks set": dict(tally.tables["upsets"]),
        "stopped across ticks": {"stops": tally.counts["stops"], "late firings refused": tally.counts["refused"]},
        "faults": tally.faults[:50],
    }


async def _tick(folder: Path, plan: TickPlan, tally: Tally) -> None:
    before = tally.kills.total()

    def tell(report: TickReport) -> None:
        say(f"seed {plan.seed}: {before + report.kills.total():,} kills, {tally.counts['jobs']:,} jobs before")

    async with Fleet.open(folder, lease=LEASE_SECONDS, BACKSTAY_POLL_INTERVAL="0.1") as fleet:
        report = await Ticking(fleet, plan, tell).run(within=ROUND_SECONDS)
        if report.faults:
            report.faults.append(fleet.errors())
    tally.kills += report.kills
    tally.counts += Counter(jobs=report.jobs.total(), stops=report.stops, refused=report.refused_after_stop)
    for name in ("ticks", "jobs", "firings", "upsets"):
        tally.add_table(name, getattr(report, name))
    tally.faults += report.faults


async def retention(seed: int, kills: int, jobs: int) -> dict[str, Any]:
    tally, started, number = Tally(), time.monotonic(), 0
    while not tally.faults and (tally.kills.total() < kills or tally.counts["archived"] < jobs):
        plan = RetirePlan(at_each_point=5, from_outside=15, seed=seed + number, jobs=2_000)
        name = f"retention-{plan.seed}"
        await in_a_folder(tally.faults, name, lambda folder, plan=plan: _retire(folder, plan, tally))
        number += 1
    points = tuple(dict.fromkeys(point for points in KILL_POINTS.values() for point in points))
    return {
        **_head("retention", tally, {"seed": seed, "kills": kills, "jobs": jobs}, started, points),
        "rounds": number,
        "jobs": {name: tally.counts[name] for name in ("acknowledged", "stayed", "archived")},
        "archived by type": dict(tally.tables.get("archived", {})),
        "archived as part of a tree": tally.counts["of_trees"],
        "retried by hand": tally.counts["retried_by_hand"],
        "submitted again": {
            "answered by the job that was there": tally.counts["resubmitted"],
            "of these from the archive": tally.counts["answered_from_the_archive"],
        },
        "faults": tally.faults[:50],
    }


async def _retire(folder: Path, plan: RetirePlan, tally: Tally) -> None:
    before = tally.kills.total()

    def tell(report: RetireReport) -> None:
        say(f"seed {plan.seed}: {before + report.kills.total():,} kills, {tally.counts['archived']:,} archived before")

    async with Fleet.open(folder, lease=2) as fleet:
        report = await Retiring(fleet, plan, tell).run(within=ROUND_SECONDS)
        if report.faults:
            report.faults.append(fleet.errors())
    tally.kills += report.kills
    tally.counts["archived"] += report.archived.total()
    for name in (
        "acknowledged",
        "stayed",
        "of_trees",
        "retried_by_hand",
        "resubmitted",
        "answered_from_the_archive",
    ):
        tally.counts[name] += getattr(report, name)
    tally.add_table("archived", report.archived)
    tally.faults += report.faults


def _head(what: str, tally: Tally, asked: dict[str, int], started: float, points: tuple[str, ...]) -> dict[str, Any]:
    total = tally.kills.total()
    return {
        "verdict": "failed" if tally.faults else "passed",
        "what": what,
        "asked": asked,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - started),
        "promises broken": len(tally.faults),
        "versions": versions(),
        "kills": {
            "total": total,
            "at named points": total - tally.kills[EXTERNAL],
            "at random moments": tally.kills[EXTERNAL],
            "by point": {point: tally.kills[point] for point in points},
            "bound at 95 %": f"at most {3 / total:.2%} of kills do harm" if total else None,
        },
    }
