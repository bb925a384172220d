"""Killed at any point between the first row and the completion: the rows of a completed job are those of the run that
completed it, all of them and no others, and they go with it."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from backstay import Backstay
from tests.campaigns.processes.rows import COUNT, Number, app_of
from tests.support.servers.postgres import Postgres

# And in which of its passes: a part is a commit of its own, and so is the completion.
PUT_POINTS = [
    ("put_rows.uncommitted", 2),
    ("put_rows.committed", 1),
    ("put_rows.committed", 3),
    ("apply.uncommitted", 1),
    ("declare.committed", 1),
]
DROP_POINTS = [("drop_rows.committed", 1), ("drop_rows.uncommitted", 2)]


def process(url: str, failpoints: str, *command: str) -> int:
    return subprocess.run(
        [sys.executable, *(command or ("-m", "tests.campaigns.processes.rows", url))],
        env={**os.environ, "BACKSTAY_FAILPOINTS": failpoints},
        timeout=60,
        check=False,
    ).returncode


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    postgres: Postgres = request.getfixturevalue("postgres")
    return postgres.url(schema=f"rows_{secrets.token_hex(4)}")


async def judge(app: Backstay, job_id: str) -> None:
    attempt = await app.result(job_id, timeout=10)
    rows = await app.results(Number).all(job_id)
    assert [row.number for row in rows] == list(range(100 * attempt, 100 * attempt + COUNT))
    assert {row.attempt for row in rows} == {attempt}


@pytest.mark.parametrize(("point", "nth"), PUT_POINTS)
async def test_the_rows_of_a_job_are_those_of_the_run_that_completed_it(url: str, point: str, nth: int) -> None:
    if point.startswith("declare"):
        assert await asyncio.to_thread(process, url, f"{point}=kill9@{nth}") == -signal.SIGKILL
    app = app_of(url)
    async with app:
        job = await app.submit("put")
        if not point.startswith("declare"):
            assert await asyncio.to_thread(process, url, f"{point}=kill9@{nth}") == -signal.SIGKILL
        assert await app.results(Number).all(job.job_id) == []
        assert await asyncio.to_thread(process, url, "") == 0
        await judge(app, job.job_id)
        await app.purge(older_than=0)
        assert await app.store.drop_rows(job.job_id, 1) == 0


PURGE = """
import asyncio, sys
from backstay import Backstay
from backstay.ops import retention
retention.ROWS_DROPPED_MAX = 700
async def main():
    async with Backstay(sys.argv[1]) as app:
        await app.purge(older_than=0)
asyncio.run(main())
"""


@pytest.mark.parametrize(("point", "nth"), DROP_POINTS)
async def test_retention_that_is_killed_between_two_removals_goes_on(url: str, point: str, nth: int) -> None:
    app = app_of(url)
    async with app:
        job = await app.submit("put")
        assert await asyncio.to_thread(process, url, "") == 0
        assert await asyncio.to_thread(process, url, f"{point}=kill9@{nth}", "-c", PURGE, url) == -signal.SIGKILL

        await app.purge(older_than=0)

        assert await app.store.drop_rows(job.job_id, 1) == 0
        assert await app.store.with_files(10) == []
