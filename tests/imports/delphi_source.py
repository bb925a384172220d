"""A Delphi job queue, as the document's text and as its code make it, in a real DynamoDB."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import boto3

from backstay import Job
from tests.imports.facts import Facts, own_id, utc

START = datetime(2026, 11, 12, 8, tzinfo=UTC)
STATES = ("PENDING", "PROCESSING", "COMPLETED", "FAILED", "CANCELLED")
BECOMES = {
    "PENDING": "pending",
    "PROCESSING": "retrying",
    "COMPLETED": "completed",
    "FAILED": "failed",
    "CANCELLED": "cancelled",
}
TYPES = ("PCA", "UMAP", "REPORT", "FULL_PIPELINE")
CONFIGS: dict[str, dict[str, Any]] = {
    "PCA": {"max_votes": 1000000, "batch_size": 50000, "n_components": 2, "pca_method": "randomized"},
    "UMAP": {
        "n_neighbors": 15,
        "min_dist": Decimal("0.1"),
        "n_components": 2,
        "metric": "cosine",
        "embedding_model": "all-MiniLM-L6-v2",
        "skip_embedding": False,
    },
    "REPORT": {
        "model": "claude-3-7-sonnet-20250219",
        "include_topics": True,
        "include_consensus": True,
        "include_uncertainty": True,
        "language": "en",
        "max_tokens": 4000,
    },
    "FULL_PIPELINE": {
        "stages": [
            {"stage": "PCA", "config": {"max_votes": 500000, "batch_size": 50000}},
            {"stage": "UMAP", "config": {"n_neighbors": 15, "min_dist": Decimal("0.1")}},
            {"stage": "REPORT", "config": {"model": "claude-3-7-sonnet-20250219", "include_topics": True}},
        ],
        "visualizations": ["basic", "enhanced", "multilayer"],
    },
}


def resource(address: str) -> Any:
    """The client that the document's code uses, for an address of ours."""
    options = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
    return boto3.resource(
        "dynamodb",
        endpoint_url=options["endpoint"],
        region_name=options.get("region", "local"),
        aws_access_key_id="x",
        aws_secret_access_key="x",
    )


def address_of(server_url: str, table: str) -> str:
    return server_url.replace(f"dynamodb://{urlsplit(server_url).netloc}", f"dynamodb://{table}").partition("&table=")[
        0
    ]


def create_job_queue_table(dynamodb: Any, table_name: str = "DelphiJobQueue") -> Any:
    """The document's code."""
    table = dynamodb.create_table(
        TableName=table_name,
        KeySchema=[
            {"AttributeName": "status", "KeyType": "HASH"},  # Partition key
            {"AttributeName": "created_at", "KeyType": "RANGE"},  # Sort key
        ],
        AttributeDefinitions=[
            {"AttributeName": "status", "AttributeType": "S"},
            {"AttributeName": "created_at", "AttributeType": "S"},
            {"AttributeName": "job_id", "AttributeType": "S"},
            {"AttributeName": "conversation_id", "AttributeType": "S"},
            {"AttributeName": "job_type", "AttributeType": "S"},
            {"AttributeName": "priority", "AttributeType": "N"},
            {"AttributeName": "worker_id", "AttributeType": "S"},
            {"AttributeName": "started_at", "AttributeType": "S"},
        ],
        GlobalSecondaryIndexes=[
            {
                "IndexName": "JobIdIndex",
                "KeySchema": [{"AttributeName": "job_id", "KeyType": "HASH"}],
                "Projection": {"ProjectionType": "ALL"},
                "ProvisionedThroughput": {"ReadCapacityUnits": 5, "WriteCapacityUnits": 5},
            },
            {
                "IndexName": "ConversationIndex",
                "KeySchema": [
                    {"AttributeName": "conversation_id", "KeyType": "HASH"},
                    {"AttributeName": "created_at", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "ALL"},
                "ProvisionedThroughput": {"ReadCapacityUnits": 5, "WriteCapacityUnits": 5},
            },
            {
                "IndexName": "JobTypeIndex",
                "KeySchema": [
                    {"AttributeName": "job_type", "KeyType": "HASH"},
                    {"AttributeName": "priority", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "ALL"},
                "ProvisionedThroughput": {"ReadCapacityUnits": 5, "WriteCapacityUnits": 5},
            },
            {
                "IndexName": "WorkerIndex",
                "KeySchema": [
                    {"AttributeName": "worker_id", "KeyType": "HASH"},
                    {"AttributeName": "started_at", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "ALL"},
                "ProvisionedThroughput": {"ReadCapacityUnits": 5, "WriteCapacityUnits": 5},
            },
        ],
        ProvisionedThroughput={"ReadCapacityUnits": 10, "WriteCapacityUnits": 10},
    )
    return table


def create_as_the_text_says(dynamodb: Any, table_name: str) -> Any:
    """The document's text: `job_id` alone is the key, with four indexes."""
    keys = {
        "StatusCreatedIndex": ("status", "created_at"),
        "ConversationIndex": ("conversation_id", "created_at"),
        "JobTypeIndex": ("job_type", "priority"),
        "WorkerStatusIndex": ("worker_id", "status"),
    }
    names = sorted({"job_id", *(name for pair in keys.values() for name in pair)})
    return dynamodb.create_table(
        TableName=table_name,
        KeySchema=[{"AttributeName": "job_id", "KeyType": "HASH"}],
        AttributeDefinitions=[
            {"AttributeName": name, "AttributeType": "N" if name == "priority" else "S"} for name in names
        ],
        GlobalSecondaryIndexes=[
            {
                "IndexName": index,
                "KeySchema": [
                    {"AttributeName": hashed, "KeyType": "HASH"},
                    {"AttributeName": ranged, "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "ALL"},
                "ProvisionedThroughput": {"ReadCapacityUnits": 5, "WriteCapacityUnits": 5},
            }
            for index, (hashed, ranged) in keys.items()
        ],
        ProvisionedThroughput={"ReadCapacityUnits": 10, "WriteCapacityUnits": 10},
    )


def make(table: Any, jobs: int) -> None:
    """A queue of so many jobs, of every type and in every status."""
    # An index takes no empty string: where `started_at` is the key of one, it is absent until the job has started.
    names = {each["AttributeName"] for each in table.attribute_definitions}
    with table.batch_writer() as batch:
        for number in range(jobs):
            made = item(number)
            batch.put_item(Item={name: value for name, value in made.items() if value != "" or name not in names})


def job_id(number: int) -> str:
    return str(UUID(int=(0xD290F1EE << 96) | (4 << 76) | (8 << 60) | number))


def item(number: int) -> dict[str, Any]:
    """A job item with every attribute of the document."""
    status = STATES[number % 5]
    job_type = TYPES[number // 5 % 4]
    created = START + timedelta(seconds=number)
    has_started = status in ("PROCESSING", "COMPLETED", "FAILED")
    has_ended = status in ("COMPLETED", "FAILED", "CANCELLED")
    log = {"timestamp": "2025-04-23T21:34:12Z", "level": "INFO", "message": "Started PCA calculation"}
    failed = {"timestamp": "2025-04-23T21:35:23Z", "level": "ERROR", "message": f"Failed to save {number} to S3"}
    return {
        "job_id": job_id(number),
        "status": status,
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "updated_at": (created + timedelta(minutes=2)).isoformat().replace("+00:00", "Z"),
        "started_at": (created + timedelta(minutes=1)).isoformat() if has_started else "",
        "completed_at": (created + timedelta(minutes=2)).isoformat() if has_ended else "",
        "worker_id": f"worker-{number % 3}" if has_started else "none",
        "job_type": job_type,
        "priority": number % 101,
        "conversation_id": str(19305 + number % 7),
        "retry_count": number % 3,
        "max_retries": 3,
        "timeout_seconds": 7200 if job_type == "FULL_PIPELINE" else 3600,
        "version": 1 + number % 4 if status == "PENDING" else 3 + number % 4,
        "job_config": CONFIGS[job_type],
        "job_results": {
            "result_type": "SUCCESS",
            "output_location": {
                "dynamodb_tables": ["ConversationMeta", "CommentClusters"],
                "s3_artifacts": ["s3://polis-analysis/19305/visualization.html"],
            },
            "summary_metrics": {
                "processing_time_seconds": Decimal("142.3"),
                "votes_processed": number,
                "groups_identified": 3,
            },
        }
        if status == "COMPLETED"
        else {"result_type": "FAILURE", "error": f"Failed to save {number} to S3"}
        if status == "FAILED" and number % 2
        else None,
        "logs": {
            "entries": [log, failed] if status == "FAILED" else [log] if has_started else [],
            "log_location": "s3://polis-logs/jobs/job-123-456.log" if has_started else None,
        },
        "created_by": ("server-api", "admin-ui")[number % 2],
        "dependencies": [],
        "dependent_jobs": [],
    }


def scanned(table: Any) -> Iterator[dict[str, Any]]:
    reply = table.scan(ConsistentRead=True)
    yield from reply["Items"]
    while "LastEvaluatedKey" in reply:
        reply = table.scan(ConsistentRead=True, ExclusiveStartKey=reply["LastEvaluatedKey"])
        yield from reply["Items"]


def facts(table: Any) -> Iterator[Facts]:
    for each in scanned(table):
        status = each["status"]
        has_run = status in ("PROCESSING", "COMPLETED", "FAILED")
        yield (
            each["job_id"],
            each["job_type"],
            BECOMES[status],
            int(each["priority"]),
            each["conversation_id"],
            int(each["retry_count"]) + int(has_run),
            int(each["max_retries"]) + 1,
            int(each["timeout_seconds"]),
            int(each["version"]),
            plain(each["job_config"]),
            plain(each["job_results"]) if status == "COMPLETED" else None,
            utc(each["created_at"]),
            utc(each.get("started_at")),
            utc(each["completed_at"]),
            each["worker_id"] if has_run else None,
            each["created_by"],
            [entry["message"] for entry in each["logs"]["entries"]],
            each["logs"]["log_location"],
            each["logs"]["entries"][-1]["message"] if status == "FAILED" else None,
        )


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    match value:
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case dict():
            return {name: plain(each) for name, each in value.items()}
        case list():
            return [plain(each) for each in value]
        case _:
            return value


def facts_of(job: Job) -> Facts:
    return (
        own_id(job),
        job.job_type,
        job.status.value,
        job.priority,
        job.subject,
        job.attempt,
        job.max_attempts,
        int(job.timeout_seconds),
        job.version,
        job.payload,
        job.result,
        utc(job.created_at),
        utc(job.started_at),
        utc(job.completed_at),
        job.worker_id,
        job.created_by,
        [entry["message"] for entry in job.logs["entries"]],
        job.logs["log_location"],
        job.last_error if job.status == "failed" else None,
    )
