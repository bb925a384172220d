"""Shows the progress of an analysis: bars in a terminal, otherwise a line for every change."""

import asyncio

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from backstay import Backstay, Job, Tree

LOOK_SECONDS = 0.1
ENDED = {"completed", "failed", "cancelled"}
STAGES = ("PCA", "UMAP", "REPORT")
TURNS = ("PCA", "UMAP", "NARRATIVE", "REPORT")  # stages of these states have ended
ASIDE = {
    "pending": "waits for its turn",
    "waiting": "waits",
    "scheduled": "looks again later",
    "retrying": "will try again",
}


async def watch(app: Backstay, job_id: str, console: Console) -> Tree:
    """Wait until the analysis has ended; return its tree."""
    columns = (TextColumn("{task.description:9}"), BarColumn(36), TaskProgressColumn(), TimeElapsedColumn())
    now = TextColumn("{task.fields[now]}")
    with Progress(*columns, now, console=console, disable=not console.is_terminal) as progress:
        shown = Shown(progress)
        while True:
            tree = await app.tree(job_id)
            for job in sorted(tree.jobs.values(), key=_turn):
                if job.job_id != job_id:
                    shown.show(job)
            if tree.job.status in ENDED:
                return tree
            await asyncio.sleep(LOOK_SECONDS)


def _turn(job: Job) -> int:
    return TURNS.index(job.job_type) if job.job_type in TURNS else 0


class Shown:
    """The stages on the screen, with the last text of each."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {name: self._bar(name) for name in STAGES}
        self._said: dict[str, str] = {}

    def _bar(self, name: str) -> TaskID:
        return self._progress.add_task(name, total=1.0, now="", start=False)

    def show(self, job: Job) -> None:
        name = job.job_stage or job.job_type
        if name not in self._bars:
            self._bars[name] = self._bar(name)
        bar = self._bars[name]
        task = self._progress.tasks[self._progress.task_ids.index(bar)]
        now = words(job)
        if job.started_at is not None and task.start_time is None:
            self._progress.start_task(bar)
        # While its process starts, no share is known: the bar moves to and fro.
        starts = job.status == "processing" and not job.progress
        done = 1.0 if job.status == "completed" else job.progress
        self._progress.update(bar, total=None if starts else 1.0, completed=done, now=now)
        if job.status in ENDED and task.stop_time is None:
            self._progress.stop_task(bar)
        if not self._progress.console.is_terminal and self._said.get(name) != now:
            self._progress.console.print(f"{name}: {now}", markup=False)
        self._said[name] = now


def words(job: Job) -> str:
    """Describe the current step in a few words."""
    if job.status == "processing":
        return job.stage or "starting"
    if job.status == "completed":
        return f"done in {(job.processing_time_ms or 0) / 1000:.1f} s" + (
            f", attempt {job.attempt}" if job.attempt > 1 else ""
        )
    if job.status in ENDED:
        return job.status.value
    return ASIDE[job.status.value]
