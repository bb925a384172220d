"""A lifespan: what it yields is `ctx.state` wherever handlers run, it starts before the first claim and ends once."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from backstay import (
    Backstay,
    BatchContext,
    BlockingContext,
    ConfigurationError,
    Context,
    JobFailed,
    LifespanFailed,
    Status,
    lifespan,
    sync,
)
from backstay.testing import drain, inline
from tests.support import surrounded_jobs
from tests.support.surrounded_jobs import noted


class Said(list[str]):
    """What a lifespan and its handlers have done, in order."""


@pytest.fixture
def said() -> Said:
    return Said()


def with_a_lifespan(app: Backstay, said: Said) -> Backstay:
    @app.lifespan
    async def resources() -> AsyncIterator[Said]:
        said.append("begin")
        yield said
        said.append("end")

    @app.job("work", max_attempts=1)
    async def work(payload: int, ctx: Context[Said]) -> int:
        ctx.state.append(f"job {payload}")
        return payload

    return app


async def test_it_begins_before_the_first_job_and_ends_after_the_last(app: Backstay, said: Said) -> None:
    with_a_lifespan(app, said)
    async with app:
        jobs = [await app.submit("work", number) for number in range(2)]
        assert said == [], "only workers run it"
        async with app.worker(concurrency=1):
            for job in jobs:
                await job.result(timeout=30)
        assert said == ["begin", "job 0", "job 1", "end"]


async def test_workers_of_one_process_share_it(app: Backstay, said: Said) -> None:
    with_a_lifespan(app, said)
    async with app:
        async with app.worker(), app.worker():
            await (await app.submit("work", 1)).result(timeout=30)
        assert said == ["begin", "job 1", "end"]
        async with app.worker():
            pass
        assert said[3:] == ["begin", "end"], "what begins to run handlers again starts it again"


async def test_two_workers_that_start_together_wait_for_one_start(app: Backstay) -> None:
    starts, go_on = [], asyncio.Event()

    @app.lifespan
    async def slow() -> AsyncIterator[int]:
        starts.append(1)
        await go_on.wait()
        yield len(starts)

    @app.job("work")
    async def work(payload: None, ctx: Context[int]) -> int:
        return ctx.state

    async with app:
        starting = [asyncio.ensure_future(app.worker().__aenter__()) for _ in range(2)]
        await asyncio.sleep(0)
        go_on.set()
        workers = await asyncio.gather(*starting)
        assert await (await work.submit(None)).result(timeout=30) == 1
        await asyncio.gather(*(each.stop() for each in workers))
    assert starts == [1]


async def test_a_plain_generator_begins_and_ends_in_one_thread_of_its_own(app: Backstay) -> None:
    threads = []

    @app.lifespan
    def model() -> Iterator[str]:
        threads.append(threading.current_thread())
        yield "model"
        threads.append(threading.current_thread())

    @app.job("in_a_thread")
    def in_a_thread(payload: None, ctx: BlockingContext[str]) -> str:
        return ctx.state

    @app.batch_job("many", max_wait=0)
    async def many(payloads: list[int], ctx: BatchContext[str]) -> list[str]:
        return [ctx.item(0).state + ctx.state for _ in payloads]

    async with app, app.worker():
        assert await (await in_a_thread.submit(None)).result(timeout=30) == "model"
        assert await (await many.submit(1)).result(timeout=30) == "modelmodel"
    assert threads[0] is threads[1] is not threading.current_thread()


async def test_start_and_end_are_in_one_task(app: Backstay) -> None:
    tasks = []

    @app.lifespan
    @asynccontextmanager
    async def resources() -> AsyncIterator[None]:
        tasks.append(asyncio.current_task())
        yield
        tasks.append(asyncio.current_task())

    @app.job("work")
    async def work(payload: None) -> None: ...

    async with app:
        worker = await app.worker().__aenter__()
        await asyncio.create_task(worker.stop())  # from another task than the one that started it
    assert tasks[0] is tasks[1]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_start_that_fails_is_an_error_and_nothing_is_claimed(
    app: Backstay, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    if kind == "async":

        @app.lifespan
        async def broken() -> AsyncIterator[None]:
            raise OSError("no database")
            yield
    else:

        @app.lifespan
        def broken_plainly() -> Iterator[None]:
            raise OSError("no database")
            yield

    @app.job("work")
    async def work(payload: None) -> None: ...

    async with app:
        job = await work.submit(None)
        with pytest.raises(LifespanFailed, match="raised OSError: no database; no job is run without it"):
            async with app.worker():
                pytest.fail("it started")
        assert (await job.record()).status is Status.PENDING
        assert await app.workers() == []
    assert any(record.exc_info for record in caplog.records), "the traceback is in the log"


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_start_that_is_cancelled_takes_back_what_it_began(app: Backstay, kind: str) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    if kind == "async":

        @app.lifespan
        async def slow() -> AsyncIterator[None]:
            begun.set()
            try:
                await asyncio.Event().wait()
                yield
            finally:
                ended.set()
    else:

        @app.lifespan
        def slow_plainly() -> Iterator[None]:
            begun.set()
            go_on.wait()
            yield
            ended.set()

    @app.job("work")
    async def work(payload: None) -> None: ...

    async with app:
        starting = asyncio.ensure_future(app.worker().__aenter__())
        await asyncio.to_thread(begun.wait)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        go_on.set()
        assert await asyncio.to_thread(ended.wait, 30)


async def test_a_start_that_exits_ends_neither_the_loop_nor_the_claim(app: Backstay) -> None:
    @app.lifespan
    async def leaves() -> AsyncIterator[None]:
        sys.exit(3)
        yield

    @app.job("work")
    async def work(payload: None) -> None: ...

    async with app:
        with pytest.raises(LifespanFailed, match="SystemExit"):
            await app.worker().__aenter__()


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_an_end_that_hangs_or_raises_does_not_keep_the_worker(
    app: Backstay, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lifespan, "LIFESPAN_END_SECONDS", 0.05)
    hang = threading.Event()
    if kind == "async":

        @app.lifespan
        async def hangs() -> AsyncIterator[None]:
            yield
            await asyncio.Event().wait()
    else:

        @app.lifespan
        def hangs_plainly() -> Iterator[None]:
            yield
            hang.wait()

    @app.job("work")
    async def work(payload: None) -> str:
        return "done"

    async with app:
        async with app.worker():
            assert await (await work.submit(None)).result(timeout=30) == "done"
        assert "has not ended within 0.05 s" in caplog.text
    hang.set()


async def test_an_end_that_raises_is_logged(app: Backstay, caplog: pytest.LogCaptureFixture) -> None:
    @app.lifespan
    async def breaks() -> AsyncIterator[None]:
        yield
        raise OSError("already closed")

    @app.job("work")
    async def work(payload: None) -> None: ...

    async with app, app.worker():
        pass
    assert "the end of the lifespan" in caplog.text and "already closed" in caplog.text


async def test_without_one_ctx_state_says_what_to_write(app: Backstay) -> None:
    @app.job("work", max_attempts=1)
    async def work(payload: None, ctx: Context) -> object:
        return ctx.state

    async with app, app.worker():
        with pytest.raises(JobFailed, match=r"register it with @app\.lifespan"):
            await (await work.submit(None)).result(timeout=30)


def test_what_cannot_be_a_lifespan_is_refused_at_once(app: Backstay) -> None:
    async def no_yield() -> None: ...

    async def needs(url: str) -> AsyncIterator[None]:
        yield

    async def good() -> AsyncIterator[None]:
        yield

    for wrong, why in [(no_yield, "has no yield"), (needs, "takes url"), (5, "a function with a yield")]:
        with pytest.raises(ConfigurationError, match=why):
            app.lifespan(wrong)  # type: ignore[type-var]
    app.lifespan(good)
    with pytest.raises(ConfigurationError, match="already has the lifespan"):
        app.lifespan(good)


# Without a worker


async def test_drain_inline_and_call_run_it_too(app: Backstay, said: Said) -> None:
    with_a_lifespan(app, said)
    async with app:
        await app.submit("work", 1)
        await drain(app)
    assert said == ["begin", "job 1", "end"]
    said.clear()
    async with inline(app):
        await app.submit("work", 2)
        await app.submit("work", 3)
    assert said == ["begin", "job 2", "job 3", "end"], "once for the whole block"
    said.clear()
    assert await app.handlers["work"].call(4) == 4
    assert said == ["begin", "job 4", "end"]


def test_the_blocking_api_has_it_too(tmp_path: Path) -> None:
    said = []
    app = sync.Backstay(f"sqlite:///{tmp_path}/jobs.db")

    @app.lifespan
    def model() -> Iterator[str]:
        said.append("begin")
        yield "model"
        said.append("end")

    @app.job("work")
    def work(payload: str, ctx: BlockingContext[str]) -> str:
        return ctx.state + payload

    with app, app.worker():
        assert work.submit(" a").result(timeout=30) == "model a"
    assert said == ["begin", "end"]
    assert work.call(" b") == "model b"
    with inline(app):
        assert work.submit(" c").result() == "model c"
    assert said == ["begin", "end"] * 3


# In processes


@pytest.mark.parametrize("which", ["asynchronous", "plain"])
async def test_each_process_of_a_handler_has_its_own_for_all_its_jobs(
    make_app: Callable[..., Backstay], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    monkeypatch.setenv(surrounded_jobs.NOTES, str(tmp_path / "notes"))
    app = surrounded_jobs.at(make_app, getattr(surrounded_jobs, which))
    async with app:
        async with app.worker(concurrency=1):
            seen = [await (await app.submit("ask", "x")).result(timeout=60) for _ in range(2)]
        children = {each["own"] for each in seen}
        assert len(children) == 1 and os.getpid() not in children, "one warm process"
        assert [each["pid"] for each in seen] == [*children, *children]
        assert [each["calls"] for each in seen] == [1, 2], "the second job found what the first had left in it"
        expected = sorted([str(os.getpid()), *map(str, children)])
        assert sorted(line.split()[1] for line in noted("begin")) == expected
        assert sorted(line.split()[1] for line in noted("end")) == expected, "the child ended its own"


async def test_a_process_whose_lifespan_fails_says_so_at_its_job(
    make_app: Callable[..., Backstay], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = surrounded_jobs.at(make_app, surrounded_jobs.plain)
    monkeypatch.setenv(surrounded_jobs.NOTES, str(tmp_path / "notes"))
    async with app, app.worker():
        monkeypatch.setenv(surrounded_jobs.NOTES, "/nowhere/at/all")  # for the child
        job = await app.submit("ask", "x", max_attempts=1)
        with pytest.raises(JobFailed, match="LifespanFailed: the lifespan model raised FileNotFoundError"):
            await job.result(timeout=60)
        monkeypatch.setenv(surrounded_jobs.NOTES, str(tmp_path / "notes"))


_PROGRAM = """
import asyncio
from backstay import Backstay
app = Backstay("sqlite:///jobs.db")

@app.lifespan
async def resources():
    print("begin", flush=True)
    yield "state"
    print("end", flush=True)

@app.job("work")
async def work(payload: float, ctx) -> str:
    print("job", flush=True)
    await asyncio.sleep(payload)
    return ctx.state
"""


def test_sigterm_to_the_command_runs_the_end_after_the_last_job(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(_PROGRAM)
    command = [sys.executable, "-m", "backstay", "--app", "jobs:app"]
    subprocess.run([*command, "submit", "work", "0.3"], cwd=tmp_path, check=True, capture_output=True)
    with subprocess.Popen(
        [*command, "worker"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as worker:
        assert worker.stdout is not None
        assert [worker.stdout.readline() for _ in range(2)] == ["begin\n", "job\n"]
        worker.terminate()
        assert worker.stdout.read() == "end\n"
        assert worker.wait(30) == 0


def test_the_command_says_why_it_does_not_start_and_exits(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(_PROGRAM.replace('print("begin", flush=True)', 'raise OSError("no database")'))
    ended = subprocess.run(
        [sys.executable, "-m", "backstay", "--app", "jobs:app", "worker"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert "the lifespan resources raised OSError: no database" in ended.stderr
    assert 'File "' in ended.stderr, "the traceback of the app's own code"


def test_logs_name_the_lifespan(caplog: pytest.LogCaptureFixture) -> None:
    made: Any = lifespan.Lifespan(surrounded_jobs.connections)
    with caplog.at_level(logging.ERROR):
        assert "connections" in str(lifespan.failed(made, OSError("x")))
