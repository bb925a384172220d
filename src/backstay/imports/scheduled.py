"""A scheduled queue in a DynamoDB table of the application: jobs under the partition `job`, and dedup records.

    backstay import scheduled 'dynamodb://companion?region=eu-north-1'

A job's id is the last part of its sort key, scheduled#<time>#<id>; when it runs is told by `scheduled_for`, which a
retry moves and the sort key does not. All other items of the table belong to the application and are passed over.

A dedup record scheduled-job#summary#<user> with the sort key <day> becomes the dedup key summary:<user>:<day> of the
job that it points to, kept forever. One whose job is gone guards nothing, here as there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from backstay.core.records import FOREVER
from backstay.core.states import Status
from backstay.engines.dynamodb.schema import Item
from backstay.errors import ConfigurationError
from backstay.imports.dynamodb_table import ForeignTable, values
from backstay.imports.source import (
    RUNNING,
    Row,
    Unmappable,
    Work,
    document,
    known,
    moment,
    named,
    read,
    required,
    text,
    whole,
)

_STATES = {
    "pending": Status.PENDING,
    "in_progress": Status.PROCESSING,
    "completed": Status.COMPLETED,
    "failed": Status.RETRYING,
    "dead_letter": Status.FAILED,
    "cancelled": Status.CANCELLED,
}
_PARTITION = "job"
_DEDUP = "scheduled-job#"
_BY_PARTITION = {"KeyConditionExpression": "PK = :pk", "ExpressionAttributeValues": values(pk=_PARTITION)}


class Scheduled:
    has_dependencies = False

    def __init__(self, address: str) -> None:
        self._table = ForeignTable(address)
        self._keys: dict[str, str] = {}  # dedup keys by the sort key of their job
        self._newest: dict[str, str] = {}  # the last sort key of each job
        self._dangling: list[str] = []

    @property
    def location(self) -> str:
        return self._table.location

    async def open(self) -> None:
        described = await self._table.described()
        keys = [key["AttributeName"] for key in described["KeySchema"]]
        if keys != ["PK", "SK"]:
            raise ConfigurationError(
                f"{self._table.name} is not a table with a scheduled queue: its key is {', '.join(keys)}, not PK and SK"
            )
        await self._read_keys()

    async def _read_keys(self) -> None:
        self._keys.clear()
        self._newest.clear()
        found: dict[str, str] = {}
        async for page in self._table.scan(
            FilterExpression="begins_with(PK, :dedup)", ExpressionAttributeValues=values(dedup=_DEDUP)
        ):
            for item in page:
                if item.get("job_pk", _PARTITION) == _PARTITION and item.get("job_sk"):
                    found[dedup_key(item["PK"], item["SK"])] = item["job_sk"]
        jobs: set[str] = set()
        async for page in self._table.query(**_BY_PARTITION, ProjectionExpression="SK"):
            for item in page:  # in order of time
                jobs.add(item["SK"])
                self._newest[_id_of(item) or item["SK"]] = item["SK"]
        for key, job in sorted(found.items()):
            if job in jobs:
                self._keys.setdefault(self._newest[_id_of({"SK": job}) or job], key)
        taken = set(self._keys.values())
        self._dangling = [key for key in sorted(found) if key not in taken]

    async def close(self) -> None:
        await self._table.close()

    async def count(self) -> int:
        return await self._table.count("Query", **_BY_PARTITION)

    async def pages(self) -> AsyncIterator[list[Row]]:
        async for page in self._table.query(**_BY_PARTITION):
            yield [self._row(item) for item in page]

    def notes(self) -> list[str]:
        found = [f"{len(self._keys):,} dedup records become dedup keys, kept forever"] if self._keys else []
        if self._dangling:
            more = ", …" if len(self._dangling) > 5 else ""
            found.append(
                f"{len(self._dangling):,} dedup records are left out, because their job is gone or has another one:"
                f" {', '.join(self._dangling[:5])}{more}"
            )
        return found

    def _row(self, item: Item) -> Row:
        return read(_id_of(item) or item["SK"], item.get("status", "?"), lambda: self._work(item))

    def _work(self, item: Item) -> Work:
        job_id = _id_of(item)
        if job_id is None:
            raise Unmappable("its sort key is not scheduled#<time>#<id>")
        if self._newest.get(job_id, item["SK"]) > item["SK"]:
            raise Unmappable("a later item of the same job is imported instead")
        state = item.get("status")
        status = known(_STATES, state)
        attempts = whole(item.get("attempts"), "attempts")
        due_at = required(moment(item.get("scheduled_for"), "scheduled_for"), "scheduled_for")
        # A job without a creation time is as old as its first due time.
        created_at = moment(item.get("created_at"), "created_at") or due_at
        is_running = status is Status.PROCESSING
        key = self._keys.get(item["SK"])
        return Work(
            source_id=job_id,
            state=str(state),
            job_type=named(item.get("job_type"), "job_type"),
            payload=document(item.get("payload"), "payload"),
            status=status,
            created_at=created_at,
            due_at=due_at,
            ended_at=moment(item.get("completed_at"), "completed_at")
            or (due_at if status in (Status.FAILED, Status.CANCELLED, Status.COMPLETED) else None),
            attempt=attempts + int(status in (Status.COMPLETED, Status.PROCESSING)),
            failures=attempts + int(is_running),
            error=text(item.get("last_error")),
            worker_id=text(item.get("locked_by")) if is_running else None,
            dedup_key=key,
            dedup_until=None if key is None else FOREVER,
            note=RUNNING if is_running else "",
        )


def dedup_key(partition: str, day: Any) -> str:
    """Return the dedup key of a record: summary:7:2026-11-15 of scheduled-job#summary#7 and 2026-11-15."""
    return f"{partition.removeprefix(_DEDUP)}#{day}".replace("#", ":")


def _id_of(item: Item) -> str | None:
    parts = str(item["SK"]).split("#")
    return parts[2] if len(parts) == 3 and parts[0] == "scheduled" and parts[2] else None
