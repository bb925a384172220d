"""Schedules in code when workers die: while they declare, before they fire, and while a tick replaces a job."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from backstay import Backstay
from tests.support.eventually import eventually

OVERLAP_POINTS = ("replace.cancelled",)
DECLARE_POINTS = ("declare.saved", "declare.define", "declare.remove")

CODE = """
import asyncio, sys
from backstay import Backstay, Context

app = Backstay(sys.argv[1], name="reports")


@app.job("report"{rule})
async def report(payload: dict, ctx: Context) -> None:
    await asyncio.sleep({runs})


async def main() -> None:
    async with app, app.worker():
        await asyncio.sleep(60)


asyncio.run(main())
"""


async def _killed(tmp_path: Path, rule: str, points: str, runs: float = 0.0) -> None:
    """Run a worker of this code until it has killed itself at one of the points."""
    path = tmp_path / "reports.py"
    path.write_text(CODE.format(rule=rule, runs=runs))
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(path), _url(tmp_path), env={**os.environ, "BACKSTAY_FAILPOINTS": points}
    )
    try:
        async with asyncio.timeout(60):
            assert await process.wait() == -signal.SIGKILL
    finally:
        if process.returncode is None:
            process.kill()


def _url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


def _app(tmp_path: Path, **rule: str) -> Backstay:
    app = Backstay(_url(tmp_path), name="reports")

    @app.job("report", **rule)
    async def report(payload: dict) -> None: ...

    return app


async def _has_jobs(app: Backstay, number: int) -> bool:
    return len(await app.find(job_type="report")) >= number


@pytest.mark.parametrize("point", DECLARE_POINTS)
async def test_what_a_worker_that_died_has_not_declared_the_next_one_does(tmp_path: Path, point: str) -> None:
    if point == "declare.remove":
        async with _app(tmp_path, cron="@daily") as old, old.worker():
            assert len(await old.schedules()) == 1
        await _killed(tmp_path, "", f"{point}=kill9")
        wanted = {}
    else:
        await _killed(tmp_path, ', cron="@daily"', f"{point}=kill9")
        wanted = {"cron": "@daily"}

    async with _app(tmp_path, **wanted) as app, app.worker():
        assert [each.cron for each in await app.schedules()] == list(wanted.values())
        assert [each.names for each in await app.store.declarations()] == [("report",) if wanted else ()]


@pytest.mark.parametrize("point", ["fire.before", "fire.uncommitted", "fire.committed"])
async def test_a_worker_that_dies_between_declaring_and_firing_leaves_each_tick_one_job(
    tmp_path: Path, point: str
) -> None:
    await _killed(tmp_path, ', cron="@every 1s", missed="all"', f"{point}=kill9")

    async with _app(tmp_path, cron="@every 1s", missed="all") as app:
        async with app.worker():
            await eventually(lambda: _has_jobs(app, 4))
        ticks = sorted(job.tick_at.timestamp() for job in await app.find(limit=1000) if job.tick_at is not None)

    assert ticks == [ticks[0] + number for number in range(len(ticks))]


async def test_a_worker_that_dies_while_a_tick_replaces_a_job_leaves_the_tick_to_the_next(tmp_path: Path) -> None:
    await _killed(tmp_path, ', cron="@every 1s", overlap="replace"', "replace.cancelled=kill9", runs=60)

    async with _app(tmp_path, cron="@every 1s", overlap="replace") as app:
        [replaced] = await app.find(job_type="report", status="cancelled")
        async with app.worker():
            await eventually(lambda: _has_jobs(app, 2))
        found = await app.find(limit=1000)

    assert str(replaced.history[-1].by) == "schedule:report"
    assert len({job.tick_at for job in found}) == len(found)
