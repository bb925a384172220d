"""`backstay worker` that ends by itself or starts again: --burst, --max-jobs, --max-memory, --reload; and factories."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from backstay import sync
from tests.cli.conftest import Cli, Queue

JOBS = """from backstay import Backstay
app = Backstay("sqlite:///jobs.db")

@app.job("add")
async def add(payload: int) -> int:
    return payload + 1
"""


class Folder:
    """A folder with a queue and the program of its workers."""

    def __init__(self, path: Path) -> None:
        (path / "jobs.py").write_text(JOBS)
        self.path = path
        self.app = sync.Backstay(f"sqlite:///{path}/jobs.db")
        self.app.job("add")(_add)

    def submit(self, count: int, **options: Any) -> list[str]:
        with self.app:
            return [self.app.submit("add", each, **options).job_id for each in range(count)]

    def statuses(self, job_ids: list[str]) -> list[str]:
        with self.app:
            return sorted(self.app.get(each).status.value for each in job_ids)

    def worker(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "backstay", "--app", "jobs:app", "worker", *arguments]
        done = subprocess.run(command, cwd=self.path, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        return done


async def _add(payload: int) -> int:
    return payload + 1


@pytest.fixture
def jobs(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_a_burst_runs_what_is_due_and_exits_0(jobs: Folder) -> None:
    due, later = jobs.submit(3), jobs.submit(1, delay=3600)
    ended = jobs.worker("--burst")
    assert (jobs.statuses(due), jobs.statuses(later)) == (["completed"] * 3, ["scheduled"])
    assert "nothing is due that this worker could run" in ended.stderr


def test_a_burst_of_two_processes_ends_with_the_last_of_them(jobs: Folder) -> None:
    due = jobs.submit(3)
    ended = jobs.worker("--burst", "--processes", "2")
    assert jobs.statuses(due) == ["completed"] * 3
    assert ended.stderr.count("has nothing more to do") == 2


def test_a_worker_ends_after_max_jobs_and_exits_0(jobs: Folder) -> None:
    due = jobs.submit(3)
    jobs.worker("--max-jobs", "2")
    assert jobs.statuses(due) == ["completed", "completed", "pending"]


def test_a_supervisor_replaces_a_worker_that_has_run_its_jobs_until_nothing_is_due(jobs: Folder) -> None:
    due = jobs.submit(5)
    ended = jobs.worker("--max-jobs", "2", "--burst", "--processes", "1")
    assert jobs.statuses(due) == ["completed"] * 5
    assert ended.stderr.count("has done its share: starting another") == 2


def test_a_worker_that_is_too_large_from_the_start_ends_and_exits_0(jobs: Folder) -> None:
    assert "it uses more memory than max_memory says" in jobs.worker("--max-memory", "1M").stderr


def test_bad_values_are_refused_in_a_sentence(cli: Cli) -> None:
    for arguments, says in [
        (["--max-memory", "much"], "use a size such as 500M or 2G"),
        (["--reload", "--processes", "2"], "leave out --processes and --burst"),
    ]:
        ran = cli("worker", *arguments)
        assert (ran.code, ran.err.count("\n")) == (2, 1)
        assert says in ran.err


_WATCHED = """from backstay import Backstay
app = Backstay("sqlite:///jobs.db")

@app.job("say")
async def say(payload: None) -> str:
    return "{}"
"""


def test_reload_starts_again_when_a_file_changes_and_survives_a_broken_one(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(_WATCHED.format("first"))
    (tmp_path / ".hidden").mkdir()
    command = [sys.executable, "-m", "backstay", "--app", "jobs:app"]

    def result() -> str:
        line = [*command, "submit", "say", "null", "--wait", "--timeout", "60"]
        return subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    with (
        subprocess.Popen(
            [*command, "worker", "--reload"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, bufsize=1
        ) as worker,
        ExitStack() as stack,
    ):
        assert worker.stderr is not None

        def hear(text: str) -> None:
            assert worker.stderr is not None
            assert any(text in line for line in worker.stderr), f"it ended without saying {text!r}"

        stack.callback(worker.kill)
        hear("started: queues")
        assert result() == '"first"'
        (tmp_path / ".hidden/other.py").write_text("not watched")
        (tmp_path / "jobs.py").write_text("this is not Python\n")
        hear("jobs.py has changed: starting again")
        hear("waiting for a file to change")
        (tmp_path / "jobs.py").write_text(_WATCHED.format("second"))
        hear("jobs.py has changed: starting again")
        hear("started: queues")
        assert result() == '"second"'
        worker.send_signal(signal.SIGINT)
        hear("stopped")
        worker.stderr.read()
        assert worker.wait(60) == 0


# Factories

_FACTORIES = """
import os
from backstay import Backstay

def create_app():
    app = Backstay("sqlite:///jobs.db")

    @app.lifespan
    def resources():
        yield "state"

    @app.job("apart", isolation="process")
    def apart(payload: int, ctx) -> list:
        return [payload, ctx.state, os.getpid()]

    return app

async def create_async_app():
    return create_app()

def create_nothing():
    return 5

def create_badly():
    raise OSError("no settings")

def takes(name):
    return create_app()
"""


@pytest.mark.parametrize("factory", ["create_app", "create_async_app"])
def test_a_function_that_makes_the_app_is_called_also_in_the_processes_of_its_handlers(
    tmp_path: Path, factory: str
) -> None:
    (tmp_path / "made.py").write_text(_FACTORIES)
    command = [sys.executable, "-m", "backstay", "--app", f"made:{factory}"]

    def run(*arguments: str) -> str:
        done = subprocess.run([*command, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    job_id = run("submit", "apart", "5").strip()
    run("worker", "--burst")
    job = json.loads(run("show", job_id, "--json"))
    assert job["result"][:2] == [5, "state"], job["last_error"]


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("create_nothing", "it returned a int, not a Backstay: return the object created with Backstay"),
        ("create_badly", "raised OSError: no settings"),
        ("takes", "raised TypeError: takes() missing 1 required positional argument"),
    ],
)
def test_a_factory_that_makes_no_app_is_an_error_that_names_it(
    cli: Cli, queue: Queue, folder: Path, factory: str, says: str
) -> None:
    (folder / "made_badly.py").write_text(_FACTORIES)
    ran = cli("list", "--app", f"made_badly:{factory}")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith(f"backstay: --app made_badly:{factory}")
    assert says in ran.err
