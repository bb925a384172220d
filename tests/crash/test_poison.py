"""A job that kills every worker which runs it takes no other to the dead letters."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaigns.processes.poison import MAX_ATTEMPTS, POISON, POISONS, SIZE, STREAM, STREAM_ATTEMPTS, app_of


def worker(url: str) -> int:
    return subprocess.run(
        [sys.executable, "-m", "tests.campaigns.processes.poison", url], timeout=60, check=False
    ).returncode


@pytest.mark.parametrize("job_type", ["one", "many"])
async def test_a_job_that_kills_its_workers_at_once_is_the_only_one_that_dies_of_it(
    tmp_path: Path, job_type: str
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    app = app_of(url)
    async with app:
        handles = await app.submit_many([(job_type, n) for n in range(SIZE)])
        deaths = 0
        while await asyncio.to_thread(worker, url) != 0:
            deaths += 1
        jobs = [await app.get(each.job_id) for each in handles]
    assert [job.status for job in jobs] == ["failed" if n == POISON else "completed" for n in range(SIZE)]
    assert [job.failures <= 1 for n, job in enumerate(jobs) if n != POISON] == [True] * (SIZE - 1)
    assert deaths == MAX_ATTEMPTS


async def test_however_many_jobs_kill_their_workers_no_other_dies_of_it(tmp_path: Path) -> None:
    """A job that happens to run next to several of them is lost by the fault of others, time after time."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    app = app_of(url)
    async with app:
        handles = await app.submit_many([("several", n) for n in range(STREAM)])
        deaths = 0
        while await asyncio.to_thread(worker, url) != 0:
            deaths += 1
        jobs = [await app.get(each.job_id) for each in handles]
    assert [job.status for job in jobs] == ["failed" if n in POISONS else "completed" for n in range(STREAM)]
    assert max(job.failures for n, job in enumerate(jobs) if n not in POISONS) < STREAM_ATTEMPTS
    assert deaths <= STREAM_ATTEMPTS * len(POISONS)
