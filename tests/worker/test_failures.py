"""Failing: retries with backoff, what a handler may ask for, the errors that are kept, dead letters."""

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import pytest

from backstay import (
    Backoff,
    Backstay,
    Cancel,
    Context,
    Discard,
    IllegalTransition,
    JobFailed,
    Retry,
    Snooze,
    VersionConflict,
)

FAST = Backoff(0.01, jitter=0)


async def ended(app: Backstay, job_id: str) -> Any:
    with contextlib.suppress(JobFailed):
        await app.result(job_id, timeout=20)
    return await app.get(job_id)


async def test_a_job_that_raises_runs_again_until_its_attempts_are_used_up(app: Backstay) -> None:
    @app.job("work", max_attempts=3, backoff=FAST)
    async def work(payload: int, ctx: Context) -> None:
        raise ValueError(f"no {ctx.attempt}")

    async with app, app.worker():
        handle = await work.submit(1)
        with pytest.raises(JobFailed, match="no 3") as caught:
            await handle.result(timeout=10)
        job = await app.get(handle.job_id)
    assert caught.value.job_id == job.job_id and caught.value.last_error == "ValueError: no 3"
    assert (job.status, job.attempt, job.failures, job.stage) == ("failed", 3, 3, "error")
    assert [(e["attempt"], e["type"], e["message"]) for e in job.errors] == [
        (1, "ValueError", "no 1"),
        (2, "ValueError", "no 2"),
        (3, "ValueError", "no 3"),
    ]
    assert "raise ValueError" in job.errors[0]["traceback"]
    assert [h.event for h in job.history][-3:] == ["due", "claim", "exhaust"]


async def test_only_the_last_five_errors_are_kept(app: Backstay) -> None:
    @app.job("work", max_attempts=8, backoff=Backoff(0))
    async def work(payload: int, ctx: Context) -> None:
        raise ValueError(str(ctx.attempt))

    async with app, app.worker():
        job = await ended(app, (await work.submit(1)).job_id)
    assert [e["message"] for e in job.errors] == ["4", "5", "6", "7", "8"]


async def test_the_wait_before_the_next_attempt_follows_the_backoff(app: Backstay) -> None:
    failed = asyncio.Event()

    @app.job("work", backoff=Backoff(base=60, factor=2, max=3600, jitter=0))
    async def work(payload: int) -> None:
        failed.set()
        raise ValueError

    async with app:
        handle = await work.submit(1)
        async with app.worker():
            await failed.wait()
        job = await app.get(handle.job_id)
    assert job.status == "retrying"
    assert timedelta(seconds=59) < job.scheduled_for - job.updated_at <= timedelta(seconds=60)


async def test_a_handler_can_say_when_to_retry_and_it_counts(app: Backstay) -> None:
    @app.job("work", max_attempts=2)
    async def work(payload: int, ctx: Context) -> None:
        raise Retry("the service is busy", after=0.01)

    async with app, app.worker():
        job = await ended(app, (await work.submit(1)).job_id)
    assert (job.status, job.failures, job.errors[-1]["message"]) == ("failed", 2, "the service is busy")


async def test_a_snooze_costs_no_attempt(app: Backstay) -> None:
    @app.job("work", max_attempts=1)
    async def work(payload: int, ctx: Context) -> int:
        if ctx.attempt < 4:
            raise Snooze(0.01, "not yet")
        return ctx.attempt

    async with app, app.worker():
        handle = await work.submit(1)
        assert await handle.result(timeout=10) == 4
        job = await app.get(handle.job_id)
    assert job.failures == 0
    assert [h.reason for h in job.history if h.event == "snooze"] == ["not yet"] * 3


async def test_a_discarded_job_is_a_dead_letter_at_once(app: Backstay) -> None:
    @app.job("work", max_attempts=5)
    async def work(payload: int) -> None:
        raise Discard("nonsense")

    async with app, app.worker():
        job = await ended(app, (await work.submit(1)).job_id)
    assert (job.status, job.attempt, job.last_error) == ("failed", 1, "Discard: nonsense")


class Nasty(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def deep(n: int = 0) -> int:
    return deep(n + 1)


@pytest.mark.parametrize(
    ("raiser", "kind"),
    [
        (lambda: (_ for _ in ()).throw(Nasty()), "Nasty"),
        (lambda: (_ for _ in ()).throw(ValueError("x" * 100_000)), "ValueError"),
        (lambda: (_ for _ in ()).throw(ValueError("nul \0 and \ud800")), "ValueError"),
        (deep, "RecursionError"),
        (lambda: exit(3), "SystemExit"),
        (lambda: (_ for _ in ()).throw(KeyboardInterrupt()), "KeyboardInterrupt"),
        (lambda: (_ for _ in ()).throw(asyncio.CancelledError()), "CancelledError"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_whatever_a_handler_raises_is_one_failure_with_bounded_text(
    app: Backstay, raiser: Any, kind: str
) -> None:
    @app.job("work", max_attempts=1)
    async def work(payload: int) -> None:
        raiser()

    @app.job("threaded", max_attempts=1)
    def threaded(payload: int) -> None:
        raiser()

    async with app, app.worker():
        for handler in (work, threaded):
            job = await ended(app, (await handler.submit(1)).job_id)
            assert (job.status, job.failures, job.errors[0]["type"]) == ("failed", 1, kind)
            assert len(job.errors[0]["message"]) <= 4000 and len(job.errors[0]["traceback"]) <= 4000


@pytest.mark.parametrize("value", [object(), float("nan"), "\ud800", {"a": b"\xff"}])
async def test_a_result_that_is_not_json_fails_the_job_with_the_reason(app: Backstay, value: Any) -> None:
    @app.job("work", max_attempts=1)
    async def work(payload: int) -> Any:
        return value

    async with app, app.worker():
        job = await ended(app, (await work.submit(1)).job_id)
    assert job.status == "failed" and "result" in job.last_error


async def test_a_stored_payload_that_the_model_no_longer_takes_fails_with_the_reason_and_is_not_lost(
    app: Backstay, make_app: Any
) -> None:
    @app.job("work", max_attempts=2)
    async def work(payload: dict[str, str]) -> None: ...

    newer = make_app()

    @newer.job("work", max_attempts=2, backoff=FAST)
    async def work_newer(payload: dict[str, int]) -> None: ...

    async with app, newer:
        handle = await work.submit({"n": "x"})
        async with newer.worker():
            job = await ended(newer, handle.job_id)
    assert job.status == "failed" and job.errors[0]["type"] == "InvalidPayload"
    assert job.payload == {"n": "x"}


async def test_dead_letters_are_grouped_and_retried_one_or_many(app: Backstay) -> None:
    broken = True

    @app.job("a", max_attempts=1)
    async def a(payload: int) -> int:
        if broken:
            raise ValueError("a broke") if payload < 3 else KeyError("other")
        return payload

    @app.job("b", max_attempts=1)
    async def b(payload: int) -> int:
        if broken:
            raise ValueError("b broke")
        return payload

    async with app:
        handles = [await a.submit(n) for n in range(4)] + [await b.submit(9)]
        async with app.worker():
            for handle in handles:
                await ended(app, handle.job_id)
        groups = {(g.job_type, g.error_type): g.count for g in await app.dead()}
        assert groups == {("a", "ValueError"): 3, ("a", "KeyError"): 1, ("b", "ValueError"): 1}
        broken = False
        one = await app.retry(handles[0].job_id, by="me", reason="fixed")
        assert (one.status, one.failures, one.attempt, one.history[-1].by) == ("pending", 0, 1, "me")
        assert await app.retry_dead(job_type="a", error_type="ValueError") == 2
        assert await app.retry_dead() == 2
        async with app.worker():
            assert [await handle.result(timeout=10) for handle in handles] == [0, 1, 2, 3, 9]
        assert await app.dead() == []


async def test_edits_refuse_the_wrong_state_and_the_wrong_version(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> None:
        raise Cancel

    async with app:
        handle = await work.submit(1)
        with pytest.raises(IllegalTransition, match="not ended"):
            await app.retry(handle.job_id)
        with pytest.raises(VersionConflict, match="version 1"):
            await app.cancel(handle.job_id, expected_version=7)
        await app.cancel(handle.job_id, expected_version=1)
        with pytest.raises(IllegalTransition, match="has already ended"):
            await app.cancel(handle.job_id)


async def test_a_dependent_of_a_failed_job_is_cancelled_and_one_that_asks_for_it_fails(app: Backstay) -> None:
    @app.job("bad", max_attempts=1)
    async def bad(payload: int) -> None:
        raise ValueError("x")

    @app.job("good")
    async def good(payload: int) -> int:
        return payload

    async with app, app.worker():
        first = await bad.submit(1, delay=0.05)
        second = await good.submit(2, depends_on=[first])
        third = await good.submit(3, depends_on=second, on_dependency_failure="fail")
        jobs = []
        for each in (second, third):
            try:
                await each.result(timeout=10)
            except Exception as error:
                jobs.append((type(error).__name__, (await app.get(each.job_id)).status))
        assert jobs == [("JobCancelled", "cancelled"), ("JobFailed", "failed")]


async def test_a_dependent_starts_when_the_last_job_it_waits_on_completes(app: Backstay) -> None:
    order: list[int] = []

    @app.job("work")
    async def work(payload: int) -> None:
        order.append(payload)

    async with app:
        a, b = await work.submit(1), await work.submit(2)
        c = await work.submit(3, depends_on=[a, b], priority="urgent")
        assert c.status == "waiting" and c.dependencies == [a.job_id, b.job_id]
        async with app.worker(concurrency=1):
            await c.result(timeout=10)
        assert (await app.get(a.job_id)).dependent_jobs == [c.job_id]
    assert order == [1, 2, 3]
