"""The analysis of a Polis conversation as a pipeline: what is checked before it starts, and what it leaves where."""

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from polis.app import analyse, register
from polis.configs import PcaConfig, PipelineOptions, ReportConfig, UmapConfig
from polis.export import ExportError
from polis.tables import (
    ClusterAssignment,
    ClusterKeywords,
    CommentEmbedding,
    CommentExtremity,
    GraphEdge,
    ParticipantProjection,
    TopicName,
)
from pydantic import ValidationError

from backstay import Backstay, InvalidPayload, JobFailed, Pipeline
from backstay.server import asgi
from backstay.testing import ManualClock, drain
from tests.examples.polis_conversation import TREES
from tests.examples.polis_queue import ALL, analysed, language_model, opened, prepared


@pytest.fixture(autouse=True)
def exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return prepared(tmp_path, monkeypatch)


@pytest.fixture
def queue(tmp_path: Path) -> tuple[Backstay, Pipeline]:
    return opened(f"sqlite:///{tmp_path / 'jobs.db'}")


# Before anything starts


def test_each_stage_has_the_fields_and_defaults_of_the_analysis_queue() -> None:
    assert PcaConfig().model_dump() == {
        "max_votes": 1_000_000, "batch_size": 50_000, "n_components": 2, "pca_method": "randomized",
    }  # fmt: skip
    assert UmapConfig().model_dump() == {
        "n_neighbors": 15, "min_dist": 0.1, "n_components": 2, "metric": "cosine",
        "embedding_model": "all-MiniLM-L6-v2", "skip_embedding": False,
    }  # fmt: skip
    assert ReportConfig().model_dump() == {
        "model": "", "include_topics": True, "include_consensus": True, "include_uncertainty": True,
        "language": "en", "max_tokens": 4_000,
    }  # fmt: skip
    assert PipelineOptions().visualizations == ["basic", "enhanced", "multilayer"]


@pytest.mark.parametrize(
    ("stage", "config"),
    [
        ("PCA", {"max_votes": 0}),
        ("PCA", {"pca_method": "guess"}),
        ("PCA", {"max_vote": 5}),
        ("UMAP", {"n_neighbors": 1}),
        ("UMAP", {"min_dist": 2}),
        ("UMAP", {"embedding_model": "word2vec"}),
        ("REPORT", {"language": "English, please"}),
        ("REPORT", {"max_tokens": "many"}),
    ],
)
async def test_a_config_that_is_wrong_is_refused_before_any_stage_starts(
    queue: tuple[Backstay, Pipeline], stage: str, config: dict[str, Any]
) -> None:
    app, pipeline = queue
    async with app:
        with pytest.raises(InvalidPayload, match=next(iter(config))):
            await analyse(pipeline, "36324", {"stages": [{"stage": "PCA"}, {"stage": stage, "config": config}][-1:]})
        with pytest.raises(InvalidPayload, match="visualizations"):
            await analyse(pipeline, "36324", {"visualizations": ["pie chart"]})
        assert not await app.find()


async def test_a_conversation_without_an_export_is_refused_before_any_stage_starts(
    queue: tuple[Backstay, Pipeline], exports: Path
) -> None:
    app, pipeline = queue
    (exports / "36324" / "votes.csv").unlink()
    async with app:
        for conversation_id in ("36324", "99999", "../36324"):
            with pytest.raises(ExportError):
                await analyse(pipeline, conversation_id)
        assert not await app.find()


async def test_the_pipeline_and_its_stages_have_the_priorities_and_time_limits_of_the_analysis_queue(
    queue: tuple[Backstay, Pipeline],
) -> None:
    app, pipeline = queue
    async with app:
        alone = await app.submit("PCA", {}, subject="36324")
        whole = await analyse(pipeline, "36324")
        assert (alone.priority, alone.timeout_seconds, alone.max_attempts) == (50, 3600, 4)
        assert (whole.priority, whole.timeout_seconds, whole.max_attempts) == (80, 7200, 4)
        assert (whole.subject, whole.status) == ("36324", "pending")


async def test_what_has_not_happened_yet_is_empty_on_the_job(queue: tuple[Backstay, Pipeline]) -> None:
    app, pipeline = queue
    async with app:
        for handle in (await app.submit("PCA", {}, subject="36324"), await analyse(pipeline, "36324")):
            job = await app.get(handle.job_id)
            assert (job.status, job.version, job.failures, job.attempt) == ("pending", 1, 0, 0)
            assert (job.started_at, job.completed_at, job.worker_id, job.result) == (None,) * 4
            assert (job.logs, job.dependencies, job.dependent_jobs) == ({"entries": [], "log_location": None}, [], [])
            assert job.created_at == job.updated_at


def test_a_config_cannot_be_changed_under_a_running_stage() -> None:
    with pytest.raises(ValidationError):
        PcaConfig().max_votes = 5  # type: ignore[misc]


# What it finds, and how it is read


async def test_groups_topics_and_edges_are_those_of_the_conversation(queue: tuple[Backstay, Pipeline]) -> None:
    app, pipeline = queue
    async with app:
        done = await analysed(app, pipeline)
        pca, umap = done.stages["PCA"], done.stages["UMAP"]
        people = await app.results(ParticipantProjection).all(pca)
        assert len({row.group_id for row in people[:10]}) == len({row.group_id for row in people[10:]}) == 1
        comments = await app.results(CommentExtremity).all(pca, subject="36324")
        assert [row.kind for row in comments] == ["divisive"] * 8 + ["consensus"] * 4
        assert await app.results(CommentExtremity).all(pca, subject="another") == []
        vector = (await app.results(CommentEmbedding).get(umap, 4)).embedding  # type: ignore[union-attr]
        assert (len(vector.vector), vector.dimensions, vector.model) == (256, 256, "wordllama-l2-supercat-256")
        assigned = {row.comment_id: row.clusters[0] for row in await app.results(ClusterAssignment).all(umap)}
        clusters = {row.cluster_id: row for row in await app.results(ClusterKeywords).all(umap)}
        assert sum(row.size for row in clusters.values()) == len(assigned) == 12
        assert "trees" in clusters[assigned[4]].keywords
        topics = await app.results(TopicName).all(umap)
        assert {row.topic_key for row in topics} == {row.cluster_key for row in clusters.values()}
        assert {row.model_name for row in topics} == {"keywords"}
        nearest = {row.edge_id for row in await app.results(GraphEdge).all(umap) if row.nearest}
        assert nearest & {"4_5", "4_6", "4_7", "5_6", "5_7", "6_7"}  # trees stand by trees


async def test_rows_have_as_many_components_as_were_asked_for(queue: tuple[Backstay, Pipeline]) -> None:
    app, pipeline = queue
    stages = [
        {"stage": "PCA", "config": {"n_components": 3}},
        {"stage": "UMAP", "config": {"n_components": 4, "embedding_model": "wordllama"}},
        {"stage": "REPORT"},
    ]
    async with app:
        done = await analysed(app, pipeline, {"stages": stages})
        people = await app.results(ParticipantProjection).all(done.stages["PCA"])
        comments = await app.results(CommentEmbedding).all(done.stages["UMAP"])
    assert {len(row.components) for row in people} == {3}
    assert {len(row.components) for row in comments} == {4}
    assert all([row.x, row.y] == row.components[:2] for row in (*people, *comments))


async def test_a_job_has_every_field_that_the_analysis_queue_keeps(queue: tuple[Backstay, Pipeline]) -> None:
    app, pipeline = queue
    async with app:
        done = await analysed(app, pipeline)
        root = await app.get(done.root)
        pca, umap, report = [await app.get(done.stages[stage]) for stage in ("PCA", "UMAP", "REPORT")]
    assert (root.job_type, root.status, root.subject, root.priority) == ("FULL_PIPELINE", "completed", "36324", 80)
    assert (root.failures, root.max_attempts, root.timeout_seconds) == (0, 4, 7200)
    assert root.payload["visualizations"] == ["basic", "enhanced", "multilayer"]
    assert [each["stage"] for each in root.payload["stages"]] == ["PCA", "UMAP", "REPORT"]
    assert root.payload["stages"][1]["config"] == umap.payload
    assert UUID(pca.job_id) and pca.payload == PcaConfig().model_dump()
    assert pca.created_at <= pca.started_at <= pca.completed_at <= pca.updated_at
    assert pca.created_at.utcoffset() == timedelta(0)
    assert pca.worker_id and pca.version > 1 and pca.created_by == "admin-ui"
    assert set(pca.logs) == {"entries", "log_location"}
    assert set(pca.logs["entries"][0]) == {"timestamp", "level", "message"}
    assert (pca.dependencies, umap.dependencies) == ([], [pca.job_id])
    assert sorted(report.dependencies) == sorted([pca.job_id, umap.job_id])
    assert sorted(pca.dependent_jobs) == sorted([umap.job_id, report.job_id])
    assert [each.parent_job_id for each in (pca, umap, report)] == [root.job_id] * 3
    assert [each.root_job_id for each in (pca, umap, report)] == [root.job_id] * 3
    assert [each.job_stage for each in (pca, umap, report)] == ["PCA", "UMAP", "REPORT"]


async def test_results_have_the_metrics_and_places_that_the_analysis_queue_names(
    queue: tuple[Backstay, Pipeline],
) -> None:
    app, pipeline = queue
    async with app:
        done = await analysed(app, pipeline, ALL | {"visualizations": ["basic"]})
        pca, report = await app.get(done.stages["PCA"]), await app.get(done.stages["REPORT"])
        assert pca.result["result_type"] == "SUCCESS"
        assert pca.processing_time_ms is not None
        for job in (pca, report):
            seconds = job.result["summary_metrics"]["processing_time_seconds"]
            assert 0 < seconds <= job.processing_time_ms / 1000 + 0.001  # the handler's own time, within its run
        assert pca.result["summary_metrics"]["votes_processed"] == pca.metrics["votes_processed"] == 240
        assert pca.result["summary_metrics"]["groups_identified"] == pca.metrics["groups_identified"] == 2
        assert pca.result["output_location"]["dynamodb_tables"] == pca.result_tables
        assert report.result["output_location"]["s3_artifacts"] == report.artifacts
        assert {file.name for file in await app.artifacts(report.job_id)} >= {"report.html", "basic.html"}
        assert "enhanced.html" not in {file.name for file in await app.artifacts(report.job_id)}
        root = await app.get(done.root)
        assert (root.created_by, root.subject, root.stage, root.progress) == ("admin-ui", "36324", "complete", 1.0)
        assert any("2 groups" in entry["message"] for entry in pca.logs["entries"])


async def test_two_analyses_of_a_conversation_stand_side_by_side(queue: tuple[Backstay, Pipeline]) -> None:
    app, pipeline = queue
    only_pca = {"stages": [{"stage": "PCA"}]}
    async with app:
        first, second = await analysed(app, pipeline, only_pca), await analysed(app, pipeline, only_pca)
        table = app.results(CommentExtremity)
        assert {row.job_id for row in await table.by_subject("36324")} == {first.stages["PCA"], second.stages["PCA"]}
        assert {row.job_id for row in await table.latest("36324", "PCA")} == {second.stages["PCA"]}


async def test_a_report_alone_is_made_of_the_last_analysis(queue: tuple[Backstay, Pipeline]) -> None:
    app, pipeline = queue
    async with app:
        early = await app.submit("REPORT", {}, subject="36324")
        await drain(app)
        with pytest.raises(JobFailed, match="no completed PCA job"):
            await early.result(timeout=5)
        await analysed(app, pipeline)
        last = await analysed(app, pipeline)
        again = await app.submit("REPORT", {"include_topics": False}, subject="36324")
        await drain(app)
        assert (await again.record()).status == "completed"
        pages = [(await app.artifact(again.job_id, each.name)).decode() for each in await app.artifacts(again.job_id)]
    assert len(pages) >= 4
    assert all(last.stages[stage] in page for stage in ("PCA", "UMAP") for page in pages), "each says of which jobs"


async def test_stored_vectors_are_taken_where_embedding_is_skipped(
    queue: tuple[Backstay, Pipeline], exports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, pipeline = queue
    skip = {"skip_embedding": True}
    async with app:
        early = await app.submit("UMAP", skip, subject="36324")
        await drain(app)
        with pytest.raises(JobFailed, match="12 of 12 comments have no stored vector"):
            await early.result(timeout=5)
        first = await analysed(app, pipeline, {"stages": ALL["stages"][1:2]})
        monkeypatch.setattr("embedding.WordLlama.embed", None)  # it would not get far
        again = await app.submit("UMAP", skip, subject="36324")
        await drain(app)
        table = app.results(CommentEmbedding)
        vectors = [[row.embedding for row in await table.all(each)] for each in (first.stages["UMAP"], again.job_id)]
        assert vectors[0] == vectors[1]
        comments = exports / "36324" / "comments.csv"
        comments.write_text(comments.read_text().replace(TREES[0], "Plant nothing"))
        changed = await app.submit("UMAP", skip, subject="36324")
        await drain(app)
        with pytest.raises(JobFailed, match="1 of 12 comments have no stored vector"):
            await changed.result(timeout=5)


async def test_an_export_that_is_spoilt_meanwhile_fails_the_stage_at_once_and_says_where(
    queue: tuple[Backstay, Pipeline], exports: Path
) -> None:
    app, pipeline = queue
    async with app:
        job = await analyse(pipeline, "36324", ALL)
        with (exports / "36324" / "votes.csv").open("a") as file:
            file.write("1700009999,then,0,3,5\n")
        await drain(app)
        tree = await app.tree(job.job_id)
        pca = next(each for each in tree.jobs.values() if each.job_stage == "PCA")
        assert (pca.status, pca.attempt) == ("failed", 1)
        assert "votes.csv line 242: vote is 5" in (pca.last_error or "")
        assert (await job.record()).status == "failed"
        assert {each.status.value for each in tree.jobs.values() if each.job_stage in ("UMAP", "REPORT")} == {
            "cancelled"
        }


# Topic names by a language model


async def test_a_language_model_names_each_topic_and_is_asked_once_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Backstay(f"sqlite:///{tmp_path / 'jobs.db'}", clock=ManualClock())
    register(app, isolation="thread")
    with language_model() as model:
        monkeypatch.setenv("POLIS_LLM_URL", model.url)
        monkeypatch.setenv("POLIS_LLM_MODEL", "tiny")
        model.refuses = {2}  # the second question fails, and with it the first attempt
        async with app:
            job = await app.submit("UMAP", {"embedding_model": "wordllama"}, subject="36324")
            await drain(app, advance=True)
            topics = await app.results(TopicName).all(job.job_id)
            ended = await app.get(job.job_id)
    assert (ended.attempt, ended.result["topic_names_by"]) == (2, "tiny")
    assert {row.model_name for row in topics} == {"tiny"}
    assert sorted(row.topic_name for row in topics) == ["Topic 1", *(f"Topic {n + 3}" for n in range(len(topics) - 1))]
    assert len(model.asked) == len(topics) + 1
    assert "bus" in "".join(model.asked)


async def test_keywords_name_the_topics_where_the_model_never_answers(
    queue: tuple[Backstay, Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = queue
    with language_model() as model:
        monkeypatch.setenv("POLIS_LLM_URL", model.url)
        monkeypatch.setenv("POLIS_LLM_MODEL", "tiny")
        model.refuses = set(range(1, 100))
        async with app:
            job = await app.submit("UMAP", {"embedding_model": "wordllama"}, subject="36324", max_attempts=1)
            await drain(app)
            assert {row.model_name for row in await app.results(TopicName).all(job.job_id)} == {"keywords"}
            assert any("named by keywords" in entry["message"] for entry in (await job.record()).logs["entries"])


# Over HTTP


async def test_an_analysis_is_submitted_and_all_that_it_left_is_read_over_http(
    queue: tuple[Backstay, Pipeline],
) -> None:
    app, _ = queue
    transport = httpx.ASGITransport(asgi(app), client=("127.0.0.1", 5000))
    async with app, httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        wrong = {"stages": [{"stage": "UMAP", "config": {"n_neighbors": 1}}]}
        refused = await client.post("/jobs/FULL_PIPELINE", json={"payload": wrong, "subject": "36324"})
        assert refused.status_code == 422 and "n_neighbors" in refused.text
        sent = await client.post(
            "/jobs/FULL_PIPELINE", json={"payload": ALL, "subject": "36324", "created_by": "server-api"}
        )
        assert sent.status_code == 201
        job = sent.json()
        assert (job["subject"], job["priority"], job["created_by"]) == ("36324", 80, "server-api")
        await drain(app)
        tree = (await client.get(f"/jobs/{job['job_id']}/tree")).json()
        stages = {each["job_stage"]: each["job_id"] for each in tree["items"]}
        umap = f"/jobs/{stages['UMAP']}/results"
        row = (await client.get(f"{umap}/CommentEmbeddings/4")).json()
        assert (row["comment_id"], row["conversation_id"], row["root_job_id"]) == (4, "36324", job["job_id"])
        assert len((await client.get(f"{umap}/CommentHierarchicalClusterAssignments")).json()["items"]) == 12
        none = await client.get(f"{umap}/UMAPGraph", params={"subject": "another"})
        assert none.json()["items"] == []
        report = await client.get(f"/jobs/{stages['REPORT']}/artifacts/multilayer.html")
        assert report.status_code == 200 and "<html" in report.text
        found = (await client.get("/jobs", params={"subject": "36324", "job_type": "PCA"})).json()["items"]
        assert [each["job_id"] for each in found] == [stages["PCA"]]
