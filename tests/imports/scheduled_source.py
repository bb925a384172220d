"""A scheduled queue with its dedup records, as the document describes the items, in a real DynamoDB."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from backstay import Job
from tests.imports.delphi_source import plain, scanned
from tests.imports.facts import Facts, own_id, utc

START = datetime(2026, 11, 12, 8, tzinfo=UTC)
STATES = ("pending", "in_progress", "completed", "failed", "dead_letter", "cancelled")
BECOMES = {
    "pending": ("pending", "scheduled"),
    "in_progress": ("retrying",),
    "completed": ("completed",),
    "failed": ("retrying",),
    "dead_letter": ("failed",),
    "cancelled": ("cancelled",),
}


def create_table(dynamodb: Any, table_name: str) -> Any:
    """The application's single table."""
    return dynamodb.create_table(
        TableName=table_name,
        KeySchema=[{"AttributeName": "PK", "KeyType": "HASH"}, {"AttributeName": "SK", "KeyType": "RANGE"}],
        AttributeDefinitions=[
            {"AttributeName": "PK", "AttributeType": "S"},
            {"AttributeName": "SK", "AttributeType": "S"},
        ],
        BillingMode="PAY_PER_REQUEST",
    )


def make(table: Any, jobs: int) -> None:
    """A queue of so many jobs in every status, a dedup record for each summary, and items of the application's own."""
    with table.batch_writer() as batch:
        for number in range(jobs):
            made = item(number)
            batch.put_item(Item=made)
            if made["job_type"] == "daily_summary":
                batch.put_item(Item=dedup_record(number, made))
        batch.put_item(Item={"PK": "user#7", "SK": "profile", "name": "Ada"})
        batch.put_item(
            Item={
                "PK": "scheduled-job#summary#gone",
                "SK": "2026-01-01",
                "job_pk": "job",
                "job_sk": "scheduled#2026-01-01T00:00:00+00:00#00000000-0000-4000-8000-000000000000",
            }
        )


def job_id(number: int) -> str:
    return str(UUID(int=(9 << 96) | (4 << 76) | (8 << 60) | number))


def day(number: int) -> str:
    return (START + timedelta(days=number % 300)).date().isoformat()


def user(number: int) -> str:
    return f"U{number // 300}"


def item(number: int) -> dict[str, Any]:
    status = STATES[number % 6]
    created = START + timedelta(seconds=number)
    due = created + timedelta(hours=number % 2)
    is_summary = number % 4 != 3
    payload = {"user_id": user(number), "day": day(number), "timezone": "UTC"} if is_summary else {"user_id": "U1"}
    made = {
        "PK": "job",
        "SK": f"scheduled#{due.isoformat()}#{job_id(number)}",
        "job_type": "daily_summary" if is_summary else "user_sync",
        "payload": payload if number % 2 else json.dumps(payload),  # a JSON blob: a document, or its text
        "scheduled_for": due.isoformat(),
        "status": status,
        "attempts": {"pending": 0, "in_progress": number % 3, "completed": 1, "failed": 2, "dead_letter": 5}.get(
            status, 0
        ),
        "created_at": created.isoformat(),
    }
    if status == "failed":
        made["scheduled_for"] = (due + timedelta(seconds=120)).isoformat()  # moved by the backoff; the sort key is not
    if status == "in_progress":
        made |= {"locked_by": "worker-1", "lock_expires_at": (due + timedelta(minutes=5)).isoformat()}
    if status == "completed":
        made["completed_at"] = (due + timedelta(seconds=3)).isoformat()
    if status in ("failed", "dead_letter"):
        made["last_error"] = "Traceback (most recent call last):\n  File x\nslack.SlackError: not sent"
    return made


def dedup_record(number: int, made: dict[str, Any]) -> dict[str, Any]:
    return {"PK": f"scheduled-job#summary#{user(number)}", "SK": day(number), "job_pk": "job", "job_sk": made["SK"]}


def facts(table: Any) -> Iterator[Facts]:
    """What must be the same; the dedup key is found by the record that points to the job."""
    items = list(scanned(table))
    keys = {each["job_sk"]: f"summary:{each['PK'].split('#')[2]}:{each['SK']}" for each in items if "job_sk" in each}
    for each in items:
        if each["PK"] != "job":
            continue
        status = each["status"]
        payload = each["payload"]
        running = status == "in_progress"
        due = utc(each["scheduled_for"])
        yield (
            each["SK"].split("#")[2],
            each["job_type"],
            BECOMES[status][-1] if due != utc(each["created_at"]) else BECOMES[status][0],
            json.loads(payload) if isinstance(payload, str) else plain(payload),
            due,
            utc(each["created_at"]),
            int(each["attempts"]) + int(running),
            "SlackError: not sent" if "last_error" in each else None,
            utc(each.get("completed_at")),
            keys.get(each["SK"]),
        )


def facts_of(job: Job) -> Facts:
    return (
        own_id(job),
        job.job_type,
        job.status.value,
        job.payload,
        utc(job.scheduled_for),
        utc(job.created_at),
        job.failures,
        job.last_error if "not sent" in (job.last_error or "") else None,
        utc(job.completed_at) if job.status == "completed" else None,
        job.dedup_key,
    )
