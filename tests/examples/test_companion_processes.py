"""Companion in processes of its own, as it is run: the demonstration, a kill between sending and settling, Sentry."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest
from companion import jobs, sample
from companion.__main__ import main
from companion.chat import Message
from companion.dynamodb_local import dynamodb_local
from companion.receiver import Receiver

from backstay import Backstay, Job
from backstay.sync import Backstay as BlockingBackstay
from backstay.testing import throwaway_url
from tests.examples.companion_stage import add_user
from tests.examples.conftest import EXAMPLES
from tests.observers.receiver import Receiver as Sentry
from tests.support.eventually import eventually
from tests.support.servers.dynamodb import DynamoDB

SUMMARY = {"user_id": "ada", "day": "2026-11-15", "timezone": "Europe/Berlin"}
QUICK = {"BACKSTAY_LEASE": "3", "BACKSTAY_POLL_INTERVAL": "0.5", "COMPANION_BASE_DELAY_SECONDS": "0.05"}


@pytest.fixture
def chat() -> Iterator[Receiver]:
    with Receiver() as chat:
        add_user(chat, "ada")
        yield chat


@pytest.fixture
def environment(example_environment: dict[str, str], chat: Receiver) -> dict[str, str]:
    return {**example_environment, **QUICK, "COMPANION_CHAT_URL": chat.url}


@contextmanager
def worker(environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "backstay", "--app", "companion.jobs:app", "worker", "--log-level", "error"]
    process = subprocess.Popen(command, env=environment)
    try:
        yield process
        process.terminate()
        process.wait(30)
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def companion(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Backstay]:
    monkeypatch.setattr(jobs.app, "url", url)
    async with jobs.app:
        yield jobs.app


async def ended(app: Backstay, job_id: str) -> Job:
    async def has_ended() -> bool:
        return (await app.get(job_id)).completed_at is not None

    await eventually(has_ended, 60)
    return await app.get(job_id)


async def test_a_worker_killed_between_sending_and_settling_delivers_the_message_once(
    dynamodb: DynamoDB, chat: Receiver, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = environment["BACKSTAY_URL"] = dynamodb.url()
    killed = threading.Event()
    async with companion(url, monkeypatch) as app:
        with worker(environment) as first:

            def kill(message: Message) -> None:
                if not killed.is_set():
                    os.kill(first.pid, signal.SIGKILL)
                    killed.set()

            chat.on_kept = kill
            job_id = (await app.submit("daily_summary", SUMMARY)).job_id
            assert await asyncio.to_thread(killed.wait, 60)
            assert first.wait(10) == -signal.SIGKILL
        assert (await app.get(job_id)).status == "processing"
        with worker(environment):
            job = await ended(app, job_id)
    assert (job.status, job.failures) == ("completed", 1)
    assert [str(entry.event) for entry in job.history].count("complete") == 1
    assert list(chat.sends.values()) == [2]
    assert [message.text for message in chat.messages.values()] == ["Ada, you wrote nothing on Sunday, 15 November."]


async def test_every_failure_is_told_to_sentry_with_its_job_and_the_last_one_as_a_dead_letter(
    tmp_path: Path, chat: Receiver, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = throwaway_url(tmp_path)
    chat.troubles.extend([(503, {})] * 3)
    with Sentry() as sentry:
        environment |= {"BACKSTAY_URL": url, "BACKSTAY_SENTRY_DSN": sentry.dsn}
        async with companion(url, monkeypatch) as app:
            job_id = (await app.submit("daily_summary", SUMMARY, max_attempts=3)).job_id
            with worker(environment):
                job = await ended(app, job_id)
        events = sentry.wait_for(3)
    assert (job.status, job.attempt) == ("failed", 3)
    assert [event["level"] for event in events] == ["warning", "warning", "fatal"]
    for event in events:
        assert event["tags"].items() >= {"job_id": job_id, "job_type": "daily_summary"}.items()
        assert '"user_id":"ada"' in event["extra"]["payload"]
        assert "503 Service Unavailable" in event["extra"]["traceback"]
    assert events[-1]["tags"]["outcome"] == "dead letter"


def test_the_demonstration_catches_up_with_everyone_in_spite_of_a_kill(
    tmp_path: Path, example_environment: dict[str, str]
) -> None:
    done = subprocess.run(
        [EXAMPLES / "companion" / "run"],
        env={**example_environment, "BACKSTAY_URL": throwaway_url(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "a worker was killed (kill -9)" in said
    assert "18 summaries sent, 18 messages kept: one for each user and day." in said
    assert "3 dead letters" in said
    rows = [line.split() for line in done.stdout.splitlines() if line.rstrip().endswith(("completed", "failed"))]
    assert len(rows) == 21
    assert {tuple(row[-2:]) for row in rows} == {("1", "completed"), ("0", "failed")}  # how often it was kept


def test_the_demonstration_has_a_dynamodb_of_its_own_and_leaves_none_behind() -> None:
    with dynamodb_local() as endpoint:
        place = ("127.0.0.1", int(endpoint.rpartition(":")[2]))
        socket.create_connection(place, 5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(place, 5)


def test_it_is_set_up_and_synced_from_the_command_line(
    tmp_path: Path, chat: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = throwaway_url(tmp_path)
    monkeypatch.setattr(jobs.app, "url", url)
    assert [
        main(["set-up"]),
        main(["set-up"]),
        main(["sync", "ada", "grace"]),
        main(["sync", "ada"]),
        main(["sync"]),
    ] == [0] * 5
    with BlockingBackstay(url) as app:
        assert [each.name for each in app.schedules()] == ["sync-users"]
        assert sorted(str(job.subject) for job in app.find(job_type="user_sync")) == ["ada", "grace"]
        assert len(app.find(job_type="sync_users")) == 1


def test_the_receiver_says_where_it_is_and_answers_there(example_environment: dict[str, str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "companion", "receiver"], env=example_environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        name, _, url = process.stdout.readline().strip().partition("=")
        answer = httpx.get(f"{url}/users", timeout=10)
        assert (name, answer.status_code) == ("COMPANION_CHAT_URL", 200)
        assert answer.json() == list(sample.PEOPLE)
        process.kill()
