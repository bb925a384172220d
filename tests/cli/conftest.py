"""A queue in a temporary folder, the command line in this process, and worker processes where nothing less will do."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from backstay import Backoff, Backstay, Context
from backstay.cli.main import main

APP = f"{Path(__file__).with_name('cli_app.py')}:app"


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Ran]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands run; nothing of the developer's own settings reaches it."""
    for name in [name for name in os.environ if name.startswith("BACKSTAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("BACKSTAY_URL", f"sqlite:///{tmp_path}/jobs.db")
    monkeypatch.setenv("BACKSTAY_APP", "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.fixture
def cli(folder: Path, capsys: pytest.CaptureFixture[str], logging_restored: None) -> Cli:
    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = main(arguments)
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return run


class Queue:
    """What happened before the command: an app with a few handlers."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/jobs.db"

    def do(self, work: Callable[[Backstay], Awaitable[Any]]) -> Any:
        async def opened() -> Any:
            app = sample_app(self.url)
            async with app:
                return await work(app)

        return asyncio.run(opened())

    def submit(self, job_type: str = "echo", payload: Any = None, **options: Any) -> str:
        async def work(app: Backstay) -> str:
            return (await app.submit(job_type, payload, **options)).job_id

        return self.do(work)

    def run(self, job_type: str = "echo", payload: Any = None, **options: Any) -> str:
        """A job that has ended."""

        async def work(app: Backstay) -> str:
            async with app.worker(queues=["default"]):
                job = await app.submit(job_type, payload, **options)
                await asyncio.gather(job.result(), return_exceptions=True)
                return job.job_id

        return self.do(work)

    def job(self, job_id: str) -> Any:
        return self.do(lambda app: app.get(job_id))


def sample_app(url: str) -> Backstay:
    app = Backstay(url)

    @app.job("echo")
    async def echo(payload: Any, ctx: Context) -> Any:
        ctx.log.info("heard %s", payload)
        return payload

    @app.job("talk")
    async def talk(payload: int, ctx: Context) -> None:
        for number in range(payload):
            ctx.log.info("schön-%d", number)

    @app.job("keep")
    async def keep(payload: dict[str, str | list[int]], ctx: Context) -> None:
        for name, content in payload.items():
            await ctx.artifact(name, content if isinstance(content, str) else bytes(content))

    @app.job("limited", global_concurrency=1, rate="10/s")
    async def limited(payload: Any) -> None: ...

    @app.job("die", max_attempts=1, backoff=Backoff(base=0))
    async def die(payload: str) -> None:
        raise ValueError(payload)

    @app.job("family", max_attempts=1)
    async def family(payload: str, ctx: Context) -> None:
        await ctx.submit("die", payload, stage="FIRST")
        await ctx.submit("echo", payload)
        await ctx.wait_for_children(trigger_rule="all_success")

    @app.job("other", max_attempts=1)
    async def other(payload: str) -> None:
        raise LookupError(payload)

    return app


@pytest.fixture(scope="session")
def fresh_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty queue that knows the handlers; each test gets a copy."""
    folder = tmp_path_factory.mktemp("fresh")

    async def nothing(app: Backstay) -> None:
        pass

    Queue(folder).do(nothing)
    return folder / "jobs.db"


@pytest.fixture
def queue(folder: Path, fresh_file: Path) -> Queue:
    shutil.copy(fresh_file, folder / "jobs.db")
    return Queue(folder)


# Real processes


class Worker:
    """A worker process, read line by line: a test waits for what it says, never for time to pass."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "backstay", "worker", "--app", APP, *arguments],
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._unheard: SimpleQueue[str | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read)  # a full pipe would hold up the worker
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            for line in stderr:
                self._unheard.put(line)
        self._unheard.put(None)

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self, text: str) -> str:
        """The next line that has `text` in it."""
        while (line := self._unheard.get()) is not None:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"the worker ended without saying {text!r}:\n{''.join(self.lines)}")

    def has_more_within(self, seconds: float) -> bool:
        try:
            line = self._unheard.get(timeout=seconds)
        except Empty:
            return False
        self._unheard.put(line)  # the only one there is: its place is kept
        return True

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        code = self.process.wait()
        self._reader.join()
        while (line := self._unheard.get()) is not None:
            self.lines.append(line)
        return code

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()


@pytest.fixture
def start_worker(folder: Path) -> Iterator[Callable[..., Worker]]:
    started: list[Worker] = []

    def start(*arguments: str) -> Worker:
        started.append(Worker(folder, *arguments))
        return started[-1]

    yield start
    for worker in started:
        worker.end()
