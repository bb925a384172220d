"""Pipelines: stages that are checked before anything starts, each a job, and what the next one reads of it."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, Field

from backstay import Backstay, Context, InvalidOption, InvalidPayload, InvalidPipeline, Pipeline, Stage, sync
from backstay.testing import drain

RAN: list[str] = []


class Votes(BaseModel):
    max_votes: int = 1_000
    fail: bool = False


class Neighbours(BaseModel):
    n_neighbors: int = Field(15, ge=2)


class Extra(BaseModel):
    visualizations: list[str] = []


def declare(app: Backstay) -> dict[str, Any]:
    RAN.clear()

    @app.job("pca", max_attempts=1)
    async def pca(payload: Votes) -> dict[str, int]:
        RAN.append("pca")
        if payload.fail:
            raise ValueError("no votes")
        return {"components": payload.max_votes // 100}

    @app.job("umap")
    async def umap(payload: Neighbours, ctx: Context) -> Any:
        RAN.append("umap")
        before = await ctx.upstream()
        return before["PCA"].result["components"] if "PCA" in before else None

    @app.job("report")
    async def report(payload: dict[str, Any], ctx: Context) -> list[str]:
        RAN.append("report")
        return sorted(await ctx.upstream())

    return {"pca": pca, "umap": umap, "report": report}


def full_of(app: Backstay, **options: Any) -> Any:
    jobs = declare(app)
    stages = [
        Stage("PCA", jobs["pca"]),
        Stage("UMAP", jobs["umap"]),
        Stage("REPORT", "report", after=("PCA", "UMAP"), priority=80),
    ]
    return app.pipeline("FULL_PIPELINE", stages, options=Extra, priority="high", **options)


ALL = {"stages": [{"stage": "PCA", "config": {"max_votes": 500}}, {"stage": "UMAP"}, {"stage": "REPORT"}]}


async def test_stages_run_in_order_and_each_reads_what_came_before(app: Backstay) -> None:
    full = full_of(app)
    async with app, app.worker(concurrency=1):
        handle = await full.submit({**ALL, "visualizations": ["basic"]}, subject="19305", tags=["night"])
        result = await handle.result(timeout=10)
        tree = await app.tree(handle.job_id)
    stages = {job.job_stage: job for job in tree.jobs.values() if job.job_stage}
    assert RAN == ["pca", "umap", "report"]
    assert result["result_type"] == "SUCCESS"
    assert {name: each["result"] for name, each in result["stages"].items()} == {
        "PCA": {"components": 5},
        "UMAP": 5,
        "REPORT": ["PCA", "UMAP"],
    }
    assert {name: each["job_id"] for name, each in result["stages"].items()} == {
        name: job.job_id for name, job in stages.items()
    }
    assert {(job.subject, tuple(job.tags)) for job in stages.values()} == {("19305", ("night",))}
    assert tree.job.priority == 75
    assert {name: job.priority for name, job in stages.items()} == {"PCA": 75, "UMAP": 75, "REPORT": 80}


async def test_the_stored_payload_has_every_default_and_nothing_means_all_stages(app: Backstay) -> None:
    full = full_of(app)
    async with app:
        handle = await full.submit()
        assert handle.payload == {
            "visualizations": [],
            "stages": [
                {"stage": "PCA", "config": {"max_votes": 1_000, "fail": False}},
                {"stage": "UMAP", "config": {"n_neighbors": 15}},
                {"stage": "REPORT", "config": {}},
            ],
        }


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"stages": [{"stage": "PCA"}, {"stage": "UMAP", "config": {"n_neighbors": 1}}]}, r"stages\.1.*n_neighbors"),
        ({"stages": [{"stage": "PCA", "config": {"max_votes": "many"}}]}, r"stages\.0.*max_votes"),
        ({"stages": [{"stage": "TSNE"}]}, r"stages\.0.*'PCA', 'UMAP', 'REPORT'"),
        ({"stages": [{"stage": "PCA"}, {"stage": "PCA"}]}, "the stage PCA appears twice"),
        ({"stages": []}, "stages"),
        ({"stages": [{"stage": "PCA", "confg": {}}]}, "confg"),
        ({**ALL, "visualizations": "basic"}, "visualizations"),
    ],
)
async def test_a_bad_config_is_refused_before_anything_starts(app: Backstay, payload: Any, message: str) -> None:
    full = full_of(app)
    async with app:
        with pytest.raises(InvalidPayload, match=f"payload of FULL_PIPELINE: .*{message}"):
            await full.submit(payload)
        assert await app.find() == []


async def test_a_stage_that_is_left_out_is_skipped_and_what_came_after_it_follows_what_came_before(
    app: Backstay,
) -> None:
    full = full_of(app)
    async with app:
        handle = await full.submit({"stages": [{"stage": "REPORT"}, {"stage": "PCA"}]})
        await drain(app)
        result = (await handle.record()).result
    assert RAN == ["pca", "report"]
    assert result["stages"]["REPORT"]["result"] == ["PCA"]


async def test_what_follows_a_stage_that_is_left_out_follows_what_that_one_followed(app: Backstay) -> None:
    jobs = declare(app)
    pipeline = app.pipeline("flow", [Stage("PCA", jobs["pca"]), Stage("UMAP", jobs["umap"]), Stage("REPORT", "report")])
    async with app:
        handle = await pipeline.submit({"stages": [{"stage": "REPORT"}, {"stage": "PCA"}]})
        await drain(app)
        assert (await handle.record()).result["stages"]["REPORT"]["result"] == ["PCA"]


async def test_a_stage_that_fails_cancels_what_comes_after_and_fails_the_whole(app: Backstay) -> None:
    full = full_of(app)
    async with app:
        handle = await full.submit({"stages": [{"stage": "PCA", "config": {"fail": True}}, {"stage": "UMAP"}]})
        await drain(app)
        tree = await app.tree(handle.job_id)
        assert {job.job_stage: job.status.value for job in tree.jobs.values()} == {
            None: "failed",
            "PCA": "failed",
            "UMAP": "cancelled",
        }


async def test_a_pipeline_runs_again_from_a_stage(app: Backstay) -> None:
    full = full_of(app)
    async with app:
        handle = await full.submit(ALL)
        await drain(app)
        stages = (await handle.record()).result["stages"]
        RAN.clear()
        await app.rerun(stages["UMAP"]["job_id"])
        await drain(app)
        assert (await handle.record()).status == "completed"
    assert RAN == ["umap", "report"]


async def test_a_stage_runs_by_itself_as_ever(app: Backstay) -> None:
    full_of(app)
    async with app, app.worker():
        assert await (await app.submit("pca", {"max_votes": 300})).result(timeout=10) == {"components": 3}


async def test_a_long_result_of_a_stage_stays_with_the_stage(app: Backstay) -> None:
    @app.job("long")
    async def long(payload: dict[str, Any]) -> str:
        return "x" * 10_000

    pipeline = app.pipeline("flow", [Stage("LONG", long)])
    async with app, app.worker():
        result = await (await pipeline.submit()).result(timeout=10)
        assert list(result["stages"]["LONG"]) == ["job_id"]
        assert len(await app.result(result["stages"]["LONG"]["job_id"])) == 10_000


async def test_a_pipeline_may_be_a_stage_of_another(app: Backstay) -> None:
    inner = full_of(app)
    outer = app.pipeline("OUTER", [Stage("INNER", inner), Stage("AFTER", "report")])
    async with app, app.worker():
        result = await (await outer.submit({"stages": [{"stage": "INNER", "config": ALL}, {"stage": "AFTER"}]})).result(
            timeout=20
        )
    assert result["stages"]["INNER"]["result"]["stages"]["UMAP"]["result"] == 5
    assert result["stages"]["AFTER"]["result"] == ["INNER"]


async def test_a_stage_whose_code_is_elsewhere_is_checked_by_its_schema(make_app: Callable[..., Backstay]) -> None:
    elsewhere, app = make_app(), make_app()
    declare(elsewhere)
    pipeline = app.pipeline("flow", [Stage("UMAP", "umap")])
    async with elsewhere, app:
        with pytest.raises(InvalidPayload, match="payload of umap: n_neighbors"):
            await pipeline.submit({"stages": [{"stage": "UMAP", "config": {"n_neighbors": "x"}}]})
        assert await app.find() == []
        async with app.worker(), elsewhere.worker():
            result = await (await pipeline.submit()).result(timeout=20)
    assert result["stages"]["UMAP"]["result"] is None


def stages_of(*given: tuple[Any, ...], **more: Any) -> list[Stage]:
    return [Stage(name, "pca", after=after) for name, after in given]


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "flow has no stage"),
        ([("A", None), ("A", None)], "flow has the stage A twice"),
        ([("A", ("B",))], "A comes after B, which is not one of its stages; they are A"),
        ([("A", ("C",)), ("B", ("A",)), ("C", ("B",))], "its stages wait for one another: A → C → B → A"),
    ],
)
def test_stages_that_make_no_pipeline_are_refused(app: Backstay, stages: Any, message: str) -> None:
    with pytest.raises(InvalidPipeline, match=message):
        app.pipeline("flow", stages_of(*stages))


def test_other_mistakes_of_a_declaration_say_what_to_write(app: Backstay) -> None:
    with pytest.raises(InvalidPipeline, match="flow is a stage of itself, through A"):
        app.pipeline("flow", [Stage("A", "flow")])
    with pytest.raises(InvalidPipeline, match="is not a handler"):
        Stage("A", 5)
    with pytest.raises(InvalidOption, match="use all_success, all_done, one_success, one_failed, none_failed"):
        Stage("A", "pca", trigger_rule="any")
    with pytest.raises(InvalidOption, match="stage A has no option depends_on"):
        Stage("A", "pca", depends_on=["x"])


def test_a_blocking_app_declares_and_starts_one_in_the_same_way(tmp_path: Any) -> None:
    app = sync.Backstay(f"sqlite:///{tmp_path}/jobs.db")

    @app.job("double")
    def double(payload: int) -> int:
        return payload * 2

    pipeline = app.pipeline("flow", [Stage("DOUBLE", double)])
    with app, app.worker():
        handle = pipeline.submit({"stages": [{"stage": "DOUBLE", "config": 4}]})
        assert handle.result(timeout=10)["stages"]["DOUBLE"]["result"] == 8


def test_functions_that_are_handed_a_pipeline_can_name_its_type(app: Backstay) -> None:
    assert isinstance(full_of(app), Pipeline)
