"""A real pipeline on Holdfast: read Python's standard library, measure it, write a report.

    scripts/run                          or: python examples/pipeline/main.py
    scripts/run --folder /tmp/demo --modules 100
    scripts/run serve                    the same behind a dashboard: it is submitted here, and the server works

Interrupt it however you like and start it again: it goes on where it was. Start it a third time: finished work is
reused.
"""

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

from corpus import Shard, hash_of, library, plan
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from holdfast import Holdfast, Job, JobHandle

LOOK_SECONDS = 0.1
GRACE_SECONDS = 2.0  # how long an interrupted run lets its handlers finish
ENDED = {"completed", "failed", "cancelled"}


class Stage(NamedTuple):
    name: str
    jobs: list[JobHandle]


def main() -> int:
    options = arguments()
    console = Console(highlight=False, soft_wrap=True)
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["HOLDFAST_URL"] = f"sqlite:///{folder / 'jobs.db'}"  # read by stages.py, here and in child processes
    try:
        if options.submit:
            return asyncio.run(leave(folder, options.modules, options.shards, console))
        return asyncio.run(run(folder, options.modules, options.shards, console))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("\nInterrupted. Start it again: it goes on where it was.")
        return 130


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure Python's standard library with a pipeline of durable jobs.")
    parser.add_argument("--folder", type=Path, default=Path("holdfast-demo"), help="for the queue and the results")
    parser.add_argument("--modules", type=int, default=10_000, help="read at most so many modules")
    parser.add_argument("--shards", type=int, default=16, help="jobs per stage")
    parser.add_argument("--submit", action="store_true", help="leave the work to a worker elsewhere")
    options = parser.parse_args()
    if options.modules < 1 or options.shards < 1:
        parser.error("--modules and --shards start at 1")
    return options


async def run(folder: Path, modules: int, shard_count: int, console: Console) -> int:
    from stages import app  # only now: it reads HOLDFAST_URL

    started = time.monotonic()
    shards = plan(library(), modules, shard_count)
    console.print(f"Measuring {sum(len(each.modules) for each in shards)} modules of {library()}")
    output = folder / "results" / hash_of(shards)[:12]
    async with app:
        stages = await submit(app, shards, folder, output)
        async with app.worker(concurrency=8, grace=GRACE_SECONDS):
            records = await watch(app, stages, console)
    return summarise(stages, records, output, time.monotonic() - started, console)


async def leave(folder: Path, modules: int, shard_count: int, console: Console) -> int:
    from stages import app

    shards = plan(library(), modules, shard_count)
    async with app:
        stages = await submit(app, shards, folder, folder / "results" / hash_of(shards)[:12])
    console.print(f"Submitted {sum(len(stage.jobs) for stage in stages)} jobs to {folder / 'jobs.db'}")
    return 0


async def submit(app: Holdfast, shards: list[Shard], folder: Path, output: Path) -> list[Stage]:
    """The whole pipeline, at once: what a job depends on is said here, and the queue keeps the order."""
    collected = [folder / "collected" / f"{shard.content_hash[:12]}.json" for shard in shards]
    analysed = [folder / "analysed" / f"{shard.content_hash[:12]}.json" for shard in shards]
    collect = await app.submit_many(
        ("collect", {"library": library(), "modules": shard.modules, "output": path}, once(shard.content_hash, path))
        for shard, path in zip(shards, collected, strict=True)
    )
    analyse = await app.submit_many(
        ("analyse", {"source": source, "output": path}, {**once(shard.content_hash, path), "depends_on": [job]})
        for shard, source, path, job in zip(shards, collected, analysed, collect, strict=True)
    )
    report = await app.submit(
        "report",
        {"sources": analysed, "output": output},
        **once(hash_of(shards), output / "report.html"),
        depends_on=analyse,
    )
    return [Stage("collect", collect), Stage("analyse", analyse), Stage("report", [report])]


def once(content_hash: str, output: Path) -> dict:
    """Submitted twice, done once: an unfinished job answers for itself, a finished one lends its result."""
    return {
        "dedup_key": f"{output.parent.name}:{content_hash}",
        "content_hash": content_hash,
        "reuse": output.exists(),  # a result whose file was deleted is of no use
    }


async def watch(app: Holdfast, stages: list[Stage], console: Console) -> dict[str, Job]:
    """Live bars until every job has ended; the records as they ended."""
    columns = (TextColumn("{task.description:8}"), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn())
    records: dict[str, Job] = {}
    with Progress(*columns, TextColumn("{task.fields[now]}"), console=console) as progress:
        bars = {
            stage.name: progress.add_task(stage.name, total=len(stage.jobs), now="", start=False) for stage in stages
        }
        while True:
            for stage in stages:
                await look(app, stage, records)
                show(progress, bars[stage.name], stage, records)
            if all(record.status in ENDED for record in records.values()):
                return records
            await asyncio.sleep(LOOK_SECONDS)


async def look(app: Holdfast, stage: Stage, records: dict[str, Job]) -> None:
    open_ids = [
        job.job_id for job in stage.jobs if job.job_id not in records or records[job.job_id].status not in ENDED
    ]
    for record in await asyncio.gather(*(app.get(job_id) for job_id in open_ids)):
        records[record.job_id] = record


def show(progress: Progress, bar: TaskID, stage: Stage, records: dict[str, Job]) -> None:
    known = [records[job.job_id] for job in stage.jobs]
    done = sum(record.status in ENDED for record in known)
    running = [record for record in known if record.status == "processing"]
    if (running or done) and not progress.tasks[bar].started:
        progress.start_task(bar)
    now = running[0].stage if running else ""
    fraction = done + sum(record.progress for record in running)
    progress.update(bar, completed=done if done == len(known) else fraction, now=now)
    if done == len(known) and progress.tasks[bar].stop_time is None:
        progress.stop_task(bar)
        if not progress.console.is_terminal:
            progress.console.print(f"{stage.name}: {done} of {done} jobs have ended")


def summarise(stages: list[Stage], records: dict[str, Job], output: Path, seconds: float, console: Console) -> int:
    table = Table("stage", "jobs", "ran now", "went on from before", "reused", "attempts", box=None)
    for stage in stages:
        table.add_row(stage.name, *(str(each) for each in row(stage, records)))
    console.print(table)
    if bad := [record for record in records.values() if record.status != "completed"]:
        for record in bad:
            console.print(f"{record.job_type} {record.job_id} {record.status.value}: {record.last_error}")
        console.print(f"{len(bad)} jobs did not complete. Start it again to try them anew.")
        return 1
    facts = records[stages[-1].jobs[0].job_id].result
    console.print(
        f"Measured {facts['modules']:,} modules, {facts['lines']:,} lines, {facts['functions']:,} functions"
        f" with {len(records)} jobs in {seconds:.1f} s."
    )
    console.print(f"Report:  {output / 'report.html'}")
    console.print(f"Figures: {output / 'report.json'}")
    console.print(f"Queue:   {output.parent.parent / 'jobs.db'}")
    if all(records[job.job_id].reused_from for stage in stages for job in stage.jobs):
        console.print("Nothing was computed: every result was reused, because the library has not changed.")
    else:
        console.print("Start it again to see finished work reused; delete the folder to start over.")
    return 0


def row(stage: Stage, records: dict[str, Job]) -> tuple[int, ...]:
    known = [records[job.job_id] for job in stage.jobs]
    reused = sum(record.reused_from is not None for record in known)
    went_on = sum(job.deduplicated for job in stage.jobs)
    return len(known), len(known) - reused - went_on, went_on, reused, sum(record.attempt for record in known)


if __name__ == "__main__":
    sys.exit(main())
