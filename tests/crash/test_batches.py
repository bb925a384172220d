"""A worker that dies in the middle of a batch takes none of its jobs to the dead letters but the one that broke it."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaigns.processes.batch import POISON, SIZE, app_of

BATCH_POINTS = {"batch.between": 3}  # in which of its passes: after one half is settled and before the other is called


def worker(url: str, failpoints: str) -> int:
    return subprocess.run(
        [sys.executable, "-m", "tests.campaigns.processes.batch", url],
        env={**os.environ, "BACKSTAY_FAILPOINTS": failpoints},
        timeout=60,
        check=False,
    ).returncode


@pytest.mark.parametrize(("point", "passes"), [(point, n) for point, most in BATCH_POINTS.items() for n in range(most)])
async def test_a_worker_that_is_killed_while_it_halves_a_batch_loses_none_of_the_others(
    tmp_path: Path, point: str, passes: int
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    app = app_of(url)
    async with app:
        handles = await app.submit_many([("embed", n) for n in range(SIZE)])
        assert await asyncio.to_thread(worker, url, f"{point}=kill9@{passes + 1}") == -signal.SIGKILL
        assert await asyncio.to_thread(worker, url, "") == 0
        jobs = [await app.get(each.job_id) for each in handles]
    assert [job.status for job in jobs] == ["failed" if n == POISON else "completed" for n in range(SIZE)]
    assert [job.result for job in jobs] == [None if n == POISON else n for n in range(SIZE)]
    assert max(job.failures for n, job in enumerate(jobs) if n != POISON) <= 1
