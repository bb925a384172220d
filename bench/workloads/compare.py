"""Compares this checkout with another one, an older commit for instance, in alternation.

    git worktree add /tmp/before COMMIT && (cd /tmp/before && python3 -I scripts/bootstrap.py test)
    scripts/bench compare /tmp/before --rounds 5 --only submit,drain
    scripts/bench compare /tmp/before --store postgres

Each round runs the bench of both checkouts once, each with its own code, environment and hand-written limit, and the
other one first in every second round. Where a workload has a limit, its figure is also divided by the
limit of the same run, since a machine that slows down slows both. Ratios are taken round by round, then the median.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from bench import workloads as sizes

ROOT = Path(__file__).resolve().parents[2]
LIMIT = "limit"

Round = list[dict[str, Any]]  # the samples of one run, as written by bench/run.py


@dataclass(frozen=True, slots=True)
class Figure:
    workload: str
    metric: str
    better: str
    before: list[float]
    after: list[float]
    before_of_limit: list[float]
    after_of_limit: list[float]

    @property
    def ratios(self) -> list[float]:
        """After by before, above 1 where the newer checkout is better."""
        pairs = zip(self.after, self.before, strict=True)
        return [new / old if self.better == "higher" else old / new for new, old in pairs]

    @property
    def ratios_of_limit(self) -> list[float]:
        pairs = zip(self.after_of_limit, self.before_of_limit, strict=True)
        return [new / old if self.better == "higher" else old / new for new, old in pairs]


def main() -> None:
    options = _parse()
    other = options.checkout.resolve()
    before: list[Round] = []
    after: list[Round] = []
    for number in range(1, options.rounds + 1):
        turns = [(other, before), (ROOT, after)]
        for checkout, samples in turns if number % 2 else reversed(turns):
            print(f"round {number}: {checkout}", file=sys.stderr, flush=True)
            samples.append(_run(checkout, options, seed=number))
    figures = _figures(options, before, after)
    for figure in figures:
        of_limit = f", by the limit {median(figure.ratios_of_limit):.2f}" if figure.ratios_of_limit else ""
        print(
            f"{figure.workload:18} {figure.metric:6} before {median(figure.before):12,.2f}"
            f"   after {median(figure.after):12,.2f}   after/before {median(figure.ratios):.2f}"
            f" ({min(figure.ratios):.2f} to {max(figure.ratios):.2f}){of_limit}"
        )
    _write(options, other, figures)


def _run(checkout: Path, options: argparse.Namespace, *, seed: int) -> Round:
    """The samples of one round of one checkout."""
    python = str(checkout / ".venv/bin/python")
    start = ["-m", "bench.run"] if (checkout / "bench/__init__.py").exists() else ["bench/run.py"]
    command = [python, *start, "--rounds=1", f"--seed={seed}", f"--store={options.store}", "--label=compare"]
    command += [f"--only={options.only}"] if options.only else []
    command += ["--quick"] if options.quick else []
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    path = Path(ran.stdout.strip().rpartition(" samples in ")[2])
    samples: Round = json.loads(path.read_text())["samples"]
    path.unlink()
    return samples


def _figures(options: argparse.Namespace, before: list[Round], after: list[Round]) -> list[Figure]:
    found = []
    for workload in sizes.WORKLOADS[options.store]:
        for metric in workload.metrics:
            old = _values(before, workload.name, metric.name, options.called)
            new = _values(after, workload.name, metric.name, sizes.OURS)
            if not len(old) == len(new) == options.rounds:
                continue  # not asked for, or it failed: the round has said so
            old_limit, new_limit = (_values(each, workload.name, metric.name, LIMIT) for each in (before, after))
            has_limit = len(old_limit) == len(old) and len(new_limit) == len(new)
            found.append(
                Figure(
                    workload.name,
                    metric.name,
                    metric.better,
                    old,
                    new,
                    [a / b for a, b in zip(old, old_limit, strict=True)] if has_limit else [],
                    [a / b for a, b in zip(new, new_limit, strict=True)] if has_limit else [],
                )
            )
    return found


def _values(rounds: list[Round], workload: str, metric: str, contender: str) -> list[float]:
    return [
        sample["figures"][metric]
        for samples in rounds
        for sample in samples
        if (sample["workload"], sample["contender"]) == (workload, contender) and metric in sample["figures"]
    ]


def _write(options: argparse.Namespace, other: Path, figures: list[Figure]) -> None:
    report = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "store": options.store,
        "rounds": options.rounds,
        "before": _commit(other),
        "after": _commit(ROOT),
        "figures": [
            {
                "workload": figure.workload,
                "metric": figure.metric,
                "better": figure.better,
                "before": figure.before,
                "after": figure.after,
                "after_by_before": median(figure.ratios),
                "after_by_before_of_limit": median(figure.ratios_of_limit) if figure.ratios_of_limit else None,
            }
            for figure in figures
        ],
    }
    runs = ROOT / "bench/runs"
    runs.mkdir(exist_ok=True)
    path = options.json or runs / f"compare-{options.store}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\nwritten to {path}")


def _commit(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench compare", description="Measure another checkout and this one in alternation."
    )
    parser.add_argument("checkout", type=Path, help="the other checkout, with its .venv")
    parser.add_argument("--called", default=sizes.OURS, help="what the other checkout's bench calls itself")
    parser.add_argument("--store", choices=["postgres", "sqlite"], default="sqlite", help="where the jobs are kept")
    parser.add_argument("--only", metavar="NAMES", help="workloads whose name begins so, by comma")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of samples per figure (default 5)")
    parser.add_argument("--quick", action="store_true", help="fewer jobs, and a tenth of the history")
    parser.add_argument("--json", type=Path, help="where to write the figures (default: bench/runs)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
