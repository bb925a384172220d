"""`backstay bench`: how fast Backstay is on this machine's disk, in a few seconds."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from backstay.app import Backstay
from backstay.cli import app_loader, output
from backstay.cli.options import AsJson, Url
from backstay.cli.output import Column
from backstay.errors import ConfigurationError
from backstay.settings import url as url_setting

CONCURRENT = 64


@dataclass(frozen=True, slots=True)
class _Figure:
    name: str
    jobs: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.jobs / self.seconds


def bench(
    jobs: Annotated[
        int, typer.Option(min=100, max=50_000, metavar="N", help="Number of jobs to store and run; default 5000.")
    ] = 5000,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Measure how fast jobs are stored and run on this disk."""
    beside = app_loader.sqlite_path(url_setting(url))
    if beside is None:
        raise ConfigurationError("bench measures SQLite on a local disk, not a server: use --url sqlite:///…")
    folder = beside.absolute().parent
    try:
        with tempfile.TemporaryDirectory(prefix=".backstay-bench-", dir=folder) as temporary:
            figures = asyncio.run(_measure(f"sqlite:///{temporary}/bench.db", jobs))
    except OSError as error:
        raise ConfigurationError(
            f"cannot create a temporary folder in {folder}: {error.strerror}; choose another disk with --url"
        ) from None
    if as_json:
        output.emit_json(
            {
                "folder": str(folder),
                "python": sys.version.split()[0],
                "cores": os.cpu_count(),
                "items": [_document(figure) for figure in figures],
            }
        )
        return
    output.emit_table(_COLUMNS, figures)
    output.say(f"measured in {folder} with one process; every job is on disk before it counts")


async def _measure(url: str, jobs: int) -> list[_Figure]:
    app = Backstay(url)
    drained = asyncio.Event()
    left = 0

    @app.job("noop")
    async def noop(payload: dict[str, int]) -> dict[str, int]:
        nonlocal left
        left -= 1
        if left == 0:
            drained.set()
        return payload

    async def clock(name: str, count: int, work: Callable[[], Awaitable[Any]]) -> _Figure:
        started = app.clock.monotonic()
        await work()
        return _Figure(name, count, app.clock.monotonic() - started)

    async def one_at_a_time() -> None:
        for number in range(single):
            await noop.submit({"n": number})

    async def concurrently() -> None:
        async def some(count: int) -> None:
            for number in range(count):
                await noop.submit({"n": number})

        await asyncio.gather(*(some(many // CONCURRENT) for _ in range(CONCURRENT)))

    async def drain() -> None:
        async with app.worker(concurrency=CONCURRENT):
            await drained.wait()

    single, many = max(20, jobs // 25), max(CONCURRENT, jobs // CONCURRENT * CONCURRENT)
    async with app:
        figures = [
            await clock("submit, one at a time", single, one_at_a_time),
            await clock(f"submit, {CONCURRENT} at a time", many, concurrently),
            await clock("submit_many", jobs, lambda: app.submit_many([("noop", {"n": n}) for n in range(jobs)])),
        ]
        left = single + many + jobs
        figures.append(await clock("run (claim, handler, result)", left, drain))
    return figures


_COLUMNS: list[Column[_Figure]] = [
    Column("WHAT", lambda figure: figure.name),
    Column("JOBS", lambda figure: f"{figure.jobs:,}", right=True),
    Column("SECONDS", lambda figure: f"{figure.seconds:.2f}", right=True),
    Column("JOBS/S", lambda figure: f"{figure.per_second:,.0f}", right=True),
]


def _document(figure: _Figure) -> dict[str, object]:
    return {
        "name": figure.name,
        "jobs": figure.jobs,
        "seconds": round(figure.seconds, 4),
        "per_second": round(figure.per_second, 1),
    }
