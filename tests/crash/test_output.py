"""Killed at any write of its output: readers see the output of the run that completed, all of it, each value once."""

import asyncio
import secrets
import signal
from pathlib import Path

import pytest

from backstay.ops.output import OutputEntry
from tests.campaigns.processes.output import COUNT, app_of
from tests.crash.test_rows import process
from tests.support.servers.postgres import Postgres

# And at which of its passes: every write of output is a commit of its own.
OUTPUT_POINTS = [
    ("output.before", 3),
    ("append_output.uncommitted", 2),
    ("append_output.committed", 1),
    ("output.after", 2),
]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    postgres: Postgres = request.getfixturevalue("postgres")
    return postgres.url(schema=f"output_{secrets.token_hex(4)}")


@pytest.mark.parametrize(("point", "nth"), OUTPUT_POINTS)
async def test_the_output_of_a_job_is_that_of_the_run_that_completed_it(url: str, point: str, nth: int) -> None:
    app = app_of(url)
    async with app:
        job = await app.submit("tell")
        seen: list[OutputEntry] = []

        async def follow() -> None:
            seen.extend([entry async for entry in job.stream()])

        reader = asyncio.create_task(follow())
        module = ("-m", "tests.campaigns.processes.output", url)
        assert await asyncio.to_thread(process, url, f"{point}=kill9@{nth}", *module) == -signal.SIGKILL
        assert await asyncio.to_thread(process, url, "", *module) == 0
        async with asyncio.timeout(20):
            await reader

        attempt = await job.result(timeout=10)
        entries = await app.output(job.job_id)
        assert [entry.value for entry in entries] == [[attempt, number] for number in range(COUNT)]
        assert [entry.number for entry in entries] == list(range(1, COUNT + 1))
        # A reader of all that time saw a beginning of the first run, then was told, then saw all of the second one.
        last = [entry for entry in seen if entry.attempt == attempt]
        first = [entry.value for entry in seen if entry.attempt != attempt]
        assert [entry.value for entry in last] == [entry.value for entry in entries]
        assert first == [[1, number] for number in range(len(first))]
        assert [entry.restarted for entry in last] == [bool(first)] + [False] * (COUNT - 1)
