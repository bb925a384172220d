"""Queues from a user's side: paused and resumed, limited, and what is told of them."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from backstay import Backstay, InvalidOption, QueueFull
from tests.support.eventually import eventually


def with_work(app: Backstay) -> Backstay:
    @app.job("work")
    async def work(payload: int) -> int:
        return payload

    @app.job("slow", queue="slow")
    async def slow(payload: int) -> int:
        return payload

    return app


async def queue_named(app: Backstay, name: str) -> Any:
    return next(queue for queue in await app.queues() if queue.name == name)


# Pausing


async def test_a_paused_queue_takes_jobs_and_gives_none_until_it_is_resumed(
    app: Backstay, make_app: Callable[..., Backstay]
) -> None:
    with_work(app)
    async with app, make_app() as other, app.worker(poll_interval=60):
        paused = await other.pause_queue("default", by="ada", reason="the shop moves")
        assert (paused.paused, paused.paused_by, paused.pause_reason) == (True, "ada", "the shop moves")

        held = await app.submit("work", 1)
        assert await (await app.submit("slow", 2)).result(timeout=10) == 2
        assert (await held.record()).status == "pending"

        resumed = await other.resume_queue("default")
        assert (resumed.paused, resumed.paused_by, resumed.pause_reason) == (False, None, None)
        assert await held.result(timeout=10) == 1  # woken, not polled


async def test_what_runs_when_its_queue_is_paused_goes_on_to_its_end(app: Backstay) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    @app.job("work")
    async def work(payload: int) -> str:
        begun.set()
        await release.wait()
        return "done"

    async with app, app.worker():
        running = await work.submit(1)
        await begun.wait()
        await app.pause_queue("default")
        release.set()
        assert await running.result(timeout=10) == "done"


async def test_a_pause_outlives_the_app_that_said_it(make_app: Callable[..., Backstay]) -> None:
    async with make_app() as app:
        await app.pause_queue("default", by="ada")
    async with with_work(make_app()) as app, app.worker():
        held = await app.submit("work", 1)
        await (await app.submit("slow", 1)).result(timeout=10)
        assert (await held.record()).status == "pending"


async def test_who_paused_it_first_stays(app: Backstay) -> None:
    with_work(app)
    async with app:
        first = await app.pause_queue("default", by="ada", reason="one")
        assert await app.pause_queue("default", by="eve", reason="two") == first


# Limits


async def test_a_full_queue_refuses_with_what_to_do_and_takes_again_when_it_has_room(app: Backstay) -> None:
    with_work(app)
    async with app:
        await app.limit_queue("default", 2)
        for n in range(2):
            await app.submit("work", n)

        with pytest.raises(QueueFull, match=r"default accepts 2 .* room for 0.* nothing was stored") as caught:
            await app.submit("work", 3)
        assert caught.value.queue == "default"
        assert (await app.counts())["pending"] == 2

        async with app.worker():

            async def done() -> bool:
                return (await app.counts())["completed"] == 2

            await eventually(done)
            await (await app.submit("work", 4)).result(timeout=10)


async def test_submit_many_into_a_queue_without_room_for_all_stores_none(app: Backstay) -> None:
    with_work(app)
    async with app:
        await app.limit_queue("default", 3)
        await app.submit("work", 0)

        with pytest.raises(QueueFull, match="room for 2"):
            await app.submit_many([("work", n) for n in range(3)])
        with pytest.raises(QueueFull):  # each with a key of its own takes another way into the store
            await app.submit_many([("work", n, {"dedup_key": str(n)}) for n in range(3)])

        assert (await app.counts())["pending"] == 1
        assert len(await app.submit_many([("work", n) for n in range(2)])) == 2


async def test_jobs_for_later_and_other_queues_are_not_refused(app: Backstay) -> None:
    with_work(app)
    async with app:
        await app.limit_queue("default", 1)
        await app.submit("work", 0)

        await app.submit("work", 1, delay=60)
        await app.submit("work", 1, queue="elsewhere")
        await app.submit("slow", 1)


async def test_of_many_who_submit_at_once_as_many_as_fit_get_in_and_others_are_unharmed(
    app: Backstay, make_app: Callable[..., Backstay]
) -> None:
    with_work(app)
    async with app, make_app() as other:
        await app.limit_queue("default", 5)
        submits = [(app, other)[n % 2].submit("work", n) for n in range(40)]
        harmless = [(app, other)[n % 2].submit("slow", n) for n in range(40)]

        answers = await asyncio.gather(*submits, *harmless, return_exceptions=True)

        assert sum(not isinstance(answer, BaseException) for answer in answers[:40]) == 5
        assert all(isinstance(answer, QueueFull) for answer in answers[:40] if isinstance(answer, BaseException))
        assert not [answer for answer in answers[40:] if isinstance(answer, BaseException)]
        assert (await app.counts())["pending"] == 45


async def test_what_was_taken_once_comes_back_although_the_queue_is_full(app: Backstay) -> None:
    with_work(app)
    async with app:
        await app.limit_queue("default", 1)
        first = await app.submit("work", 1)
        later = await app.submit("work", 2, delay=3600)
        await app.cancel(first.job_id)
        await app.submit("work", 3)

        assert (await app.retry(first.job_id)).status == "pending"
        assert (await app.reschedule(later.job_id)).status == "pending"
        assert (await app.counts())["pending"] == 3


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "5", 10**9])
async def test_a_limit_that_cannot_be_meant_is_refused(app: Backstay, limit: Any) -> None:
    async with app:
        with pytest.raises(InvalidOption, match="max_pending"):
            await app.limit_queue("default", limit)


async def test_a_limit_can_be_lifted_and_stays_beside_a_pause(app: Backstay) -> None:
    with_work(app)
    async with app:
        await app.limit_queue("default", 1)
        await app.pause_queue("default", by="ada")
        assert (await app.resume_queue("default")).max_pending == 1
        assert (await app.limit_queue("default", None)).max_pending is None
        await app.submit_many([("work", n) for n in range(5)])


# What is told of them


async def test_every_queue_that_is_named_anywhere_is_listed_with_what_waits_in_it(app: Backstay) -> None:
    begun = asyncio.Event()
    never = asyncio.Event()

    @app.job("work")
    async def work(payload: int) -> None:
        begun.set()
        await never.wait()

    @app.job("idle", queue="idle")
    async def idle(payload: int) -> None: ...

    async with app:
        await app.pause_queue("said", by="ada")
        async with app.worker(concurrency=1, grace=0):
            first = await work.submit(0)
            await begun.wait()
            oldest = await work.submit(1)
            await work.submit(2, fairness_key="tenant")
            await work.submit(3, delay=timedelta(hours=1))
            await work.submit(4, depends_on=[oldest])
            await idle.submit(5, queue="jobs")

            found = {queue.name: queue for queue in await app.queues()}

        assert set(found) == {"default", "idle", "said", "jobs"}
        default = found["default"]
        assert (default.pending, default.processing, default.scheduled, default.waiting) == (2, 1, 1, 1)
        assert default.oldest_pending_at == oldest.scheduled_for
        assert (default.workers, found["idle"].workers, found["jobs"].workers) == (1, 1, 0)
        assert found["said"].paused and found["jobs"].pending == 1
        assert (await first.record()).status == "pending"  # given back


async def test_a_change_answers_with_the_queue_as_it_is(app: Backstay) -> None:
    with_work(app)
    async with app, app.worker(job_types=["slow"], queues=["default"]):
        await app.submit("work", 1)

        paused = await app.pause_queue("default")

        assert (paused.name, paused.pending, paused.workers) == ("default", 1, 1)
        assert paused == await queue_named(app, "default")


async def test_a_change_of_a_queue_that_nothing_uses_says_so(app: Backstay, caplog: pytest.LogCaptureFixture) -> None:
    with_work(app)
    said = "no job, handler or worker uses the queue defautl yet (did you mean default?)"
    async with app:
        assert (await app.pause_queue("default")).note is None
        assert not caplog.records

        paused = await app.pause_queue("defautl")

        assert (paused.paused, paused.note) == (True, said)
        assert [each.getMessage() for each in caplog.records] == [said]
        assert (await app.resume_queue("defautl")).note is None  # it has a row by now
        assert "uses the queue other yet" in str((await app.limit_queue("other", 5)).note)
        assert "uses the queue another yet" in str((await app.resume_queue("another")).note)
        assert all(each.note is None for each in await app.queues())


@pytest.mark.parametrize("name", ["", "a b", 5, None, "x" * 200])
async def test_what_cannot_be_a_queue_is_refused(app: Backstay, name: Any) -> None:
    async with app:
        for change in (app.pause_queue, app.resume_queue):
            with pytest.raises(InvalidOption, match="queue"):
                await change(name)
        assert await app.queues() == []
