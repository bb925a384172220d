"""What a handler streams is read live and later: in order, once, and all of it before the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from backstay import (
    Backoff,
    Backstay,
    BatchContext,
    BlockingBatchContext,
    BlockingContext,
    ClaimLost,
    Context,
    Discard,
    InvalidOption,
    InvalidResult,
    JobNotFound,
    OutputTooLarge,
    StoreUnavailable,
)
from backstay.clock import Instant
from backstay.core import output as core_output
from backstay.core.output import OutputPart
from backstay.core.records import Verdict
from backstay.engines.sqlite.store import SQLiteStore
from tests.app import streaming_jobs

MakeApp = Callable[..., Backstay]
VALUES: list[Any] = ["Once ", "upon ", {"n": 1.5}, None, ["a", 2], "☃"]


async def all_of(app: Backstay, job_id: str) -> list[Any]:
    async with asyncio.timeout(20):
        return [entry.value async for entry in app.stream_output(job_id)]


@pytest.fixture
def streaming(app: Backstay) -> Backstay:
    @app.job("async")
    async def in_loop(payload: list[Any], ctx: Context) -> int:
        for value in payload:
            await ctx.stream(value)
        return len(payload)

    @app.job("thread")
    def in_thread(payload: list[Any], ctx: BlockingContext) -> int:
        for value in payload:
            ctx.stream(value)
        return len(payload)

    return app


@pytest.mark.parametrize("where", ["async", "thread"])
async def test_a_reader_gets_every_value_in_order_up_to_the_end(streaming: Backstay, where: str) -> None:
    async with streaming as app, app.worker():
        job = await app.submit(where, VALUES)
        entries = [entry async for entry in job.stream()]

        assert [entry.value for entry in entries] == VALUES
        assert [entry.number for entry in entries] == [1, 2, 3, 4, 5, 6]
        assert {(entry.attempt, entry.restarted) for entry in entries} == {(1, False)}
        assert (await job.record()).status == "completed"
        assert [entry.value for entry in await app.output(job.job_id)] == VALUES


@pytest.mark.parametrize("where", ["child", "async_child"])
async def test_so_does_one_of_a_handler_in_a_process_of_its_own(make_app: MakeApp, where: str) -> None:
    async with streaming_jobs.bind(make_app) as app, app.worker():
        job = await app.submit(where, VALUES)
        assert await all_of(app, job.job_id) == VALUES
        assert await job.result(timeout=20) == len(VALUES)


async def test_each_job_of_a_batch_in_a_process_has_its_own(make_app: MakeApp) -> None:
    async with streaming_jobs.bind(make_app) as app, app.worker():
        jobs = await app.submit_many([("batch_child", name) for name in "abc"])
        for job, name in zip(jobs, "abc", strict=True):
            assert await all_of(app, job.job_id) == [name, "end"]


async def test_values_are_read_while_the_handler_still_runs(app: Backstay) -> None:
    go_on = asyncio.Event()

    @app.job("talk")
    async def talk(payload: None, ctx: Context) -> None:
        await ctx.stream("first")
        await go_on.wait()
        await ctx.stream("last")

    async with app, app.worker():
        job = await talk.submit(None)
        told = job.stream()
        assert (await anext(told)).value == "first"
        assert (await job.record()).status == "processing"
        go_on.set()
        assert [entry.value async for entry in told] == ["last"]


async def test_a_reader_continues_behind_a_cursor(streaming: Backstay) -> None:
    async with streaming as app, app.worker():
        job = await app.submit("async", list(range(10)))
        await job.wait(timeout=20)

        first = await app.output(job.job_id, limit=4)
        rest = await app.output(job.job_id, after=first.next)

        assert ([entry.value for entry in first], first.more) == ([0, 1, 2, 3], True)
        assert ([entry.value for entry in rest], rest.more) == ([4, 5, 6, 7, 8, 9], False)
        assert [entry.value async for entry in job.stream(after=rest[2].cursor)] == [7, 8, 9]
        end = await app.output(job.job_id, after=rest.next)
        assert (list(end), end.next) == ([], rest.next)


async def test_a_cursor_that_is_none_and_a_job_that_is_none_are_refused(streaming: Backstay) -> None:
    async with streaming as app:
        job = await app.submit("async", [])
        for wrong in ("7", "1.2", "a.b.c", "1.2.-3", "1.2.9999999999", "٣.0.1"):
            with pytest.raises(InvalidOption, match="is not a place in an output"):
                await app.output(job.job_id, after=wrong)
        with pytest.raises(InvalidOption, match="limit=0"):
            await app.output(job.job_id, limit=0)
        with pytest.raises(JobNotFound):
            await app.output("0198d0c2-6c1e-7001-8a3b-1f2e3d4c5b6a")
        assert list(await app.output(job.job_id)) == []


async def test_a_run_that_begins_again_replaces_the_output_of_the_one_before(app: Backstay) -> None:
    seen, go_on = asyncio.Event(), asyncio.Event()

    @app.job("flaky", max_attempts=2, backoff=Backoff(base=0.01, jitter=0))
    async def flaky(payload: None, ctx: Context) -> None:
        await ctx.stream(f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            await seen.wait()
            raise ValueError("no")
        await ctx.stream("done")

    async with app, app.worker():
        job = await flaky.submit(None)
        told = job.stream()
        assert (await anext(told)).value == "attempt 1"
        seen.set()
        rest = [entry async for entry in told]
        assert [(entry.value, entry.number, entry.restarted) for entry in rest] == [
            ("attempt 2", 1, True),
            ("done", 2, False),
        ]
        # Who comes later is not told of a run that has been replaced.
        assert [(entry.value, entry.restarted) for entry in await app.output(job.job_id)] == [
            ("attempt 2", False),
            ("done", False),
        ]
        go_on.set()


async def test_a_failed_run_keeps_what_it_has_streamed(app: Backstay) -> None:
    @app.job("fails")
    async def fails(payload: None, ctx: Context) -> None:
        await ctx.stream("so far")
        raise Discard("no more")

    async with app, app.worker():
        job = await fails.submit(None)
        assert await all_of(app, job.job_id) == ["so far"]
        assert (await job.record()).status == "failed"


async def test_a_batch_that_is_halved_streams_each_value_once(app: Backstay) -> None:
    @app.batch_job("many", max_size=4, max_attempts=1)
    async def batch(payloads: list[str], ctx: BatchContext) -> list[str]:
        for item, payload in zip(ctx, payloads, strict=True):
            await item.stream(f"{payload} of {len(payloads)}")
        if len(payloads) > 1:
            raise ValueError("one at a time")
        return payloads

    async with app:
        jobs = await app.submit_many([("many", name) for name in "abcd"])
        async with app.worker():
            for job, name in zip(jobs, "abcd", strict=True):
                assert await job.result(timeout=20) == name
                assert [entry.value for entry in await app.output(job.job_id)] == [f"{name} of 1"]


async def test_a_batch_in_a_thread_streams_for_each_of_its_jobs(app: Backstay) -> None:
    @app.batch_job("many", max_size=4)
    def batch(payloads: list[str], ctx: BlockingBatchContext) -> list[None]:
        for item, payload in zip(ctx, payloads, strict=True):
            item.stream(payload)
        return [None] * len(payloads)

    async with app, app.worker():
        jobs = await app.submit_many([("many", name) for name in "abc"])
        for job, name in zip(jobs, "abc", strict=True):
            assert await all_of(app, job.job_id) == [name]


async def test_identical_jobs_of_a_batch_each_have_their_output(app: Backstay) -> None:
    @app.batch_job("many", max_size=4, same_once=True)
    async def batch(payloads: list[str], ctx: BatchContext) -> list[str]:
        for item, payload in zip(ctx, payloads, strict=True):
            await item.stream(payload)
        return payloads

    async with app:
        jobs = await app.submit_many([("many", "same") for _ in range(3)])
        async with app.worker():
            for job in jobs:
                assert await all_of(app, job.job_id) == ["same"]


# Writing


class Slow(SQLiteStore):
    """Counts the writes of output; the first so many fail, as if the store were away, or its answers were lost."""

    failing = 0
    loses_answers = False
    written: ClassVar[list[tuple[str, ...]]] = []

    async def append_output(self, parts: Sequence[OutputPart], now: Instant) -> list[Verdict]:
        if Slow.failing:
            Slow.failing -= 1
            if Slow.loses_answers:
                await super().append_output(parts, now)
            raise StoreUnavailable("away")
        Slow.written += [part.entries for part in parts]
        return await super().append_output(parts, now)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> type[Slow]:
    monkeypatch.setattr("backstay.app.open_url", Slow)
    Slow.failing, Slow.loses_answers, Slow.written = 0, False, []
    return Slow


async def test_many_values_share_a_write(streaming: Backstay, slow: type[Slow]) -> None:
    async with streaming as app, app.worker():
        job = await app.submit("async", list(range(2_000)))
        assert await all_of(app, job.job_id) == list(range(2_000))
    assert len(slow.written) < 20


@pytest.mark.parametrize("loses_answers", [False, True])
async def test_a_completion_waits_for_output_that_the_store_did_not_take_yet(
    streaming: Backstay, slow: type[Slow], loses_answers: bool
) -> None:
    slow.failing, slow.loses_answers = 3, loses_answers
    async with streaming as app, app.worker():
        job = await app.submit("async", VALUES)
        ended = await job.wait(timeout=20)
        assert (slow.failing, ended.status) == (0, "completed")
        assert [entry.value for entry in await app.output(job.job_id)] == VALUES


async def test_what_is_streamed_while_an_answer_is_awaited_follows_the_part_that_is_repeated(
    app: Backstay, slow: type[Slow]
) -> None:
    slow.failing, slow.loses_answers = 2, True

    @app.job("talk")
    async def talk(payload: None, ctx: Context) -> None:
        await ctx.stream(1)
        while slow.failing:  # noqa: ASYNC110 - the store has no signal for a write that fails
            await asyncio.sleep(0.01)
        await ctx.stream(2)
        await ctx.stream(3)

    async with app, app.worker():
        job = await talk.submit(None)
        assert await all_of(app, job.job_id) == [1, 2, 3]


async def test_a_handler_whose_claim_is_over_is_told_with_its_next_value(app: Backstay) -> None:
    told: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    @app.job("late")
    async def late(payload: None, ctx: Context) -> None:
        try:
            while True:
                await ctx.stream("more")
                await asyncio.sleep(0)
        except BaseException as error:
            told.set_result(error)
            raise

    async with app, app.worker(lease=60):
        job = await late.submit(None)
        told_of = job.stream()
        await anext(told_of)
        await app.cancel(job.job_id)
        async with asyncio.timeout(20):
            assert isinstance(await told, ClaimLost | asyncio.CancelledError)
        end = await app.output_end(job.job_id)
        assert end is not None
        assert [entry async for entry in job.stream(after=end.place.cursor)] == []


# Bounds


@pytest.mark.parametrize(
    ("name", "most", "values", "says"),
    [
        ("OUTPUT_ENTRIES_MAX", 3, ["a"] * 4, "3 entries"),
        ("OUTPUT_BYTES_MAX", 20, ["12345678", "12345678", "1"], "20 bytes"),
        ("OUTPUT_ENTRY_BYTES_MAX", 10, ["a", "123456789"], "an entry of the output has 11 bytes"),
    ],
)
async def test_more_than_an_output_holds_is_refused_with_advice(
    streaming: Backstay, monkeypatch: pytest.MonkeyPatch, name: str, most: int, values: list[str], says: str
) -> None:
    monkeypatch.setattr(core_output, name, most)
    async with streaming as app, app.worker():
        job = await app.submit("async", values, max_attempts=1)
        assert await all_of(app, job.job_id) == values[:-1]
        [error] = (await job.record()).row.errors
        assert (error.type, says in error.message, "ctx.artifact" in error.message) == (
            OutputTooLarge.__name__,
            True,
            True,
        )


async def test_a_value_that_is_not_json_is_refused(app: Backstay) -> None:
    @app.job("odd")
    async def odd(payload: None, ctx: Context) -> None:
        with pytest.raises(InvalidResult, match=r"value of ctx\.stream"):
            await ctx.stream(object())
        await ctx.stream("fine")

    async with app, app.worker():
        job = await odd.submit(None)
        assert await all_of(app, job.job_id) == ["fine"]


async def test_a_handler_that_is_called_here_may_stream(app: Backstay) -> None:
    @app.job("talk")
    async def talk(payload: None, ctx: Context) -> str:
        await ctx.stream("nobody reads it")
        return "done"

    assert await talk.call(None) == "done"


def test_blocking_code_reads_the_same(streaming: Backstay) -> None:
    with streaming.sync as app, app.worker():
        job = app.submit("thread", VALUES)
        assert [entry.value for entry in job.stream()] == VALUES
        assert [entry.value for entry in app.stream_output(job.job_id)] == VALUES
        page = app.output(job.job_id, limit=2)
        assert ([entry.value for entry in page], page.more) == (VALUES[:2], True)
        end = app.output_end(job.job_id)
        assert end is not None
        assert end.place.number == len(VALUES)
