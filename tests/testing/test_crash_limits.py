"""Where the crash test cannot do its work: it says so, in time, and leaves no process behind."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from backstay import Backstay, ConfigurationError, Context, InvalidOption, InvalidPayload
from backstay.app import BoundHandler
from backstay.testing.crash_child import Link, Moment, forked
from backstay.testing.crash_trials import KILLS_MAX, STALLS_MAX, kills, stalls
from tests.support.eventually import eventually
from tests.testing.side_effects import Outside

ROOT = Path(__file__).parents[2]


def test_a_handler_that_hangs_is_an_error_in_time(app: Backstay, outside: Outside) -> None:
    @app.job("hang")
    async def hang(payload: int) -> None:
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match=r"did not end within 1\.5 s"):
        outside.crash(hang, timeout=1.5)


def test_a_handler_that_waits_for_its_children_is_refused_with_the_reason(app: Backstay, outside: Outside) -> None:
    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> None:
        await ctx.submit("parent", 1)
        await ctx.wait_for_children()

    with pytest.raises(AssertionError, match="cannot test a handler that waits for them: test its parts"):
        outside.crash(parent, timeout=20)


async def test_what_a_worker_has_started_ends_with_it(tmp_path: Path) -> None:
    def program(link: Link) -> None:
        started = subprocess.Popen(["sleep", "600"])
        link.say(f"{os.getpid()} {started.pid}".encode())
        started.wait()

    with forked(program, tmp_path / "output.txt", 30) as child:
        pids = [int(pid) for pid in (child.hear() or b"").split()]
        assert all(map(is_alive, pids)) and len(pids) == 2

    async def are_gone() -> bool:
        return not any(map(is_alive, pids))

    await eventually(are_gone)


ORPHANS = """
import sys
from pathlib import Path
from backstay.testing import crash_test
from tests.testing.process_handlers import hang
crash_test(hang, sys.argv[1], effect=lambda: None)
"""


async def test_nothing_of_it_outlives_a_test_run_that_is_killed(outside: Outside) -> None:
    run = await asyncio.create_subprocess_exec(sys.executable, "-c", ORPHANS, str(outside.file), cwd=ROOT)
    try:

        async def has_begun() -> bool:
            return bool(outside.read())

        await eventually(has_begun, seconds=30)
    finally:
        run.kill()
        await run.wait()
    pids = [int(pid) for pid in outside.read()[0].split()]

    async def are_gone() -> bool:
        return not any(map(is_alive, pids))

    await eventually(are_gone)


def test_a_worker_is_stopped_only_outside_a_transaction(tmp_path: Path) -> None:
    database = tmp_path / "some.db"
    apsw.Connection(str(database)).execute("PRAGMA journal_mode = wal").fetchall()

    def program(link: Link) -> None:
        file = apsw.Connection(str(database))
        file.execute("BEGIN IMMEDIATE")
        signal.signal(signal.SIGCONT, lambda *_: file.execute("ROLLBACK"))
        link.say(b"inside")
        while True:
            signal.pause()

    with forked(program, tmp_path / "output.txt", 30) as child:
        assert child.hear() == b"inside"
        child.stop(database)
        other = apsw.Connection(str(database))
        other.execute("BEGIN IMMEDIATE")
        other.close()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_handler_that_fails_undisturbed_is_no_subject_for_it(app: Backstay, outside: Outside) -> None:
    @app.job("bad")
    def bad(payload: int) -> None:
        raise ValueError("always")

    with pytest.raises(AssertionError, match="bad fails even when undisturbed: ValueError: always"):
        outside.crash(bad)


def test_a_handler_that_ends_its_process_is_named_with_its_last_words(app: Backstay, outside: Outside) -> None:
    @app.job("leave")
    async def leave(payload: int) -> None:
        print("good bye", flush=True)
        os._exit(7)

    with pytest.raises(AssertionError, match=r"(?s)exit status 7.*good bye"):
        outside.crash(leave)


def appending(app: Backstay, outside: Outside) -> BoundHandler:
    @app.job("append")
    async def append(payload: int, ctx: Context) -> None:
        await ctx.once("line", lambda: outside.append(payload))

    return append


def test_an_effect_that_differs_by_itself_is_not_blamed_on_a_disturbance(app: Backstay, outside: Outside) -> None:
    with pytest.raises(AssertionError, match=r"(?s)two undisturbed runs .*Give reset="):
        outside.crash(appending(app, outside), reset=None)


def test_what_cannot_be_meant_is_refused_before_anything_runs(app: Backstay, outside: Outside) -> None:
    handler = appending(app, outside)
    with pytest.raises(InvalidPayload):
        outside.crash(handler, "no number")
    with pytest.raises(ConfigurationError, match=r"@app\.job"):
        outside.crash(lambda payload: None)
    with pytest.raises(InvalidOption, match="delay"):
        outside.crash(handler, options={"delay": 60})
    for odd in (
        {"max_attempts": 0},
        {"timeout": -1},
        {"priority": "whenever"},
        {"atempts": 3},
        {"concurrency_key": "k"},
    ):
        with pytest.raises(InvalidOption, match=next(iter(odd))):
            outside.crash(handler, options=odd)
    for span in (-1, 0, float("nan"), float("inf"), "soon", None):
        with pytest.raises(InvalidOption, match="lease="):
            outside.crash(handler, lease=span)
        with pytest.raises(InvalidOption, match="timeout="):
            outside.crash(handler, timeout=span)

    async def effect() -> None: ...

    with pytest.raises(ConfigurationError, match="plain `def`"):
        outside.crash(handler, effect=effect)
    assert outside.read() == []


def test_of_many_progress_calls_a_bounded_number_is_tried_the_first_and_the_last_too() -> None:
    passed = {"handler.before": 1, "progress": 10_000, "handler.after": 1, "settle.before": 1}
    at_progress = [moment.nth for moment in kills(passed) if moment.point == "progress"]
    assert len(at_progress) == KILLS_MAX and (at_progress[0], at_progress[-1]) == (1, 10_000)
    assert [moment.nth for moment in stalls(passed)] == [1, 5000, 10_000] and len(stalls(passed)) == STALLS_MAX
    assert kills({**passed, "progress": 2})[1:3] == [Moment("progress", 1), Moment("progress", 2)]
