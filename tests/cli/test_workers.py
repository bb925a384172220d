"""backstay workers"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from backstay import Backstay, Context
from backstay.core.records import BlockedLoop
from backstay.testing.conformance.factories import a_worker
from tests.cli.conftest import Cli, Queue
from tests.support.eventually import eventually


async def run_cli(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "backstay", *arguments, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


async def _has_told(app: Backstay) -> bool:
    """Its next heartbeat says how many attempts have ended."""
    return (await app.workers())[0].ended == 1


def test_workers_are_listed_with_what_they_run_and_how_they_do(cli: Cli, queue: Queue) -> None:
    async def look(app: Backstay) -> tuple[str, Any, str]:
        begun, end = asyncio.Event(), asyncio.Event()

        @app.job("hold")
        async def hold(payload: Any, ctx: Context) -> None:
            begun.set()
            await end.wait()

        async with app.worker(concurrency=3, lease=4):
            done = await app.submit("echo")
            await done.result()
            job = await app.submit("hold")
            await begun.wait()
            await eventually(lambda: _has_told(app))
            answers = await asyncio.gather(run_cli("workers"), run_cli("workers", "--json"))
            end.set()
            await job.result()
            return answers[0], json.loads(answers[1]), job.job_id

    plain, machine, job_id = queue.do(look)
    table, jobs = plain.split("\n\n")
    header, row = (line.split() for line in table.splitlines())
    assert header[:7] == ["WORKER", "STATE", "HEARTBEAT", "RUNNING", "ENDED", "FAILED", "AVERAGE"]
    assert row[1] == "working"
    assert "1/3" in row
    assert job_id in jobs
    assert "running" in jobs
    [item] = machine["items"]
    assert item["worker_id"].startswith(f"{item['host']}:{item['pid']}:")
    assert (item["running"], item["ended"], item["failed"], item["concurrency"]) == ([job_id], 1, 0, 3)
    assert item["average_time_ms"] >= 0
    assert 0 <= item["heartbeat_age_seconds"] < 60
    assert item["version"]
    assert "process_key" not in item
    assert "no workers are registered" in cli("workers").err


def test_a_worker_whose_event_loop_is_blocked_is_listed_with_the_handler_that_blocks_it(cli: Cli, queue: Queue) -> None:
    async def beat(app: Backstay) -> None:
        now = app.clock.now()
        blocked = BlockedLoop(now - 40_000_000, "resize", "some-job", "/srv/shop/jobs.py:7 in resize")
        await app.store.beat(a_worker(worker_id="w-1", heartbeat_at=now, blocked=blocked))

    queue.do(beat)
    said = cli("workers")
    assert "blocked" in said.out.splitlines()[1].split()
    assert "the event loop of w-1 has been blocked for 4" in said.err
    assert "by resize job some-job, at /srv/shop/jobs.py:7 in resize" in said.err
    [item] = cli("workers", "--json").document["items"]
    assert (item["blocked"]["job_type"], item["blocked"]["job_id"]) == ("resize", "some-job")


def test_help_says_how_old_the_figures_may_be(cli: Cli) -> None:
    assert "up to a third of a lease ago" in " ".join(cli("workers", "--help").out.split())
    assert "more than a lease" in " ".join(cli("schedules", "--help").out.split())
