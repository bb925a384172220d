"""A handler that blocks the event loop of its worker does not hold the worker's other jobs."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from backstay import Backoff, Backstay
from backstay.core.records import WorkerRow
from backstay.worker.pulse import Pulse
from tests.support.eventually import eventually

Make = Callable[..., Backstay]


class Blocked:
    """A worker on a loop in a thread of its own, which a handler blocks until it is let go."""

    def __init__(self, make_app: Make, *, lease: float = 0.4, concurrency: int = 10, **blocking: Any) -> None:
        self.app = make_app(lease=lease)
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()
        self.ran: list[str] = []
        self._stop: Callable[[], object] = lambda: None
        self._ready = threading.Event()
        self._concurrency = concurrency
        self.thread = threading.Thread(target=lambda: asyncio.run(self._work()))

        @self.app.job("blocks", backoff=Backoff(base=60, jitter=0), **blocking)
        async def blocks(payload: int) -> str:
            self.ran.append("blocks")
            self.begun.release()
            self.go.wait(60)
            return "late"

        @self.app.job("waits")
        async def waits(payload: int) -> str:
            self.ran.append(f"waits {payload}")
            self.begun.release()
            await asyncio.sleep(0 if self.go.is_set() else 60)
            return "here"

        @self.app.job("thread")
        def in_thread(payload: int) -> str:
            self.begun.release()
            self.go.wait(60)
            return "thread"

    async def _work(self) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._stop = lambda: loop.call_soon_threadsafe(stop.set)
        async with self.app, self.app.worker(concurrency=self._concurrency, grace=0.1):
            self._ready.set()
            await stop.wait()

    async def start(self) -> None:
        self.thread.start()
        await asyncio.to_thread(self._ready.wait, 30)

    async def has_begun(self, jobs: int) -> None:
        for _ in range(jobs):
            assert await asyncio.to_thread(self.begun.acquire, timeout=30)

    def end(self) -> None:
        self.go.set()
        self._stop()
        if self.thread.is_alive():
            self.thread.join(30)


@pytest.fixture
def blocked(make_app: Make) -> Iterator[Callable[..., Blocked]]:
    made: list[Blocked] = []

    def make(**options: Any) -> Blocked:
        made.append(Blocked(make_app, **options))
        return made[-1]

    yield make
    for each in made:
        each.end()


def another(make_app: Make) -> tuple[Backstay, list[str]]:
    """An app whose worker is free."""
    app, ran = make_app(lease=0.4), []

    @app.job("waits")
    async def waits(payload: int) -> str:
        ran.append(f"waits {payload}")
        return "there"

    return app, ran


async def the_row(app: Backstay, holds: Callable[[WorkerRow], bool]) -> WorkerRow:
    found: list[WorkerRow] = []

    async def is_there() -> bool:
        found[:] = [row for row in await app.workers() if holds(row)]
        return bool(found)

    await eventually(is_there, 30)
    return found[0]


async def test_jobs_that_stand_still_beside_a_handler_that_blocks_run_elsewhere_and_are_charged_with_nothing(
    make_app: Make, blocked: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    stuck = blocked()
    other, ran = another(make_app)
    await stuck.start()
    async with other:
        innocent = [await other.submit("waits", number) for number in range(3)]
        await stuck.has_begun(3)
        guilty = await other.submit("blocks", 0)
        await stuck.has_begun(1)
        async with other.worker(job_types=["waits"]):
            assert [await each.result(timeout=30) for each in innocent] == ["there"] * 3
        assert sorted(ran) == ["waits 0", "waits 1", "waits 2"]
        for each in innocent:
            job = await other.get(each.job_id)
            assert (job.failures, [e.event.value for e in job.history].count("give_back")) == (0, 1)
        row = await the_row(other, lambda row: row.blocked is not None)
        assert row.blocked is not None
        assert (row.blocked.job_type, row.blocked.job_id) == ("blocks", guilty.job_id)
        assert "test_watchdog.py" in (row.blocked.where or "") and "in blocks" in (row.blocked.where or "")
        assert "the event loop has been blocked for" in caplog.text and f"by blocks job {guilty.job_id}" in caplog.text
        assert (await other.get(guilty.job_id)).status == "processing"  # its timeout is an hour: it keeps its claim
        stuck.go.set()
        assert await guilty.result(timeout=30) == "late"
        await the_row(other, lambda row: row.blocked is None)
        # What was let go is refused from the worker that wakes up: each has the answer of the other one.
        assert [(await other.get(each.job_id)).result for each in innocent] == ["there"] * 3


async def test_jobs_that_have_not_begun_beside_a_handler_that_blocks_go_back_and_never_begin_there(
    make_app: Make, blocked: Any
) -> None:
    stuck = blocked(concurrency=2)
    other, _ = another(make_app)
    await stuck.start()
    async with other:
        await other.submit("blocks", 0)
        await stuck.has_begun(1)
        # Claimed by the blocked worker: its claim was under way when the loop stopped, or is a task that never ran.
        later = [await other.submit("waits", number) for number in range(2)]
        async with other.worker(job_types=["waits"]):
            assert [await each.result(timeout=30) for each in later] == ["there"] * 2
        assert [(await other.get(each.job_id)).failures for each in later] == [0, 0]
        stuck.go.set()
        await the_row(other, lambda row: row.blocked is None and not row.running)
        assert stuck.ran == ["blocks"]


async def test_a_handler_that_blocks_beyond_its_timeout_has_failed_and_cannot_complete_when_it_wakes_up(
    make_app: Make, blocked: Any
) -> None:
    stuck = blocked(timeout=0.5, max_attempts=3)
    other, _ = another(make_app)
    await stuck.start()
    async with other:
        guilty = await other.submit("blocks", 0)

        async def has_failed() -> bool:
            return (await other.get(guilty.job_id)).status == "retrying"

        await stuck.has_begun(1)
        await eventually(has_failed, 30)
        job = await other.get(guilty.job_id)
        assert job.failures == 1
        assert job.errors[-1]["type"] == "JobTimeout" and "blocked the event loop" in job.errors[-1]["message"]
        stuck.go.set()
        await the_row(other, lambda row: row.blocked is None and not row.running)
        job = await other.get(guilty.job_id)
        assert (job.status, job.result, job.failures) == ("retrying", None, 1)


async def test_a_job_whose_time_passed_while_another_blocked_the_loop_still_gets_its_time(app: Backstay) -> None:
    begun = asyncio.Event()

    @app.job("innocent", timeout=1.5, max_attempts=1)
    async def innocent(payload: int) -> str:
        begun.set()
        await asyncio.sleep(0.2)
        return "in time"

    @app.job("blocks")
    async def blocks(payload: int) -> None:
        await begun.wait()
        time.sleep(2.5)  # noqa: ASYNC251  # the mistake under test

    async with app, app.worker():
        await blocks.submit(1)
        assert await (await innocent.submit(1)).result(timeout=20) == "in time"


async def test_a_stall_that_no_handler_caused_blames_none(app: Backstay, caplog: pytest.LogCaptureFixture) -> None:
    begun = asyncio.Event()

    @app.job("innocent")
    async def innocent(payload: int) -> None:
        begun.set()
        await asyncio.sleep(60)

    async def warned() -> bool:
        return "the event loop stood still for" in caplog.text

    async with app, app.worker(grace=0):
        await innocent.submit(1)
        await begun.wait()
        asyncio.get_running_loop().call_soon(time.sleep, 2.5)  # not in a handler's task
        await eventually(warned)
    assert "innocent" not in next(text for text in caplog.messages if "stood still" in text)
    assert "was blocked" not in caplog.text


async def test_a_loop_that_only_a_library_blocks_is_said_to_be_in_the_library() -> None:
    """And not at the line of the program that started the loop."""
    pulse, barrier, seen = Pulse(lambda: ()), threading.Barrier(2), list[str | None]()

    def look() -> None:
        while not barrier.n_waiting:  # the loop waits there, with nothing of this program on its stack
            time.sleep(0.001)
        seen.append(pulse.where())
        barrier.wait()

    looker = threading.Thread(target=look)
    looker.start()
    asyncio.get_running_loop().call_soon(barrier.wait)
    await asyncio.to_thread(looker.join)
    assert (seen[0] or "").startswith(threading.__file__)
