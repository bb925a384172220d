"""Trees, pipelines and batches on the engines that are servers, as on a file: with a worker, from the app."""

import secrets
from typing import Any

import pytest

from backstay import Backstay, BatchContext, Context, Stage
from tests.support.eventually import eventually


@pytest.fixture(params=["postgres", "dynamodb"])
def app(request: pytest.FixtureRequest) -> Backstay:
    server = request.getfixturevalue(request.param)
    place = {"schema": f"trees_{secrets.token_hex(3)}"} if request.param == "postgres" else {}
    return Backstay(server.url(**place))


async def test_a_pipeline_fails_is_retried_and_runs_again_from_a_stage(app: Backstay) -> None:
    bad, ran = {"second"}, []

    @app.job("part")
    async def part(payload: int) -> int:
        return payload

    @app.job("step", max_attempts=1)
    async def step(payload: str, ctx: Context) -> list[Any]:
        ran.append(payload)
        if payload in bad:
            raise ValueError(payload)
        for n in range(3):
            await ctx.submit("part", n)
        children = await ctx.wait_for_children(trigger_rule="all_success")
        return [sorted(child.result for child in children), sorted(await ctx.upstream())]

    flow = app.pipeline("flow", [Stage(name, step) for name in ("FIRST", "SECOND", "THIRD")])
    stages = [{"stage": name, "config": name.lower()} for name in ("FIRST", "SECOND", "THIRD")]

    async def has_ended() -> bool:
        return (await app.get(handle.job_id)).status in ("completed", "failed")

    async with app, app.worker():
        handle = await flow.submit({"stages": stages})
        await eventually(has_ended, 30)
        tree = await app.tree(handle.job_id)
        assert {job.job_stage: job.status.value for job in tree.jobs.values() if job.job_type == "step"} == {
            "FIRST": "completed",
            "SECOND": "failed",
            "THIRD": "cancelled",
        }
        bad.clear()
        ran.clear()
        await app.retry(handle.job_id, subtree=True)
        result = (await app.result(handle.job_id, timeout=60))["stages"]
        assert result["THIRD"]["result"] == [[0, 1, 2], ["SECOND"]]
        assert set(ran) == {"second", "third"}
        ran.clear()
        await app.rerun(result["THIRD"]["job_id"])
        assert (await app.result(handle.job_id, timeout=60))["stages"] == result
        assert set(ran) == {"third"}
        assert {job.status.value for job in (await app.tree(handle.job_id)).jobs.values()} == {"completed"}


async def test_a_fan_out_of_zero_and_a_second_phase(app: Backstay) -> None:
    @app.job("part")
    async def part(payload: int) -> int:
        return payload

    @app.job("phases")
    async def phases(payload: int, ctx: Context) -> list[int]:
        one = await ctx.wait_for_children()
        for n in range(payload):
            await ctx.submit("part", n)
        two = await ctx.wait_for_children()
        return [len(one), len(two)]

    @app.job("joined")
    async def joined(payload: int, ctx: Context) -> None:
        await ctx.wait_for_children()

    @joined.join
    async def second(payload: int, ctx: Context) -> int:
        return len(ctx.children)

    async with app, app.worker():
        handles = await app.submit_many([("phases", 2), ("phases", 0), ("joined", 0)])
        assert [await each.result(timeout=60) for each in handles] == [[0, 2], [0, 0], 0]


async def test_a_batch_with_children_of_its_jobs(app: Backstay) -> None:
    @app.job("part")
    async def part(payload: int) -> int:
        return payload

    @app.batch_job("embed", max_size=10, max_wait=5)
    async def embed(payloads: list[int], ctx: BatchContext) -> list[Any]:
        if 3 in payloads and len(payloads) > 1:
            raise RuntimeError("three is a crowd")
        for item, payload in zip(ctx, payloads, strict=True):
            await item.submit("part", payload)
        return [payload * 2 for payload in payloads]

    async with app:
        handles = await app.submit_many([("embed", n) for n in range(10)])
        async with app.worker():
            assert [await each.result(timeout=60) for each in handles] == [n * 2 for n in range(10)]
            assert [(await app.get(each.job_id)).child_count for each in handles] == [1] * 10
            assert {(await app.get(each.job_id)).attempt for each in handles} == {1}
