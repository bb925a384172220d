"""inline: a submit returns when its job has run, as a worker of production would have run it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backstay import Backstay, BlockingContext, Context, JobFailed, Retry, Snooze, sync
from backstay.clock import within
from backstay.testing import ManualClock, drain, inline, throwaway_url
from tests.support import process_jobs


async def test_a_job_has_ended_when_its_submit_returns(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> int:
        return payload * 2

    async with inline(app):
        handles = [await work.submit(1), await app.submit("work", 2), *await app.submit_many([(work, 3), (work, 4)])]
        jobs = [await handle.record() for handle in handles]
    assert [(job.status, job.result) for job in jobs] == [("completed", n) for n in (2, 4, 6, 8)]
    assert [entry.event for entry in jobs[0].history] == ["submit", "claim", "complete"]


@pytest.mark.parametrize("how", ["raises", "asks for a retry in an hour"])
async def test_a_retry_runs_at_once_and_counts_as_in_production(app: Backstay, how: str) -> None:
    @app.job("work", max_attempts=3)
    async def work(payload: int, ctx: Context) -> int:
        if ctx.attempt < 3:
            raise ConnectionError("down") if how == "raises" else Retry("down", after=3600)
        return ctx.attempt

    async with inline(app):
        job = await (await work.submit(1)).record()
    assert (job.status, job.result, job.attempt, job.failures) == ("completed", 3, 3, 2)
    assert [entry.event for entry in job.history if entry.event in ("retry", "complete")] == ["retry"] * 2 + [
        "complete"
    ]


async def test_a_job_that_fails_is_a_dead_letter_and_its_result_raises(app: Backstay) -> None:
    @app.job("bad", max_attempts=2)
    def bad(payload: int) -> None:
        raise ValueError("no good")

    async with inline(app):
        handle = await bad.submit(1)
        with pytest.raises(JobFailed, match="no good"):
            await handle.result(timeout=10)
        job = await handle.record()
    assert [error["type"] for error in job.errors] == ["ValueError", "ValueError"]


async def test_a_job_for_later_runs_when_it_is_due(app: Backstay, clock: ManualClock) -> None:
    @app.job("work")
    async def work(payload: str, ctx: Context) -> None:
        if payload == "snoozes" and ctx.attempt == 1:
            raise Snooze(60)

    async with inline(app):
        handles = [await work.submit("later", delay=60), await work.submit("snoozes")]
        assert [(await each.record()).status for each in handles] == ["scheduled", "scheduled"]
        clock.advance(60)
        assert {job.status for job in await drain(app)} == {"completed"}


async def test_a_job_that_a_handler_submits_has_ended_when_that_submit_returns(app: Backstay) -> None:
    @app.job("count_down")
    async def count_down(payload: int) -> int:
        if payload == 0:
            return 0
        handle = await count_down.submit(payload - 1)
        return 1 + await handle.result(timeout=0.5)

    async with inline(app):
        assert await (await count_down.submit(12)).result(timeout=0.5) == 12


async def test_submits_of_the_same_moment_each_return_when_their_own_job_has_ended(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> None:
        for _ in range(payload):
            await asyncio.sleep(0)

    async def submit(n: int) -> str:
        return (await (await work.submit(n)).record()).status

    async with inline(app):
        assert await asyncio.gather(*(submit(n * 50) for n in range(6))) == ["completed"] * 6


async def test_a_job_that_another_worker_took_has_ended_too_when_its_submit_returns(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> None:
        await within(0.3, asyncio.Event().wait())

    async with app, app.worker(), inline(app):
        assert (await (await work.submit(1)).record()).status == "completed"


async def test_a_handler_in_a_process_runs_as_well(tmp_path: Path) -> None:
    app = Backstay(throwaway_url(tmp_path))
    app.handlers.update(process_jobs._app.handlers)
    async with inline(app):
        handle = await app.submit("talk", 21)
        assert (await handle.result(timeout=1))["step"] == 42


async def test_outside_the_block_a_submit_only_stores(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> None: ...

    async with app:
        async with inline(app):
            await work.submit(1)
        handle = await work.submit(2)
        assert (await handle.record()).status == "pending"
        assert await app.workers() == []


def test_the_blocking_face_runs_jobs_inline_and_those_that_they_submit(blocking_app: sync.Backstay) -> None:
    app = blocking_app

    @app.job("work", max_attempts=2)
    def work(payload: int, ctx: BlockingContext) -> Any:
        if ctx.attempt == 1:
            raise ConnectionError("down")
        return work.submit(payload - 1).result(timeout=0.5) if payload else "bottom"

    with inline(app):
        handle = work.submit(3)
        assert handle.result(timeout=0.5) == "bottom"
        assert [each.record().status for each in app.submit_many([(work, 0), (work, 0)])] == ["completed"] * 2
