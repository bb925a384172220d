"""The two tables and their indexes, as data."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

SCHEMA = 1
SCHEMA_NAMES = ("0001_tables",)


class Table(Enum):
    JOBS = "jobs"
    RECORDS = "records"

    @property
    def key_names(self) -> tuple[str, ...]:
        return ("job_id",) if self is Table.JOBS else ("pk", "sk")


Key = tuple[str, ...]  # (job_id,) or (pk, sk)
OWNER: Key = ("holdfast",)  # no job: the item of the jobs' table that says whose it is


class Index(msgspec.Struct, frozen=True):
    name: str
    hash: str
    range: str
    includes: tuple[str, ...] = ()


STATUS = Index(
    "StatusCreatedIndex",
    "gs",
    "gc",
    (
        "queue",
        "job_type",
        "priority",
        "scheduled_for",
        "started_at",
        "completed_at",
        "root_job_id",
        "created_by",
        "error_type",
    ),
)
SUBJECT = Index("ConversationIndex", "subject", "gc")
TYPE = Index("JobTypeIndex", "gt", "gp")
WORKER = Index("WorkerStatusIndex", "worker_id", "status")
READY = Index(
    "ReadyIndex",
    "gr",
    "gq",
    (
        "payload_version",
        "concurrency_key",
        "concurrency_limit",
        "rate_key",
        "rate_count",
        "rate_micros",
        "fairness_key",
        "fairness_weight",
    ),
)
TIME = Index("TimeIndex", "gd", "ge")
ROOT = Index("RootIndex", "root_job_id", "gc", ("parent_job_id",))
CONTENT = Index("ContentIndex", "content_hash", "gh")
KEY = Index("KeyIndex", "concurrency_key", "gk", ("concurrency_limit",))
RATE = Index("RateIndex", "gb", "gm")
ARCHIVE = Index("ArchiveIndex", "ga", "gz")
INDEXES = {
    index.name: index for index in (STATUS, SUBJECT, TYPE, WORKER, READY, TIME, ROOT, CONTENT, KEY, RATE, ARCHIVE)
}


def definition(table: Table, name: str, *, provisioned: bool) -> dict[str, Any]:
    """The body of CreateTable."""
    indexes = list(INDEXES.values()) if table is Table.JOBS else []
    attributes = dict.fromkeys([*table.key_names, *(part for index in indexes for part in (index.hash, index.range))])
    body: dict[str, Any] = {
        "TableName": name,
        "AttributeDefinitions": [{"AttributeName": each, "AttributeType": "S"} for each in attributes],
        "KeySchema": _schema(*table.key_names),
        **billing(provisioned, 10),
    }
    if indexes:
        body["GlobalSecondaryIndexes"] = [index_definition(index, provisioned=provisioned) for index in indexes]
    return body


def index_definition(index: Index, *, provisioned: bool) -> dict[str, Any]:
    projection: dict[str, Any] = {"ProjectionType": "KEYS_ONLY"}
    if index.includes:
        projection = {"ProjectionType": "INCLUDE", "NonKeyAttributes": list(index.includes)}
    body = {"IndexName": index.name, "KeySchema": _schema(index.hash, index.range), "Projection": projection}
    if provisioned:
        body["ProvisionedThroughput"] = {"ReadCapacityUnits": 5, "WriteCapacityUnits": 5}
    return body


def attributes_of(index: Index) -> list[dict[str, str]]:
    return [{"AttributeName": each, "AttributeType": "S"} for each in (index.hash, index.range)]


def billing(provisioned: bool, units: int) -> dict[str, Any]:
    if not provisioned:
        return {"BillingMode": "PAY_PER_REQUEST"}
    return {
        "BillingMode": "PROVISIONED",
        "ProvisionedThroughput": {"ReadCapacityUnits": units, "WriteCapacityUnits": units},
    }


def _schema(hash_name: str, range_name: str | None = None) -> list[dict[str, str]]:
    schema = [{"AttributeName": hash_name, "KeyType": "HASH"}]
    if range_name is not None:
        schema.append({"AttributeName": range_name, "KeyType": "RANGE"})
    return schema
