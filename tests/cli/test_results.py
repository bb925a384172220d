"""backstay results"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backstay import Backstay, Context, ResultRow, Vector
from tests.cli.conftest import Cli, Queue


class Point(ResultRow, table="points", key="number"):
    number: int
    word: str = "a\x1b[2Jb"
    at: Vector[5] | None = None
    extra: dict[str, int] | None = None


@pytest.fixture
def job_id(queue: Queue) -> str:
    """A job with rows."""

    async def work() -> str:
        app = Backstay(queue.url)

        @app.job("put", results=[Point])
        async def put(payload: Any, ctx: Context) -> None:
            await ctx.results(Point).put(Point(number=n, at=[n, 0, 0, 0, 0], extra={"n": n}) for n in range(3))

        async with app, app.worker():
            job = await put.submit(None)
            await job.result(timeout=10)
            return str(job.job_id)

    return asyncio.run(work())


def test_the_tables_of_a_job_are_listed(cli: Cli, queue: Queue, job_id: str) -> None:
    assert cli("results", job_id).out == "points\n"
    assert "result tables  points" in " ".join(cli("show", job_id).out.splitlines())
    assert cli("results", job_id[-12:], "--json").document == {"job_id": job_id, "items": ["points"]}
    ran = cli("results", queue.run())
    assert (ran.code, ran.out) == (0, "")
    assert "has no result rows" in ran.err


def test_rows_are_shown_a_page_at_a_time_and_nothing_in_them_is_obeyed(cli: Cli, job_id: str) -> None:
    ran = cli("results", job_id, "points", "--limit", "2")
    header, *rows = ran.out.splitlines()

    assert header.split() == ["NUMBER", "WORD", "AT", "EXTRA"]
    assert [row.split()[0] for row in rows] == ["0", "1"]
    assert "a\\x1b[2Jb" in rows[0] and '{"n":0}' in rows[0]
    assert "[1, 0, 0, …] (5)" in rows[1]
    cursor = ran.err.split("'")[1]
    rest = cli("results", job_id, "Points", "--after", cursor)
    assert [row.split()[0] for row in rest.out.splitlines()[1:]] == ["2"]


def test_json_has_whole_rows_and_the_place_to_go_on(cli: Cli, job_id: str) -> None:
    document = cli("results", job_id, "points", "--limit", "2", "--json").document

    assert document["items"][1]["at"] == [1.0, 0, 0, 0, 0]
    assert (document["items"][1]["job_id"], document["items"][1]["extra"]) == (job_id, {"n": 1})
    rest = cli("results", job_id, "points", "--after", document["next"], "--json").document
    assert ([row["number"] for row in rest["items"]], rest["next"]) == ([2], None)


def test_what_there_is_not_says_what_there_is(cli: Cli, queue: Queue, job_id: str) -> None:
    ran = cli("results", job_id, "lines")
    assert ran.code != 0
    assert "there is points" in ran.err
    assert "appear when the job completes" in cli("results", queue.submit(), "points").err


def test_a_file_is_written_whole_or_not_at_all(cli: Cli, queue: Queue, folder: Path) -> None:
    job_id = queue.run("keep", {"letter.txt": "Dear Ada", "picture": [0, 255] * 1000})
    (folder / "picture").write_bytes(b"before")

    assert cli("artifacts", job_id, "picture", "--output", "picture").code == 0
    assert (folder / "picture").read_bytes() == bytes([0, 255] * 1000)
    [stored] = [path for path in folder.rglob("picture") if job_id in str(path)]
    stored.write_bytes(b"changed")
    assert cli("artifacts", job_id, "picture", "-o", "picture").code != 0
    assert (folder / "picture").read_bytes() == bytes([0, 255] * 1000)
    assert [path.name for path in folder.iterdir() if path.name.endswith(".draft")] == []
    assert "give the NAME" in cli("artifacts", job_id, "--output", "x").err
    assert "cannot be written" in cli("artifacts", job_id, "letter.txt", "-o", "nowhere/at/all").err
