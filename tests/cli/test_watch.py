"""backstay watch and submit --wait, while a job fails and is made again"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec
import pytest

from backstay import Backoff, Backstay, Context, Job, Status
from backstay.cli import watch
from tests.cli.conftest import Cli, Queue


def test_off_a_terminal_a_failed_attempt_says_why_and_when_the_next_one_is(queue: Queue) -> None:
    async def follow(app: Backstay) -> tuple[str, str, str]:
        watched = asyncio.Event()

        @app.job("flaky", backoff=Backoff(base=2, jitter=0))
        async def flaky(payload: Any, ctx: Context) -> int:
            await watched.wait()
            if ctx.attempt < 2:
                raise ConnectionError("no answer")
            return ctx.attempt

        async with app.worker():
            job = await app.submit("flaky")
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "backstay", "watch", job.job_id,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            assert process.stderr is not None
            await process.stderr.readline()
            watched.set()
            out, err = await process.communicate()
            assert process.returncode == 0
            return job.job_id, out.decode(), err.decode()

    job_id, out, err = queue.do(follow)
    assert out == "2\n"
    told = next(line for line in err.splitlines() if "retrying" in line)
    assert told.startswith(f"backstay: job {job_id} is retrying: 1 of 5 attempts failed, retrying ")
    assert told.endswith(": ConnectionError: no answer")


def test_a_failure_between_two_looks_is_still_told(queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    job = queue.job(queue.run("die", "out of cheese"))
    with watch._lines() as show:
        show(_with(job, Status.PROCESSING, failures=0), job.created_at)
        show(_with(job, Status.PROCESSING, failures=1), job.created_at)
    assert f"job {job.job_id}: 1 of 1 attempt failed: ValueError: out of cheese\n" in capsys.readouterr().err


def test_waiting_for_a_job_in_a_paused_queue_says_that_it_is_paused(cli: Cli, queue: Queue) -> None:
    cli("queues", "pause", "default", "--by", "ada")
    ran = cli("submit", "echo", "--wait", "--timeout", "0.05")
    assert ran.code == 4
    assert "the job is waiting, because the queue default was paused by ada" in ran.err


@pytest.mark.parametrize("as_json", [False, True])
def test_a_result_that_went_with_its_retention_is_a_failure_and_not_null(cli: Cli, queue: Queue, as_json: bool) -> None:
    job_id = queue.run(payload="precious")
    cli("purge", "--older-than", "0", "--yes")
    ran = cli("watch", job_id, *(["--json"] if as_json else []))
    assert ran.code == 1
    assert "its result was deleted by retention" in ran.err
    assert (ran.document["job_id"] == job_id) if as_json else ran.out == ""


def _with(job: Job, status: Status, failures: int) -> Job:
    return Job(msgspec.structs.replace(job.row, status=status, failures=failures))
