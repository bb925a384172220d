"""Jobs that shared a lost worker run one at a time: the one that killed it takes no other with it again."""

import asyncio

import pytest

from backstay import Backoff, Backstay, Context
from backstay.core import admission
from backstay.core.records import ClaimRequest
from backstay.worker.maintenance import Sweeper
from backstay.worker.slots import NO_SLOT
from tests.support.eventually import eventually

COUNT = 6


async def lose(app: Backstay, job_type: str, count: int = COUNT) -> None:
    """A worker takes so many jobs, and is lost with them."""
    now = app.clock.now()
    request = ClaimRequest("lost", "1", ("default",), {job_type: count}, count, 0, "token")
    assert len(await app.store.claim(request, now)) == count
    sweeper = Sweeper(app.store, app.clock, worker_id="sweeper", lease_seconds=60, sweep_seconds=1)
    assert await sweeper.sweep_once() == count


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


async def test_jobs_of_a_lost_worker_run_one_at_a_time_and_lose_nothing_by_it(app: Backstay, watch: Watch) -> None:
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
    assert {(job.failures, job.snoozes, job.give_backs) for job in jobs if job} == {(1, 0, 0)}


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


async def test_new_jobs_run_beside_the_one(app: Backstay) -> None:
    new_ones_ran = asyncio.Event()

    @app.job("old")
    async def old(payload: int) -> None:
        await new_ones_ran.wait()

    @app.job("new")
    async def new(payload: int) -> None: ...

    async with app:
        handles = await app.submit_many([("old", n) for n in range(2)])
        await lose(app, "old", 2)
        async with app.worker(concurrency=2):
            for each in await app.submit_many([("new", n) for n in range(20)]):
                await each.result(timeout=10)
            new_ones_ran.set()
            for each in handles:
                await each.result(timeout=10)


async def test_one_that_waits_for_its_turn_says_why(app: Backstay) -> None:
    release = asyncio.Event()

    @app.job("work")
    async def work(payload: int) -> None:
        await release.wait()

    async def reasons() -> set[str | None]:
        records = await app.store.get([each.job_id for each in handles])
        return {event.reason for job in records if job for event in job.history if event.event == "snooze"}

    async def one_was_put_off() -> bool:
        return bool(await reasons())

    async with app:
        handles = await app.submit_many([("work", n) for n in range(2)])
        await lose(app, "work", 2)
        async with app.worker():
            await eventually(one_was_put_off)
            release.set()
            for each in handles:
                await each.result(timeout=10)
        assert await reasons() == {admission.REASON}


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
