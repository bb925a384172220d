"""Every command works on a queue that is on a server, and none shows the password that leads to it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.cli.conftest import Cli, Worker, sample_app
from tests.servers.postgres import Postgres

PASSWORD = "open-sesame"


@pytest.fixture
def url(postgres: Postgres, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = postgres.url(schema=f"cli_{secrets.token_hex(3)}").replace("postgres@", f"postgres:{PASSWORD}@")
    monkeypatch.setenv("HOLDFAST_URL", url)
    return url


@pytest.fixture
def jobs(url: str) -> list[str]:
    """One that ran, one that failed, one for later."""

    async def work() -> list[str]:
        app: Holdfast = sample_app(url)
        async with app, app.worker(queues=["default"]):
            ids = []
            for job_type, options in (("echo", {}), ("die", {}), ("echo", {"delay": 3600})):
                job = await app.submit(job_type, "hello", **options)
                ids.append(job.job_id)
                if not options:
                    await asyncio.gather(job.result(timeout=20), return_exceptions=True)
            await app.schedule("nightly", "30 3 * * *", "echo", "good night")
            return ids

    return asyncio.run(work())


COMMANDS = [
    ("list", "echo"),
    ("show {0}", "completed"),
    ("show {1}", "ValueError"),
    ("logs {0}", "heard hello"),
    ("tree {0}", "echo"),
    ("explain {2}", "scheduled"),
    ("workers", ""),
    ("queues", "default"),
    ("schedules", "nightly"),
    ("stats", "echo"),
    ("dead", "ValueError"),
    ("doctor", "PostgreSQL"),
    ("migrate", "up to date"),
    ("migrate --sql", "CREATE TABLE"),
    ("submit echo 7", "-"),
    ("cancel {2}", "cancelled"),
    ("retry {1}", "pending"),
    ("purge --older-than 0 --yes", "2 jobs"),
]


def test_every_command_answers_from_the_server(cli: Cli, jobs: list[str]) -> None:
    for command, says in COMMANDS:
        ran = cli(*command.format(*jobs).split())

        assert (ran.code, says in ran.out + ran.err) == (0, True), (command, ran)
        assert PASSWORD not in ran.out + ran.err


def test_the_bench_of_a_disk_says_nothing_of_a_server(cli: Cli, url: str) -> None:
    ran = cli("bench")

    assert (ran.code, ran.out) == (2, "")
    assert "--url sqlite:///" in ran.err


def test_a_server_that_is_not_there_is_named_without_the_password(
    cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "postgresql://me:open-sesame@127.0.0.1:1/nowhere")

    ran = cli("list")

    assert ran.code == 1
    assert "127.0.0.1:1/nowhere" in ran.err
    assert PASSWORD not in ran.err


def test_a_worker_process_says_where_it_works_without_the_password(
    url: str, start_worker: Callable[..., Worker]
) -> None:
    worker = start_worker()
    worker.hear("started")
    worker.process.terminate()

    assert worker.exit_code() == 0
    assert PASSWORD not in "".join(worker.lines)
