"""Whatever a handler raises or returns, its job ends, and no other job pays for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from backstay import Backstay, JobFailed
from tests.support import hostile_jobs
from tests.support.eventually import eventually
from tests.support.hostile_jobs import HOSTILE

ALONE = ["hostile_async", "hostile_thread", "hostile_process"]
BATCHES = ["hostile_batch_async", "hostile_batch_thread", "hostile_batch_process"]
SECONDS = 60.0


@pytest.fixture
def app(make_app: Callable[..., Backstay]) -> Backstay:
    return hostile_jobs.bind(make_app())


@pytest.mark.parametrize("job_type", ALONE)
async def test_a_job_ends_whatever_its_handler_raises(app: Backstay, job_type: str) -> None:
    async with app, app.worker() as worker:
        jobs = {name: await app.submit(job_type, name) for name in HOSTILE}
        ended = {}
        for name, job in jobs.items():
            with pytest.raises(JobFailed):
                await job.result(timeout=SECONDS)
            ended[name] = (await app.get(job.job_id)).errors[-1]["type"]

        async def is_free() -> bool:  # a result can be read a moment before its run leaves the table
            return not worker._runs.held

        await eventually(is_free, seconds=SECONDS)
        assert await (await app.submit(job_type, "good")).result(timeout=SECONDS) == "good"
    # A thread cannot raise a GeneratorExit into a coroutine, which would close it.
    named = {
        name: "RuntimeError" if job_type == "hostile_thread" and name == "GeneratorExit" else name for name in ended
    }
    assert ended == named


@pytest.mark.parametrize("job_type", BATCHES)
@pytest.mark.parametrize("how", ["raised", "returned"])
async def test_an_answer_of_a_batch_costs_no_other_job_of_it_anything_whatever_it_is(
    app: Backstay, job_type: str, how: str
) -> None:
    async with app, app.worker():
        names = [f"{how} {name}" for name in HOSTILE]
        hostile = await app.submit_many([(job_type, name) for name in names])
        good = await app.submit_many([(job_type, f"good {number}") for number in range(len(names))])
        assert [await job.result(timeout=SECONDS) for job in good] == [f"good {n}" for n in range(len(names))]
        for job in hostile:
            with pytest.raises(JobFailed):
                await job.result(timeout=SECONDS)
        assert {(await app.get(job.job_id)).attempt for job in good} == {1}
