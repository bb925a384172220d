"""Payloads and results come back as the types that a handler declares."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel

from backstay import (
    Backstay,
    BatchContext,
    BlockingContext,
    Context,
    InvalidPayload,
    InvalidResult,
    JobCancelled,
    JobFailed,
    JobHandler,
    Stage,
)
from backstay import sync as blocking


class Report(BaseModel):
    day: date
    pages: int = 1


@dataclass
class Point:
    x: int
    tags: set[str]


class Make(JobHandler[int, list[Report]]):
    def handle(self, payload: int, ctx: BlockingContext) -> list[Report]:
        return [Report(day=date(2026, 11, payload))]


class MakeUnannotated(JobHandler[int, Report]):
    async def handle(self, payload, ctx):  # type: ignore[no-untyped-def]
        return {"day": "2026-11-19"}


async def a_model(payload: int) -> Report:
    return Report(day=date(2026, 11, payload))


async def dataclasses(payload: int) -> list[Point]:
    return [Point(payload, {"a"})]


def a_tuple(payload: int) -> tuple[int, date] | None:
    return payload, date(2026, 11, payload)


async def nothing_declared(payload: int):  # type: ignore[no-untyped-def]
    return {"day": "2026-11-19"}


async def what_pydantic_does_not_know(payload: int) -> Callable[[], Any] | object:
    return {"day": "2026-11-19"}


@pytest.mark.parametrize(
    ("target", "result"),
    [
        (a_model, Report(day=date(2026, 11, 19))),
        (dataclasses, [Point(19, {"a"})]),
        (a_tuple, (19, date(2026, 11, 19))),
        (Make, [Report(day=date(2026, 11, 19))]),
        (MakeUnannotated, Report(day=date(2026, 11, 19))),
        (nothing_declared, {"day": "2026-11-19"}),
        (what_pydantic_does_not_know, {"day": "2026-11-19"}),
    ],
)
async def test_a_result_comes_back_as_the_type_that_its_handler_declares(
    app: Backstay, target: Any, result: Any
) -> None:
    handler = app.job("work")(target)
    async with app, app.worker():
        job = await app.submit(handler, 19)
        assert await job.result(timeout=30) == result
        assert await app.result(job.job_id, as_type=handler) == result
        assert (await app.get(job.job_id)).result_as(handler) == result


async def test_a_result_read_by_id_alone_is_plain_json(app: Backstay) -> None:
    app.job("work")(a_model)
    async with app, app.worker():
        job = await app.submit("work", 19)
        await job.result(timeout=30)
        assert await app.result(job.job_id) == {"day": "2026-11-19", "pages": 1}
        assert await app.result(job.job_id, as_type=Report) == Report(day=date(2026, 11, 19))
        assert (await app.get(job.job_id)).result == {"day": "2026-11-19", "pages": 1}


async def test_a_large_result_comes_back_as_its_type_too(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> list[Point]:
        return [Point(n, set()) for n in range(payload)]

    async with app, app.worker():
        found = await (await work.submit(20_000)).result(timeout=30)
    assert found[-1] == Point(19_999, set())


async def test_a_result_that_is_not_what_its_handler_declares_says_so(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> Report:
        return {"pages": "many"}  # type: ignore[return-value]

    async with app, app.worker():
        job = await work.submit(1)
        with pytest.raises(InvalidResult, match=r"work is not what its handler declares: day: Field required"):
            await job.result(timeout=30)
        assert await app.result(job.job_id) == {"pages": "many"}


async def test_a_job_without_a_result_has_none_of_any_type(app: Backstay) -> None:
    @app.job("work", max_attempts=1)
    async def work(payload: int) -> Report:
        raise ValueError("no")

    async with app:
        waiting = await work.submit(1, delay=60)
        with pytest.raises(JobCancelled):
            (await app.cancel(waiting.job_id)).result_as(Report)
        async with app.worker():
            job = await work.submit(1)
            with pytest.raises(JobFailed):
                await job.result(timeout=30)
            with pytest.raises(JobFailed):
                (await app.get(job.job_id)).result_as(Report)


async def test_the_result_of_a_duplicate_of_another_type_is_plain_json(app: Backstay) -> None:
    app.job("first")(nothing_declared)
    second = app.job("second")(dataclasses)
    async with app, app.worker():
        await app.submit("first", 1, dedup_key="same", dedup_for="forever")
        job = await second.submit(1, dedup_key="same", dedup_for="forever")
        assert job.deduplicated
        assert await job.result(timeout=30) == {"day": "2026-11-19"}


async def test_answers_of_a_batch_come_back_as_their_type(app: Backstay) -> None:
    @app.batch_job("embed", max_attempts=1)
    async def embed(payloads: list[int], ctx: BatchContext) -> list[Point | ValueError]:
        return [Point(n, set()) if n else ValueError("zero") for n in payloads]

    async with app, app.worker():
        zero, one = await embed.submit_many([0, 1])
        assert await one.result(timeout=30) == Point(1, set())
        with pytest.raises(JobFailed, match="zero"):
            await zero.result(timeout=30)


async def test_a_payload_is_read_as_its_model(app: Backstay) -> None:
    @app.job("work", version=2, upcast=lambda payload, version: {"day": payload["date"]})
    async def work(payload: Report) -> None: ...

    async with app:
        job = await app.get((await work.submit(Report(day=date(2026, 11, 19)))).job_id)
        assert job.payload == {"day": "2026-11-19", "pages": 1}
        assert job.payload_as(Report) == job.payload_as(work) == Report(day=date(2026, 11, 19))
        with pytest.raises(InvalidPayload, match=r"x: Field required"):
            job.payload_as(Point)


async def test_a_payload_of_an_older_release_is_read_through_its_handler(make_app: Any) -> None:
    old, new = make_app(), make_app()

    @old.job("work")
    async def old_work(payload: dict[str, str]) -> None: ...

    @new.job("work", version=2, upcast=lambda payload, version: {"day": payload["date"]})
    async def work(payload: Report) -> None: ...

    async with old, new:
        job_id = (await old_work.submit({"date": "2026-11-19"})).job_id
        assert (await new.get(job_id)).payload_as(work) == Report(day=date(2026, 11, 19))


async def test_a_parent_reads_the_results_of_its_children_as_their_types(app: Backstay) -> None:
    child = app.job("child")(dataclasses)

    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> int:
        points = await ctx.submit(child, payload)
        unnamed = await ctx.submit("child", payload + 1)
        children = await ctx.wait_for_children()
        assert children.result_of(unnamed) == [{"x": payload + 1, "tags": ["a"]}]
        return children.result_of(points)[0].x

    @app.job("blocking_parent")
    def blocking_parent(payload: int, ctx: BlockingContext) -> int:
        points = ctx.submit(child, payload)
        return ctx.wait_for_children().result_of(points)[0].x

    async with app, app.worker():
        assert await (await parent.submit(7)).result(timeout=30) == 7
        assert await (await blocking_parent.submit(8)).result(timeout=30) == 8


async def test_the_result_of_a_child_that_failed_raises(app: Backstay) -> None:
    @app.job("child", max_attempts=1)
    async def child(payload: int) -> Report:
        raise ValueError("no luck")

    @app.job("parent", max_attempts=1)
    async def parent(payload: int, ctx: Context) -> None:
        report = await ctx.submit(child, payload)
        (await ctx.wait_for_children()).result_of(report)

    async with app, app.worker():
        with pytest.raises(JobFailed, match="no luck"):
            await (await parent.submit(7)).result(timeout=30)


async def test_a_pipeline_says_what_its_stages_returned(app: Backstay) -> None:
    stage = app.job("first")(a_model)
    full = app.pipeline("full", [Stage("only", stage)])
    async with app, app.worker():
        job = await full.submit({"stages": [{"stage": "only", "config": 3}]})
        found = await job.result(timeout=30)
    assert found["stages"]["only"]["result"] == {"day": "2026-11-03", "pages": 1}


async def test_all_jobs_of_one_handler_are_submitted_in_one_commit_with_the_same_options(app: Backstay) -> None:
    work = app.job("work")(a_model)
    async with app:
        jobs = await work.submit_many(range(1, 4), priority="high", tags=["many"])
        found = [await app.get(job.job_id) for job in jobs]
    assert [(job.payload, job.priority, job.tags) for job in found] == [(n, 75, ["many"]) for n in (1, 2, 3)]


def test_the_blocking_api_returns_the_same_types(tmp_path: Any) -> None:
    app = blocking.Backstay(f"sqlite:///{tmp_path}/jobs.db")
    model, points = app.job("model")(a_model), app.job("points")(dataclasses)
    with app, app.worker():
        job = model.submit(19)
        assert job.result(timeout=30) == Report(day=date(2026, 11, 19))
        assert app.result(job.job_id, as_type=model) == Report(day=date(2026, 11, 19))
        assert app.get(job.job_id).payload_as(model) == 19
        assert [each.result(timeout=30) for each in points.submit_many([1, 2])] == [
            [Point(1, {"a"})],
            [Point(2, {"a"})],
        ]
        assert app.submit(points, 3).result(timeout=30) == [Point(3, {"a"})]
