"""No job can touch another: what a handler leaves behind, in a process, a thread or the event loop, reaches no one."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backstay import (
    Backstay,
    BatchContext,
    BlockingBatchContext,
    BlockingContext,
    ClaimLost,
    Context,
    JobFailed,
    ResultRow,
    sync,
)
from backstay.worker import process
from backstay.worker.process import Conversation
from tests.support import isolation_jobs
from tests.support.eventually import eventually

SECONDS = 60.0


async def ended(app: Backstay, job_type: str, payload: Any = None) -> Any:
    handle = await app.submit(job_type, payload)
    with contextlib.suppress(JobFailed):
        await handle.result(timeout=SECONDS)
    return await app.get(handle.job_id)


def runs(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


async def gone(pids: list[int]) -> None:
    async def is_so() -> bool:
        return not any(map(runs, pids))

    await eventually(is_so, 30)


async def said_pids(app: Backstay, job_id: str) -> list[int]:
    """Of the child and its pool, once it works."""
    pids: list[int] = []

    async def works() -> bool:
        for entry in (await app.get(job_id)).logs["entries"]:
            pids.extend(map(int, entry["message"].split()))
        return bool(pids)

    await eventually(works, SECONDS)
    return pids


# In a process


async def test_a_handler_knows_its_job_by_its_context_and_never_by_the_environment(
    make_app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("JOB_ID", "BACKSTAY_JOB_ID"):
        monkeypatch.setenv(name, "another job")
    app = isolation_jobs.bind(make_app)
    async with app, app.worker(concurrency=1):
        for payload in ("first", "second"):  # the same process may run both
            job = await ended(app, "tells_its_environment", payload)
            assert (job.result["job_id"], job.result["payload"]) == (job.job_id, payload)
            assert not [name for name, value in job.result["environment"].items() if job.job_id in value]


async def test_a_thread_that_a_job_left_behind_cannot_touch_the_next_job(make_app: Any) -> None:
    app = isolation_jobs.bind(make_app)
    async with app, app.worker(concurrency=1):
        first = await ended(app, "leaves_a_thread_with_its_context", "first")
        assert first.status == "completed", first.last_error
        second = await ended(app, "leaves_a_thread_with_its_context", "second")
    assert (second.status, second.result) == ("completed", "its own")
    assert not second.metrics and not second.artifacts


async def test_a_handler_that_forks_and_returns_twice_answers_for_its_own_job_only(make_app: Any) -> None:
    app = isolation_jobs.bind(make_app)
    async with app, app.worker(concurrency=2):
        handles = [await app.submit("returns_twice", number) for number in range(8)]
        assert [await handle.result(timeout=SECONDS) for handle in handles] == list(range(8))


async def test_a_forked_copy_of_a_handler_cannot_use_its_context(make_app: Any, tmp_path: Path) -> None:
    app = isolation_jobs.bind(make_app)
    async with app, app.worker():
        job = await ended(app, "forks_with_its_context", str(tmp_path / "said"))
    assert job.status == "completed", job.last_error
    assert "a forked process cannot use the context" in (tmp_path / "said").read_text()


async def test_threads_of_a_handler_that_ask_at_the_same_time_get_their_own_answers(make_app: Any) -> None:
    app = isolation_jobs.bind(make_app)
    async with app, app.worker():
        assert (await ended(app, "asks_from_threads", 20)).result == list(range(20))


class FakeChild:
    """Says what it is given, and keeps what it is told."""

    def __init__(self, says: Callable[[str], list[tuple[Any, ...] | None]]) -> None:
        self.told: list[tuple[Any, ...]] = []
        self._says = says
        self._waiting: list[tuple[Any, ...] | None] = []

    async def send(self, message: tuple[Any, ...]) -> None:
        if not self.told:
            self._waiting = self._says(message[1])
        self.told.append(message)

    async def receive(self) -> tuple[Any, ...] | None:
        return self._waiting.pop(0)


async def test_a_message_that_names_another_call_is_refused_and_its_process_not_used_again(app: Backstay) -> None:
    @app.job("any")
    async def any_(payload: None, ctx: Context) -> str:
        channel: Any = ctx._channel
        job = (ctx.job_id, ctx.attempt)
        child = FakeChild(
            lambda call: [
                ("say", "another", None, *job, "metric", "stolen", "1.0"),
                ("say", "another", 7, *job, "step", "name"),
                ("say", call, None, ctx.job_id, ctx.attempt + 1, "metric", "stolen", "1.0"),
                ("answer", "another", ("completed", '"stolen"')),
                ("answer", call, ("completed", '"own"')),
                ("done", call, None),
            ]
        )
        conversation = Conversation("job", [channel], lambda *_: None)
        assert await conversation.hold(child) == [("completed", '"own"')]
        assert conversation.left == process.OTHER_CALL
        [_, (_, call, question, reply)] = child.told
        assert (call, question, reply["type"]) == ("another", 7, "ClaimLost")
        return "seen"

    async with app, app.worker():
        job = await ended(app, "any")
    assert (job.status, job.result, job.metrics) == ("completed", "seen", {}), job.last_error


async def test_a_message_that_is_nested_without_end_fails_its_job_and_frees_its_slot(make_app: Any) -> None:
    app = isolation_jobs.bind(make_app)
    async with app, app.worker(concurrency=1):
        rubbish = await ended(app, "writes_to_its_pipe", 100_000)
        after = await ended(app, "writes_to_its_pipe", 0)
    assert rubbish.status == "failed" and rubbish.last_error.startswith("ProcessDied")
    assert after.status == "failed"  # an empty message is none either, and it ran


async def test_a_process_in_which_a_job_left_something_is_not_used_again(
    make_app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    left = [
        "nothing",
        "a thread",
        "a Timer",
        "an alarm",
        "an interval timer",
        "a handler of SIGUSR1",
        "blocked signals",
        "a process",
        "nothing",
        "nothing",
    ]
    app = isolation_jobs.bind(make_app)
    async with app, app.worker(concurrency=1):
        pids = [(await ended(app, "leaves", each)).result for each in left]
        assert pids[0] == pids[1] and pids[-2] == pids[-1]  # used again, because nothing was left
        assert len(set(pids)) == len(left) - 2
        await gone(pids[:-2])
    assert "leaves returned and left a thread (stays) behind: its process is not used again" in caplog.text


async def test_processes_that_a_handler_started_do_not_outlive_it(make_app: Any) -> None:
    app = isolation_jobs.bind(make_app)
    async with app, app.worker():
        job = await ended(app, "starts_daemons")
        assert job.status == "completed", job.last_error
        assert [pid for pid in job.result if runs(pid)] == []


# Multiprocessing in handlers


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
async def test_pools_work_in_a_handler_and_the_process_is_used_again(
    make_app: Any, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = isolation_jobs.bind(make_app)
    async with app, app.worker(concurrency=1):
        pids = set()
        for _ in range(2):
            job = await ended(app, "squares", method)
            assert job.status == "completed", job.last_error
            first, second, pid = job.result
            assert first == second == [0, 1, 4, 9]
            pids.add(pid)
    assert len(pids) == 1, caplog.text


async def test_a_pool_in_a_handler_can_be_terminated_every_time(make_app: Any) -> None:
    app = isolation_jobs.bind(make_app)
    async with app, app.worker():
        job = await ended(app, "terminates_pools", 20)
    assert job.status == "completed", job.last_error


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
async def test_a_pool_dies_with_a_handler_that_is_killed_at_its_timeout(make_app: Any, method: str) -> None:
    app = isolation_jobs.bind(make_app)
    async with app, app.worker() as worker:
        handle = await app.submit("pools_and_hangs", method)
        pids = await said_pids(app, handle.job_id)
        assert all(map(runs, pids))
        worker._runs.running[handle.job_id].deadline = 0
        worker._executor.deadlines._look()
        with pytest.raises(JobFailed, match="JobTimeout"):
            await handle.result(timeout=SECONDS)
        await gone(pids)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there are keepers on Linux only")
@pytest.mark.parametrize("victims", ["keeper", "keeper and child"])
@pytest.mark.parametrize(("job_type", "payload"), [("pools_and_hangs", "fork"), ("starts_programs_and_hangs", None)])
async def test_what_a_handler_started_dies_though_its_keeper_is_killed(
    make_app: Any, victims: str, job_type: str, payload: Any
) -> None:
    """By someone who kills all processes of a name, or by the kernel."""
    app = isolation_jobs.bind(make_app)
    async with app, app.worker():
        handle = await app.submit(job_type, payload)
        child, *started = await said_pids(app, handle.job_id)
        keeper = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
        if victims == "keeper and child":
            os.kill(keeper, signal.SIGSTOP)  # so that it does nothing about the other one
            os.kill(child, signal.SIGKILL)
        os.kill(keeper, signal.SIGKILL)
        with pytest.raises(JobFailed, match="ProcessDied"):
            await handle.result(timeout=SECONDS)
        await gone([child, *started])


async def test_a_pool_works_in_a_thread_of_a_busy_worker(app: Backstay) -> None:
    """It forks while other threads of the worker hold locks."""

    @app.job("squares_in_a_thread", max_attempts=1)
    def squares(payload: None) -> list[int]:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return pool.map(isolation_jobs.square, range(4))

    @app.job("noise")
    async def noise(payload: None, ctx: Context) -> None:
        ctx.log.info("busy")

    async with app, app.worker(concurrency=8):
        for _ in range(5):
            for _ in range(10):
                await noise.submit(None)
            handles = [await squares.submit(None) for _ in range(4)]
            assert [await handle.result(timeout=SECONDS) for handle in handles] == [[0, 1, 4, 9]] * 4


PROGRAM = """
import asyncio, sys
from backstay import Backstay
from tests.support.isolation_jobs import pool_and_hang

app = Backstay("sqlite:///jobs.db")

@app.job("hangs", isolation="process")
def hangs(payload: None) -> None:
    pool_and_hang(lambda pids: print(*pids, flush=True), "fork")

async def main() -> None:
    async with app, app.worker():
        await hangs.submit(None)
        await asyncio.Event().wait()

if __name__ == "__main__":
    asyncio.run(main())
"""


async def test_a_pool_dies_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        "program.py",
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=asyncio.subprocess.PIPE,
    )
    assert worker.stdout is not None
    pids = [int(pid) for pid in (await worker.stdout.readline()).split()]
    assert len(pids) == 3 and all(map(runs, pids))
    worker.kill()
    await worker.wait()
    await gone(pids)


# Results


async def test_a_result_over_the_limit_from_a_process_is_final_and_says_so(
    make_app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MESSAGE_BYTES_MAX", isolation_jobs.SMALL_MESSAGE_BYTES)
    app = isolation_jobs.bind(make_app)
    async with app, app.worker():
        job = await ended(app, "returns_bytes", 2 * isolation_jobs.SMALL_MESSAGE_BYTES)
        assert (job.status, job.failures, job.errors[0]["type"]) == ("failed", 1, "ResultTooLarge")
        assert job.errors[0]["message"].startswith(f"the result has {2 * isolation_jobs.SMALL_MESSAGE_BYTES + 2:,} ")


async def test_results_of_a_batch_in_a_process_may_be_larger_together_than_a_message(
    make_app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MESSAGE_BYTES_MAX", isolation_jobs.SMALL_MESSAGE_BYTES)
    app = isolation_jobs.bind(make_app)
    size = isolation_jobs.SMALL_RESULT_BYTES // 2 - 1  # each character is escaped, and escaped again on its way
    async with app, app.worker():
        handles = [await app.submit("return_bytes", size) for _ in range(7)]
        handles.append(await app.submit("return_bytes", size + 1))
        for handle in handles[:-1]:
            assert len(await handle.result(timeout=SECONDS)) == size
        with pytest.raises(JobFailed, match="ResultTooLarge"):
            await handles[-1].result(timeout=SECONDS)


# In the event loop and in threads


class Point(ResultRow, table="isolation_point", key="number"):
    number: int


def uses(ctx: Any) -> list[Callable[[], Any]]:
    """All that a context can do."""

    def transaction() -> None:
        with ctx.transaction() as tx:
            tx.execute("CREATE TABLE stolen (x)")

    return [
        lambda: ctx.progress(0.5),
        lambda: ctx.metric("late", 1),
        transaction,
        lambda: ctx.once("late", lambda: "late"),
        lambda: ctx.artifact("late.txt", "late"),
        lambda: ctx.submit("any", None),
        lambda: ctx.submit("any", None, at_once=True),
        lambda: ctx.children,
        lambda: ctx.wait_for_children(),
        lambda: ctx.upstream(),
        lambda: ctx.results(Point).put([Point(number=1)]),
        lambda: ctx.results(Point).page(ctx.job_id),
    ]


class Late:
    """Uses a context when it is told to: in a task or a thread that a handler left behind."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.go = threading.Event()
        self.done = threading.Event()

    def later(self, ctx: Any) -> None:
        self.go.wait(SECONDS)
        for use in uses(ctx):
            self._note(use)
        self.said.append(f"cancelled: {ctx.cancelled}")
        self.done.set()

    def _note(self, use: Callable[[], Any]) -> None:
        try:
            use()
            self.said.append("did it")
        except BaseException as error:
            self.said.append(type(error).__name__)

    async def later_in_a_task(self, ctx: Any) -> None:
        await asyncio.to_thread(self.go.wait, SECONDS)
        for use in uses(ctx):
            try:
                found = use()
                if asyncio.iscoroutine(found):
                    await found
                self.said.append("did it")
            except BaseException as error:
                self.said.append(type(error).__name__)
        self.said.append(f"cancelled: {ctx.cancelled}")
        self.done.set()

    async def outcome(self) -> list[str]:
        self.go.set()
        assert await asyncio.to_thread(self.done.wait, SECONDS)
        return self.said


REFUSED = [*[ClaimLost.__name__] * len(uses(None)), "cancelled: True"]


async def test_a_context_is_dead_once_its_handler_has_returned(app: Backstay) -> None:
    in_task, in_thread = Late(), Late()
    tasks = []

    @app.job("async")
    async def loop(payload: None, ctx: Context) -> str:
        tasks.append(asyncio.create_task(in_task.later_in_a_task(ctx)))
        return "done"

    @app.job("thread")
    def thread(payload: None, ctx: BlockingContext) -> str:
        threading.Thread(target=in_thread.later, args=(ctx,), daemon=True).start()
        return "done"

    @app.job("any")
    async def any_(payload: None) -> None: ...

    async with app:
        async with app.worker():
            before = [await ended(app, name) for name in ("async", "thread")]
            assert await in_task.outcome() == REFUSED
        assert await in_thread.outcome() == REFUSED  # the worker, and what it could have hopped to, are gone
        after = [await app.get(job.job_id) for job in before]
        for job in after:
            assert (job.status, job.result, job.metrics, job.artifacts) == ("completed", "done", {}, [])
        assert [await app.children(job.job_id) for job in after] == [[], []]


@pytest.mark.parametrize("isolation", ["async", "thread"])
async def test_a_context_of_a_batch_is_dead_once_its_call_has_returned_even_if_the_jobs_are_called_again(
    app: Backstay, isolation: str
) -> None:
    late = Late()
    calls: list[int] = []
    tasks = []

    async def in_loop(payloads: list[int], ctx: BatchContext) -> list[str]:
        calls.append(len(payloads))
        if len(payloads) > 1:
            tasks.append(asyncio.create_task(late.later_in_a_task(ctx.item(0))))
            raise ValueError("not together")
        await late.outcome()
        return ["done"]

    def in_thread(payloads: list[int], ctx: BlockingBatchContext) -> list[str]:
        calls.append(len(payloads))
        if len(payloads) > 1:
            threading.Thread(target=late.later, args=(ctx.item(0),), daemon=True).start()
            raise ValueError("not together")
        late.go.set()
        assert late.done.wait(SECONDS)
        return ["done"]

    app.batch_job("together", max_size=2, max_wait=30)(in_loop if isolation == "async" else in_thread)
    async with app, app.worker():
        handles = [await app.submit("together", number) for number in range(2)]
        assert [await handle.result(timeout=SECONDS) for handle in handles] == ["done", "done"]
        jobs = [await app.get(handle.job_id) for handle in handles]
    assert calls == [2, 1, 1]
    refused = [*REFUSED]
    refused[8] = "InvalidOption"  # a batch job cannot wait for children at all
    assert late.said == refused
    assert [(job.metrics, job.artifacts) for job in jobs] == [({}, [])] * 2


# The main module

UNGUARDED = """
import asyncio
from backstay import Backstay, JobFailed

app = Backstay("sqlite:///jobs.db")

@app.job("apart", isolation="process", max_attempts=1)
def apart(payload: None) -> None: ...

async def main() -> None:
    async with app, app.worker():
        handle = await apart.submit(None)
        try:
            await handle.result(timeout=60)
        except JobFailed as error:
            print(error)

try:
    asyncio.run(main())
except BaseException as error:
    print("swallowed", error)
"""


def test_a_main_module_without_a_guard_is_named_in_the_jobs_error_and_the_workers_log(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import logging; logging.basicConfig()" + UNGUARDED)
    ran = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True
    )
    assert "ChildNotStarted: importing the main module starts the program again" in ran.stdout
    assert 'under `if __name__ == "__main__":`' in ran.stdout
    assert "a process for apart could not be started: importing the main module starts the program" in ran.stderr
    assert "swallowed" not in ran.stdout
    with sync.Backstay(f"sqlite:///{tmp_path}/jobs.db") as app:
        assert len(app.find()) == 1
