"""`explain` foretells when a job starts, and says why where it cannot."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from backstay import Backstay, Context, JobHandle
from backstay.core.checks import span
from backstay.core.forecast import Estimate, Unforeseen
from backstay.limits import AHEAD_MAX
from bench.workloads.foretell import measure
from tests.support.eventually import eventually

Make = Callable[..., Backstay]


async def test_of_a_thousand_jobs_half_of_the_estimates_are_within_a_factor_of_two(tmp_path: Path) -> None:
    found = []
    for number in range(3):  # on a busy machine the load may be anything but steady
        each = await measure(f"sqlite:///{tmp_path}/jobs-{number}.db", jobs=1_000, slots=10, mean_seconds=0.05)
        if each is not None and each.median_factor < 2:
            return
        found.append(each)
    raise AssertionError(found)


class Stage:
    """A worker of two slots whose jobs run until they are let go, of a type of which one job has run."""

    def __init__(self, app: Backstay, **options: Any) -> None:
        self.app = app
        self.go = asyncio.Event()

        @app.job("work", **options)
        async def work(payload: dict, ctx: Context) -> None:
            await self.go.wait()

        @app.job("new")
        async def new(payload: dict, ctx: Context) -> None:
            await self.go.wait()

    async def ran_once(self) -> None:
        job = await self.app.submit("work", {})
        async with self.app.worker(concurrency=2):
            self.go.set()
            await job.result(timeout=30)
        self.go.clear()

    async def submit(self, number: int, job_type: str = "work", **options: Any) -> list[JobHandle]:
        return await self.app.submit_many([(job_type, {}, options)] * number)

    async def started(self, number: int) -> None:
        async def enough() -> bool:
            return (await self.app.counts())["processing"] >= number

        await eventually(enough, seconds=60)


@pytest.fixture
async def stage(make_app: Make) -> AsyncIterator[Stage]:
    app = make_app()
    stage = Stage(app)
    async with app:
        await stage.ran_once()
        yield stage
        stage.go.set()


async def _estimate(app: Backstay, job: JobHandle) -> Estimate:
    found = (await app.explain(job.job_id)).estimate
    assert found is not None
    return found


async def test_the_sentence_says_when_it_starts_and_of_what_that_follows(stage: Stage) -> None:
    async with stage.app.worker(concurrency=2):
        jobs = await stage.submit(2)
        await stage.started(2)
        jobs = await stage.submit(40)
        why = await stage.app.explain(jobs[-1].job_id)
        stage.go.set()
    assert why.estimate is not None
    assert (why.estimate.slots, why.unforeseen) == (2, None)
    assert why.estimate.ahead >= 30  # of those that are not claimed ahead
    seconds, each = span(why.estimate.seconds), span(why.estimate.each_seconds)
    said = f"; it starts in about {seconds}: {why.estimate.ahead} before it, {each} each, 2 slots"
    assert str(why).endswith(said)


async def test_without_any_attempt_of_its_type_nothing_is_foretold_and_the_sentence_says_so(stage: Stage) -> None:
    async with stage.app.worker(concurrency=2):
        await stage.submit(2)
        await stage.started(2)
        [job] = await stage.submit(1, "new")
        why = await stage.app.explain(job.job_id)
        stage.go.set()
    assert (why.estimate, why.unforeseen) == (None, Unforeseen.NO_HISTORY)
    assert str(why).endswith("; when it starts is not known: no attempt of its type has ended yet")


async def test_it_says_as_data_why_there_is_no_estimate(stage: Stage, make_app: Make) -> None:
    app = stage.app
    [job] = await stage.submit(1)
    assert (await app.explain(job.job_id)).unforeseen is Unforeseen.NO_WORKER
    await app.pause_queue("default")
    assert (await app.explain(job.job_id)).unforeseen is Unforeseen.PAUSED
    await app.resume_queue("default")
    later = await app.submit("work", {}, delay=60)
    assert (await app.explain(later.job_id)).unforeseen is Unforeseen.NOT_DUE
    waiting = await app.submit("work", {}, depends_on=[job])
    assert (await app.explain(waiting.job_id)).unforeseen is Unforeseen.WAITS
    async with app.worker(concurrency=1):
        await stage.started(1)
        [fair] = await stage.submit(1, fairness_key="tenant")
        assert (await app.explain(fair.job_id)).unforeseen is Unforeseen.TAKES_TURNS
        running = await app.explain(job.job_id)
        assert (running.estimate, running.unforeseen) == (None, None)
        stage.go.set()


async def test_jobs_of_other_types_that_come_first_count(stage: Stage) -> None:
    app = stage.app
    job = await app.submit("new", {})
    async with app.worker(concurrency=2):
        stage.go.set()
        await job.result(timeout=30)
    stage.go.clear()
    async with app.worker(concurrency=2):
        await stage.submit(2)
        await stage.started(2)
        await stage.submit(30, "new", priority="high")
        [job] = await stage.submit(1)
        found = await _estimate(app, job)
        stage.go.set()
    assert 20 <= found.ahead <= 30


async def test_a_key_at_its_limit_counts_as_its_slots(make_app: Make) -> None:
    app = make_app()
    stage = Stage(app, global_concurrency=1)
    async with app:
        await stage.ran_once()
        async with app.worker(concurrency=5):
            await stage.submit(1)
            await stage.started(1)
            jobs = await stage.submit(10)
            found = await _estimate(app, jobs[-1])
            stage.go.set()
    assert (found.slots, found.ahead) == (1, 9)


async def test_a_limit_that_was_set_at_run_time_counts_as_the_slots_of_its_type(stage: Stage) -> None:
    await stage.app.limit(job_type="work", concurrency=1)
    async with stage.app.worker(concurrency=5):
        await stage.submit(1)
        await stage.started(1)
        jobs = await stage.submit(10)
        found = await _estimate(stage.app, jobs[-1])
        stage.go.set()
    assert found.slots == 1


async def test_a_rate_that_is_used_up_says_when_its_turn_is(make_app: Make) -> None:
    app = make_app()
    stage = Stage(app, rate="1/m")
    async with app:
        await stage.ran_once()
        async with app.worker(concurrency=5):
            jobs = await stage.submit(4)
            found = await _estimate(app, jobs[-1])
            stage.go.set()
    assert 60 <= found.seconds <= 300


async def test_a_line_longer_than_is_counted_has_a_lower_bound_only(stage: Stage) -> None:
    async with stage.app.worker(concurrency=1):
        await stage.submit(1)
        await stage.started(1)
        jobs = await stage.submit(AHEAD_MAX + 100)
        why = await stage.app.explain(jobs[-1].job_id)
        await stage.app.cancel_many(job_type="work")
        stage.go.set()
    assert why.estimate is not None
    assert (why.estimate.high, why.estimate.ahead) == (None, AHEAD_MAX)
    assert "1,000 or more jobs of its queue and type are ahead of it; it starts in more than " in str(why)
