"""Jobs whose worker was lost: most run next to others again, those that were lost again run alone, and all end."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from backstay import Backoff, Backstay, Context
from backstay.core import suspicion
from backstay.worker.slots import NO_SLOT
from tests.campaigns.lost_claims import a_queue, measured
from tests.campaigns.lost_claims import lose as lose_from
from tests.support.eventually import eventually

COUNT = 6


async def lose(app: Backstay, job_type: str, count: int = COUNT) -> None:
    """A worker takes so many jobs, and is lost with them."""
    await lose_from(app, "default", job_type, count)


class Watch:
    """How many handlers run at a time. Each lets the loop turn for a while, so that others could begin."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def run(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(50):
            await asyncio.sleep(0)
        self.now -= 1


@pytest.fixture
def watch() -> Watch:
    return Watch()


async def test_jobs_that_run_alone_do_so_one_at_a_time_and_lose_nothing_by_it(app: Backstay, watch: Watch) -> None:
    @app.job("work", max_attempts=2)
    async def work(payload: int) -> int:
        await watch.run()
        return payload

    async with app:
        handles = await app.submit_many([("work", n) for n in range(COUNT)])
        await lose(app, "work")
        async with app.worker():
            assert [await each.result(timeout=30) for each in handles] == list(range(COUNT))
        jobs = await app.store.get([each.job_id for each in handles])
    assert watch.most == 1
    assert {(job.failures, job.snoozes, job.give_backs, job.attempt) for job in jobs if job} == {(1, 0, 0, 2)}


async def test_jobs_that_were_lost_once_run_next_to_one_another(app: Backstay) -> None:
    everyone = asyncio.Barrier(COUNT)

    @app.job("work")
    async def work(payload: int) -> None:
        await everyone.wait()

    async with app:
        handles = await app.submit_many([("work", n) for n in range(COUNT)])
        await lose(app, "work")
        async with app.worker(concurrency=COUNT):
            for each in handles:
                await each.result(timeout=30)
        jobs = await app.store.get([each.job_id for each in handles])
    assert {(job.failures, job.attempt) for job in jobs if job} == {(1, 2)}


async def test_jobs_of_a_batch_are_called_one_at_a_time_too(app: Backstay, watch: Watch) -> None:
    @app.batch_job("work", max_size=COUNT, max_wait=0, max_attempts=2)
    async def work(payloads: list[int]) -> list[int]:
        assert len(payloads) == 1
        await watch.run()
        return payloads

    async with app:
        handles = await app.submit_many([("work", n) for n in range(COUNT)])
        await lose(app, "work")
        async with app.worker():
            assert [await each.result(timeout=30) for each in handles] == list(range(COUNT))
    assert watch.most == 1


async def test_new_jobs_run_next_to_one_that_runs_alone_once_it_has_run_for_a_while_but_lost_ones_do_not(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspicion, "ALONE_SECONDS", 0.2)
    new_ones_ran, running = asyncio.Event(), set[str]()

    @app.job("alone", max_attempts=2)
    async def alone(payload: int) -> None:
        running.add("alone")
        await new_ones_ran.wait()
        running.discard("alone")

    @app.job("lost")
    async def lost(payload: int) -> set[str]:
        return set(running)

    @app.job("new")
    async def new(payload: int) -> None: ...

    async with app:
        first = await app.submit("alone", 1)
        await lose(app, "alone", 1)
        second = await app.submit("lost", 1)
        await lose(app, "lost", 1)
        async with app.worker(concurrency=4):
            await eventually(lambda: _is_true("alone" in running))
            for each in await app.submit_many([("new", n) for n in range(20)]):
                await each.result(timeout=30)
            assert (await app.get(second.job_id)).status in ("pending", "completed")
            new_ones_ran.set()
            await first.result(timeout=30)
            assert "alone" not in (await second.result(timeout=30) or ())


async def _is_true(value: bool) -> bool:
    return value


async def test_nothing_runs_that_is_new_when_one_that_runs_alone_begins(app: Backstay) -> None:
    """However many others wait: the worker makes room for it."""
    running = 0
    beside: list[int] = []

    @app.job("alone", max_attempts=2)
    async def alone(payload: int) -> None:
        beside.append(running)
        await asyncio.sleep(0.05)
        beside.append(running)

    @app.job("many")
    async def many(payload: int) -> None:
        nonlocal running
        running += 1
        await asyncio.sleep(0.01)
        running -= 1

    async with app:
        handle = await app.submit("alone", 1)
        await lose(app, "alone", 1)
        await app.submit_many([("many", n) for n in range(2_000)])
        async with app.worker(concurrency=10):
            await handle.result(timeout=30)
            assert (await app.counts())["pending"] > 0
    assert beside == [0, 0]


async def test_neither_jobs_that_run_alone_nor_those_that_were_lost_once_starve(app: Backstay) -> None:
    """While some of the one kind are left, some of the other end."""
    counts = {"alone": 80, "lost": 120}
    ended: list[str] = []
    all_ended = asyncio.Event()

    async def end(name: str) -> None:
        await asyncio.sleep(0.02)
        ended.append(name)
        if len(ended) == sum(counts.values()):
            all_ended.set()

    @app.job("alone", max_attempts=2)
    async def alone(payload: int) -> None:
        await end("alone")

    @app.job("lost")
    async def lost(payload: int) -> None:
        await end("lost")

    async with app:
        for name, count in counts.items():
            await app.submit_many([(name, n) for n in range(count)])
            await lose(app, name, count)
        async with app.worker(concurrency=3):
            await asyncio.wait_for(all_ended.wait(), 60)
    for name, other in (("alone", "lost"), ("lost", "alone")):
        assert ended.index(name) < len(ended) - 1 - ended[::-1].index(other), f"{name} waited for all of {other}"


@pytest.fixture(params=["sqlite", "postgres", "dynamodb"])
async def queue(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backstay]:
    urls: dict[str, Callable[[], str]] = {
        "sqlite": lambda: f"sqlite:///{tmp_path}/jobs.db",
        "postgres": lambda: request.getfixturevalue("postgres").url(schema=f"lost_{secrets.token_hex(4)}"),
        "dynamodb": lambda: request.getfixturevalue("dynamodb").url(),
    }
    async with a_queue(urls[request.param]()) as app:
        yield app


@pytest.mark.timeout(180)
async def test_after_many_lost_claims_the_queue_goes_on(queue: Backstay, request: pytest.FixtureRequest) -> None:
    """At half the usual throughput at least, and so do ordinary jobs while others run alone. Three seconds are for a
    turn of those, and for a machine that does other things, too; before, this took minutes."""
    count, alone = (60, 6) if "dynamodb" in request.node.name else (300, 20)
    figures = await measured(queue, count, alone)
    assert figures.lost_seconds <= 2 * figures.usual_seconds + 3, figures
    assert figures.ordinary_seconds <= 2 * figures.usual_seconds + 3, figures
    assert figures.failed == 0


async def test_what_has_failed_since_its_worker_was_lost_runs_as_any_other(app: Backstay) -> None:
    everyone = asyncio.Barrier(COUNT)

    @app.job("work", backoff=Backoff(base=1, jitter=0))
    async def work(payload: int, ctx: Context) -> None:
        if ctx.job.failures == 1:
            raise ValueError("not this time")
        async with asyncio.timeout(10):
            await everyone.wait()

    async with app:
        handles = await app.submit_many([("work", n) for n in range(COUNT)])
        await lose(app, "work")
        async with app.worker(concurrency=COUNT):
            for each in handles:
                await each.result(timeout=30)


@pytest.mark.parametrize("of", ["the type", "the job"])
async def test_a_last_attempt_is_not_kept_claimed_without_a_slot(app: Backstay, of: str) -> None:
    release, began = asyncio.Event(), asyncio.Event()

    @app.job("work", max_attempts=1 if of == "the type" else 5)
    async def work(payload: int) -> None:
        if payload == 200:
            began.set()
            await release.wait()

    async def only_one_is_claimed() -> bool:
        return (await app.counts())["processing"] == 1

    async with app:
        handles = await app.submit_many([("work", n, {"max_attempts": 1}) for n in range(300)])
        async with app.worker(concurrency=1):
            await asyncio.wait_for(began.wait(), 30)
            await eventually(only_one_is_claimed)
            release.set()
            for each in handles:
                await each.result(timeout=30)
        records = await app.store.get([each.job_id for each in handles])
    reasons = {event.reason for job in records if job for event in job.history if event.event == "give_back"}
    assert reasons <= ({NO_SLOT} if of == "the job" else set())


async def test_a_type_that_is_not_claimed_ahead_has_its_turn_while_others_are(app: Backstay) -> None:
    ran = 0
    had_its_turn = asyncio.Event()

    @app.job("once", max_attempts=1, priority="high")
    async def once(payload: int) -> None:
        had_its_turn.set()

    @app.job("many")
    async def many(payload: int) -> None:
        nonlocal ran
        ran += 1
        if ran == 300:
            await once.submit(1)
        if not had_its_turn.is_set():  # there are always others, however late a busy machine hears of the one
            await many.submit(payload)

    async with app:
        await app.submit_many([("many", n) for n in range(1_000)])
        async with app.worker(concurrency=1):
            await asyncio.wait_for(had_its_turn.wait(), 60)
        assert (await app.counts())["pending"] > 0
