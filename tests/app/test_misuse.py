"""What handlers and callers do wrong harms their own job, never the worker, another job or a record."""

import asyncio
import contextlib
import os
import time
from typing import Any

import apsw
import pytest

from backstay import Backstay, Context, InvalidOption, JobFailed, NotOpen, Retry, Snooze, StoreError
from tests.support import process_jobs
from tests.support.eventually import eventually

SURROGATE = "\ud800"


async def says_a_bad_stage(ctx: Context) -> None:
    await ctx.progress(0.5, stage=SURROGATE)
    await asyncio.sleep(1.2)  # past the next durable write


async def says_a_bad_metric(ctx: Context) -> None:
    ctx.metric(SURROGATE, 1)
    ctx.metric("nan", float("nan"))


async def cancels_itself(ctx: Context) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def snoozes_for_ages(ctx: Context) -> None:
    raise Snooze(1e18)


async def snoozes_with_a_bad_reason(ctx: Context) -> None:
    raise Snooze(3600, SURROGATE)


async def snoozes_with_no_text(ctx: Context) -> None:
    raise Snooze(3600, 5)  # type: ignore[arg-type]


async def retries_in_ages(ctx: Context) -> None:
    raise Retry("later", after=1e18)


@pytest.mark.parametrize(
    "does",
    [
        says_a_bad_stage,
        says_a_bad_metric,
        cancels_itself,
        snoozes_for_ages,
        snoozes_with_a_bad_reason,
        snoozes_with_no_text,
        retries_in_ages,
    ],
)
async def test_a_handler_that_says_rubbish_is_settled_and_others_run(app: Backstay, does: Any) -> None:
    @app.job("bad", max_attempts=2)
    async def bad(payload: int, ctx: Context) -> None:
        await does(ctx)

    @app.job("good")
    async def good(payload: int) -> int:
        return payload

    async with app, app.worker(concurrency=1):
        handle = await bad.submit(1)

        async def settled() -> bool:
            return (await app.get(handle.job_id)).status not in ("pending", "processing")

        await eventually(settled)
        assert await (await good.submit(2)).result(timeout=10) == 2


async def test_an_effect_that_would_fail_at_commit_fails_its_own_job_only(app: Backstay) -> None:
    @app.job("bad", max_attempts=1)
    async def bad(payload: int, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            tx.execute("INSERT INTO line VALUES (999)")

    @app.job("good")
    async def good(payload: int) -> int:
        return payload

    async with app:
        file = apsw.Connection(str(app.store.path))  # type: ignore[attr-defined]
        file.execute("CREATE TABLE head (id INTEGER PRIMARY KEY)")
        file.execute("CREATE TABLE line (head REFERENCES head DEFERRABLE INITIALLY DEFERRED)")
        file.close()
        broken = await bad.submit(1)
        handles = [await good.submit(n) for n in range(5)]
        async with app.worker():
            with pytest.raises(JobFailed, match="foreign key"):
                await broken.result(timeout=10)
            assert [await handle.result(timeout=10) for handle in handles] == [0, 1, 2, 3, 4]


async def test_an_effect_cannot_hide_our_tables_behind_temporary_ones(app: Backstay) -> None:
    @app.job("bad", max_attempts=1)
    async def bad(payload: str, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            tx.execute(payload)

    statements = [
        "CREATE TEMP TABLE job AS SELECT * FROM main.job",
        "CREATE TEMP TABLE dedup (dedup_key PRIMARY KEY, job_id, until)",
        "CREATE TEMP VIEW edge AS SELECT 1",
    ]
    async with app, app.worker():
        for statement in statements:
            with pytest.raises(JobFailed, match="EffectFailed"):
                await (await bad.submit(statement)).result(timeout=10)


async def test_words_that_are_no_text_are_refused_and_the_record_stays_readable(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> None: ...

    async with app:
        handle = await work.submit(1)
        for wrong in ({"by": 42}, {"reason": ["x"]}, {"by": SURROGATE}, {"reason": ""}):
            with pytest.raises(InvalidOption):
                await app.cancel(handle.job_id, **wrong)  # type: ignore[arg-type]
        for where in ({"subject": SURROGATE}, {"tag": [1]}, {"after": 5, "order": "priority"}, {"nonsense": 1}):
            with pytest.raises(InvalidOption):
                await app.find(**where)  # type: ignore[arg-type]
        assert (await app.get(handle.job_id)).status == "pending"


async def test_stopping_one_worker_leaves_the_jobs_of_another_alone(app: Backstay) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    @app.job("work", queue="q1")
    async def work(payload: int) -> str:
        started.set()
        await release.wait()
        return "undisturbed"

    async with app, app.worker(queues=["q1"]):
        async with app.worker(queues=["q2"], grace=0):
            handle = await work.submit(1)
            await started.wait()
        release.set()
        assert await handle.result(timeout=10) == "undisturbed"
        assert (await app.get(handle.job_id)).attempt == 1


async def test_whoever_waits_for_a_result_is_told_when_the_app_closes(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> None: ...

    async with app:
        waiting = asyncio.create_task((await work.submit(1)).result())
        await asyncio.sleep(0)
    with pytest.raises(NotOpen, match="closed"):
        await waiting


async def test_a_lost_result_file_harms_the_reading_of_that_result_alone(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> str:
        return "x" * 300_000

    async with app, app.worker():
        handle = await work.submit(1)
        await handle.result(timeout=10)
        artifact = (await app.get(handle.job_id)).row.result_artifact
        assert artifact is not None
        os.unlink(artifact.split('"')[3].removeprefix("file://"))
        assert len(await app.find()) == 1
        job = await app.get(handle.job_id)
        with pytest.raises(StoreError, match="cannot be read"):
            _ = job.result


async def test_a_stopped_child_does_not_stop_the_worker(make_app: Any) -> None:
    app = process_jobs.bind(make_app)

    @app.job("good")
    async def good(payload: int) -> int:
        return payload

    async with app, app.worker(grace=0):
        handle = await app.submit("stops_itself", "x" * 200_000)
        began = time.monotonic()
        assert await (await good.submit(1)).result(timeout=10) == 1
        with pytest.raises(JobFailed, match="JobTimeout"):
            await handle.result(timeout=30)
        assert time.monotonic() - began < 25


@pytest.mark.parametrize("job_type", ["writes_rubbish", "leaves_a_grandchild"])
async def test_a_child_that_breaks_its_pipe_or_leaves_a_grandchild_behind_is_a_failure(
    make_app: Any, job_type: str
) -> None:
    app = process_jobs.bind(make_app)
    async with app, app.worker(grace=0):
        with pytest.raises(JobFailed, match="ProcessDied"):
            await (await app.submit(job_type, 1)).result(timeout=20)


async def test_bytes_of_a_childs_statement_arrive_as_bytes(make_app: Any) -> None:
    app = process_jobs.bind(make_app)
    async with app, app.worker():
        with contextlib.closing(apsw.Connection(str(app.store.path))) as file:  # type: ignore[attr-defined]
            file.execute("CREATE TABLE blobs (value)")
        await (await app.submit("stores_bytes", 1)).result(timeout=30)
        with contextlib.closing(apsw.Connection(str(app.store.path))) as file:  # type: ignore[attr-defined]
            assert file.execute("SELECT value FROM blobs").get == b"\x00\xff"
