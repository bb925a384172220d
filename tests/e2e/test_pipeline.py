"""The sample pipeline, as `scripts/run` starts it: to its end, a second time, and after kill -9 at any point."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Holdfast, Job
from holdfast.testing.checker import check
from holdfast.testing.history import Evidence

ROOT = Path(__file__).parents[2]
MODULES = 12
SMALL = ("--modules", str(MODULES), "--shards", "3")
JOBS = 3 + 3 + 1


def start(folder: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "examples/pipeline/main.py"), "--folder", str(folder), *SMALL],
        cwd=folder.parent,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(folder: Path, **environment: str) -> tuple[int, str]:
    process = start(folder, **environment)
    said, _ = process.communicate(timeout=60)
    return process.returncode, said


async def stored(folder: Path) -> dict[str, Job]:
    async with Holdfast(f"sqlite:///{folder / 'jobs.db'}") as app:
        return {job.job_id: job for job in await app.find(limit=1000)}


def results(said: str) -> tuple[Path, Path]:
    page, figures = (
        Path(line.partition(":")[2].strip()) for line in said.splitlines() if line.startswith(("Report:", "Figures:"))
    )
    return page, figures


def judge_results(said: str) -> None:
    page, figures = results(said)
    assert page.is_absolute()
    assert page.read_text(encoding="utf-8").endswith("</body></html>\n")
    document = json.loads(figures.read_text(encoding="utf-8"))
    assert len(document["modules"]) == MODULES
    assert document["totals"]["lines"] > 1000


async def test_the_pipeline_runs_to_its_end_and_a_second_run_reuses_everything(tmp_path: Path) -> None:
    code, said = run(tmp_path / "demo")
    assert code == 0, said
    judge_results(said)
    first = await stored(tmp_path / "demo")
    assert len(first) == JOBS
    assert {job.status for job in first.values()} == {"completed"}

    code, said = run(tmp_path / "demo")
    assert code == 0, said
    assert "Nothing was computed" in said
    second = (await stored(tmp_path / "demo")).keys() - first.keys()
    assert len(second) == JOBS
    everything = await stored(tmp_path / "demo")
    assert {everything[job_id].reused_from for job_id in second} == first.keys()


@pytest.mark.parametrize(
    "failpoint",
    [
        "insert.committed=kill9@2",  # between two stages of submitting
        "handler.after=kill9@5",  # a handler is done, its outcome is not stored
        "apply.uncommitted=kill9@3",  # in the middle of settling
    ],
)
async def test_after_kill_9_a_second_start_goes_on_and_nothing_is_lost(tmp_path: Path, failpoint: str) -> None:
    code, said = run(tmp_path / "demo", HOLDFAST_FAILPOINTS=failpoint)
    assert code == -signal.SIGKILL, said
    before = await stored(tmp_path / "demo")
    ended = {job_id: job.completed_at for job_id, job in before.items() if job.status == "completed"}

    code, said = run(tmp_path / "demo")
    assert code == 0, said
    judge_results(said)
    after = await stored(tmp_path / "demo")
    assert before.keys() <= after.keys()
    assert {job.status for job in after.values()} == {"completed"}
    assert {job_id: after[job_id].completed_at for job_id in ended} == ended, "finished work was not done again"
    assert check(Evidence(job.record for job in after.values())) == []


async def test_a_kill_from_outside_in_the_middle_of_the_analysis_loses_nothing(tmp_path: Path) -> None:
    process = start(tmp_path / "demo")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("collect: "):
            break
    process.kill()
    process.communicate()
    before = await stored(tmp_path / "demo")
    assert len(before) == JOBS

    code, said = run(tmp_path / "demo")
    assert code == 0, said
    judge_results(said)
    after = await stored(tmp_path / "demo")
    assert before.keys() <= after.keys()
    assert {job.status for job in after.values()} == {"completed"}


async def test_an_interrupted_run_says_so_and_gives_its_jobs_back(tmp_path: Path) -> None:
    process = start(tmp_path / "demo", HOLDFAST_FAILPOINTS="handler.before=stop@4")  # in the middle, for certain
    await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "goes on where it was" in said
    assert "processing" not in {job.status.value for job in (await stored(tmp_path / "demo")).values()}

    code, said = run(tmp_path / "demo")
    assert code == 0, said
    judge_results(said)
