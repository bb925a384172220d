"""The queries of the analysis queue and of its result tables, as its own programs write them with boto3.

Backstay is opened as such a team would: the subject is `conversation_id`, states are in capitals, and the indexes show
whole jobs. What holds without these options is tested too, and what changes with more shards.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import boto3
import pytest
from boto3.dynamodb.conditions import Attr, Key
from pydantic import BaseModel

from backstay import Backstay, Context, ResultRow
from backstay.engines.dynamodb import schema
from backstay.engines.dynamodb.store import DynamoStore
from backstay.errors import ConfigurationError, SchemaMismatch
from tests.support.servers.dynamodb import DynamoDB

AS_THEIRS = {"subject": "conversation_id", "status": "upper", "projection": "all"}


class Embedding(BaseModel):
    vector: list[float]
    dimensions: int
    model: str


class CommentEmbedding(
    ResultRow, table="CommentEmbeddings", key="comment_id", subject="conversation_id", subject_index=True
):
    comment_id: int
    conversation_id: str
    embedding: Embedding
    notes: dict[str, Any] | None = None


@pytest.fixture
def resource(dynamodb: DynamoDB) -> Iterator[Any]:
    made = boto3.resource(
        "dynamodb",
        endpoint_url=dynamodb.endpoint,
        region_name="local",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    yield made
    made.meta.client.close()


class Queue:
    """A queue, and its tables as boto3 has them."""

    def __init__(self, dynamodb: DynamoDB, resource: Any, **options: str) -> None:
        self.prefix = f"Delphi{secrets.token_hex(4)}"
        self.table_name = f"{self.prefix}JobQueue"
        self.url = dynamodb.url(self.prefix, table=self.table_name, wake_ceiling="0.2", **options)
        self.app = _app(self.url)
        self._resource = resource

    @property
    def jobs(self) -> Any:
        return self._resource.Table(self.table_name)

    @property
    def embeddings(self) -> Any:
        return self._resource.Table(f"{self.prefix}_CommentEmbeddings")

    async def submit(self, job_type: str = "PCA", conversation: str = "19305", priority: int = 50) -> str:
        job = await self.app.submit(job_type, {"max_votes": 500}, subject=conversation, priority=priority)
        return job.job_id

    @asynccontextmanager
    async def working(self, *job_ids: str) -> Any:
        async with self.app.worker() as worker:
            for job_id in job_ids:
                await self.app.result(job_id, timeout=30)
            yield worker


def _app(url: str) -> Backstay:
    app = Backstay(url)

    @app.job("PCA")
    async def pca(payload: dict[str, Any]) -> dict[str, Any]:
        return payload

    @app.job("UMAP", results=[CommentEmbedding])
    async def umap(payload: dict[str, Any], ctx: Context) -> int:
        vector = Embedding(vector=[0.25, -1.5, 1e-7], dimensions=3, model="all-MiniLM-L6-v2")
        conversation = str(ctx.job.subject)
        rows = [
            CommentEmbedding(comment_id=number, conversation_id=conversation, embedding=vector, notes=NOTES.get(number))
            for number in (123, 7)
        ]
        return await ctx.results(CommentEmbedding).put(rows)

    return app


NOTES: dict[int, dict[str, Any]] = {7: {"nothing": None, "yes": True, "deep": [[{"a": [1, 2.5, "x"]}]], "text": "ü"}}


@pytest.fixture
def queue(dynamodb: DynamoDB, resource: Any) -> Queue:
    return Queue(dynamodb, resource, **AS_THEIRS)


async def query(table: Any, **asked: Any) -> list[dict[str, Any]]:
    found = await asyncio.to_thread(table.query, **asked)
    return found["Items"]  # type: ignore[no-any-return]


def ids(items: list[dict[str, Any]]) -> list[str]:
    return [item["job_id"] for item in items]


async def test_pending_jobs_are_listed_by_status_first_come_first_served(queue: Queue) -> None:
    async with queue.app:
        first, second, third = [await queue.submit(priority=priority) for priority in (10, 90, 50)]

        found = await query(
            queue.jobs, IndexName="StatusCreatedIndex", KeyConditionExpression=Key("status").eq("PENDING")
        )
        assert ids(found) == [first, second, third]
        times = [item["created_at"] for item in found]
        assert times == sorted(times)
        since = Key("status").eq("PENDING") & Key("created_at").gt(times[0])
        assert ids(await query(queue.jobs, IndexName="StatusCreatedIndex", KeyConditionExpression=since)) == [
            second,
            third,
        ]
        newest = await query(
            queue.jobs,
            IndexName="StatusCreatedIndex",
            KeyConditionExpression=Key("status").eq("PENDING"),
            ScanIndexForward=False,
            Limit=1,
        )
        assert ids(newest) == [third]
        for state in ("PROCESSING", "COMPLETED", "FAILED", "CANCELLED"):
            by_state = Key("status").eq(state)
            assert not await query(queue.jobs, IndexName="StatusCreatedIndex", KeyConditionExpression=by_state)


async def test_jobs_of_a_conversation_are_listed_in_order_of_creation(queue: Queue) -> None:
    async with queue.app:
        first = await queue.submit(conversation="19305")
        await queue.submit(conversation="36324")
        second = await queue.submit("UMAP", conversation="19305")

        found = await query(
            queue.jobs, IndexName="ConversationIndex", KeyConditionExpression=Key("conversation_id").eq("19305")
        )
        assert ids(found) == [first, second]
        assert [(item["job_type"], item["status"]) for item in found] == [("PCA", "PENDING"), ("UMAP", "PENDING")]
        assert "subject" not in found[0]
        for item in found:  # an index shows the whole job
            read = await asyncio.to_thread(queue.jobs.get_item, Key={"job_id": item["job_id"]}, ConsistentRead=True)
            assert item == read["Item"]


async def test_jobs_of_a_type_are_listed_by_priority_as_a_number(queue: Queue) -> None:
    async with queue.app:
        low, urgent, usual = [await queue.submit(priority=priority) for priority in (5, 100, 50)]
        await queue.submit("UMAP", priority=80)

        by_type = Key("job_type").eq("PCA")
        found = await query(
            queue.jobs, IndexName="JobTypeIndex", KeyConditionExpression=by_type, ScanIndexForward=False
        )
        assert ids(found) == [urgent, usual, low]
        assert [item["priority"] for item in found] == [Decimal(100), Decimal(50), Decimal(5)]
        at_least = by_type & Key("priority").gte(50)
        assert set(ids(await query(queue.jobs, IndexName="JobTypeIndex", KeyConditionExpression=at_least))) == {
            urgent,
            usual,
        }


async def test_jobs_of_a_worker_are_listed_by_status(queue: Queue) -> None:
    async with queue.app:
        done = [await queue.submit() for _ in range(2)]
        async with queue.working(*done) as worker:
            of_worker = Key("worker_id").eq(worker.worker_id)
            completed = of_worker & Key("status").eq("COMPLETED")
            found = await query(queue.jobs, IndexName="WorkerStatusIndex", KeyConditionExpression=completed)
            assert set(ids(found)) == set(done)
            running = of_worker & Key("status").eq("PROCESSING")
            assert not await query(queue.jobs, IndexName="WorkerStatusIndex", KeyConditionExpression=running)


async def test_a_job_has_the_attributes_and_types_of_the_analysis_queue(queue: Queue) -> None:
    async with queue.app:
        job_id = await queue.submit(priority=80)
        before = datetime.now(UTC)
        async with queue.working(job_id) as worker:
            found = await asyncio.to_thread(queue.jobs.get_item, Key={"job_id": job_id})
        item = found["Item"]
        assert (item["status"], item["job_type"], item["conversation_id"]) == ("COMPLETED", "PCA", "19305")
        assert item["worker_id"] == worker.worker_id
        assert (item["priority"], item["version"]) == (Decimal(80), Decimal(3))
        for name in ("created_at", "updated_at", "started_at", "completed_at"):
            assert isinstance(item[name], str)
            assert abs((datetime.fromisoformat(item[name]) - before).total_seconds()) < 60
        assert item["created_at"] <= item["started_at"] <= item["completed_at"] <= item["updated_at"]


async def test_results_are_read_by_job_by_item_and_by_conversation(queue: Queue) -> None:
    async with queue.app:
        job_id, other = await queue.submit("UMAP"), await queue.submit("UMAP", conversation="36324")
        async with queue.working(job_id, other):
            pass
        table = queue.embeddings

        of_job = await query(table, KeyConditionExpression=Key("job_id").eq(job_id))
        assert [item["comment_id"] for item in of_job] == [Decimal(7), Decimal(123)]
        one = (await asyncio.to_thread(table.get_item, Key={"job_id": job_id, "comment_id": 123}))["Item"]
        assert (one["conversation_id"], one["comment_id"]) == ("19305", Decimal(123))
        filtered = await query(
            table,
            KeyConditionExpression=Key("job_id").eq(job_id),
            FilterExpression=Attr("conversation_id").eq("36324"),
        )
        assert filtered == []
        of_conversation = await query(
            table, IndexName="ConversationIndex", KeyConditionExpression=Key("conversation_id").eq("36324")
        )
        assert {(item["job_id"], item["comment_id"]) for item in of_conversation} == {
            (other, Decimal(7)),
            (other, Decimal(123)),
        }
        assert all("embedding" in item for item in of_conversation)


async def test_nested_values_of_a_row_are_maps_and_lists(queue: Queue) -> None:
    async with queue.app:
        job_id = await queue.submit("UMAP")
        async with queue.working(job_id):
            pass
        item = (await asyncio.to_thread(queue.embeddings.get_item, Key={"job_id": job_id, "comment_id": 7}))["Item"]
        assert item["embedding"] == {
            "vector": [Decimal("0.25"), Decimal("-1.5"), Decimal("1E-7")],
            "dimensions": Decimal(3),
            "model": "all-MiniLM-L6-v2",
        }
        assert item["notes"]["nothing"] is None and item["notes"]["yes"] is True
        [row, _] = await queue.app.results(CommentEmbedding).all(job_id)
        assert row.embedding.vector == [0.25, -1.5, 1e-7]
        assert row.notes == NOTES[7]


@pytest.mark.parametrize(
    "value",
    [
        {"tiny": 1e-300},
        {"": 1},
        {"deep": functools.reduce(lambda inner, _: [inner], range(40), 1)},
        {"many": [1] * 95_000},
    ],
    ids=["a number that DynamoDB cannot store", "an empty name", "too deep", "small numbers by the thousand"],
)
async def test_what_dynamodb_cannot_nest_is_read_back_all_the_same(
    queue: Queue, value: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NOTES, 7, value)
    async with queue.app:
        job_id = await queue.submit("UMAP")
        async with queue.working(job_id):
            pass
        row = await queue.app.results(CommentEmbedding).get(job_id, 7)
    assert row is not None and row.notes == value


async def test_without_options_states_are_small_and_the_subject_is_called_so(dynamodb: DynamoDB, resource: Any) -> None:
    plain = Queue(dynamodb, resource)
    async with plain.app:
        job_id = await plain.submit(priority=70)
        by_status = await query(
            plain.jobs, IndexName="StatusCreatedIndex", KeyConditionExpression=Key("status").eq("pending")
        )
        assert ids(by_status) == [job_id]
        # What a claim by optimistic locking needs is in the index.
        assert {"version", "job_type", "priority", "subject", "created_at"} <= set(by_status[0])
        by_subject = await query(
            plain.jobs, IndexName="ConversationIndex", KeyConditionExpression=Key("subject").eq("19305")
        )
        assert ids(by_subject) == [job_id]
        assert "status" not in by_subject[0]  # an entry that showed it would cost a unit with each change


async def test_with_shards_a_query_asks_for_each_of_them(dynamodb: DynamoDB, resource: Any) -> None:
    sharded = Queue(dynamodb, resource, shards="3", **AS_THEIRS)
    async with sharded.app:
        wanted = {await sharded.submit() for _ in range(12)}
        found: list[dict[str, Any]] = []
        for partition in schema.all_shards("PENDING", 3):
            in_one = await query(
                sharded.jobs, IndexName="StatusCreatedIndex", KeyConditionExpression=Key("status").eq(partition)
            )
            assert {item["status"] for item in in_one} <= {partition}  # ids decide: one of them may have no job
            found += in_one
        assert set(ids(found)) == wanted
        assert len({item["status"] for item in found}) > 1
        assert {item["status"].partition("#")[0] for item in found} == {"PENDING"}
        by_type = [
            await query(sharded.jobs, IndexName="JobTypeIndex", KeyConditionExpression=Key("job_type").eq(partition))
            for partition in schema.all_shards("PCA", 3)
        ]
        assert {job_id for one in by_type for job_id in ids(one)} == wanted


async def test_who_opens_it_without_the_options_finds_the_jobs_as_they_are_stored(
    dynamodb: DynamoDB, queue: Queue
) -> None:
    async with queue.app:
        job_id = await queue.submit()
    other = Backstay(dynamodb.url(queue.prefix, table=queue.table_name))
    async with other:
        [job] = await other.find(subject="19305")
        assert (job.job_id, job.status, job.subject) == (job_id, "pending", "19305")
        later = await other.submit("PCA", {}, subject="36324")
    async with queue.app:
        found = await query(
            queue.jobs, IndexName="ConversationIndex", KeyConditionExpression=Key("conversation_id").eq("36324")
        )
        assert ids(found) == [later.job_id]


@pytest.mark.parametrize("option", ["subject=room_id", "status=lower"])
async def test_an_option_that_the_table_contradicts_is_refused(dynamodb: DynamoDB, queue: Queue, option: str) -> None:
    await DynamoStore(queue.url).migrate()
    other = dynamodb.url(queue.prefix, table=queue.table_name) + f"&{option}"
    for way_in in (DynamoStore.open, DynamoStore.migrate):
        with pytest.raises(SchemaMismatch, match="leave it out of the URL"):
            await way_in(DynamoStore(other))


@pytest.mark.parametrize("name", ["status", "wid", "gr", "9lives", "a-b"])
def test_the_subject_cannot_have_a_name_that_is_taken_or_none(name: str) -> None:
    with pytest.raises(ConfigurationError, match="subject="):
        DynamoStore(f"dynamodb://delphi?region=local&endpoint=http://127.0.0.1:1&subject={name}")
