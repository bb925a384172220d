"""Running: each isolation, what a context offers, and how handlers are stopped."""

import asyncio
import contextlib
import gc
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from backstay import Backstay, BlockingContext, Cancel, Context, JobCancelled, JobFailed, Status, StoreBusy
from backstay.worker import worker
from backstay.worker.maintenance import Sweeper
from backstay.worker.run import Run
from tests.support import process_jobs
from tests.support.eventually import eventually


async def ended(app: Backstay, job_id: str) -> Any:
    with contextlib.suppress(JobFailed, JobCancelled):
        await app.result(job_id, timeout=20)
    return await app.get(job_id)


async def test_a_worker_inside_an_application_logs_a_line_of_figures_for_each_minute_in_which_jobs_ended(
    app: Backstay, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker, "MINUTE_SECONDS", 0.01)
    caplog.set_level("INFO", logger="backstay.worker")

    @app.job("work")
    async def work(payload: Any) -> None: ...

    async def told() -> bool:
        return "in the last minute, 1 attempt ended and 0 of them failed; average duration" in caplog.text

    async with app, app.worker():
        await (await work.submit(None)).result(timeout=10)
        await eventually(told)


def test_a_minute_in_which_nothing_ended_has_no_line() -> None:
    before = worker.Figures(ended=0, failed=0, busy_micros=0)
    busy = worker.Figures(ended=1500, failed=2, busy_micros=3_000_000)
    assert worker.minute(before, busy, 1) == (
        "in the last minute, 1,500 attempts ended and 2 of them failed; average duration 2 ms; 1 job running now"
    )
    assert worker.minute(busy, busy, 1) is None


async def test_the_return_value_is_the_result_and_the_record_tells_how_it_went(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: dict[str, int], ctx: Context) -> dict[str, int]:
        assert (ctx.job_id, ctx.attempt, ctx.job.payload) == (handle.job_id, 1, {"n": 2})
        return {"n": payload["n"] * 2}

    async with app:
        handle = await work.submit({"n": 2})
        async with app.worker():
            assert await handle.result(timeout=10) == {"n": 4}
        job = await app.get(handle.job_id)
    assert (job.status, job.result, job.progress, job.stage) == ("completed", {"n": 4}, 1.0, "complete")
    assert job.attempt == 1 and job.worker_id and job.completed_at and job.started_at
    assert [(h.version, h.event, h.attempt) for h in job.history] == [
        (1, "submit", 0),
        (2, "claim", 1),
        (3, "complete", 1),
    ]
    assert job.history[1].by == job.worker_id == job.history[2].by


async def test_jobs_that_have_ended_are_freed_without_the_garbage_collector(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int, ctx: Context) -> None:
        ctx.log.info("%d", payload)

    @app.job("thread")
    def in_thread(payload: int) -> None: ...

    @app.job("last")
    async def last(payload: int) -> None: ...

    gc.collect()
    gc.disable()
    try:
        async with app, app.worker():
            for handle in [await job.submit(number) for job in (work, in_thread) for number in range(3)]:
                await handle.result(timeout=10)
            await (await last.submit(0)).result(timeout=10)  # the worker still has in hand what it settled last

            async def are_freed() -> bool:  # a result can be read a moment before its run is let go
                return {each.job.job_type for each in gc.get_objects() if isinstance(each, Run)} <= {"last"}

            await eventually(are_freed, seconds=30)
    finally:
        gc.enable()


async def test_a_plain_function_runs_in_a_thread_and_its_stdlib_log_lines_are_kept(app: Backstay) -> None:
    @app.job("work")
    def work(payload: int, ctx: BlockingContext) -> str:
        ctx.log.info("half %s", "way")
        logging.getLogger("some.library").warning("careful")
        ctx.metric("tokens", 12)
        return threading.current_thread().name

    async with app, app.worker():
        handle = await work.submit(1)
        assert "backstay-job" in await handle.result(timeout=10)
        job = await app.get(handle.job_id)
    assert [(e["level"], e["message"]) for e in job.logs["entries"]] == [("INFO", "half way"), ("WARNING", "careful")]
    text = Path(job.logs["log_location"].removeprefix("file://")).read_text()
    assert "half way" in text and "careful" in text
    assert job.metrics == {"tokens": 12.0}


async def test_log_lines_of_jobs_that_run_together_do_not_mix(app: Backstay) -> None:
    both = asyncio.Barrier(2)

    @app.job("work")
    async def work(payload: int, ctx: Context) -> None:
        await both.wait()
        logging.getLogger("lib").warning("from %d", payload)
        await both.wait()

    async with app, app.worker():
        handles = [await work.submit(n) for n in (1, 2)]
        jobs = [await ended(app, handle.job_id) for handle in handles]
    assert [[e["message"] for e in job.logs["entries"]] for job in jobs] == [["from 1"], ["from 2"]]


async def test_only_the_last_fifty_log_lines_stay_on_the_job_and_the_file_has_all(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int, ctx: Context) -> None:
        for n in range(120):
            ctx.log.info("line %d", n)

    async with app, app.worker():
        job = await ended(app, (await work.submit(1)).job_id)
    assert [e["message"] for e in job.logs["entries"]] == [f"line {n}" for n in range(70, 120)]
    lines = Path(job.logs["log_location"].removeprefix("file://")).read_text().splitlines()
    assert len(lines) == 120
    assert os.stat(job.logs["log_location"].removeprefix("file://")).st_mode & 0o077 == 0


async def test_progress_is_live_at_once_in_the_same_process_and_durable_for_others(
    app: Backstay, make_app: Any
) -> None:
    said, go_on = asyncio.Event(), asyncio.Event()

    @app.job("work")
    async def work(payload: int, ctx: Context) -> None:
        await ctx.progress(0.5, stage="writing")
        said.set()
        await go_on.wait()

    async with app, make_app() as other, app.worker():
        handle = await work.submit(1)
        await said.wait()
        job = await app.get(handle.job_id)
        assert (job.status, job.progress, job.stage) == ("processing", 0.5, "writing")

        async def others_see_it() -> bool:
            return (await other.get(handle.job_id)).stage == "writing"

        await eventually(others_see_it)
        go_on.set()
        assert (await ended(app, handle.job_id)).progress == 1.0


async def test_memory_keeps_nothing_of_jobs_that_have_ended_and_they_are_read_from_the_store(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int, ctx: Context) -> int:
        await ctx.progress(0.5, stage="writing")
        return payload

    async with app, app.worker():
        handles = await app.submit_many([(work, number) for number in range(50)])
        assert [await handle.result(timeout=20) for handle in handles] == list(range(50))

        async def nothing_is_live() -> bool:
            return app._live == {}

        await eventually(nothing_is_live)
        assert {(await app.get(handle.job_id)).stage for handle in handles} == {"complete"}


async def test_a_bookkeeping_write_that_fails_does_not_fail_the_job(
    app: Backstay, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from backstay.engines.sqlite.store import SQLiteStore
    from backstay.errors import StoreError
    from backstay.files.local import LocalFiles

    tried = asyncio.Event()

    async def broken_note(*_: Any) -> None:
        tried.set()
        raise StoreError("no")

    def broken_append(*_: Any) -> None:
        raise OSError("no")

    monkeypatch.setattr(SQLiteStore, "note", broken_note)
    monkeypatch.setattr(LocalFiles, "append", broken_append)

    @app.job("work")
    async def work(payload: int, ctx: Context) -> str:
        await ctx.progress(0.5)
        ctx.log.info("x")
        await tried.wait()
        return "done"

    async with app, app.worker():
        assert await (await work.submit(1)).result(timeout=10) == "done"
    assert [line for line in caplog.messages if "progress" in line], "and the log says so"


async def test_a_step_runs_once_over_attempts_and_the_idempotency_key_stays(app: Backstay) -> None:
    calls: list[str] = []
    keys: set[str] = set()

    @app.job("work", backoff=fast())
    async def work(payload: int, ctx: Context) -> Any:
        keys.add(ctx.idempotency_key)
        charge = await ctx.once("charge", lambda: calls.append("charged") or {"receipt": 1})
        if ctx.attempt == 1:
            raise ValueError("after the charge")
        return charge

    async with app, app.worker():
        assert await (await work.submit(1)).result(timeout=10) == {"receipt": 1}
    assert calls == ["charged"] and len(keys) == 1


def fast() -> Any:
    from backstay import Backoff

    return Backoff(0.01, jitter=0)


async def test_a_blocking_step_runs_once_too(app: Backstay) -> None:
    calls: list[int] = []

    @app.job("work", backoff=fast())
    def work(payload: int, ctx: BlockingContext) -> Any:
        answer = ctx.once("step", lambda: calls.append(1) or "a")
        if ctx.attempt == 1:
            raise ValueError
        return answer

    async with app, app.worker():
        assert await (await work.submit(1)).result(timeout=10) == "a"
    assert calls == [1]


async def test_an_async_handler_that_runs_too_long_is_cancelled_and_counted(app: Backstay) -> None:
    cancelled = asyncio.Event()

    @app.job("work", timeout=0.1, max_attempts=1)
    async def work(payload: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with app, app.worker():
        job = await ended(app, (await work.submit(1)).job_id)
    assert cancelled.is_set()
    assert (job.status, job.failures, job.stage) == ("failed", 1, "error")
    assert job.errors[0]["type"] == "JobTimeout" and "0.1 s" in job.last_error


async def test_a_thread_that_runs_too_long_is_told_its_late_outcome_refused_and_its_slot_kept(app: Backstay) -> None:
    release = threading.Event()
    saw_cancelled = threading.Event()

    @app.job("slow", timeout=0.1, max_attempts=1)
    def slow(payload: int, ctx: BlockingContext) -> str:
        release.wait(20)
        if ctx.cancelled:
            saw_cancelled.set()
        return "too late"

    @app.job("quick")
    async def quick(payload: int) -> str:
        return "ran"

    async with app, app.worker(concurrency=1) as worker:
        handle = await slow.submit(1)
        job = await ended(app, handle.job_id)
        assert (job.status, job.errors[0]["type"]) == ("failed", "JobTimeout")
        waiting = await quick.submit(1)
        assert worker._leases.describe().stuck == (handle.job_id,)
        assert (await app.get(waiting.job_id)).status in (Status.PENDING, Status.PROCESSING)
        release.set()
        assert await waiting.result(timeout=10) == "ran"
        job = await app.get(handle.job_id)
    assert saw_cancelled.is_set()
    assert (job.status, job.result) == ("failed", None)


async def test_a_process_answers_reports_progress_logs_and_steps(make_app: Any) -> None:
    app = process_jobs.bind(make_app)
    async with app, app.worker():
        handle = await app.submit("talk", 5)
        result = await handle.result(timeout=30)
        job = await app.get(handle.job_id)
    assert result["pid"] != os.getpid() and result["step"] == 10
    assert [e["message"] for e in job.logs["entries"]] == ["from the child"]
    assert job.metrics == {"m": 5.0}


async def test_an_async_handler_runs_in_a_process_too(make_app: Any) -> None:
    app = process_jobs.bind(make_app)
    async with app, app.worker():
        assert await (await app.submit("talk_async", 5)).result(timeout=30) == 10


async def test_a_job_that_is_cancelled_while_its_process_starts_leaves_none_behind(make_app: Any) -> None:
    app = process_jobs.bind(make_app)
    async with app, app.worker() as worker:
        handle = await app.submit("talk", 5)
        children = worker._executor.processes._all

        async def has_begun() -> bool:
            return len(children) == 1

        async def has_ended() -> bool:
            return not children

        await eventually(has_begun)
        [child] = children
        await app.cancel(handle.job_id)
        await eventually(has_ended)

        async def is_gone() -> bool:
            return not child.alive

        await eventually(is_gone)


async def test_a_process_that_runs_too_long_is_killed(make_app: Any) -> None:
    app = process_jobs.bind(make_app)
    async with app, app.worker():
        job = await ended(app, (await app.submit("hang", 1)).job_id)
        assert (job.status, job.errors[0]["type"]) == ("failed", "JobTimeout")
        pid = int(job.logs["entries"][0]["message"])

        async def gone() -> bool:
            return not Path(f"/proc/{pid}").exists()

        await eventually(gone)


@pytest.mark.parametrize(
    ("job_type", "word"), [("segfault", "SIGSEGV"), ("exit", "status 7"), ("out_of_memory", "MemoryError")]
)
async def test_a_process_that_dies_is_one_failure_with_its_cause_and_the_next_job_runs(
    make_app: Any, job_type: str, word: str
) -> None:
    app = process_jobs.bind(make_app)
    async with app, app.worker():
        job = await ended(app, (await app.submit(job_type, 1)).job_id)
        assert (job.status, job.failures) == ("failed", 1)
        assert word in job.last_error
        assert (await (await app.submit("talk", 1)).result(timeout=30))["step"] == 2


def with_endless_work(app: Backstay) -> tuple[Any, asyncio.Event, asyncio.Event]:
    """A handler that runs until it is stopped, and the events of its start and its end."""
    started, stopped = asyncio.Event(), asyncio.Event()

    @app.job("work")
    async def work(payload: int) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    return work, started, stopped


async def test_cancelling_a_running_job_stops_its_handler(app: Backstay) -> None:
    work, started, stopped = with_endless_work(app)
    async with app, app.worker():
        handle = await work.submit(1)
        await started.wait()
        await app.cancel(handle.job_id, reason="not needed", by="me")
        async with asyncio.timeout(5):
            await stopped.wait()
        with pytest.raises(JobCancelled, match="not needed"):
            await handle.result(timeout=5)
        job = await app.get(handle.job_id)
    assert job.status == "cancelled" and job.history[-1].by == "me" and job.failures == 0


async def test_a_cancel_by_another_app_on_the_file_stops_the_handler_too(app: Backstay, make_app: Any) -> None:
    work, started, stopped = with_endless_work(app)
    async with app, make_app() as other, app.worker():
        handle = await work.submit(1)
        await started.wait()
        await other.cancel(handle.job_id)
        async with asyncio.timeout(5):
            await stopped.wait()


async def test_a_handler_can_cancel_its_own_job(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> None:
        raise Cancel("the user is gone")

    async with app, app.worker():
        job = await ended(app, (await work.submit(1)).job_id)
    assert (job.status, job.failures, job.history[-1].reason) == ("cancelled", 0, "the user is gone")


async def test_a_large_result_goes_to_a_file_and_comes_back_whole(app: Backstay) -> None:
    large = "x" * 300_000

    @app.job("work")
    async def work(payload: int) -> str:
        return large

    async with app, app.worker():
        handle = await work.submit(1)
        assert await handle.result(timeout=10) == large
        job = await app.get(handle.job_id)
    assert job.result == large and job.row.result is None


async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(make_app: Any) -> None:
    app = make_app(lease=0.3)
    attempts: list[int] = []

    @app.job("work")
    async def work(payload: int, ctx: Context) -> str:
        attempts.append(ctx.attempt)
        time.sleep(1.0)  # noqa: ASYNC251  # the mistake under test: three leases long
        return "done"

    async with app, app.worker():
        assert await (await work.submit(1)).result(timeout=10) == "done"
    assert attempts == [1]


async def test_stopping_a_worker_lets_running_jobs_finish(app: Backstay) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @app.job("work")
    async def work(payload: int) -> str:
        started.set()
        await go_on.wait()
        return "finished"

    async with app:
        handle = await work.submit(1)
        async with app.worker(grace=10) as worker:
            await started.wait()
            stopping = asyncio.create_task(worker.stop())
            await asyncio.sleep(0)
            go_on.set()
            await stopping
        assert (await app.get(handle.job_id)).result == "finished"


async def test_what_does_not_finish_within_the_grace_is_given_back_and_costs_no_failure(app: Backstay) -> None:
    started = asyncio.Event()

    @app.job("work")
    async def work(payload: int) -> None:
        started.set()
        await asyncio.Event().wait()

    async with app:
        running = await work.submit(1)
        async with app.worker(grace=0, concurrency=1):
            await started.wait()
            waiting = await work.submit(2)
        jobs = [await app.get(each.job_id) for each in (running, waiting)]
        assert await app.workers() == []
    assert [job.status for job in jobs] == ["pending", "pending"]
    assert (jobs[0].failures, jobs[0].attempt, jobs[0].stage, jobs[0].progress) == (0, 1, "requeued", 0.0)
    assert jobs[0].history[-1].event == "give_back"


async def test_an_ended_signal_reaches_those_who_wait_without_polling(
    app: Backstay, make_app: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("backstay.ops.wait.RESULT_POLL_SECONDS", 60)

    @app.job("work")
    async def work(payload: int) -> int:
        return payload

    async with make_app() as other, app, app.worker():
        handle = await other.submit("work", 3)
        assert await handle.result(timeout=5) == 3


async def test_a_handler_that_blocks_the_event_loop_is_named_in_a_warning_and_history_stays_in_order(
    app: Backstay, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job("blocks")
    async def blocks(payload: int) -> None:
        time.sleep(2.5)  # noqa: ASYNC251  # the mistake under test

    @app.job("next")
    async def after(payload: int) -> None: ...

    async with app, app.worker():
        first, second = await blocks.submit(1), await after.submit(2)
        await first.result(timeout=10)
        await second.result(timeout=10)

        async def warned() -> bool:
            return "the event loop was blocked" in caplog.text

        await eventually(warned)
        times = [entry.at for entry in (await app.get(second.job_id)).history]
    assert times == sorted(times)


async def test_a_worker_starts_though_someone_still_holds_the_lost_claims(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that died in silence keeps its locks on the server for a while."""

    @app.job("work")
    async def work(payload: int) -> int:
        return payload

    async def busy(*_: object) -> int:
        raise StoreBusy("blocked by other transactions")

    async with app:
        with monkeypatch.context() as patch:
            patch.setattr(Sweeper, "sweep_once", busy)
            worker = app.worker()
            await worker.__aenter__()
        handle = await work.submit(1)
        assert await handle.result(timeout=10) == 1
        await worker.__aexit__(None, None, None)


def test_a_program_that_sets_up_logging_writes_each_line_of_a_process_once(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("""
import asyncio, logging
from backstay import Backstay, BlockingContext

logging.basicConfig(level=logging.INFO, format="%(name)s says %(message)s")  # in the process of the handler, too
app = Backstay("sqlite:///jobs.db")

@app.job("apart", isolation="process")
def apart(payload: None, ctx: BlockingContext) -> None:
    ctx.log.info("hello")

async def main() -> None:
    async with app, app.worker():
        await (await apart.submit(None)).result(timeout=60)

if __name__ == "__main__":
    asyncio.run(main())
""")
    ended = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True
    )
    assert ended.stderr.count("backstay.job says hello") == 1
