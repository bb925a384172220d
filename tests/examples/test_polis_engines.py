"""The analysis of a Polis conversation on each engine: the same tables, with keys of their native types."""

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path

import apsw
import asyncpg
import botocore.session
import pytest
from polis.tables import PCA_TABLES, UMAP_TABLES, ParticipantProjection

from backstay import Backstay
from tests.examples.polis_queue import Analysis, analysed, opened, prepared
from tests.support.servers.dynamodb import DynamoDB
from tests.support.servers.postgres import Postgres
from tests.support.servers.s3 import S3

TABLES = {**PCA_TABLES, **UMAP_TABLES}
KEYS = {
    "CommentEmbeddings": ("comment_id", int),
    "CommentHierarchicalClusterAssignments": ("comment_id", int),
    "CommentClustersStructureKeywords": ("cluster_key", str),
    "UMAPGraph": ("edge_id", str),
    "CommentClustersLLMTopicNames": ("topic_key", str),
    "CommentExtremity": ("comment_id", int),
}


@pytest.fixture(autouse=True)
def exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return prepared(tmp_path, monkeypatch)


@pytest.fixture(params=["sqlite", "postgresql", "dynamodb"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str | None]]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'jobs.db'}", None
    elif request.param == "postgresql":
        postgres: Postgres = request.getfixturevalue("postgres")
        yield postgres.url(schema=f"polis_{secrets.token_hex(4)}"), None
    else:
        dynamodb: DynamoDB = request.getfixturevalue("dynamodb")
        with S3() as bucket:
            yield dynamodb.url(f"p{secrets.token_hex(4)}"), bucket.bucket(f"polis-{secrets.token_hex(4)}")


async def test_the_whole_analysis_runs_and_its_tables_have_native_keys(engine: tuple[str, str | None]) -> None:
    url, artifacts = engine
    app, pipeline = opened(url, artifacts)
    async with app:
        done = await analysed(app, pipeline)
        jobs = {stage: await app.get(job_id) for stage, job_id in done.stages.items()}
        assert [job.status for job in jobs.values()] == ["completed"] * 3
        assert sorted(jobs["PCA"].result_tables) == sorted(PCA_TABLES)
        assert sorted(jobs["UMAP"].result_tables) == sorted(UMAP_TABLES)
        await _rows_are_of_their_jobs(app, done)
        names = {file.name for file in await app.artifacts(done.stages["REPORT"])}
        assert names >= {"report.html", "basic.html", "enhanced.html", "multilayer.html"}
        assert b"<html" in await app.artifact(done.stages["REPORT"], "report.html")
        if artifacts:
            assert all(uri.startswith("s3://") for uri in jobs["REPORT"].artifacts)
    kinds = await stored_key_kinds(url)
    assert kinds == {
        table: {"sqlite": {int: "INTEGER", str: "TEXT"}, "postgresql": {int: "bigint", str: "text"}}.get(
            url.partition(":")[0], {int: "N", str: "S"}
        )[kind]
        for table, (_, kind) in KEYS.items()
    }


async def _rows_are_of_their_jobs(app: Backstay, done: Analysis) -> None:
    for name, (key, kind) in KEYS.items():
        stage = "PCA" if name in PCA_TABLES else "UMAP"
        rows = await app.results(TABLES[name]).all(done.stages[stage])
        assert rows
        for row in rows:
            assert type(getattr(row, key)) is kind
            assert (row.job_id, row.root_job_id, row.job_stage) == (done.stages[stage], done.root, stage)
        one = await app.results(TABLES[name]).get(done.stages[stage], getattr(rows[0], key))
        assert one == rows[0]
    participants = await app.results(ParticipantProjection).all(done.stages["PCA"])
    assert len({row.group_id for row in participants}) == 2


async def stored_key_kinds(url: str) -> dict[str, str]:
    """Of what kind the keys are in the engine itself, seen with its own tools."""
    if url.startswith("sqlite"):
        return await asyncio.to_thread(_in_sqlite, url.removeprefix("sqlite:///"))
    if url.startswith("postgresql"):
        return await _in_postgresql(url)
    return await asyncio.to_thread(_in_dynamodb, url)


def _in_sqlite(path: str) -> dict[str, str]:
    connection = apsw.Connection(path)
    try:
        return {
            table: next(
                kind for _, name, kind, *_ in connection.execute(f'PRAGMA table_info("result_{table}")') if name == key
            )
            for table, (key, _) in KEYS.items()
        }
    finally:
        connection.close()


async def _in_postgresql(url: str) -> dict[str, str]:
    server, _, options = url.partition("?")
    schema = next(each.partition("=")[2] for each in options.split("&") if each.startswith("schema="))
    connection = await asyncpg.connect(server)
    try:
        found = await connection.fetch(
            "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = $1", schema
        )
    finally:
        await connection.close()
    kinds = {(row["table_name"], row["column_name"]): row["data_type"] for row in found}
    return {table: kinds[f"result_{table}", key] for table, (key, _) in KEYS.items()}


def _in_dynamodb(url: str) -> dict[str, str]:
    prefix, _, options = url.removeprefix("dynamodb://").partition("?")
    endpoint = next(each.partition("=")[2] for each in options.split("&") if each.startswith("endpoint="))
    session = botocore.session.get_session()
    session.set_credentials("local", "local")
    client = session.create_client("dynamodb", region_name="local", endpoint_url=endpoint)
    try:
        found = {}
        for table, (key, _) in KEYS.items():
            described = client.describe_table(TableName=f"{prefix}_{table}")["Table"]
            assert described["KeySchema"] == [
                {"AttributeName": "job_id", "KeyType": "HASH"},
                {"AttributeName": key, "KeyType": "RANGE"},
            ]
            kinds = {each["AttributeName"]: each["AttributeType"] for each in described["AttributeDefinitions"]}
            assert kinds["job_id"] == "S"
            found[table] = kinds[key]
        return found
    finally:
        client.close()
