"""Writes the figures of the storms into docs/explanation/guarantees.md: python -m tests.campaigns.storm.table."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.campaigns.fleet import ROOT
from tests.campaigns.storm.run import ENGINES

PAGE = ROOT / "docs" / "explanation" / "guarantees.md"
BEGIN, END = "<!-- storm: begin -->\n", "<!-- storm: end -->\n"
NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "dynamodb": "DynamoDB Local"}
Figures = dict[str, Any]


def _sum(*names: str) -> Callable[[Figures], str]:
    """Count these faults; a dash: the engine has none of them."""

    def cell(found: Figures) -> str:
        counts = [found["faults"][name] for name in names if name in found["faults"]]
        return f"{sum(counts):,}" if counts else "–"

    return cell


ROWS: dict[str, Callable[[Figures], str]] = {
    "length": lambda found: f"{found['asked']['minutes']:g} minutes, seed {found['asked']['seed']}",
    "release": lambda found: found["versions"]["backstay"],
    "workers, submitters and handlers' processes killed": _sum(
        "workers killed", "submitters killed", "children killed"
    ),
    "whole hosts killed (three processes at once)": _sum("hosts killed"),
    "workers suspended, most past their lease": _sum("stalls", "stalls with a claim in hand"),
    "connections cut at a random byte or all at once, answers lost, network silent": _sum(
        "connections severed", "connections cut", "replies lost", "errors after commits", "network silent"
    ),
    "backends terminated": _sum("backends terminated"),
    "server killed or restarted": _sum("server killed", "server restarted"),
    "failovers to a promoted replica": _sum("failover"),
    "periods of throttling, conflicts, late indexes": _sum("throttling", "conflicts", "late indexes"),
    "full disks, clock jumps": _sum("full disk", "clock jump"),
    "transfers to another place during the storm": lambda found: f"{found['transfers']['count']:,}",
    "jobs acknowledged; with children and ticks": lambda found: (
        f"{found['jobs']['acknowledged']:,}; {sum(found['kinds'].values()):,}"
    ),
    "runs; claims rescued": lambda found: f"{found['runs']:,}; {found['rescued']:,}",
    "lost, completed twice, stuck, limits passed": lambda found: (
        f"{found['lost']}, {found['completed twice']}, {found['stuck']}, {found['limits passed']}"
    ),
    "broken promises in all": lambda found: f"{len(found['broken'])}",
    "from the end of the faults to the end of the last job": lambda found: (
        f"{found['drain']['seconds']:g} s of {found['drain']['allowed']:g} s, {found['drain']['backlog']:,} jobs"
    ),
}


def table(storms: dict[str, Figures]) -> str:
    head = ["measure", *(NAMES[engine] for engine in storms)]
    lines = [head, ["---"] * len(head)]
    lines += [[name, *(cell(found) for found in storms.values())] for name, cell in ROWS.items()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    """Replace the table by that of the figures there are."""
    paths = {engine: ROOT / "bench" / "results" / f"storm-{engine}.json" for engine in ENGINES}
    storms = {engine: json.loads(path.read_text()) for engine, path in paths.items() if path.exists()}
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{table(storms)}{END}{after}")


if __name__ == "__main__":
    main()
