"""The blocking face: the same names without await."""

import asyncio
import inspect
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay import BlockingContext, ForkedStore, JobFailed, NotOpen, ResultTimeout, StoreBusy
from backstay.engines.sqlite import insert
from backstay.sync import Backstay


@pytest.fixture
def app(tmp_path: Path) -> Backstay:
    return Backstay(f"sqlite:///{tmp_path}/jobs.db")


def test_submit_run_and_read_without_an_event_loop(app: Backstay) -> None:
    @app.job("add")
    def add(payload: dict[str, int], ctx: Any) -> int:
        return payload["a"] + 1

    with app, app.worker():
        handle = add.submit({"a": 1})
        assert handle.result(timeout=10) == 2
        assert app.get(handle.job_id).status == "completed"
        handles = app.submit_many([(add, {"a": n}) for n in range(3)])
        assert [each.result(timeout=10) for each in handles] == [1, 2, 3]
        assert len(app.find(status="completed")) == 4
        assert [h.event for h in app.history(handle.job_id)] == ["submit", "claim", "complete"]


def test_it_has_every_public_name_of_the_async_face(app: Backstay) -> None:
    wanted = {name for name in dir(backstay.Backstay) if not name.startswith("_")}
    of_servers = {  # which have a loop
        "maintenance", "files", "is_open", "lease_seconds", "poll_seconds", "seen_live", "listen", "record_seconds",
        "remote_work", "key_records", "server_secret", "stored_rows", "submit_from_thread",
            "sync",  # the way from there to here
    }  # fmt: skip
    assert wanted - {"store"} - of_servers <= set(dir(app)) | {"handlers", "clock"}
    for name in sorted(wanted & set(dir(Backstay))):
        theirs, ours = getattr(backstay.Backstay, name), getattr(Backstay, name)
        if callable(theirs):
            assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), name


def test_errors_come_through_as_they_are(app: Backstay) -> None:
    @app.job("bad", max_attempts=1)
    def bad(payload: int) -> None:
        raise ValueError("no")

    with pytest.raises(NotOpen, match="with app"):
        bad.submit(1)
    with app:
        with pytest.raises(ResultTimeout):
            bad.submit(1).result(timeout=0.01)
        with app.worker(), pytest.raises(JobFailed, match="no"):
            bad.submit(1).result(timeout=10)


def test_many_threads_submit_through_one_app(app: Backstay) -> None:
    @app.job("work")
    def work(payload: int) -> None: ...

    with app:
        threads = [threading.Thread(target=lambda n=n: [work.submit(n) for _ in range(20)]) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert app.counts()["pending"] == 160


def test_a_blocking_call_from_inside_its_own_event_loop_is_refused_instead_of_hanging(app: Backstay) -> None:
    @app.job("work", max_attempts=1)
    async def work(payload: int) -> None:
        app.get("x")

    with app, app.worker(), pytest.raises(JobFailed, match="deadlock"):
        work.submit(1).result(timeout=10)


def test_it_can_be_used_while_another_event_loop_runs_in_the_caller(app: Backstay) -> None:
    @app.job("work")
    def work(payload: int) -> int:
        return payload

    async def main() -> Any:
        with app, app.worker():
            return work.submit(4).result(timeout=10)

    assert asyncio.run(main()) == 4


def _in_child(work: Callable[[], str]) -> str:
    """What the child says; nothing where it does not end in time."""
    theirs, ours = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(ours, work().encode())
        finally:
            os._exit(0)
    os.close(ours)
    try:
        ready, _, _ = select.select([theirs], [], [], 20)
        return os.read(theirs, 1000).decode() if ready else ""
    finally:
        os.close(theirs)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_after_a_fork_the_parents_app_is_refused_and_can_be_opened_anew(tmp_path: Path) -> None:
    app = Backstay(f"sqlite:///{tmp_path}/jobs.db")

    @app.job("work")
    def work(payload: int) -> int:
        return payload

    def tried() -> str:
        try:
            work.submit(1)
        except ForkedStore:
            with app:
                return f"refused, then {work.submit(2).status}"
        return "not refused"

    with app:
        assert _in_child(tried) == "refused, then pending"
        assert app.counts()["pending"] == 1


def test_a_handler_has_a_join(app: Backstay) -> None:
    @app.job("part")
    def part(payload: int) -> int:
        return payload * 10

    @app.job("parent")
    def parent(payload: int, ctx: BlockingContext) -> None:
        ctx.submit(part, payload)
        ctx.wait_for_children()

    @parent.join
    def add_up(payload: int, ctx: BlockingContext) -> int:
        return sum(child.result for child in ctx.children)

    with app, app.worker():
        assert parent.submit(3).result(timeout=30) == 30


def test_a_handler_submits_children_by_their_handlers(app: Backstay) -> None:
    @app.job("part")
    def part(payload: int) -> int:
        return payload * 10

    @app.job("parent")
    def parent(payload: int, ctx: BlockingContext) -> list[int]:
        for n in range(payload):
            ctx.submit(part, n)
        return sorted(child.result for child in ctx.wait_for_children())

    with app, app.worker():
        handle = parent.submit(3)
        assert handle.result(timeout=30) == [0, 10, 20]
        assert len(app.tree(handle.job_id).children) == 3
        app.rerun(handle.job_id)
        assert app.result(handle.job_id, timeout=30) == [0, 10, 20]


_INTERRUPTED = """
import random, signal, sys
import apsw
from backstay.sync import Backstay

app = Backstay(f"sqlite:///{sys.argv[1]}/jobs.db")
acknowledged = []

@app.job("work")
def work(payload): ...

signal.signal(signal.SIGALRM, signal.default_int_handler)
draw = random.Random(7)
with app:
    other = apsw.Connection(f"{sys.argv[1]}/jobs.db")
    other.set_busy_timeout(20_000)
    for _ in range(250):
        try:
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.0003, 0.003))
            while True:
                acknowledged.append(work.submit({}).job_id)
        except KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, 0)
        other.execute("BEGIN IMMEDIATE; ROLLBACK")
    acknowledged.append(work.submit({}).job_id)
    assert None not in [app.get(job_id) for job_id in acknowledged]
    print("free")
"""


def test_an_interrupt_of_a_submit_leaves_the_file_free_for_others_and_later_submits(tmp_path: Path) -> None:
    script = [sys.executable, "-c", _INTERRUPTED, str(tmp_path)]
    run = subprocess.run(script, capture_output=True, text=True, timeout=110, check=False)

    assert (run.stdout, run.returncode) == ("free\n", 0), run.stderr


def test_a_signal_handler_that_interrupts_a_submit_and_submits_is_refused_instead_of_hanging(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.job("work")
    def work(payload: int) -> None: ...

    refused: list[str] = []
    real = insert.insert

    def interrupted(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(insert, "insert", real)
        with pytest.raises(StoreBusy) as error:  # as a handler of a signal that arrives here would be
            work.submit(2)
        refused.append(str(error.value))
        return real(*arguments, **options)

    monkeypatch.setattr(insert, "insert", interrupted)
    with app:
        work.submit(1)
        assert ["signal handler" in each for each in refused] == [True]
        assert app.counts()["pending"] == 1
