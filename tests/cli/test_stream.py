"""backstay output"""

from __future__ import annotations

import asyncio
from typing import Any

from backstay import Backstay, Context
from tests.cli.conftest import Cli, Queue


def told(queue: Queue, *values: Any) -> str:
    """The id of a job that has streamed these values."""

    async def work(app: Backstay) -> str:
        @app.job("tell")
        async def tell(payload: list[Any], ctx: Context) -> None:
            for value in payload:
                await ctx.stream(value)

        async with app.worker():
            job = await tell.submit(list(values))
            await job.wait(timeout=20)
            return job.job_id

    return str(queue.do(work))


def test_texts_are_printed_one_after_another_and_other_values_as_lines(cli: Cli, queue: Queue) -> None:
    job_id = told(queue, "Once ", "upon\na ", "time", {"n": 1}, [2], "the end")
    ran = cli("output", job_id)
    assert (ran.code, ran.out) == (0, 'Once upon\na time\n{"n":1}\n[2]\nthe end\n')


def test_json_is_a_line_for_each_entry_and_after_continues(cli: Cli, queue: Queue) -> None:
    job_id = told(queue, "a", "b")
    first, second = (line for line in cli("output", job_id, "--json").out.splitlines())
    assert '"value":"a","number":1,"attempt":1' in first
    assert cli("output", job_id, "--json", "--after", "1.0.1").out == second + "\n"
    assert "is not a place in an output" in cli("output", job_id, "--after", "x").err


def test_control_characters_do_not_reach_the_terminal(cli: Cli, queue: Queue) -> None:
    assert "\x1b" not in cli("output", told(queue, "\x1b]0;title\x07")).out


def test_follow_prints_until_the_job_has_ended(cli: Cli, queue: Queue) -> None:
    ran = cli("output", told(queue, "all"), "--follow")
    assert ran.out == "all\n"
    assert "is completed" in ran.err


def test_a_job_without_output_says_why(cli: Cli, queue: Queue) -> None:
    waiting = queue.submit()
    assert "has no output yet: " in cli("output", waiting).err
    assert "is completed and has no output" in cli("output", queue.run(payload="x")).err


def test_a_run_that_begins_again_is_announced(cli: Cli, queue: Queue) -> None:
    async def work(app: Backstay) -> str:
        @app.job("twice")
        async def twice(payload: Any, ctx: Context) -> None:
            await ctx.stream(f"attempt {ctx.attempt}")

        async with app.worker():
            job = await twice.submit(None)
            await job.wait(timeout=20)
            await job.retry()
            await asyncio.sleep(0)
            await job.wait(timeout=20)
            return job.job_id

    job_id = str(queue.do(work))
    ran = cli("output", job_id, "--after", "1.0.1")
    assert ran.out == "attempt 2\n"
    assert "attempt 2 begins again" in ran.err
