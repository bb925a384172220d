"""`backstay demo`: jobs running, waiting, failing and retrying on a queue of their own, in a few seconds."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from backstay.app import Backstay
from backstay.backoff import Backoff
from backstay.cli import output
from backstay.cli.output import Exit, safe
from backstay.clock import to_datetime
from backstay.context import Context
from backstay.core.checks import count, span
from backstay.core.states import TERMINAL, Status
from backstay.job import Job

PACE = 1.0  # how slow the jobs are; tests are in a hurry
WAIT_SECONDS = 18.0  # for all of it; then something is wrong
_LOOK_SECONDS = 0.1
_WORDS = {"poems": 1250, "letters": 830, "novels": 91_400}
_Show = Callable[[list[Job], datetime], None]


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep the queue, to look around in it.")] = False,
) -> int:
    """Watch jobs run, wait, fail and retry, in 10 seconds."""
    folder = Path(tempfile.mkdtemp(prefix="backstay-demo-"))
    try:
        output.leave_to_others()  # its jobs fail on purpose, and it tells of them itself
        return asyncio.run(_demonstrate(folder, keep))
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _app(folder: Path) -> Backstay:
    app = Backstay(f"sqlite:///{folder}/demo.db", artifacts=(folder / "files").as_uri())

    @app.job("count_words", max_attempts=3)
    async def count_words(payload: str, ctx: Context) -> int:
        steps = 20
        for step in range(steps):
            await asyncio.sleep(0.1 * PACE)
            await ctx.progress(step / steps, stage=f"reading {payload}")
        ctx.log.info("%s has %d words", payload, _WORDS[payload])
        return _WORDS[payload]

    @app.job("add_up")
    async def add_up(payload: list[str]) -> int:
        """Add up the results of its dependencies: it runs only after they have completed."""
        await asyncio.sleep(0.5 * PACE)
        return sum([(await app.get(job_id)).result for job_id in payload])

    @app.job("call_service", max_attempts=5, backoff=Backoff(base=1.0 * PACE, factor=2, jitter=0))
    async def call_service(payload: str, ctx: Context) -> str:
        await asyncio.sleep(0.3 * PACE)
        if ctx.attempt < 3:
            raise ConnectionError("the service is not responding")
        return f"{payload} on attempt {ctx.attempt}"

    @app.job("remind")
    async def remind(payload: str) -> str:
        return payload

    @app.job("tick")
    async def tick(payload: None) -> None: ...

    @app.job("divide", max_attempts=1)
    async def divide(payload: list[int]) -> float:
        return payload[0] / payload[1]

    return app


async def _demonstrate(folder: Path, keep: bool) -> Exit:
    app = _app(folder)
    output.emit_paragraph(f"Started a queue in {folder}/demo.db and a worker in this process.")
    print()
    async with app:
        jobs = await _submit(app)
        async with app.worker(concurrency=5):
            try:
                with _view() as show:
                    await asyncio.wait_for(_until_ended(app, jobs, show), WAIT_SECONDS)
            except TimeoutError:
                output.say(f'some jobs did not end within {span(WAIT_SECONDS)}: see "backstay doctor"')
                return Exit.FAILED
        print()
        await _sum_up(app, jobs)
    print()
    _say_what_next(folder, jobs, keep)
    return Exit.OK


async def _submit(app: Backstay) -> dict[str, str]:
    """Submit the jobs of the demo; return each by its role."""
    texts = await app.submit_many([("count_words", name) for name in _WORDS])
    await app.schedule("every-second", "@every 1s", "tick")
    parts = {f"words {name}": job for name, job in zip(_WORDS, texts, strict=True)}
    parts["sum"] = await app.submit("add_up", [job.job_id for job in texts], depends_on=texts)
    parts["flaky"] = await app.submit("call_service", "an answer")
    parts["later"] = await app.submit("remind", "tea", delay=timedelta(seconds=2 * PACE))
    parts["dead"] = await app.submit("divide", [1, 0])
    return {part: job.job_id for part, job in parts.items()}


async def _until_ended(app: Backstay, jobs: dict[str, str], show: _Show) -> None:
    while True:
        seen = [await app.get(job_id) for job_id in jobs.values()]
        show(seen, to_datetime(app.clock.now()))
        if all(job.status in TERMINAL for job in seen) and await app.find(job_type="tick", status="completed", limit=1):
            return
        await asyncio.sleep(_LOOK_SECONDS)


async def _sum_up(app: Backstay, jobs: dict[str, str]) -> None:
    flaky, later, dead, total = [await app.get(jobs[part]) for part in ("flaky", "later", "dead", "sum")]
    ticks = await app.find(job_type="tick", limit=100)
    late = span(max(0.0, ((later.started_at or later.scheduled_for) - later.scheduled_for).total_seconds()))
    for line in (
        f"{count(len(_WORDS), 'count_words job')} ran in parallel and reported their progress.",
        f"add_up waited for all of them and counted {total.result:,} words.",
        f"call_service failed {count(flaky.failures, 'time')}, backed off, and got {flaky.result!r}.",
        f"remind was scheduled for later and started {late} after it was due.",
        f"The schedule every-second submitted {count(len(ticks), 'job')}.",
        f"divide is a dead letter: {await app.explain(dead.job_id)}.",
        "Every change was on disk before it counted: a kill -9 at any moment loses no job.",
    ):
        output.emit_paragraph(line, first="* ")


def _say_what_next(folder: Path, jobs: dict[str, str], keep: bool) -> None:
    if not keep:
        output.emit_paragraph(
            'To keep the queue and look around: "backstay demo --keep". To write jobs of your own: docs/tutorial.md in'
            " the checkout."
        )
        return
    print("Look around:")
    print(f"  export BACKSTAY_URL=sqlite:///{safe(str(folder))}/demo.db")
    story = output.short_id(jobs["sum"]), output.short_id(jobs["flaky"])
    for command in ("list", f"tree {story[0]}", f"show {story[1]}", "dead", "schedules", "stats", "doctor"):
        print(f"  backstay {command}")
    print(f"When you are done: rm -r {safe(str(folder))}")


# The view


@contextmanager
def _view() -> Iterator[_Show]:
    with _bars() if output.width() is not None else _lines() as show:
        yield show


@contextmanager
def _lines() -> Iterator[_Show]:
    said: dict[str, Status] = {}

    def show(jobs: list[Job], now: datetime) -> None:
        for job in jobs:
            if said.get(job.job_id) is not job.status:
                said[job.job_id] = job.status
                print(f"{job.job_type} {job.job_id} is {job.status.value}", flush=True)

    yield show


@contextmanager
def _bars() -> Iterator[_Show]:
    from rich.progress import BarColumn, Progress, TaskID, TextColumn
    from rich.table import Column

    def text(field: str, **options: Any) -> TextColumn:
        return TextColumn(
            f"{{task.fields[{field}]}}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", **options)
        )

    progress = Progress(
        text("kind", width=12),
        text("status", width=10),
        BarColumn(bar_width=20),
        text("note", ratio=1),
        console=output.console(),
        expand=True,
    )
    rows: dict[str, TaskID] = {}

    def show(jobs: list[Job], now: datetime) -> None:
        for job in jobs:
            if job.job_id not in rows:
                rows[job.job_id] = progress.add_task("", total=1.0, kind=job.job_type, status="", note="")
            progress.update(
                rows[job.job_id], completed=job.progress, status=job.status.value, note=safe(output.note(job, now))
            )

    with progress:
        yield show
