"""What can be done with the handle of a job, on both faces of one app."""

import asyncio
import inspect
from pathlib import Path

import pytest

from backstay import Backstay, Context, Job, JobHandle, NotOpen, ResultTimeout
from backstay import sync as blocking


async def test_a_handle_cancels_explains_and_retries_its_job(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> int:
        return payload

    async with app:
        job = await work.submit(1, delay=3600)
        assert "scheduled" in str(await job.explain()).lower()
        cancelled = await job.cancel(reason="not needed", by="ada")
        assert (cancelled.status, cancelled.history[-1].by, cancelled.history[-1].reason) == (
            "cancelled",
            "ada",
            "not needed",
        )
        assert (await job.retry(by="ada")).status == "pending"
        assert (await job.record()).status == "pending"
        async with app.worker():
            assert await job.result(timeout=30) == 1


async def test_to_wait_for_a_job_returns_its_record_however_it_ended(app: Backstay) -> None:
    @app.job("work", max_attempts=1)
    async def work(payload: int) -> int:
        return 1 // payload

    async with app:
        with pytest.raises(ResultTimeout):
            await (await work.submit(1, delay=3600)).wait(timeout=0.01)
        async with app.worker():
            good, bad = await work.submit_many([1, 0])
            assert ((await good.wait(timeout=30)).status, (await bad.wait(timeout=30)).status) == (
                "completed",
                "failed",
            )


async def test_a_watched_job_shows_each_progress_and_its_end(app: Backstay) -> None:
    steps = [asyncio.Event() for _ in range(2)]

    @app.job("work")
    async def work(payload: int, ctx: Context) -> None:
        for number, step in enumerate(steps, 1):
            await ctx.progress(number / 4, stage=f"step {number}")
            await step.wait()

    async with app, app.worker():
        job = await work.submit(1)
        seen = []
        async for now in job.watch():
            seen.append((now.status.value, now.progress, now.stage))
            if now.stage.startswith("step"):
                steps[int(now.stage[-1]) - 1].set()
    assert seen[-3:] == [("processing", 0.25, "step 1"), ("processing", 0.5, "step 2"), ("completed", 1.0, "complete")]


async def test_who_stops_watching_leaves_no_listener_behind(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> None: ...

    async with app:
        watched = (await work.submit(1)).watch()
        assert (await anext(watched)).status == "pending"
        await watched.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(watched)


def test_a_record_and_a_handle_share_no_name_for_a_method_and_a_value() -> None:
    """But for `result`: on a record it is the value, on a handle what waits for it. Both are promised."""
    for handle in (JobHandle, blocking.JobHandle):
        names = {name for name in dir(handle) if not name.startswith("_")} & set(dir(Job))
        mixed = {
            name
            for name in names
            if inspect.isfunction(getattr(handle, name)) is not inspect.isfunction(getattr(Job, name))
        }
        assert mixed == {"result"}


async def test_an_app_opens_and_closes_without_a_block(app: Backstay) -> None:
    await app.close()  # not open: nothing to do
    assert await app.open() is app
    await app.open()
    await app.close()
    assert app.is_open
    await app.close()
    with pytest.raises(NotOpen):
        await app.find()


def test_a_blocking_app_opens_and_closes_without_a_block(tmp_path: Path) -> None:
    app = blocking.Backstay(f"sqlite:///{tmp_path}/jobs.db")
    app.close()
    assert app.open() is app
    assert app.find() == []
    app.close()
    app.close()
    with pytest.raises(NotOpen):
        app.find()


async def test_one_app_with_its_handlers_serves_both_faces_at_once(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> int:
        return payload + 1

    def in_a_thread() -> tuple[int, int, list[str], str]:
        with app.sync:
            job = work.sync.submit(1)
            seen = [each.status.value for each in job.watch()]
            later = app.sync.submit(work, 5, delay=3600)
            cancelled = later.cancel(reason="no")
            return job.result(timeout=30), app.sync.submit(work, 2).result(timeout=30), seen, cancelled.status.value

    async with app, app.worker():
        first, second, seen, cancelled = await asyncio.to_thread(in_a_thread)
        assert (first, second, seen[-1], cancelled) == (2, 3, "completed", "cancelled")
        assert await (await work.submit(3)).result(timeout=30) == 4
        assert app.sync is app.sync and not app.sync.inner.is_open


def test_a_handler_registered_later_is_known_to_both_faces(tmp_path: Path) -> None:
    app = Backstay(f"sqlite:///{tmp_path}/jobs.db")
    face = app.sync

    @app.job("work")
    def work(payload: int) -> int:
        return payload

    with face, face.worker():
        assert face.submit("work", 7).result(timeout=30) == 7
        assert work.sync.submit(8).result(timeout=30) == 8
