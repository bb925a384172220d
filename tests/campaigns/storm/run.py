"""Runs a storm on one engine, and returns its figures.

python -m tests.campaigns.run storm --engine postgres --minutes 20 --seed 1 --out bench/results/storm-postgres.json
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import traceback
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.campaigns.rounds import versions
from tests.campaigns.storm.site import Site
from tests.campaigns.storm.site_dynamodb import DynamoSite
from tests.campaigns.storm.site_postgres import PostgresSite
from tests.campaigns.storm.site_sqlite import SQLiteSite
from tests.campaigns.storm.storm import Forecast, Outcome, Storm

ENGINES = ("sqlite", "postgres", "dynamodb")
SHORT_SECONDS = 6.0
TRANSFER_SECONDS = 300.0  # of a long storm: one transfer for each
GAP_SECONDS = {"sqlite": 1.5, "postgres": 3.0, "dynamodb": 5.0}  # a server that is always down shows little
LISTED = 50  # broken promises in the file of figures
IN_NAMESPACE = "BACKSTAY_STORM_NAMESPACE"


def in_a_namespace() -> None:
    """Start again where a disk of our own can be mounted, and no one else sees it."""
    if os.getuid() == 0 and IN_NAMESPACE not in os.environ:
        os.environ[IN_NAMESPACE] = "1"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - our own command


async def storm(engine: str, minutes: float | None, seed: int) -> dict[str, Any]:
    """Run a storm of so many minutes, or the short form."""
    started = time.monotonic()
    site = _site(engine)
    if minutes is None:
        forecast = Forecast(seed, SHORT_SECONDS, hosts=2, calm_seconds=2.0, gap_seconds=0.8, transfers=1)
    else:
        seconds = minutes * 60
        gap = GAP_SECONDS[engine]
        forecast = Forecast(
            seed, seconds, pause=0.1, gap_seconds=gap, transfers=max(1, round(seconds / TRANSFER_SECONDS))
        )
    folder = Path(tempfile.mkdtemp(prefix=f"backstay-storm-{engine}-"))
    error, outcome = "", Outcome()
    try:
        outcome = await Storm.run(site, folder, forecast)
    except Exception:
        error = traceback.format_exc()
    passed = not error and not outcome.broken
    if passed:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"\nthe storm went wrong: its files are in {folder}", file=sys.stderr)
    return {
        "what": "storm",
        "verdict": "passed" if passed else "failed",
        "asked": {"engine": engine, "minutes": minutes, "seed": seed},
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - started),
        "versions": {**versions(), "engine": site.release},
        "load": asdict(forecast),
        **_figures(outcome),
        "error": error,
    }


def _site(engine: str) -> Site:
    match engine:
        case "sqlite":
            return SQLiteSite(own_disk=IN_NAMESPACE in os.environ)
        case "postgres":
            return PostgresSite()
        case _:
            return DynamoSite()


def _figures(outcome: Outcome) -> dict[str, Any]:
    broken = [each.partition(":")[0] for each in outcome.broken]
    return {
        "faults": dict(sorted(outcome.faults.items())),
        "jobs": {"acknowledged": outcome.acknowledged, **outcome.jobs},
        "kinds": dict(sorted(outcome.kinds.items())),
        "submits without an answer": outcome.unanswered,
        "runs": outcome.runs,
        "rescued": outcome.rescued,
        "transfers": {"count": outcome.transfers, "seconds": outcome.transfer_seconds},
        "phases, in seconds": outcome.phases,
        "lost": broken.count("lost"),
        "completed twice": broken.count("completed twice"),
        "stuck": broken.count("stuck"),
        "limits passed": broken.count("limit passed") + broken.count("rate passed"),
        "drain": {
            "throughput before, jobs per second": round(outcome.throughput, 1),
            "backlog": outcome.backlog,
            "seconds": round(outcome.drain_seconds, 1),
            "allowed": round(outcome.drain_allowed, 1),
        },
        "broken": outcome.broken[:LISTED],
        "errors": outcome.errors,
    }
