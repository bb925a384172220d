"""The program that the README shows is the one in examples/quickstart, and it does what is said of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from backstay import Backstay, Job
from tests.docs.pages import ROOT, blocks
from tests.examples.conftest import EXAMPLES
from tests.support.eventually import eventually

PROGRAM = EXAMPLES / "quickstart" / "quickstart.py"
LINES_MAX = 30


def start(folder: Path, *command: str) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BACKSTAY_")}
    return subprocess.Popen(
        command or [sys.executable, str(PROGRAM)], cwd=folder, env=kept, stdout=subprocess.PIPE, text=True
    )


async def answer(process: subprocess.Popen[str]) -> list[str]:
    said, _ = await asyncio.to_thread(process.communicate, timeout=60)
    assert process.returncode == 0
    return said.splitlines()


async def stored(folder: Path) -> list[Job]:
    async with Backstay(f"sqlite:///{folder}/jobs.db") as app:
        return list(await app.find())


def test_the_readme_shows_this_very_program() -> None:
    shown = [block.code for block in blocks(ROOT / "README.md") if block.file == "hello.py"]
    assert shown == [PROGRAM.read_text(encoding="utf-8")]
    assert len(shown[0].splitlines()) <= LINES_MAX


async def test_it_runs_to_its_end(tmp_path: Path) -> None:
    first, last = await answer(start(tmp_path))
    assert last == "Hello, Ada! (attempt 1)"
    [job] = await stored(tmp_path)
    assert first == f"stored {job.job_id}"
    assert (job.status, job.result, job.stage) == ("completed", last, "complete")


async def test_killed_with_9_in_the_middle_and_started_again_it_finishes_the_same_job(tmp_path: Path) -> None:
    process = start(tmp_path)
    assert process.stdout is not None
    first = await asyncio.to_thread(process.stdout.readline)
    async with Backstay(f"sqlite:///{tmp_path}/jobs.db") as app:

        async def is_at_work() -> bool:
            return any(job.status == "processing" for job in await app.find())

        await eventually(is_at_work)
        process.kill()
        process.communicate()
    [killed] = await stored(tmp_path)
    assert killed.status == "processing"

    again, last = await answer(start(tmp_path))
    assert again == first.strip() == f"stored {killed.job_id}"
    assert last == "Hello, Ada! (attempt 2)"
    [job] = await stored(tmp_path)
    assert [entry.event.value for entry in job.history] == ["submit", "claim", "rescue", "due", "claim", "complete"]


async def test_its_script_shows_both(tmp_path: Path) -> None:
    said = await answer(start(tmp_path, str(PROGRAM.with_name("run")), str(tmp_path / "queue")))
    assert [line.split()[0] for line in said] == ["$", "stored", "Hello,", "$", "stored", "$", "stored", "Hello,"]
    assert said[4] == said[6], "the job that was stored before the kill"
    jobs = await stored(tmp_path / "queue")
    assert [job.status for job in jobs] == ["completed", "completed"]
