"""Every command works on a queue that is on a server, and none shows the password that leads to it."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from backstay import Backstay
from backstay.cli import worker
from backstay.engines.postgres import connection
from backstay.worker.stop import Stop
from tests.cli.conftest import Cli, Worker, sample_app
from tests.cli.on_servers import test_a_large_result_is_shown_by_every_command_that_shows_results  # noqa: F401
from tests.support.eventually import eventually
from tests.support.servers.postgres import Postgres

PASSWORD = "open-sesame"


@pytest.fixture
def url(postgres: Postgres, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = postgres.url(schema=f"cli_{secrets.token_hex(3)}").replace("postgres@", f"postgres:{PASSWORD}@")
    monkeypatch.setenv("BACKSTAY_URL", url)
    return url


@pytest.fixture
def jobs(url: str) -> list[str]:
    """One that ran, one that failed, one for later."""

    async def work() -> list[str]:
        app: Backstay = sample_app(url)
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


READING = [
    command for command, _ in COMMANDS if command.split()[0] not in ("submit", "migrate", "cancel", "retry", "purge")
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


def schema_exists(url: str) -> bool:
    plain, _, schema = url.partition("?schema=")
    with psycopg.connect(plain) as connection:
        return connection.execute("SELECT to_regnamespace(%s) IS NOT NULL", [schema]).fetchone() == (True,)


@pytest.mark.parametrize("command", [*READING, "cancel {0}", "retry {0}", "purge --older-than 0 --yes"])
def test_a_command_that_makes_nothing_says_that_there_is_no_queue(cli: Cli, url: str, command: str) -> None:
    ran = cli(*command.format(*["01890000-0000-7000-8000-000000000000"] * 3).split())

    assert (ran.code, ran.out) == (2, "")
    assert "no queue at postgresql://postgres@" in ran.err
    assert "backstay migrate" in ran.err
    assert PASSWORD not in ran.err
    assert not schema_exists(url)


def test_a_mistyped_option_of_the_url_is_a_mistake_of_usage(
    cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKSTAY_URL", url.replace("schema=", "shema="))

    ran = cli("list")

    assert ran.code == 2
    assert "shema" in ran.err


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "OUTAGE_SECONDS", 0.2)


@pytest.mark.usefixtures("impatient")
def test_a_server_that_is_not_there_is_named_without_the_password(
    cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKSTAY_URL", "postgresql://me:open-sesame@127.0.0.1:1/nowhere")

    ran = cli("list")

    assert ran.code == 1
    assert "127.0.0.1:1/nowhere" in ran.err
    assert PASSWORD not in ran.err


@pytest.fixture
def hears_signals() -> Iterator[None]:
    yield
    assert Stop.current is not None
    Stop.current.close()


@pytest.mark.usefixtures("impatient", "hears_signals")
async def test_a_worker_waits_for_its_server_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with Postgres() as server:
        await asyncio.to_thread(server.stop)
        working = asyncio.ensure_future(worker._work(sample_app(server.url()), A_FEW))
        await eventually(lambda: heard(caplog, "waiting for the store"))
        await asyncio.to_thread(server.start)
        await eventually(lambda: heard(caplog, "started: queues default"))
        os.kill(os.getpid(), signal.SIGTERM)
        assert await working == 0
    assert caplog.text.count("waiting for the store") == 1


@pytest.mark.usefixtures("impatient", "hears_signals")
async def test_a_worker_that_waits_for_its_server_can_be_stopped(caplog: pytest.LogCaptureFixture) -> None:
    working = asyncio.ensure_future(worker._work(sample_app("postgresql://127.0.0.1:1/nowhere"), A_FEW))
    await eventually(lambda: heard(caplog, "waiting for the store"))
    os.kill(os.getpid(), signal.SIGTERM)
    assert await working == 0


A_FEW = worker._Settings(
    concurrency=1,
    queues=("default",),
    grace_seconds=1,
    burst=False,
    max_jobs=None,
    max_memory=None,
    is_supervised=False,
)


async def heard(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return text in caplog.text


def test_a_worker_process_says_where_it_works_without_the_password(
    url: str, start_worker: Callable[..., Worker]
) -> None:
    worker = start_worker()
    assert "on postgresql://postgres@" in worker.hear("started")
    worker.process.terminate()

    assert worker.exit_code() == 0
    assert PASSWORD not in "".join(worker.lines)
