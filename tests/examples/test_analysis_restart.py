"""The audio service is killed with -9 in the middle of its work and started again, in real processes."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analysis.client import Client
from analysis.sound import RATE
from scipy.io import wavfile

import backstay.server
import backstay.sync
from backstay import Backstay, Job, JobNotFound, Retention
from backstay.testing import ManualClock
from tests.examples.analysis_service import wav
from tests.examples.conftest import EXAMPLES
from tests.support.eventually import eventually

ENDED = ("completed", "failed")
WEEK = timedelta(days=7)


@dataclass(frozen=True)
class Killed:
    """What a service that was killed has left, and what it had said of its jobs."""

    folder: Path
    key: str
    said: dict[str, dict[str, Any]]  # by a name of ours

    def id(self, name: str) -> str:
        return str(self.said[name]["job_id"])


def environment(**given: str) -> dict[str, str]:
    """With nothing of this machine's own settings in it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BACKSTAY_", "SOW_", "AWS_"))}
    return {**kept, **given}


@contextmanager
def serving(folder: Path, key: str) -> Iterator[tuple[Client, subprocess.Popen[str]]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "analysis", "serve"],
        env=environment(PYTHONPATH=str(EXAMPLES), CACHE_DIR=str(folder)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield Client(process.stdout.readline().split()[-1], key), process
    finally:
        process.kill()
        process.communicate()


def until(client: Client, job_id: str, holds: Callable[[dict[str, Any]], bool], seconds: float = 60) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    while not holds(job := client.get(f"/jobs/{job_id}")):
        assert time.monotonic() < deadline, job
        time.sleep(0.01)
    return dict(job)


def has_ended(job: dict[str, Any]) -> bool:
    return job["status"] in ENDED


def long_song() -> bytes:
    """Some minutes: long enough to be in the middle of it for certain."""
    _, short = wavfile.read(io.BytesIO(wav(tonic="G")))
    file = io.BytesIO()
    wavfile.write(file, RATE, np.tile(short, 20))
    return file.getvalue()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    folder = tmp_path_factory.mktemp("killed")
    with backstay.sync.Backstay(f"sqlite:///{folder}/jobs.db") as queue:
        key = queue.create_key("tests", ["admin"]).text
    said: dict[str, dict[str, Any]] = {}
    with serving(folder, key) as (client, process):

        def submit(name: str, kind: str, data: bytes, **body: Any) -> str:
            path = folder / "sent.wav"
            path.write_bytes(data)
            said[name] = client.post(f"/jobs/{kind}", {"content_hash": client.send_audio(path), **body})
            return str(said[name]["job_id"])

        submit("done", "analyze", wav())
        submit("timed", "lrc", wav(), lyrics="One line\nAnother line")
        submit("bad", "analyze", b"no song")
        for name in list(said):
            said[name] = until(client, said[name]["job_id"], has_ended)
        submit("long", "analyze", long_song())
        submit("long timed", "lrc", long_song(), lyrics="One line\nAnother line")
        submit("next", "analyze", wav(tonic="A"))
        said["long"] = until(client, said["long"]["job_id"], lambda job: job["progress"] > 0)
        process.kill()
    assert said["long"]["status"] == "processing"
    return Killed(folder, key, said)


@pytest.fixture
def left(killed: Killed, tmp_path: Path) -> Killed:
    """A copy of it, for one test to go on from."""
    shutil.copytree(killed.folder, tmp_path / "cache", ignore=shutil.ignore_patterns("*.bell"))  # sockets
    return Killed(tmp_path / "cache", killed.key, killed.said)


@asynccontextmanager
async def queue(left: Killed, days: float = 0) -> AsyncIterator[Backstay]:
    """The queue as a new process finds it, some days later; it has nothing in memory, and runs no job."""
    clock = ManualClock(datetime.now(UTC) + timedelta(days=days))
    retention = Retention(completed=WEEK, failed=WEEK, cancelled=WEEK)
    async with Backstay(f"sqlite:///{left.folder}/jobs.db", clock=clock, retention=retention) as app:
        yield app


def events(job: Job) -> list[str]:
    return [entry.event.value for entry in job.history]


def test_after_kill_9_every_job_finishes_and_no_id_becomes_invalid(left: Killed) -> None:
    with serving(left.folder, left.key) as (client, _):
        for job in left.said.values():
            now = client.get(f"/jobs/{job['job_id']}")
            assert (now["request"], now["created_at"]) == (job["request"], job["created_at"])
        ended = {name: until(client, left.id(name), has_ended) for name in left.said}
    assert {name: job["status"] for name, job in ended.items() if job["status"] != "completed"} == {"bad": "failed"}
    for name in ("done", "timed", "bad"):
        assert ended[name] == left.said[name], "what had ended is as it was, and was not done again"
    assert ended["long"]["result"]["key"] == "G major"
    assert [line["text"] for line in ended["long timed"]["result"]["lines"]] == ["One line", "Another line"]
    with backstay.sync.Backstay(f"sqlite:///{left.folder}/jobs.db") as stored:
        records = {name: stored.get(left.id(name)) for name in left.said}
    assert all(events(job).count("complete") == (name != "bad") for name, job in records.items()), "each once"
    assert {name: job.attempt for name, job in records.items()} == {
        "done": 1,
        "timed": 1,
        "bad": 1,
        "long": 2,
        "long timed": 1,
        "next": 1,
    }
    assert "rescue" in events(records["long"])


async def test_an_interrupted_job_is_queued_again_from_the_beginning_and_the_log_names_it(
    left: Killed, caplog: pytest.LogCaptureFixture
) -> None:
    async with queue(left) as app:
        assert (await app.get(left.id("long"))).status == "processing"
        async with backstay.server.lifespan(app)(None):  # sees to lost claims, and runs nothing

            async def is_back() -> bool:
                return (await app.get(left.id("long"))).status == "pending"

            await eventually(is_back)
        job = await app.get(left.id("long"))
        assert (job.progress, job.stage, job.failures) == (0.0, "requeued", 1)
    told = [message for message in caplog.messages if message.startswith("rescued job ")]
    assert len(told) == 1 and left.id("long") in told[0]


async def test_only_jobs_that_were_queued_or_running_are_taken_up_again(left: Killed) -> None:
    async with queue(left) as app:
        found = {job.job_id: job.status for job in await app.find() if job.status not in ENDED}
        brought = (await app.get(left.id("long timed"))).dependencies[0]
    assert found == {
        left.id("long"): "processing",
        brought: "waiting",  # the analysis that the lyrics brought along has joined it
        left.id("long timed"): "waiting",
        left.id("next"): "pending",
    }


async def test_every_state_that_a_job_went_through_is_on_disk(left: Killed) -> None:
    async with queue(left) as app:
        records = {name: await app.get(left.id(name)) for name in left.said}
    assert events(records["done"]) == ["submit", "claim", "complete"]
    assert events(records["bad"]) == ["submit", "claim", "discard"]
    assert events(records["long"]) == ["submit", "claim"]
    assert (records["long"].status, records["long"].result) == ("processing", None)
    assert (records["done"].status, records["done"].progress) == ("completed", 1.0)
    assert records["done"].result == left.said["done"]["result"] is not None
    assert (records["bad"].stage, records["done"].stage) == ("error", "complete")
    assert "no sound file" in str(records["bad"].last_error)


async def test_a_job_that_has_ended_is_read_from_disk_when_no_memory_has_it(left: Killed) -> None:
    async with queue(left) as app:
        job = await app.get(left.id("done"))
    said = left.said["done"]
    assert (job.status, job.progress, job.result) == (said["status"], said["progress"], said["result"])
    assert (job.payload, job.subject) == (said["request"], said["content_hash"])


async def test_ended_jobs_go_after_a_week_and_younger_ones_stay(left: Killed) -> None:
    ended = [left.id(name) for name in ("done", "timed", "bad")]
    async with queue(left, days=6) as app:
        assert await app.purge() == 0
    async with queue(left, days=8) as app:
        assert await app.purge() == 4, "the three, and the analysis that the lyrics brought along"
        assert not {job.job_id for job in await app.find()} & set(ended)
        for job_id in ended:
            job = await app.get(job_id)
            assert job.archived_at is not None and job.payload is None, "its id still answers, with how it ended"
            assert job.status in ENDED


async def test_queued_and_running_jobs_stay_however_old_they_are(left: Killed) -> None:
    async with queue(left, days=1000) as app:
        active = {job.job_id for job in await app.find() if job.status not in ENDED}
        assert {left.id("long"), left.id("long timed"), left.id("next")} < active
        await app.purge()
        await app.purge(older_than=0)
        assert {job.job_id for job in await app.find()} == active


async def test_what_the_archive_forgot_is_not_found(left: Killed) -> None:
    async with queue(left, days=8) as app:
        await app.purge()
    async with queue(left, days=400) as app:
        await app.purge()
        with pytest.raises(JobNotFound):
            await app.get(left.id("done"))


def test_the_one_command_shows_results_though_it_kills_its_service(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "analysis", "--folder", str(tmp_path / "demo"), "--songs", "2"],
        env=environment(PYTHONPATH=str(EXAMPLES)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    assert "kill -9" in done.stdout
    for found in ("96.0 ✓", "D major ✓", "128.0 ✓", "A minor ✓", "[00:10.01]Slow water"):
        assert found in done.stdout, done.stdout
    assert {path.suffix for path in (tmp_path / "demo").glob("Wait for me.*")} == {".wav", ".lrc", ".svg"}
    with backstay.sync.Backstay(f"sqlite:///{tmp_path}/demo/jobs.db") as stored:
        jobs = stored.find()
    assert {job.status for job in jobs} == {"completed"}
    assert all(events(job).count("complete") + events(job).count("reuse") == 1 for job in jobs), "each once"
