"""Measure Backstay, its peers and the machine's limits in one interleaved run.

    scripts/bench                             everything, 5 rounds
    scripts/bench --only drain,submit         workloads whose names begin with these
    scripts/bench --quick --rounds 1          a first look
    scripts/bench --only history,retention --rounds 7   a ratio near 1 needs seven rounds
    scripts/bench --store postgres            the same on a PostgreSQL that the run starts
    scripts/bench http --jobs 20000           a separate benchmark; --help lists them

Prints two tables, figures and verdicts, and writes all samples to bench/runs/.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from bench import workloads as sizes
from bench.harness import machine, places
from bench.harness.contenders import is_installed
from bench.harness.figures import Sample, Samples
from bench.harness.table import figures_table, targets_table
from bench.harness.targets import verdicts
from bench.peers import npm
from bench.workloads import Workload

BENCH = Path(__file__).resolve().parent
RUNS = BENCH / "runs"  # what is published is copied to bench/results
SAMPLE_TIMEOUT_SECONDS = 600
ERROR_LINES = 3
# The benches that stand alone: each is a module of `workloads` with options of its own.
ALONE = (
    "batches",
    "growth",
    "large",
    "trees",
    "move",
    "http",
    "scale",
    "scale-out",
    "dynamodb-scale",
    "dynamodb-clients",
    "dynamodb-parent",
    "compare",
    "foretell",
)


def main() -> int:
    if sys.argv[1:2] and sys.argv[1] in ALONE:
        name = sys.argv.pop(1)
        sys.argv[0] = f"scripts/bench {name}"
        import_module(f"bench.workloads.{name.replace('-', '_')}").main()
        return 0
    options = _parse()
    chosen = sizes.select(options.store, options.only)
    if options.store == "postgres":
        npm.install()
    with _scratch(options.dir) as folder:
        place = machine.describe(folder)
        if machine.is_in_memory(folder):
            _say(f"{folder} is in memory: commits cost nothing there, so these figures mean little.")
        with places.of(options.store, folder) as place_of_sample:
            samples = Samples(_measure_all(chosen, folder, place_of_sample, options))
            place |= place_of_sample.describe()
    judged = verdicts(options.store, samples)
    print(figures_table(chosen, samples), targets_table(judged), sep="\n\n")
    path = _write(samples, place, options)
    print(f"\n{len(samples.all)} samples in {path}")
    return 1 if options.gate and any(verdict.met is False for verdict in judged) else 0


def _measure_all(
    chosen: Sequence[Workload], folder: Path, place: places.Place, options: argparse.Namespace
) -> list[Sample]:
    """Measure round by round; within a round, the contenders of a workload run in random order."""
    shuffled = random.Random(options.seed)
    samples = []
    for number in range(1, options.rounds + 1):
        for workload in chosen:
            contenders = [name for name in workload.contenders if is_installed(name)]
            shuffled.shuffle(contenders)
            for contender in contenders:
                sample = _sample(number, workload, contender, folder, place, quick=options.quick)
                samples.append(sample)
                _say(f"round {number}  {workload.name:18} {contender:22} {_outcome(sample)}")
    return samples


def _sample(
    number: int, workload: Workload, contender: str, folder: Path, place: places.Place, *, quick: bool
) -> Sample:
    jobs = workload.jobs_for(contender, quick=quick)
    own = folder / "sample"  # a short name: paths of worker sockets next to the file must be short
    command = [sys.executable, "-m", "bench.harness.measure", place.store, contender, workload.name]
    command += [f"--folder={own}", f"--shared={folder}", f"--jobs={jobs}", *_sizes(quick=quick), *place.fresh()]
    try:
        child = subprocess.run(
            command, cwd=BENCH.parent, capture_output=True, text=True, timeout=SAMPLE_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Sample(number, workload.name, contender, jobs, {}, f"over {SAMPLE_TIMEOUT_SECONDS} s")
    finally:
        shutil.rmtree(own, ignore_errors=True)
    if child.returncode != 0:
        error = " | ".join(child.stderr.strip().splitlines()[-ERROR_LINES:])
        return Sample(number, workload.name, contender, jobs, {}, error)
    return Sample(number, workload.name, contender, jobs, json.loads(child.stdout.splitlines()[-1]), None)


def _sizes(*, quick: bool) -> list[str]:
    finished = sizes.QUICK_FINISHED if quick else sizes.FINISHED
    pending = sizes.QUICK_PENDING if quick else sizes.PENDING
    retirable = sizes.QUICK_RETIRABLE if quick else sizes.RETIRABLE
    seconds = sizes.QUICK_IDLE_SECONDS if quick else sizes.IDLE_SECONDS
    return [
        f"--finished={finished}",
        f"--pending={pending}",
        f"--retirable={retirable}",
        f"--idle-seconds={seconds}",
    ]


def _outcome(sample: Sample) -> str:
    if sample.error:
        return f"failed: {sample.error}"
    return "  ".join(f"{metric} {value:,.2f}" for metric, value in sample.figures.items())


def _write(samples: Samples, place: dict[str, object], options: argparse.Namespace) -> Path:
    now = datetime.now(UTC)
    what = options.label or f"{options.store}-{(options.only or 'all').replace(',', '-')}"
    path = RUNS / f"{now:%Y-%m-%dT%H%M%S}-{what}.json"
    RUNS.mkdir(exist_ok=True)
    report = {
        "at": now.isoformat(timespec="seconds"),
        "what": what,
        "seed": options.seed,
        "rounds": options.rounds,
        "quick": options.quick,
        "machine": place,
        "targets": [{**asdict(verdict), "verdict": verdict.word} for verdict in verdicts(options.store, samples)],
        "samples": [asdict(sample) for sample in samples.all],
    }
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    return path


@contextmanager
def _scratch(given: Path | None) -> Iterator[Path]:
    """Create a folder on a real disk: next to this file unless --dir names another. /tmp may be in memory."""
    folder = Path(tempfile.mkdtemp(prefix=".scratch-", dir=given or BENCH))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure Backstay, its peers and the machine's limits.",
        epilog=f"Workloads: {', '.join(workload.name for workload in sizes.SQLITE)}."
        f" Separate benches, each with its own --help: {', '.join(ALONE)}.",
    )
    parser.add_argument("--store", choices=sorted(sizes.WORKLOADS), default="sqlite", help="where the jobs are kept")
    parser.add_argument("--only", metavar="NAMES", help="workloads whose names begin with these, by comma")
    parser.add_argument("--rounds", type=int, default=5, help="samples per figure (default 5)")
    parser.add_argument("--quick", action="store_true", help="fewer jobs, and a tenth of the history")
    parser.add_argument("--dir", type=Path, help="a folder on the disk to measure (default: this repository)")
    parser.add_argument("--seed", type=int, default=1, help="order of the contenders (default 1)")
    parser.add_argument("--label", help="name of the result file (default: what was measured)")
    parser.add_argument("--gate", action="store_true", help="exit with 1 when a target is missed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
