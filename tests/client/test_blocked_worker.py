"""A handler that blocks the event loop of a remote worker holds none of the worker's other jobs, and no signal."""

from __future__ import annotations

import asyncio
import select
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backstay import Backoff, Backstay
from backstay.client import Client, RemoteWorker
from backstay.core.records import WorkerRow
from tests.server.far import Served, listening
from tests.support.eventually import eventually

PROCESS = Path(__file__).with_name("blocked_process.py")


class Far:
    """A remote worker on an event loop of its own, which a handler blocks until it is let go."""

    def __init__(self, url: str, concurrency: int) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()
        self.ran: list[str] = []
        self.worker_id = ""
        self._url, self._concurrency = url, concurrency
        self._stop: Callable[[], object] = lambda: None
        self._ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._work()))

    async def _work(self) -> None:
        async with Client(self._url) as client:
            worker = RemoteWorker(client, concurrency=self._concurrency, grace=0.1)
            self.worker_id = worker.worker_id

            @worker.job("blocks")
            async def blocks(payload: int) -> str:
                self.ran.append("blocks")
                self.begun.release()
                self.go.wait(60)
                return "late"

            @worker.job("waits")
            async def waits(payload: int) -> str:
                self.ran.append(f"waits {payload}")
                self.begun.release()
                await asyncio.sleep(0 if self.go.is_set() else 60)
                return "far"

            @worker.job("short")
            async def short(payload: int) -> str:
                self.begun.release()
                await asyncio.sleep(0.7)
                return "far"

            @worker.job("thread")
            def in_thread(payload: int) -> str:
                self.ran.append(f"thread {payload}")
                self.begun.release()
                self.go.wait(60)
                return "thread"

            loop, stop = asyncio.get_running_loop(), asyncio.Event()
            self._stop = lambda: loop.call_soon_threadsafe(stop.set)
            async with worker:
                self._ready.set()
                await stop.wait()

    async def start(self) -> None:
        self.thread.start()
        assert await asyncio.to_thread(self._ready.wait, 30)

    async def has_begun(self, jobs: int) -> None:
        for _ in range(jobs):
            assert await asyncio.to_thread(self.begun.acquire, timeout=30)

    def end(self) -> None:
        self.go.set()
        self._stop()
        if self.thread.ident is not None:
            self.thread.join(30)


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Backstay]:
    """A server with a worker of its own for all that a far one lets go."""
    app = Backstay(f"sqlite:///{tmp_path}/jobs.db", lease=0.6, poll_interval=0.1)

    @app.job("waits")
    async def waits(payload: int) -> str:
        return "here"

    @app.job("short")
    async def short(payload: int) -> str:
        return "here"

    @app.job("thread")
    def in_thread(payload: int) -> str:
        return "here"

    @app.job("blocks", backoff=Backoff(base=60, jitter=0))
    async def blocks(payload: int) -> str:
        return "here"

    async with app:
        yield app


@pytest.fixture
async def url(app: Backstay) -> AsyncIterator[Served]:
    async with listening(app) as url:
        yield url


@pytest.fixture
async def far(url: Served) -> AsyncIterator[Callable[..., Far]]:
    made: list[Far] = []

    def make(concurrency: int = 10) -> Far:
        made.append(Far(url, concurrency))
        return made[-1]

    yield make
    for each in made:
        await asyncio.to_thread(each.end)


async def the_row(app: Backstay, holds: Callable[[WorkerRow], bool]) -> WorkerRow:
    found: list[WorkerRow] = []

    async def is_there() -> bool:
        found[:] = [row for row in await app.workers() if holds(row)]
        return bool(found)

    await eventually(is_there, 30)
    return found[0]


async def test_jobs_that_stand_still_in_a_remote_worker_run_elsewhere_and_are_charged_with_nothing(
    app: Backstay, far: Any
) -> None:
    blocked = far()
    await blocked.start()
    innocent = [await app.submit("waits", number) for number in range(3)]
    await blocked.has_begun(3)
    guilty = await app.submit("blocks", 0)
    await blocked.has_begun(1)
    async with app.worker(job_types=["waits"]):
        assert [await each.result(timeout=30) for each in innocent] == ["here"] * 3
    for each in innocent:
        job = await app.get(each.job_id)
        assert (job.failures, [e.event.value for e in job.history].count("give_back")) == (0, 1)
    row = await the_row(app, lambda row: row.blocked is not None)
    assert row.blocked is not None
    assert (row.worker_id, row.blocked.job_type, row.blocked.job_id) == (blocked.worker_id, "blocks", guilty.job_id)
    assert "test_blocked_worker.py" in (row.blocked.where or "")
    assert (await app.get(guilty.job_id)).status == "processing"  # its timeout is an hour: it keeps its claim
    blocked.go.set()
    assert await guilty.result(timeout=30) == "late"
    await the_row(app, lambda row: row.blocked is None and not row.running)
    assert [(await app.get(each.job_id)).result for each in innocent] == ["here"] * 3


async def test_jobs_that_come_while_a_remote_worker_is_blocked_never_begin_there(app: Backstay, far: Any) -> None:
    blocked = far(concurrency=3)
    await blocked.start()
    await app.submit("blocks", 0)
    await blocked.has_begun(1)
    later = [await app.submit("waits", number) for number in range(2)]  # its long poll may still claim them
    async with app.worker(job_types=["waits"]):
        assert [await each.result(timeout=30) for each in later] == ["here"] * 2
    assert [(await app.get(each.job_id)).failures for each in later] == [0, 0]
    blocked.go.set()
    await the_row(app, lambda row: row.blocked is None and not row.running)
    assert blocked.ran == ["blocks"]


async def test_a_remote_handler_that_blocks_beyond_its_timeout_has_failed_and_the_rest_goes_back(
    app: Backstay, far: Any
) -> None:
    blocked = far()
    await blocked.start()
    thread = await app.submit("thread", 0)
    await blocked.has_begun(1)
    guilty = await app.submit("blocks", 0, timeout=0.5, max_attempts=3)
    await blocked.has_begun(1)

    async def has_failed() -> bool:
        return (await app.get(guilty.job_id)).status == "retrying"

    await eventually(has_failed, 30)
    job = await app.get(guilty.job_id)
    assert job.failures == 1
    assert job.errors[-1]["type"] == "JobTimeout"
    assert "blocked the event loop" in job.errors[-1]["message"]
    async with app.worker(job_types=["thread"]):  # what it returns there could never be stored
        assert await thread.result(timeout=30) == "here"
    assert (await app.get(thread.job_id)).failures == 0
    blocked.go.set()
    await the_row(app, lambda row: row.blocked is None and not row.running)
    job = await app.get(guilty.job_id)
    assert (job.status, job.result, job.failures) == ("retrying", None, 1)


async def test_a_remote_job_whose_time_passed_while_another_blocked_the_loop_still_gets_its_time(
    app: Backstay, far: Any
) -> None:
    blocked = far()
    await blocked.start()
    innocent = await app.submit("short", 1, timeout=1.0)
    await blocked.has_begun(1)
    await app.submit("blocks", 0)
    await blocked.has_begun(1)
    await the_row(app, lambda row: row.blocked is not None)
    blocked.go.set()
    async with app.worker(job_types=["short"]):  # if it took so long that it was given back
        await innocent.result(timeout=30)
    assert (await app.get(innocent.job_id)).failures == 0


# Threads that do not end


async def test_a_remote_thread_that_does_not_end_keeps_its_slot_and_no_job_waits_behind_it(
    app: Backstay, far: Any
) -> None:
    stuck = far(concurrency=1)
    await stuck.start()
    hangs = await app.submit("thread", 0, timeout=0.2, max_attempts=1)
    await stuck.has_begun(1)
    later = await app.submit("waits", 1, timeout=5.0)
    row = await the_row(app, lambda row: bool(row.stuck))
    assert row.stuck == (hangs.job_id,)
    job = await app.get(hangs.job_id)
    assert (job.status, job.errors[-1]["type"]) == ("failed", "JobTimeout")
    assert (await app.get(later.job_id)).status == "pending"
    stuck.go.set()
    assert await later.result(timeout=30) == "far"
    await the_row(app, lambda row: not row.stuck)


# In a process of its own


class Process:
    def __init__(self, url: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROCESS), url, *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.lines: list[str] = []

    async def hear(self, words: str) -> str:
        return await asyncio.to_thread(self._hear, words)

    def _hear(self, words: str) -> str:
        assert self.process.stderr is not None
        while line := self.process.stderr.readline().decode():
            self.lines.append(line)
            if words in line:
                return line
        raise AssertionError(f"{words!r} was not said in {''.join(self.lines)}")

    def has_more_within(self, seconds: float) -> bool:
        return bool(select.select([self.process.stderr], [], [], seconds)[0])

    async def exit_code(self) -> int:
        return await asyncio.to_thread(self.process.wait, 30)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stderr, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def start(url: Served) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def start(*arguments: str) -> Process:
        made.append(Process(url, *arguments))
        return made[-1]

    yield start
    for each in made:
        each.end()


async def test_a_remote_worker_whose_loop_is_blocked_hears_sigterm_gives_all_jobs_back_and_exits_1(
    app: Backstay, start: Any
) -> None:
    worker = start("0.1")
    await worker.hear("started")
    jobs = [await app.submit("waits", 0)]
    await worker.hear("begun")
    jobs.append(await app.submit("blocks", 0))
    await worker.hear("begun")
    worker.process.send_signal(signal.SIGTERM)
    await worker.hear("SIGTERM: taking no new jobs")
    await worker.hear("the event loop is blocked: giving back all jobs, and ending with status 1")
    assert await worker.exit_code() == 1
    found = [await app.get(each.job_id) for each in jobs]
    assert [(job.status, job.failures) for job in found] == [("pending", 0)] * 2
    assert await app.workers() == []


async def test_a_second_signal_stops_the_handlers_of_a_remote_worker_at_once(app: Backstay, start: Any) -> None:
    worker = start("3600")
    await worker.hear("started")
    job = await app.submit("waits", 0)
    await worker.hear("begun")
    worker.process.send_signal(signal.SIGTERM)
    await worker.hear("SIGTERM: taking no new jobs")
    while not worker.has_more_within(0.1):  # one that comes at once counts as the same
        worker.process.send_signal(signal.SIGTERM)
    await worker.hear("stopping running jobs and giving them back")
    assert await worker.exit_code() == 0
    found = await app.get(job.job_id)
    assert (found.status, found.failures) == ("pending", 0)


async def test_a_remote_worker_exits_although_a_thread_of_it_never_ends(app: Backstay, start: Any) -> None:
    worker = start("0")
    await worker.hear("started")
    job = await app.submit("thread", 0)
    await worker.hear("begun")
    worker.process.send_signal(signal.SIGTERM)
    assert await worker.exit_code() == 0
    found = await app.get(job.job_id)
    assert (found.status, found.failures) == ("pending", 0)


async def test_a_remote_worker_whose_loop_is_dead_ends_by_itself(app: Backstay, start: Any) -> None:
    worker = start("0")
    await worker.hear("started")
    waits = await app.submit("waits", 0)
    await worker.hear("begun")
    job = await app.submit("blocks", 0, timeout=0.5)
    await worker.hear("begun")
    await worker.hear("blocked the event loop beyond its timeout: this process ends with status 1")
    assert await worker.exit_code() == 1
    assert (await app.get(job.job_id)).status == "retrying"
    found = await app.get(waits.job_id)
    assert (found.status, found.failures) == ("pending", 0)


async def test_a_remote_worker_that_starts_before_its_server_waits_for_it(
    app: Backstay, start: Any, url: Served
) -> None:
    """Machines start in any order."""
    url.server.should_exit = True

    async def is_gone() -> bool:
        return not url.server.servers or not any(server.is_serving() for server in url.server.servers)

    await eventually(is_gone)
    worker = start("0")
    await worker.hear("waiting for the server")
    worker.process.send_signal(signal.SIGTERM)
    assert await worker.exit_code() == 0
