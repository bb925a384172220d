"""What keeps the processes of `backstay worker --processes N` alive, with children that are as bad as can be."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backstay.cli import daemon
from tests.support.eventually import eventually

BEGINS = """
import os, signal, time
def beat(patience):
    os.write(int(os.environ["BACKSTAY_SUPERVISOR_PULSE"]), f"{patience}\\n".encode())
"""
BEATS = (
    BEGINS
    + """
while True:
    beat(60)
    time.sleep(0.01)
"""
)


class Supervised:
    """A supervisor in this process, whose children are small programs."""

    def __init__(
        self,
        program: str,
        caplog: pytest.LogCaptureFixture,
        grace_seconds: float = 0.0,
        *,
        ends_when_done: bool = False,
    ) -> None:
        self.supervisor = daemon.Supervisor([], grace_seconds, ends_when_done=ends_when_done)
        self.supervisor._command = [sys.executable, "-c", program]
        self._caplog = caplog
        self.ended: asyncio.Task[Any] | None = None

    @property
    def text(self) -> str:
        return self._caplog.text

    async def hears(self, words: str, times: int = 1) -> None:
        async def heard() -> bool:
            return self.text.count(words) >= times

        await eventually(heard, 30)


@pytest.fixture
def supervise(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    caplog.set_level("INFO")
    monkeypatch.setattr(daemon, "PULSE_SECONDS", 0.02)
    monkeypatch.setattr(daemon, "PAUSE_SECONDS", 0.02)

    @asynccontextmanager
    async def supervise(
        program: str, count: int = 1, grace_seconds: float = 0.0, *, ends_when_done: bool = False
    ) -> AsyncIterator[Supervised]:
        made = Supervised(program, caplog, grace_seconds, ends_when_done=ends_when_done)
        made.ended = asyncio.ensure_future(made.supervisor.run(count))
        try:
            yield made
        finally:
            made.supervisor._stop(signal.SIGKILL)
            await made.ended
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    return supervise


async def test_a_child_that_was_alive_and_is_silent_is_killed_and_replaced(supervise: Any) -> None:
    """Stopped, or stuck in the kernel: it can do nothing about it itself."""
    async with supervise(BEGINS + "beat(0.2); os.kill(os.getpid(), signal.SIGSTOP)") as made:
        await made.hears("worker process 1 is pid", times=3)
        assert "worker process 1 has not been heard from for 0.2 s: killing it" in made.text
        assert "was killed by SIGKILL: restarting it" in made.text


async def test_a_worker_in_which_c_code_keeps_every_thread_from_running_is_killed_and_replaced(supervise: Any) -> None:
    hogs = """
import asyncio, re
from backstay.cli import daemon
from backstay.worker import stop

stop.PULSE_SECONDS, stop.SILENT_SECONDS_MIN = 0.05, 1.0

async def work():
    daemon.hear(0.0).watch([], lease_seconds=0.1)
    await asyncio.sleep(0.5)  # it beats
    re.match(r"(a+)+$", "a" * 60 + "b")

asyncio.run(work())
"""
    async with supervise(hogs) as made:
        await made.hears("worker process 1 is pid", times=2)
        assert "s: killing it" in made.text
        assert "was killed by SIGKILL: restarting it" in made.text


async def test_children_are_not_killed_for_a_time_in_which_the_supervisor_was_paused_as_well(
    supervise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container or a virtual machine was paused: nobody in it could give a sign of life."""
    pulses, paused, looks = [], [0.0], [0]

    class Seen(daemon._Pulse):
        def __init__(self, pipe: int) -> None:
            super().__init__(pipe)
            pulses.append(self)

        def listen(self) -> None:
            super().listen()
            looks[0] += 1

    monkeypatch.setattr(daemon, "_Pulse", Seen)
    monkeypatch.setattr(daemon, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + paused[0]))
    async with supervise(BEGINS + "beat(60); time.sleep(600)") as made:

        async def has_begun() -> bool:
            return bool(pulses) and pulses[0].has_beaten

        await eventually(has_begun, 30)
        paused[0], before = 100.0, looks[0]

        async def has_looked() -> bool:
            return looks[0] > before + 2

        await eventually(has_looked, 30)
        assert "killing it" not in made.text


async def test_a_child_that_takes_long_to_start_is_left_alone(supervise: Any, tmp_path: Path) -> None:
    """It may wait for its store for hours."""
    first_waits = f"""{BEGINS}
try:
    os.mkdir({str(tmp_path / "first")!r})
except FileExistsError:
    beat(0.1)
    os.kill(os.getpid(), signal.SIGSTOP)
signal.pause()
"""
    async with supervise(first_waits, count=2) as made:
        await made.hears("killing it", times=3)
        assert made.text.count("is pid") >= 4
        assert 0 in [made.text.count(f"worker process {each} has not been heard from") for each in (1, 2)]


async def test_a_child_that_dies_at_its_start_is_started_again_more_and_more_slowly(supervise: Any) -> None:
    async with supervise("raise SystemExit(7)") as made:
        await made.hears("exited with status 7: restarting it in 0.16 s")
        assert [f"restarting it in {pause:g} s" in made.text for pause in (0.02, 0.04, 0.08)] == [True] * 3


async def test_a_child_that_cannot_be_started_for_now_is_started_later_and_the_others_live(
    supervise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system has no process or no memory left: that passes."""
    start, calls = asyncio.create_subprocess_exec, []

    async def refuse(*command: Any, **options: Any) -> Any:
        calls.append(command)
        if 1 < len(calls) <= 4:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return await start(*command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    async with supervise(BEATS, count=2) as made:

        async def both_live() -> bool:
            return len(made.supervisor._children) == 2

        await eventually(both_live, 20)
        assert made.text.count("could not be started: [Errno 11] Resource temporarily unavailable") == 3
        assert made.text.count("is pid") == 2


async def test_status_2_of_a_child_that_cannot_start_ends_all_of_them(supervise: Any) -> None:
    async with supervise("raise SystemExit(2)", count=3) as made:
        assert await made.ended == 2


async def test_status_2_of_a_child_that_worked_ends_none_of_the_others(supervise: Any) -> None:
    """A handler, or a library in C, may end its process with it."""
    async with supervise(BEGINS + "beat(60); os._exit(2)") as made:
        await made.hears("exited with status 2: restarting it", times=2)
        assert not made.ended.done()


async def test_a_signal_that_arrives_twice_at_once_leaves_children_their_grace(supervise: Any) -> None:
    """A service manager tells each process of a group, and a shell passes it on."""
    async with supervise(BEATS, grace_seconds=3600) as made:
        await made.hears("is pid")
        made.supervisor._signalled(signal.SIGTERM)
        made.supervisor._signalled(signal.SIGTERM)
        assert made.supervisor._ends_at > time.monotonic() + 3600
        assert made.text.count("SIGTERM: forwarded") == 1


async def test_a_child_that_has_done_its_share_is_replaced_at_once_and_that_is_no_error(supervise: Any) -> None:
    async with supervise(BEGINS + f"beat(60); os._exit({daemon.REPLACE})") as made:
        await made.hears("has done its share: starting another", times=3)
        assert "restarting it" not in made.text


async def test_children_of_a_burst_end_one_by_one_and_then_the_supervisor_does(supervise: Any) -> None:
    async with supervise(BEGINS + "beat(60)", count=2, ends_when_done=True) as made:
        assert await made.ended == 0
        assert made.text.count("has nothing more to do") == 2
