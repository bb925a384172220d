"""Killed while it erases a job: the job is there as a whole or gone as a whole, and the removal can be repeated."""

import asyncio
import secrets
import signal
from pathlib import Path

import pytest

from backstay import JobNotFound
from tests.campaigns.processes.rows import Number, app_of
from tests.crash.test_rows import process
from tests.support.servers.postgres import Postgres

REMOVE_POINTS = {"remove.uncommitted": True, "remove.committed": False}  # and whether the job is still there
REMOVE = """
import asyncio, sys
from backstay import Backstay
async def main():
    async with Backstay(sys.argv[1]) as app:
        await app.remove(sys.argv[2])
asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    postgres: Postgres = request.getfixturevalue("postgres")
    return postgres.url(schema=f"removal_{secrets.token_hex(4)}")


@pytest.mark.parametrize("point", REMOVE_POINTS)
async def test_a_job_whose_remover_is_killed_is_whole_or_gone(url: str, point: str) -> None:
    async with app_of(url) as app:
        job = await app.submit("put", dedup_key="once", dedup_for="forever")
        assert await asyncio.to_thread(process, url, "") == 0
        killed = await asyncio.to_thread(process, url, f"{point}=kill9@1", "-c", REMOVE, url, job.job_id)
        assert killed == -signal.SIGKILL

        if REMOVE_POINTS[point]:
            assert (await app.get(job.job_id)).status == "completed"
            assert (await app.submit("put", dedup_key="once", dedup_for="forever")).job_id == job.job_id
            await app.remove(job.job_id)

        with pytest.raises(JobNotFound):
            await app.get(job.job_id)
        with pytest.raises(JobNotFound):
            await app.results(Number).all(job.job_id)
        assert sum((await app.counts()).values()) == 0
        trail = await app.audit_trail()
        assert {(each.action, each.target) for each in trail} == {("job.remove", job.job_id)}
        assert not (await app.submit("put", dedup_key="once", dedup_for="forever")).deduplicated
