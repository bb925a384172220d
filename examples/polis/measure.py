"""Measures the analysis, a line of a table for each conversation:

python -m polis.measure ~/exports/*              real ones: groups, how they match those of Polis, time and memory
python -m polis.measure --sizes 10000 1000000    made-up ones with about so many votes: time and memory

Each is a run of `python -m polis` in an empty folder, with its start, its queue and its report. Memory is that of its
largest stage. A made-up conversation has a participant per 50 votes, a comment per 500, and three opinions.
"""

import argparse
import asyncio
import csv
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

from backstay import Backstay

from .export import COMMENT_COLUMNS, FILES, PARTICIPANT_COLUMNS, VOTE_COLUMNS
from .sample_comments import COMMENTS

VOTES_PER_PERSON, VOTES_PER_COMMENT, OPINIONS = 50, 500, 3
COLUMNS = ("conversation", "votes", "people", "comments", "seconds", "MB")
FINDINGS = ("groups", "Polis's groups", "certainty", "Rand index", "Spearman", "topics in")


@dataclass(frozen=True, slots=True)
class Run:
    seconds: float
    megabytes: int
    pca: dict[str, Any]  # the results of the jobs
    umap: dict[str, Any]


def main() -> int:
    options = arguments()
    with tempfile.TemporaryDirectory() as scratch:
        if options.exports:
            print(_line((*COLUMNS, *FINDINGS)), _line("---" for _ in (*COLUMNS, *FINDINGS)), sep="\n")
        for export in options.exports:
            run = measured(export, Path(scratch))
            print(_line((*_figures(export.name, run), *_findings(run))), flush=True)
        if options.sizes:
            print(_line(COLUMNS), _line("---" for _ in COLUMNS), sep="\n")
        for votes in options.sizes:
            export = write_conversation(Path(scratch) / "exports" / f"made-up-{votes}", votes)
            print(_line(_figures("made up", measured(export, Path(scratch)))), flush=True)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="polis.measure", description="Measure the analysis of conversations.")
    parser.add_argument("exports", type=Path, nargs="*", help="folders of exports")
    parser.add_argument("--sizes", type=int, nargs="+", default=[], help="numbers of votes of made-up conversations")
    options = parser.parse_args()
    if not options.exports and not options.sizes:
        parser.error("name folders of exports, or sizes")
    return options


def measured(export: Path, scratch: Path) -> Run:
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        started = time.monotonic()
        command = [sys.executable, "-m", "polis", str(export.absolute()), "--folder", folder]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        seconds = time.monotonic() - started
        if done.returncode:
            raise SystemExit(f"{export}: the analysis ended with {done.returncode}: {done.stdout}")
        pca, umap = asyncio.run(_results(f"sqlite:///{folder}/jobs.db"))
    return Run(seconds, max(each["summary_metrics"]["peak_memory_mb"] for each in (pca, umap)), pca, umap)


async def _results(url: str) -> tuple[dict[str, Any], dict[str, Any]]:
    async with Backstay(url) as app:
        found = [(await app.find(job_type=stage, limit=1))[0].result for stage in ("PCA", "UMAP")]
    return found[0], found[1]


def _figures(name: str, run: Run) -> Sequence[str]:
    about = run.pca["conversation"]
    counts = (about["votes"], about["participants"], about["comments"])
    return (name, *(f"{count:,}" for count in counts), f"{run.seconds:.1f}", f"{run.megabytes:,}")


def _findings(run: Run) -> Sequence[str]:
    match, correlation = run.pca["agreement_with_polis"], run.pca["consensus_rank_correlation"]
    return (
        " + ".join(f"{group['size']:,}" for group in run.pca["groups"]) or "none",
        f"{match['polis_groups']}" if match else "–",
        run.pca["certainty"]["clarity"] if run.pca["groups"] else "–",
        f"{match['rand_index']:.2f}" if match else "–",
        f"{correlation:.3f}" if correlation is not None else "–",
        run.umap["language"],
    )


def _line(cells: Iterator[str] | Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def write_conversation(folder: Path, votes: int) -> Path:
    """Write a made-up conversation of about so many votes: the same number gives the same conversation."""
    dice = random.Random(votes)
    count = max(20, votes // VOTES_PER_COMMENT)
    votes_each = min(VOTES_PER_PERSON, count)
    people = max(20, votes // votes_each)
    bodies = [f"{one[0]} {other[0]}" for one, other in permutations(COMMENTS, 2)][:count]
    likely = [[dice.betavariate(0.6, 0.6) for _ in bodies] for _ in range(OPINIONS)]
    folder.mkdir(parents=True)
    at = 1_700_000_000_000
    with (folder / FILES[1]).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(VOTE_COLUMNS)
        for person in range(people):
            opinion = likely[dice.randrange(OPINIONS)]
            for comment in dice.sample(range(len(bodies)), votes_each):
                at += dice.randrange(2_000)
                writer.writerow((at, comment, person, 1 if dice.random() < opinion[comment] else -1))
    with (folder / FILES[0]).open("w", newline="") as file:
        csv.writer(file).writerows(
            [COMMENT_COLUMNS, *((at, number, 0, 0, 0, 1, body) for number, body in enumerate(bodies))]
        )
    with (folder / FILES[2]).open("w", newline="") as file:
        csv.writer(file).writerows([PARTICIPANT_COLUMNS, *((person, "", 0, 0, 0, 0) for person in range(people))])
    return folder


if __name__ == "__main__":
    sys.exit(main())
