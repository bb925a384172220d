"""Rows of a subject over HTTP, on each engine: of all its jobs, and of the one that completed last."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from backstay import Backstay, Context, ResultRow
from tests.server.routes_stage import Stage, staged


class Analysis(BaseModel):
    numbers: list[int]
    table: bool = True


class Score(ResultRow, table="scores", key="number", subject="conversation", subject_index=True):
    number: int
    conversation: str
    groups: tuple[dict[str, float], ...] = ()


class Plain(ResultRow, table="plain", key="number", subject="conversation"):
    number: int
    conversation: str


def _app(url: str) -> Backstay:
    app = Backstay(url)

    @app.job("analyse", results=[Score, Plain])
    async def analyse(payload: Analysis, ctx: Context) -> None:
        table = Score if payload.table else Plain
        about = str(ctx.job.subject)
        await ctx.results(table).put([table(number=each, conversation=about) for each in payload.numbers])

    @app.job("repeat", results=[Score])
    async def repeat(payload: Analysis, ctx: Context) -> None:
        about = str(ctx.job.subject)
        await ctx.results(Score).put([Score(number=each, conversation=about) for each in payload.numbers])

    return app


@pytest.fixture(params=["sqlite", "postgres", "dynamodb"])
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    match request.param:
        case "sqlite":
            url = f"sqlite:///{tmp_path}/jobs.db"
        case "postgres":
            url = request.getfixturevalue("postgres").url(schema=f"subjects_{secrets.token_hex(3)}")
        case _:
            url = request.getfixturevalue("dynamodb").url(wake_ceiling="0.2")
    async with staged(_app(url)) as found:
        yield found


async def run(stage: Stage, subject: str, *numbers: int, job_type: str = "analyse", **options: Any) -> str:
    table = options.pop("table", True)
    job = await stage.app.submit(job_type, Analysis(numbers=list(numbers), table=table), subject=subject, **options)
    async with stage.app.worker(poll_interval=0.05, queues=["default", "secret"]):
        await stage.app.result(job.job_id, timeout=30)
    return job.job_id


async def pages(stage: Stage, path: str, headers: dict[str, str] | None = None, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    for _ in range(20):
        answer = await stage.ask("GET", path, params={**query, **after}, headers=headers)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += page["items"]
        if page["next"] is None:
            return found
        after = {"after": page["next"]}
    raise AssertionError("the pages do not come to an end")


async def test_rows_of_a_subject_are_those_of_all_its_jobs_the_oldest_first(stage: Stage) -> None:
    first = await run(stage, "19305", 1, 2, 3)
    await run(stage, "36324", 9)
    second = await run(stage, "19305", 2, 4)

    expected = [(first, 1), (first, 2), (first, 3), (second, 2), (second, 4)]
    for limit in (1, 2, 100):
        rows = await pages(stage, "/results/scores", subject="19305", limit=limit)
        assert [(row["job_id"], row["number"]) for row in rows] == expected
    assert await pages(stage, "/results/SCORES", subject="nobody") == []


async def test_the_latest_rows_are_of_one_job_on_all_pages(stage: Stage) -> None:
    await run(stage, "19305", 1, 2, 3)
    second = await run(stage, "19305", 4, 5, 6)
    await run(stage, "19305", 8, table=False)  # completed later, without rows in this table

    page = await stage.get("/results/scores/latest", subject="19305", limit=2)
    third = await run(stage, "19305", 7, job_type="repeat")
    rest = await stage.get("/results/scores/latest", subject="19305", limit=2, after=page["next"])

    assert (page["job_id"], rest["job_id"], rest["next"]) == (second, second, None)
    assert [row["number"] for row in page["items"] + rest["items"]] == [4, 5, 6]
    assert (await stage.get("/results/scores/latest", subject="19305"))["job_id"] == third
    of_type = await stage.get("/results/scores/latest", subject="19305", job_type="analyse")
    assert of_type["job_id"] == second
    nothing = await stage.get("/results/scores/latest", subject="nobody")
    assert (nothing["job_id"], nothing["items"], nothing["next"]) == (None, [], None)


async def test_what_cannot_be_answered_is_refused(stage: Stage) -> None:
    job_id = await run(stage, "19305", 1, 2)
    for path, query, status in [
        ("/results/nothing", {"subject": "19305"}, 404),
        ("/results/nothing/latest", {"subject": "19305"}, 404),
        ("/results/scores", {}, 422),
        ("/results/plain", {"subject": "19305"}, 422),  # no index of its subject
        ("/results/scores", {"subject": "19305", "after": "x"}, 422),
        ("/results/scores/latest", {"subject": "19305", "after": "x"}, 422),
        ("/results/scores/latest", {"subject": "36324", "after": f'["{job_id}","[1,1]"]'}, 404),
        ("/results/scores", {"subject": "19305", "limit": 0}, 422),
        ("/results/scores", {"subject": "19305", "after": f'[99999999999999999999,"{job_id}",1]'}, 422),
        ("/results/scores", {"subject": "19305", "after": f'[1,"{job_id}","x"]'}, 422),
        ("/results/scores", {"subject": "19305", "after": f'[1,"{job_id}",99999999999999999999]'}, 422),
        ("/results/scores", {"subject": "19305", "after": '[1,"x",1]'}, 422),
        ("/results/scores/latest", {"subject": "19305", "after": '["x","[1,1]"]'}, 422),
        ("/results/scores/latest", {"subject": "19305", "after": f'["{job_id}","[1,\\"x\\"]"]'}, 422),
        (f"/jobs/{job_id}/results/scores", {"after": '[1,"x"]'}, 422),
    ]:
        assert (await stage.ask("GET", path, params=query)).status_code == status, (path, query)


async def test_a_key_for_some_queues_reads_no_rows_of_others(stage: Stage) -> None:
    ours = await run(stage, "19305", 1, 2)
    theirs = await run(stage, "19305", 3, 4, queue="secret")
    key = await stage.key("read", queues=("default",))

    rows = await pages(stage, "/results/scores", key, subject="19305", limit=3)
    assert [(row["job_id"], row["number"]) for row in rows] == [(ours, 1), (ours, 2)]
    page = await stage.ask("GET", "/results/scores", params={"subject": "19305", "limit": 3}, headers=key)
    assert theirs not in page.text  # its cursor is at a row that the key does not see
    for query in ({}, {"job_type": "analyse"}):
        latest = await stage.ask("GET", "/results/scores/latest", params={"subject": "19305", **query}, headers=key)
        assert latest.json()["job_id"] == ours
    cursor = f'["{theirs}","[1,1]"]'
    stolen = await stage.ask("GET", "/results/scores/latest", params={"subject": "19305", "after": cursor}, headers=key)
    assert stolen.status_code == 404
