"""Workers that end by themselves: when nothing is due, after so many jobs, or when they have grown too large."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backstay import Backoff, Backstay, BlockingContext, Context, InvalidOption, Status, sync
from backstay.worker import memory
from backstay.worker.lifetime import Reason
from backstay.worker.maintenance import Maintenance
from tests.support import process_jobs


async def burst(app: Backstay, **options: Any) -> Reason | None:
    async with app.worker(burst=True, **options) as worker:
        async with asyncio.timeout(60):
            await worker.join()
    return worker.ended_for


async def test_a_burst_ends_when_nothing_is_due_and_leaves_what_is_for_later(app: Backstay) -> None:
    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> None:
        await ctx.submit("child", payload)
        await ctx.wait_for_children()

    @app.job("child")
    async def child(payload: int) -> None:
        await asyncio.sleep(0.02)

    @app.job("again", backoff=Backoff(3600))
    async def again(payload: int) -> None:
        raise ValueError(payload)

    @app.batch_job("many", max_size=10, max_wait=0.3)
    async def many(payloads: list[int]) -> list[int]:
        return payloads

    async with app:
        parents = [await parent.submit(n) for n in range(3)]
        dependent = await child.submit(9, depends_on=[parents[0]])
        batch = [await many.submit(n) for n in range(2)]
        soon = await child.submit(1, delay=0.2)
        later = await child.submit(1, delay=3600)
        retried = await again.submit(1)
        paused = await child.submit(1, queue="closed")
        await app.pause_queue("closed")
        await asyncio.sleep(0.25)  # `soon` is due now, and no one has made it pending
        assert await burst(app, queues=["default", "closed"]) is Reason.NOTHING_DUE
        done = [*parents, dependent, *batch, soon]
        assert {(await each.record()).status for each in done} == {Status.COMPLETED}
        left = [(await each.record()).status for each in (later, retried, paused)]
        assert left == [Status.SCHEDULED, Status.RETRYING, Status.PENDING]


async def test_a_burst_waits_for_no_other_to_make_due_jobs_pending(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object) -> None: ...

    monkeypatch.setattr(Maintenance, "sweep_first", nothing)
    monkeypatch.setattr(Maintenance, "start", lambda *_: None)
    monkeypatch.setattr(Maintenance, "stop", nothing)

    @app.job("work")
    async def work(payload: int) -> None: ...

    async with app:
        due = await work.submit(1, delay=0.01)
        await app.schedule("often", "@every 1s", work, 2)
        await asyncio.sleep(1.1)
        assert await burst(app) is Reason.NOTHING_DUE
        assert (await due.record()).status is Status.COMPLETED
        assert [job.payload for job in await app.find(status="completed")].count(2) >= 1


async def test_a_burst_fires_ticks_that_are_due_and_runs_their_jobs(app: Backstay) -> None:
    ran = []

    @app.job("tick")
    async def tick(payload: int) -> None:
        ran.append(payload)

    async with app:
        await app.schedule("often", "@every 1s", tick, 5)
        await asyncio.sleep(1.1)
        await burst(app)
        assert ran, "the tick that was missed"


async def test_a_burst_with_nothing_to_do_ends_at_once(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> None: ...

    async with app:
        assert await burst(app) is Reason.NOTHING_DUE


@pytest.mark.parametrize("engine", ["postgres", "dynamodb"])
async def test_a_burst_on_servers(engine: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue(engine)
    app = Backstay(server.url(schema="burst") if engine == "postgres" else server.url())

    @app.job("work")
    async def work(payload: int, ctx: Context) -> None:
        if payload:
            await ctx.submit("work", payload - 1)

    async with app:
        await work.submit(2)
        later = await work.submit(0, delay=3600)
        due = await work.submit(0, delay=0.05)
        await asyncio.sleep(0.1)
        assert await burst(app) is Reason.NOTHING_DUE
        counts = await app.counts()
        assert (counts[Status.COMPLETED], counts[Status.SCHEDULED]) == (4, 1)
        assert ((await due.record()).status, (await later.record()).status) == (Status.COMPLETED, Status.SCHEDULED)


@pytest.mark.parametrize("concurrency", [1, 10])
async def test_max_jobs_runs_exactly_so_many_and_ends(app: Backstay, concurrency: int) -> None:
    ran = []

    @app.job("work")
    async def work(payload: int) -> None:
        ran.append(payload)

    async with app:
        await work.submit_many(range(30))
        async with app.worker(concurrency=concurrency, max_jobs=7) as worker:
            async with asyncio.timeout(60):
                await worker.join()
        assert worker.ended_for is Reason.JOBS
        assert len(ran) == 7
        counts = await app.counts()
        assert (counts[Status.COMPLETED], counts[Status.PENDING]) == (7, 23)


async def test_a_worker_that_uses_too_much_memory_finishes_its_job_and_ends(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.job("work")
    async def work(payload: int) -> None:
        begun.set()
        await go_on.wait()

    async with app:
        job = await work.submit(1)
        async with app.worker(max_memory="100G") as worker:
            await begun.wait()
            left = await work.submit(2)
            monkeypatch.setattr(memory, "resident_bytes", lambda pid=None: 101 * 1024**3)
            async with asyncio.timeout(60):
                while not worker._runs.stopping:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            go_on.set()
            await worker.join()
        assert worker.ended_for is Reason.MEMORY
        assert (await job.record()).status is Status.COMPLETED
        assert (await left.record()).status in (Status.PENDING, Status.COMPLETED)


async def test_a_process_that_uses_too_much_memory_is_replaced_after_its_job(
    make_app: Callable[..., Backstay], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = process_jobs.bind(make_app)
    own = memory.resident_bytes
    large = {"is": False}
    monkeypatch.setattr(memory, "resident_bytes", lambda pid=None: 2**40 if large["is"] and pid else own(pid))
    caplog.set_level(logging.INFO)
    async with app, app.worker(max_memory="100G"):
        children = []
        for each in (False, True, False):
            large["is"] = each
            children.append((await (await app.submit("talk", 1)).result(timeout=60))["pid"])
    assert children[0] == children[1] != children[2]
    assert "the process of talk uses 1.02e+03 GiB, more than 100 GiB (max_memory)" in caplog.text


def test_the_blocking_api_waits_for_a_burst(tmp_path: Path) -> None:
    app = sync.Backstay(f"sqlite:///{tmp_path}/jobs.db")

    @app.job("work")
    def work(payload: int, ctx: BlockingContext) -> int:
        return payload

    with app:
        job = work.submit(1)
        with app.worker(burst=True) as worker:
            worker.join()
        assert job.record().status is Status.COMPLETED


def test_what_is_no_size_or_no_number_is_refused(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> None: ...

    async def make(**options: Any) -> None:
        async with app:
            app.worker(**options)

    for wrong in ({"max_jobs": 0}, {"max_jobs": True}, {"max_memory": "much"}, {"max_memory": 5}):
        with pytest.raises(InvalidOption):
            asyncio.run(make(**wrong))
