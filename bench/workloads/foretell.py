"""How far `explain` is off when it foretells a start: 1,000 jobs, each asked about once, against when it started.

    scripts/bench foretell                       # on SQLite, 10 slots, jobs of 0.1 s on average
    scripts/bench foretell --jobs 5000 --runs 0.02

The run times are drawn from an exponential distribution with a fixed seed, so that jobs differ as they do in life. A
few jobs run first, since without any there is no estimate. Then all jobs are submitted to a worker, and in random order
each that has not started is asked about. Prints the share of the estimates that were within a factor of two, and of the
starts that were within the bounds, and writes both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from backstay import Backstay, Context, Job

RESULT = Path(__file__).parents[1] / "results" / "foretell.json"
COMPARED_MIN = 20
COMPARED_FROM_SECONDS = 0.5  # of a shorter wait the measurement itself is a large part


@dataclass(frozen=True)
class Asked:
    job_id: str
    at: float  # seconds since the epoch
    seconds: float
    low: float
    high: float | None


@dataclass(frozen=True)
class Errors:
    """How the estimates compare with the waits that followed."""

    jobs: int
    slots: int
    mean_seconds: float
    compared: int
    median_factor: float  # by which an estimate is too long or too short
    p90_factor: float
    within_two: float  # share of the estimates
    within_bounds: float  # share of the starts
    median_ratio: float  # estimate to wait: above one, estimates are too long
    ask_ms: float  # what an answer takes, while the worker runs


async def measure(url: str, *, jobs: int, slots: int, mean_seconds: float, seed: int = 7) -> Errors | None:
    """None if all jobs had started before enough of them were asked about."""
    app = Backstay(url)
    draw = random.Random(seed)

    @app.job("work")
    async def work(payload: float, ctx: Context) -> None:
        await asyncio.sleep(payload)

    def spans(number: int) -> list[float]:
        return [min(draw.expovariate(1 / mean_seconds), 10 * mean_seconds) for _ in range(number)]

    async with app, app.worker(concurrency=slots):
        for first in await work.submit_many(spans(20 * slots)):
            await first.result(timeout=120)
        submitted = await work.submit_many(spans(jobs))
        asked, ask_ms = await _ask(app, [each.job_id for each in submitted], draw)
        for each in submitted:
            await each.wait(timeout=600)
        starts = {job.job_id: job.started_at for found in await _read(app, asked) for job in [found]}
    factors, ratios, bounded = [], [], 0
    for each in asked:
        started = starts[each.job_id]
        wait = (started.timestamp() if started else each.at) - each.at
        if wait < COMPARED_FROM_SECONDS:
            continue
        ratio = max(each.seconds, 0.001) / wait
        ratios.append(ratio)
        factors.append(max(ratio, 1 / ratio))
        bounded += each.low <= wait and (each.high is None or wait <= each.high)
    if len(factors) < COMPARED_MIN:
        return None
    factors.sort()
    return Errors(
        jobs,
        slots,
        mean_seconds,
        len(factors),
        round(median(factors), 3),
        round(factors[int(len(factors) * 0.9)], 3),
        round(sum(factor <= 2 for factor in factors) / len(factors), 3),
        round(bounded / len(factors), 3),
        round(median(ratios), 3),
        round(ask_ms, 2),
    )


async def _ask(app: Backstay, job_ids: list[str], draw: random.Random) -> tuple[list[Asked], float]:
    """Ask about each job that has not started, in random order."""
    found, spent = [], 0.0
    for job_id in draw.sample(job_ids, len(job_ids)):
        before = app.clock.monotonic()
        at = app.clock.now() / 1e6
        estimate = (await app.explain(job_id)).estimate
        spent += app.clock.monotonic() - before
        if estimate is not None:
            found.append(Asked(job_id, at, estimate.seconds, estimate.low, estimate.high))
    return found, spent / len(job_ids) * 1000


async def _read(app: Backstay, asked: list[Asked]) -> list[Job]:
    found = []
    for start in range(0, len(asked), 500):
        found += await app.get_many([each.job_id for each in asked[start : start + 500]])
    return [job for job in found if job is not None]


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench foretell", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--slots", type=int, default=10)
    parser.add_argument("--runs", type=float, default=0.1, help="seconds that a job takes on average")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/jobs.db"
        found = asyncio.run(measure(url, jobs=options.jobs, slots=options.slots, mean_seconds=options.runs))
    if found is None:
        raise SystemExit("too few jobs had to wait for half a second: use longer or more of them")
    print(json.dumps(asdict(found), indent=2))
    RESULT.write_text(json.dumps(asdict(found), indent=2) + "\n", encoding="utf-8")
