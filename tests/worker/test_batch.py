"""Batch handlers: one call for many jobs, an answer for each, and no job pays for another."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import apsw
import pytest
from pydantic import BaseModel, field_validator

from backstay import (
    Backoff,
    Backstay,
    BatchContext,
    BlockingBatchContext,
    Cancel,
    ConfigurationError,
    Context,
    Discard,
    InvalidOption,
    InvalidPayload,
    JobCancelled,
    JobFailed,
    Retry,
    Snooze,
)
from backstay.job import JobHandle
from backstay.testing import drain
from tests.support.eventually import eventually
from tests.worker import batch_jobs

NOW = Backoff(base=0)
WHOLE: Any = {"max_size": 8, "max_wait": 5}  # a batch of eight is called when it is whole, long before it has waited


class Text(BaseModel):
    text: str


def ledger(app: Backstay) -> apsw.Connection:
    file = apsw.Connection(str(app.store.path))  # type: ignore[attr-defined]
    file.execute("CREATE TABLE IF NOT EXISTS ledger (who TEXT, amount INTEGER UNIQUE)")
    return file


def amounts(app: Backstay) -> list[int]:
    with ledger(app) as file:
        return [amount for (amount,) in file.execute("SELECT amount FROM ledger ORDER BY amount")]


async def submitted(app: Backstay, name: str, payloads: Sequence[Any]) -> list[JobHandle]:
    return await app.submit_many([(name, each) for each in payloads])


async def results(handles: Sequence[JobHandle]) -> list[Any]:
    answers = await asyncio.gather(*(each.result(timeout=60) for each in handles), return_exceptions=True)
    return [type(each) if isinstance(each, BaseException) else each for each in answers]


# Gathering


async def test_a_full_batch_is_one_call_with_an_answer_for_each_in_order(app: Backstay) -> None:
    calls: list[int] = []

    @app.batch_job("embed", **WHOLE)
    async def embed(payloads: list[Text]) -> list[str]:
        calls.append(len(payloads))
        return [each.text.upper() for each in payloads]

    async with app:
        handles = await submitted(app, "embed", [{"text": f"t{n}"} for n in range(16)])
        async with app.worker():
            assert await results(handles) == [f"T{n}" for n in range(16)]
    assert calls == [8, 8]


async def test_what_does_not_fill_a_batch_is_called_when_the_first_has_waited_for_long_enough(app: Backstay) -> None:
    calls: list[list[int]] = []

    @app.batch_job("embed", max_size=8, max_wait=0.1)
    async def embed(payloads: list[int]) -> list[int]:
        calls.append(payloads)
        return payloads

    async with app:
        handles = await submitted(app, "embed", [1, 2, 3])
        async with app.worker():
            assert await results(handles) == [1, 2, 3]
    assert calls == [[1, 2, 3]]


async def test_no_wait_calls_with_what_one_claim_brought(app: Backstay) -> None:
    @app.batch_job("embed", max_size=8, max_wait=0)
    async def embed(payloads: list[int]) -> list[int]:
        return [len(payloads)] * len(payloads)

    async with app:
        handles = await submitted(app, "embed", [1, 2, 3])
        async with app.worker():
            assert await results(handles) == [3, 3, 3]


async def test_a_call_takes_one_slot_and_others_run_beside_it(app: Backstay) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.batch_job("embed", **WHOLE)
    async def embed(payloads: list[int]) -> list[int]:
        begun.set()
        await go_on.wait()
        return payloads

    @app.job("single")
    async def single(payload: int) -> int:
        go_on.set()
        return payload

    async with app, app.worker(concurrency=2) as worker:
        handles = await submitted(app, "embed", range(8))
        await begun.wait()
        assert len(worker._leases.describe().running) == 8 and worker._leases.describe().busy == {"embed": 1}
        assert await (await single.submit(5)).result(timeout=10) == 5
        assert await results(handles) == list(range(8))


async def test_a_batch_that_takes_long_to_fill_keeps_no_slot_from_others(app: Backstay) -> None:
    @app.batch_job("embed", max_size=8, max_wait=60)
    async def embed(payloads: list[int]) -> list[int]:
        return payloads

    @app.job("single")
    async def single(payload: int) -> int:
        return payload

    async with app, app.worker(concurrency=1) as worker:
        gathered = await app.submit("embed", 1)

        async def held() -> bool:
            return gathered.job_id in worker._runs.held

        await eventually(held)
        assert await (await single.submit(5)).result(timeout=10) == 5


async def test_concurrency_counts_calls(app: Backstay) -> None:
    running, most = 0, 0

    @app.batch_job("embed", concurrency=1, **WHOLE)
    async def embed(payloads: list[int]) -> list[int]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return payloads

    async with app:
        handles = await submitted(app, "embed", range(32))
        async with app.worker(concurrency=10):
            assert await results(handles) == list(range(32))
    assert most == 1


async def test_a_stopping_worker_gives_back_what_it_had_gathered(app: Backstay) -> None:
    @app.batch_job("embed", max_size=8, max_wait=60)
    async def embed(payloads: list[int]) -> list[int]:
        return payloads

    async def is_claimed() -> bool:
        return (await app.get(handle.job_id)).status == "processing"

    async with app:
        handle = await app.submit("embed", 1)
        async with app.worker():
            await eventually(is_claimed)
        job = await app.get(handle.job_id)
        assert job.status == "pending" and job.failures == 0


async def test_a_job_that_is_cancelled_while_its_batch_is_gathered_is_not_called(app: Backstay) -> None:
    calls: list[list[int]] = []

    @app.batch_job("embed", max_size=3, max_wait=60)
    async def embed(payloads: list[int]) -> list[int]:
        calls.append(payloads)
        return payloads

    async with app, app.worker() as worker:
        first = await app.submit("embed", 1)

        async def held() -> bool:
            return first.job_id in worker._runs.held

        await eventually(held)
        await app.cancel(first.job_id)

        async def let_go() -> bool:
            return first.job_id not in worker._runs.held

        await eventually(let_go)
        assert await results(await submitted(app, "embed", [2, 3, 4])) == [2, 3, 4]
    assert calls == [[2, 3, 4]]


# Answers


async def test_an_exception_in_the_list_is_the_outcome_of_its_job_alone(app: Backstay) -> None:
    @app.batch_job("embed", max_attempts=2, backoff=NOW, **WHOLE)
    async def embed(payloads: list[int]) -> list[Any]:
        answers: dict[int, Any] = {
            1: ValueError("one"),
            2: Retry("two", after=0),
            3: Snooze(3600),
            4: Cancel("four"),
            5: Discard("five"),
            6: object(),
        }
        return [answers.get(each, each) for each in payloads]

    async with app, app.worker():
        handles = await submitted(app, "embed", range(8))
        assert await results([*handles[:3], *handles[4:]]) == [
            0, JobFailed, JobFailed, JobCancelled, JobFailed, JobFailed, 7,
        ]  # fmt: skip
        jobs = [await app.get(each.job_id) for each in handles]
    assert [job.failures for job in jobs] == [0, 2, 2, 0, 0, 1, 2, 0]
    assert jobs[3].status == "scheduled"
    assert "InvalidResult" in (jobs[6].last_error or "")
    assert [job.errors[0]["type"] for job in (jobs[1], jobs[2], jobs[5])] == ["ValueError", "Retry", "Discard"]


async def test_a_directive_that_the_whole_call_raises_is_that_of_each_job(app: Backstay) -> None:
    calls = 0

    @app.batch_job("embed", **WHOLE)
    async def embed(payloads: list[int]) -> list[int]:
        nonlocal calls
        calls += 1
        raise Snooze(3600, "the service is away")

    async with app:
        await submitted(app, "embed", range(8))
        async with app.worker():

            async def snoozed() -> bool:
                return len(await app.find(status="scheduled")) == 8

            await eventually(snoozed)
    assert calls == 1


async def test_a_payload_that_cannot_be_read_fails_its_own_job(
    app: Backstay, make_app: Callable[..., Backstay]
) -> None:
    other = make_app()

    @other.batch_job("embed")
    async def older(payloads: list[dict[str, Any]]) -> list[Any]:
        return payloads

    @app.batch_job("embed", max_size=2, max_wait=5)
    async def embed(payloads: list[Text]) -> list[str]:
        return [each.text for each in payloads]

    async with app, other:
        handles = [await older.submit(each, max_attempts=1) for each in ({"words": 1}, {"text": "b"})]
        with pytest.raises(InvalidPayload):
            await embed.submit({"words": 1})
        async with app.worker():
            assert await results(handles) == [JobFailed, "b"]
        assert "InvalidPayload" in ((await app.get(handles[0].job_id)).last_error or "")


async def test_a_model_that_breaks_on_a_payload_fails_that_job_alone(app: Backstay) -> None:
    class Picky(BaseModel):
        text: str

        @field_validator("text")
        @classmethod
        def check(cls, text: str) -> str:
            if text == "bad" and armed:
                raise RuntimeError("not even a validation error")
            return text

    armed: list[bool] = []

    @app.batch_job("embed", max_size=2, max_wait=5, max_attempts=1)
    async def embed(payloads: list[Picky]) -> list[str]:
        return [each.text for each in payloads]

    async with app:
        handles = await submitted(app, "embed", [{"text": "good"}, {"text": "bad"}])
        armed.append(True)
        async with app.worker():
            assert await results(handles) == ["good", JobFailed]


@pytest.mark.parametrize("same_once", [True, False])
async def test_equal_payloads_of_a_batch_are_computed_once(app: Backstay, same_once: bool) -> None:
    calls: list[list[int]] = []

    @app.batch_job("embed", same_once=same_once, **WHOLE)
    async def embed(payloads: list[int]) -> list[Any]:
        calls.append(payloads)
        return [ValueError("no") if each == 9 else each * 2 for each in payloads]

    async with app:
        handles = await submitted(app, "embed", [1, 2, 1, 1, 2, 3, 1, 3])
        async with app.worker():
            assert await results(handles) == [2, 4, 2, 2, 4, 6, 2, 6]
    assert calls == ([[1, 2, 3]] if same_once else [[1, 2, 1, 1, 2, 3, 1, 3]])


async def test_equal_payloads_with_effects_of_their_own_are_called_for_each(app: Backstay) -> None:
    @app.batch_job("embed", **WHOLE)
    async def embed(payloads: list[int], ctx: BatchContext) -> list[int]:
        for item in ctx:
            async with item.transaction() as tx:
                tx.execute("INSERT INTO ledger SELECT ?, coalesce(max(amount), 0) + 1 FROM ledger", [item.job_id])
        return payloads

    async with app:
        ledger(app)
        handles = await submitted(app, "embed", [7] * 8)
        async with app.worker():
            assert await results(handles) == [7] * 8
        with ledger(app) as file:
            kept = {who for (who,) in file.execute("SELECT who FROM ledger")}
    assert kept == {each.job_id for each in handles}


# Crashes


async def test_one_poisonous_job_of_fifty_fails_alone_and_the_call_is_halved_to_find_it(app: Backstay) -> None:
    calls: list[int] = []

    @app.batch_job("embed", max_size=50, max_wait=5, max_attempts=1)
    async def embed(payloads: list[int]) -> list[int]:
        calls.append(len(payloads))
        if 33 in payloads:
            raise RuntimeError("poison")
        return payloads

    async with app:
        handles = await submitted(app, "embed", range(50))
        async with app.worker():
            answers = await results(handles)
        jobs = [await app.get(each.job_id) for each in handles]
    assert answers == [JobFailed if n == 33 else n for n in range(50)]
    assert calls[0] == 50 and len(calls) <= 13
    assert [job.attempt for job in jobs] == [1] * 50
    assert "poison" in (jobs[33].last_error or "")


async def test_a_job_that_failed_before_is_called_alone(app: Backstay) -> None:
    calls: list[list[int]] = []

    @app.batch_job("embed", max_attempts=2, backoff=NOW, **WHOLE)
    async def embed(payloads: list[int]) -> list[Any]:
        calls.append(payloads)
        return [ValueError(each) if len(payloads) > 1 and each < 2 else each for each in payloads]

    async with app, app.worker():
        assert await results(await submitted(app, "embed", range(8))) == list(range(8))
    assert sorted(calls[1:]) == [[0], [1]]


@pytest.mark.parametrize("answer", [[1], [1, 2, 3], None, "ab"])
async def test_an_answer_that_does_not_fit_is_a_failure_that_says_what_is_expected(app: Backstay, answer: Any) -> None:
    @app.batch_job("embed", max_size=2, max_wait=5, max_attempts=1)
    async def embed(payloads: list[int]) -> Any:
        return answer if len(payloads) == 2 else None

    async with app, app.worker():
        handles = await submitted(app, "embed", [1, 2])
        assert await results(handles) == [JobFailed, JobFailed]
        assert "a list of 1" in ((await app.get(handles[0].job_id)).last_error or "")


async def test_what_items_said_in_a_call_that_broke_is_not_kept(app: Backstay) -> None:
    @app.batch_job("embed", max_size=2, max_wait=5, max_attempts=1)
    async def embed(payloads: list[int], ctx: BatchContext) -> list[int]:
        for item, payload in zip(ctx, payloads, strict=True):
            async with item.transaction() as tx:
                tx.execute("INSERT INTO ledger VALUES ('x', ?)", [payload + 10 * len(payloads)])
        if len(payloads) == 2 or payloads == [2]:
            raise RuntimeError("broken")
        return payloads

    async with app:
        ledger(app)
        async with app.worker():
            assert await results(await submitted(app, "embed", [1, 2])) == [1, JobFailed]
        assert amounts(app) == [11]


async def test_a_call_that_runs_too_long_is_halved_and_the_second_time_its_jobs_run_alone(app: Backstay) -> None:
    calls: list[list[int]] = []

    @app.batch_job("embed", max_attempts=2, timeout=0.05, backoff=NOW, **WHOLE)
    async def embed(payloads: list[int]) -> list[int]:
        calls.append(payloads)
        if 3 in payloads:
            await asyncio.Event().wait()
        return payloads

    async with app:
        handles = await submitted(app, "embed", range(8))
        async with app.worker():
            answers = await results(handles)
        failures = [(await app.get(each.job_id)).failures for each in handles]
    assert answers == [JobFailed if n == 3 else n for n in range(8)]
    assert calls[0] == list(range(8)) and calls[1] == [0, 1, 2, 3]
    assert failures == [1, 1, 1, 2, 0, 0, 0, 0]


async def test_a_thread_that_ends_when_it_is_told_is_halved_too(app: Backstay) -> None:
    calls: list[list[int]] = []

    @app.batch_job("embed", max_size=2, max_wait=5, max_attempts=1, timeout=0.2)
    def embed(payloads: list[int], ctx: BlockingBatchContext) -> list[int]:
        calls.append(payloads)
        while 1 in payloads and not ctx.cancelled:
            threading.Event().wait(0.01)
        return payloads

    async with app:
        handles = await submitted(app, "embed", range(2))
        async with app.worker():
            assert await results(handles) == [0, JobFailed]
        assert "JobTimeout" in ((await app.get(handles[1].job_id)).last_error or "")
    assert calls == [[0, 1], [0], [1]]


async def test_a_thread_that_does_not_end_when_it_is_told_fails_its_jobs_which_run_alone_then(app: Backstay) -> None:
    let_go = threading.Event()

    @app.batch_job("embed", max_size=4, max_wait=5, max_attempts=2, timeout=0.2, backoff=NOW)
    def embed(payloads: list[int]) -> list[int]:
        if len(payloads) > 1:
            let_go.wait()
        return payloads

    async with app:
        handles = await submitted(app, "embed", range(4))
        async with app.worker():
            assert await results(handles) == [0, 1, 2, 3]
            let_go.set()
        assert {(await app.get(each.job_id)).failures for each in handles} == {1}


# One job of a call, and the whole of it


async def test_a_job_that_is_cancelled_in_a_running_call_loses_its_answer_and_the_others_keep_theirs(
    app: Backstay,
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.batch_job("embed", **WHOLE)
    async def embed(payloads: list[int], ctx: BatchContext) -> list[int]:
        begun.set()
        await go_on.wait()
        assert ctx.item(2).cancelled and not ctx.item(3).cancelled and not ctx.cancelled
        return payloads

    async with app, app.worker() as worker:
        handles = await submitted(app, "embed", range(8))
        await begun.wait()
        await app.cancel(handles[2].job_id)

        async def lost() -> bool:
            return handles[2].job_id not in worker._runs.held

        await eventually(lost)
        go_on.set()
        assert await results(handles) == [0, 1, JobCancelled, 3, 4, 5, 6, 7]


async def test_a_call_none_of_whose_jobs_is_left_is_stopped(app: Backstay) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    @app.batch_job("embed", max_size=2, max_wait=5)
    async def embed(payloads: list[int]) -> list[int]:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return payloads

    async with app, app.worker():
        handles = await submitted(app, "embed", [1, 2])
        await begun.wait()
        for each in handles:
            await app.cancel(each.job_id)
        async with asyncio.timeout(10):
            await stopped.wait()


async def test_a_worker_that_stops_gives_a_running_batch_back_after_its_grace(app: Backstay) -> None:
    begun = asyncio.Event()

    @app.batch_job("embed", **WHOLE)
    async def embed(payloads: list[int]) -> list[int]:
        begun.set()
        await asyncio.Event().wait()
        return payloads

    async with app:
        async with app.worker(grace=0):
            handles = await submitted(app, "embed", range(8))
            await begun.wait()
        jobs = [await app.get(each.job_id) for each in handles]
    assert {(job.status, job.failures) for job in jobs} == {("pending", 0)}


async def test_sql_of_an_item_commits_with_its_own_completion_and_broken_sql_fails_it_alone(app: Backstay) -> None:
    @app.batch_job("embed", max_size=4, max_wait=5, max_attempts=1)
    async def embed(payloads: list[int], ctx: BatchContext) -> list[Any]:
        for n, payload in enumerate(payloads):
            async with ctx.item(n).transaction() as tx:
                tx.execute("INSERT INTO ledger VALUES ('x', ?)", [payload])
                if payload == 2:
                    tx.execute("INSERT INTO nowhere VALUES (1)")
        return [ValueError("three") if each == 3 else each for each in payloads]

    async with app:
        ledger(app)
        async with app.worker():
            assert await results(await submitted(app, "embed", range(4))) == [0, 1, JobFailed, JobFailed]
        assert amounts(app) == [0, 1]


async def test_lines_of_an_item_are_its_own_and_lines_of_the_call_those_of_all(app: Backstay) -> None:
    @app.batch_job("embed", max_size=2, max_wait=5)
    async def embed(payloads: list[int], ctx: BatchContext) -> list[int]:
        ctx.log.info("to all")
        ctx.item(1).log.info("to one")
        await ctx.progress(0.5, stage="half")
        ctx.item(0).metric("m", 1.5)
        return payloads

    async with app, app.worker():
        handles = await submitted(app, "embed", [1, 2])
        await results(handles)
        jobs = [await app.get(each.job_id) for each in handles]
    lines = [[line["message"] for line in job.logs["entries"]] for job in jobs]
    assert lines == [["to all"], ["to all", "to one"]]
    assert [job.metrics for job in jobs] == [{"m": 1.5}, {}]


async def test_a_blocking_handler_has_the_same_in_a_thread(app: Backstay) -> None:
    @app.batch_job("embed", max_size=2, max_wait=5)
    def embed(payloads: list[int], ctx: BlockingBatchContext) -> list[Any]:
        ctx.log.info("in %s", threading.current_thread().name.partition("-")[0])
        ctx.item(0).artifact("own.txt", "first")
        with ctx.item(1).transaction() as tx:
            tx.execute("INSERT INTO ledger VALUES ('x', 1)")
        return [ctx.item(0).once("s", lambda: len(ctx)), KeyError("second")]

    async with app:
        ledger(app)
        async with app.worker():
            handles = await submitted(app, "embed", [1, 2])
            assert (await results(handles[:1])) == [2]
            first, second = [await app.get(each.job_id) for each in handles]
            assert await app.artifact(first.job_id, "own.txt") == b"first"
        assert second.artifacts == [] and amounts(app) == []
        assert "in backstay" in first.logs["entries"][0]["message"]


# Processes


async def test_a_batch_runs_in_a_child_process_with_the_same_context(make_app: Any) -> None:
    app = batch_jobs.bind(make_app)
    async with app:
        ledger(app)
        handles = await submitted(app, "talk", [1, 2, 3])
        doubles = await submitted(app, "talk_async", [4, 5])
        async with app.worker():
            assert await results(handles[:2]) == [{"step": 1, "all": 3}] * 2
            assert await results(doubles) == [8, 10]
            first = await app.get(handles[0].job_id)
            assert await app.artifact(first.job_id, "own.txt") == b"1"

            async def third_has_failed() -> bool:  # each result is a message of its own: it may come after the others
                return bool((await app.get(handles[2].job_id)).errors)

            await eventually(third_has_failed)
            third = await app.get(handles[2].job_id)
        assert amounts(app) == [1, 2]
    assert [line["message"] for line in first.logs["entries"]] == ["to all", "to 1"]
    assert first.metrics == {"m": 1.0}
    assert third.errors[0]["type"] == "ValueError"


async def test_a_job_that_kills_the_process_of_its_batch_dies_alone(make_app: Any) -> None:
    app = batch_jobs.bind(make_app)
    app.handlers["dies"].backoff = NOW
    async with app:
        handles = await submitted(app, "dies", range(4))
        async with app.worker():
            assert await results(handles) == [0, 1, 2, JobFailed]
        jobs = [await app.get(each.job_id) for each in handles]
    assert [job.failures for job in jobs] == [0, 0, 0, 2]
    assert jobs[3].errors[0]["type"] == "ProcessDied"


# Tests of handlers


async def test_drain_calls_a_batch_handler_without_waiting_for_others(app: Backstay) -> None:
    calls: list[int] = []

    @app.batch_job("embed", max_size=8, max_wait=60)
    async def embed(payloads: list[int]) -> list[int]:
        calls.append(len(payloads))
        return payloads

    async with app:
        await submitted(app, "embed", range(3))
        assert len(await drain(app)) == 3
        await submitted(app, "embed", range(10))
        assert len(await drain(app, batches=True)) == 10
    assert calls == [1, 1, 1, 8, 2]


# Declaring


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_size": 0}, "max_size=0: use 1 to 1,000"),
        ({"max_size": 1001}, "max_size=1001"),
        ({"max_wait": -1}, "max_wait=-1"),
        ({"max_wait": 61}, "from 0 to 60 s"),
        ({"batch": 3}, "batch_job has no option batch"),
    ],
)
def test_an_option_that_cannot_be_is_refused(app: Backstay, options: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidOption, ConfigurationError), match=message):

        @app.batch_job("embed", **options)
        async def embed(payloads: list[int]) -> list[int]:
            return payloads


def test_a_batch_handler_takes_a_list_and_its_own_context(app: Backstay) -> None:
    with pytest.raises(ConfigurationError, match=r"takes a list: write payloads: list\[Text\]"):

        @app.batch_job("one")
        async def one(payload: Text) -> list[int]:
            return []

    with pytest.raises(ConfigurationError, match="of a batch gets a BatchContext, not a Context"):

        @app.batch_job("two")
        async def two(payloads: list[int], ctx: Context) -> list[int]:
            return []

    with pytest.raises(ConfigurationError, match="gets a Context, not a BatchContext"):

        @app.job("three")
        async def three(payload: int, ctx: BatchContext) -> None: ...


async def test_what_belongs_to_one_job_is_refused_on_the_batch(app: Backstay) -> None:
    @app.batch_job("embed", max_size=1, max_attempts=1)
    async def embed(payloads: list[int], ctx: BatchContext) -> list[int]:
        ctx.transaction()
        return payloads

    async with app, app.worker():
        with pytest.raises(JobFailed, match=r"of which job\? write ctx.item\(i\).transaction"):
            await (await embed.submit(1)).result(timeout=10)


def test_one_attempt_alone_is_taken_with_a_warning(app: Backstay, caplog: pytest.LogCaptureFixture) -> None:
    @app.batch_job("embed", max_attempts=1)
    async def embed(payloads: list[int]) -> list[int]:
        return payloads

    assert "max_attempts=1" in caplog.text
