"""backstay logs"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from backstay import Backstay, Context
from backstay.cli import logs
from tests.cli.conftest import Cli, Queue


def test_logs_prints_the_file_in_full_or_the_last_lines_of_the_record(cli: Cli, queue: Queue, folder: Path) -> None:
    job_id = queue.run(payload="knock")
    assert "heard knock" in cli("logs", job_id).out
    entries = cli("logs", job_id, "--json").document
    assert entries["entries"][0]["message"] == "heard knock"
    (folder / "jobs.db.files" / job_id / "job.log").unlink()
    ran = cli("logs", job_id)
    assert "heard knock" in ran.out
    assert "the last lines" in ran.err


def test_a_log_longer_than_what_a_record_keeps_is_printed_whole_and_its_end_on_demand(
    cli: Cli, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = queue.run("talk", 300)
    lines = cli("logs", job_id).out.splitlines()
    assert [line.rsplit(" ", 1)[1] for line in lines] == [f"schön-{n}" for n in range(300)]
    assert cli("logs", job_id, "--lines", "2").out.splitlines() == lines[-2:]


def test_a_character_that_falls_between_two_reads_is_whole(queue: Queue) -> None:
    job_id = queue.run("talk", 20)

    async def read(app: Backstay) -> list[str]:
        whole = app.log_bytes

        async def a_byte_at_a_time(job_id: str, start: int = 0, size_max: int = 1) -> bytes | None:
            return await whole(job_id, start, 1)

        app.log_bytes = a_byte_at_a_time  # type: ignore[method-assign]
        return [line async for line in logs._Lines(app, job_id).new()]

    assert [line.rsplit(" ", 1)[1] for line in queue.do(read)] == [f"schön-{n}" for n in range(20)]


def test_follow_prints_what_is_logged_until_the_job_has_ended(queue: Queue, folder: Path) -> None:
    async def follow(app: Backstay) -> tuple[str, list[str]]:
        told = asyncio.Event()

        @app.job("story")
        async def story(payload: Any, ctx: Context) -> None:
            ctx.log.info("it begins")
            await told.wait()
            ctx.log.info("it ends")

        async with app.worker():
            job = await app.submit("story")
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "backstay", "logs", job.job_id, "--follow",
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            assert process.stdout is not None
            first = await process.stdout.readline()
            told.set()
            rest, err = await process.communicate()
            assert process.returncode == 0
            return first.decode(), [rest.decode(), err.decode()]

    first, (rest, err) = queue.do(follow)
    assert first.endswith("it begins\n")
    assert rest.endswith("it ends\n")
    assert rest.count("\n") == 1
    assert "is completed" in err


def test_a_job_that_was_cancelled_with_what_it_depends_on_says_so_instead_of_nothing(cli: Cli, queue: Queue) -> None:
    first = queue.submit(delay=3600)
    second = queue.submit(depends_on=[first])
    cli("cancel", first)
    ran = cli("logs", second)
    assert (ran.code, ran.out) == (0, "")
    assert "has no log output" in ran.err
    assert "was cancelled" in ran.err
    assert f"because {first} was cancelled" in ran.err
    assert cli("logs", second, "--follow").err == ran.err


def test_a_job_that_has_not_run_says_why(cli: Cli, queue: Queue) -> None:
    assert "it is scheduled for" in cli("logs", queue.submit(delay=3600)).err


def test_follow_and_json_exclude_each_other(cli: Cli, queue: Queue) -> None:
    ran = cli("logs", queue.submit(), "--follow", "--json")
    assert ran.code == 2
    assert "remove --json" in ran.err


def test_the_log_of_an_archived_job_is_gone_and_not_empty(cli: Cli, queue: Queue) -> None:
    job_id = queue.run()
    cli("purge", "--older-than", "0", "--yes")
    for arguments in ([], ["--follow"]):
        ran = cli("logs", job_id, *arguments)
        assert (ran.code, ran.out) == (0, "")
        assert ran.err == f"backstay: job {job_id} was archived and its log deleted\n"
