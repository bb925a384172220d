"""Deduplication by key, and reuse of identical work."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from backstay import Backstay, DedupConflict


def with_work(app: Backstay) -> Any:
    @app.job("work", max_attempts=1)
    async def work(payload: int) -> int:
        if payload < 0:
            raise ValueError
        return payload

    return work


async def test_a_key_is_taken_while_its_job_is_active_and_free_afterwards(app: Backstay) -> None:
    work = with_work(app)
    async with app:
        first = await work.submit(1, dedup_key="k")
        again = await work.submit(2, dedup_key="k")
        assert (again.job_id, again.deduplicated, again.payload) == (first.job_id, True, 1)
        async with app.worker():
            await first.result(timeout=10)
        later = await work.submit(3, dedup_key="k")
        assert not later.deduplicated and later.job_id != first.job_id


async def test_a_key_for_a_period_or_for_ever_outlives_its_job(app: Backstay) -> None:
    work = with_work(app)
    async with app:
        periods: list[Any] = ["forever", timedelta(hours=1)]
        firsts = [await work.submit(1, dedup_key=f"k{n}", dedup_for=p) for n, p in enumerate(periods)]
        short = await work.submit(1, dedup_key="short", dedup_for=0.001)
        async with app.worker():
            for each in (*firsts, short):
                await each.result(timeout=10)
        for n, first in enumerate(firsts):
            again = await work.submit(2, dedup_key=f"k{n}")
            assert (again.deduplicated, again.job_id, again.status) == (True, first.job_id, "completed")
        assert not (await work.submit(2, dedup_key="short")).deduplicated


async def test_sixty_four_racers_for_one_key_get_one_job(app: Backstay, make_app: Any) -> None:
    work = with_work(app)
    async with app, make_app() as other:
        handles = await asyncio.gather(
            *(a.submit("work", n, dedup_key="k") for n in range(32) for a in (app, other)),
        )
        assert len({handle.job_id for handle in handles}) == 1
        assert sum(not handle.deduplicated for handle in handles) == 1
        assert sum((await app.counts()).values()) == 1
    assert work.name == "work"


async def test_a_conflicting_payload_is_an_error_where_that_is_asked_for(app: Backstay) -> None:
    work = with_work(app)
    async with app:
        await work.submit(1, dedup_key="k")
        assert (await work.submit(1, dedup_key="k", dedup="error")).deduplicated
        with pytest.raises(DedupConflict):
            await work.submit(2, dedup_key="k", dedup="error")


async def test_a_finished_identical_job_is_reused(app: Backstay) -> None:
    work = with_work(app)
    async with app:
        async with app.worker():
            first = await work.submit(5, content_hash="h", reuse=True)
            assert await first.result(timeout=10) == 5
        second = await work.submit(5, content_hash="h", reuse=True)
        assert (second.status, second.reused_from, second.deduplicated) == ("completed", first.job_id, False)
        assert second.job_id != first.job_id and await second.result(timeout=5) == 5
        old = await work.submit(5, content_hash="h", reuse=timedelta(0))
        assert old.status == "pending"
        job = await app.get(second.job_id)
        assert (job.result, job.attempt, [h.event for h in job.history]) == (5, 0, ["reuse"])


async def test_an_identical_running_job_is_joined_and_its_result_shared(app: Backstay) -> None:
    work = with_work(app)
    async with app:
        leader = await work.submit(7, content_hash="h", reuse=True)
        joiner = await work.submit(7, content_hash="h", reuse=True)
        assert joiner.status == "waiting" and joiner.job_id != leader.job_id
        async with app.worker():
            assert await joiner.result(timeout=10) == 7
        job = await app.get(joiner.job_id)
        assert (job.status, job.reused_from, job.attempt) == ("completed", leader.job_id, 0)


async def test_a_joiner_runs_by_itself_when_the_job_it_joined_comes_to_nothing(app: Backstay) -> None:
    work = with_work(app)
    async with app:
        leader = await work.submit(7, content_hash="h", reuse=True)
        joiner = await work.submit(7, content_hash="h", reuse=True)
        await app.cancel(leader.job_id)
        async with app.worker():
            assert await joiner.result(timeout=10) == 7
        job = await app.get(joiner.job_id)
        assert (job.reused_from, job.attempt) == (None, 1)


async def test_a_retried_job_takes_its_key_back_and_is_refused_where_another_has_it(app: Backstay) -> None:
    work = with_work(app)
    async with app:
        first = await work.submit(1, dedup_key="k")
        await app.cancel(first.job_id)
        await app.retry(first.job_id)
        assert (await work.submit(2, dedup_key="k")).job_id == first.job_id
        await app.cancel(first.job_id)
        second = await work.submit(3, dedup_key="k")
        with pytest.raises(DedupConflict, match="another job"):
            await app.retry(first.job_id)
        assert not second.deduplicated
        assert (await app.get(first.job_id)).status == "cancelled"
