"""get and the other reads, and the small records of workers and types. Nothing is decided by a read of an index."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from holdfast.clock import Instant
from holdfast.errors import ConfigurationError
from holdfast.lifecycle import TERMINAL, Status
from holdfast.limits import LISTED_EDGES_MAX
from holdfast.store.types import DeadGroup, Depth, JobRecord, JobType, WorkerRow
from holdfast.stores import records
from holdfast.stores.depths import depths_of
from holdfast.stores.dynamodb import bodies, items, keys
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.items import Edges
from holdfast.stores.dynamodb.layout import STATUS, Key, Table
from holdfast.stores.dynamodb.table import Lane
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.writes import put

DETAILS_BYTES_MAX = 390_000  # an item ends at 400 KB, and has a key and two numbers besides
RUNNING_LISTED_MAX = 5_000  # ids of a worker that runs more than fit


async def get(ground: Ground, job_ids: Sequence[str]) -> list[JobRecord | None]:
    found = await ground.tables.get(Table.JOBS, [(each,) for each in job_ids])
    made = {each.job_id: each for each in await full(ground, [item for item in found if item is not None])}
    return [made.get(job_id) for job_id in job_ids]


async def full(ground: Ground, found: Sequence[Item]) -> list[JobRecord]:
    """Records of items that were read, with their texts and edges."""
    try:
        return await _full(ground, found)
    except bodies.Missing:  # retired, or changed, since they were read
        anew = await ground.tables.get(Table.JOBS, [(item["job_id"],) for item in found])
        return await _full(ground, [item for item in anew if item is not None])


async def _full(ground: Ground, found: Sequence[Item]) -> list[JobRecord]:
    texts, edges = await asyncio.gather(bodies.fetch(ground.tables, found), _edges(ground, found))
    return [items.record(item, texts, edges.get(item["job_id"], items.NO_EDGES)) for item in found]


async def statuses(ground: Ground, job_ids: Sequence[str]) -> list[Status | None]:
    names = ("job_id", "status", "ended", "archived_at")
    found = await ground.tables.get(Table.JOBS, [(each,) for each in job_ids], only=names)
    return [None if item is None else items.status_of(item) for item in found]


async def _edges(ground: Ground, found: Sequence[Item]) -> dict[str, Edges]:
    with_edges = [
        item
        for item in found
        if "archived_at" not in item and (item.get("awaited") or item.get("depends_on") or item.get("needs"))
    ]
    made = await asyncio.gather(*(_edges_of(ground, item) for item in with_edges))
    return {item["job_id"]: edges for item, edges in zip(with_edges, made, strict=True)}


async def _edges_of(ground: Ground, item: Item) -> Edges:
    dependents: list[str] = []
    count = 0
    if item.get("awaited"):
        ask = Ask(table=Table.RECORDS, hash=keys.edges(item["job_id"]), only=("sk",), consistent=True)
        async for edge in ground.tables.ask(ask):
            count += 1
            if len(dependents) < LISTED_EDGES_MAX:
                dependents.append(edge["sk"])
    return Edges(await _dependencies(ground, item), tuple(dependents), count)


async def _dependencies(ground: Ground, item: Item) -> tuple[str, ...]:
    inline: list[str] = item.get("depends_on", [])
    if not item.get("needs"):
        return tuple(inline[:LISTED_EDGES_MAX])
    [chunk] = await ground.tables.get(Table.RECORDS, [keys.needs(item["job_id"])])
    return tuple((chunk or {}).get("parents", [])[:LISTED_EDGES_MAX])


# Sums over the index of states


# In this order a job that moves on while others are counted may be counted twice, but never missed.
_FLOW = (Status.WAITING, Status.SCHEDULED, Status.RETRYING, Status.PENDING, Status.PROCESSING)


async def counts(ground: Ground) -> dict[str, int]:
    async def one(status: Status) -> int:
        asks = (Ask(table=Table.JOBS, index=STATUS.name, hash=each) for each in _partitions(ground, status))
        return sum(await asyncio.gather(*(ground.tables.count(ask) for ask in asks)))

    ran = await one(Status.PROCESSING)  # a running job may go back to any of those before it
    totals = {status: await one(status) for status in _FLOW}
    totals[Status.PROCESSING] = max(ran, totals[Status.PROCESSING])
    ended = sorted(TERMINAL)
    totals.update(zip(ended, await asyncio.gather(*(one(status) for status in ended)), strict=True))
    return {status.value: totals[status] for status in Status}


async def depths(ground: Ground) -> list[Depth]:
    found: list[tuple[str, str, str, int, int, Instant, Instant]] = []
    for status in _FLOW:
        since = "started_at" if status is Status.PROCESSING else "scheduled_for"
        for partition in _partitions(ground, status):
            names = ("queue", "job_type", "priority", since)
            async for row in ground.tables.ask(Ask(table=Table.JOBS, index=STATUS.name, hash=partition, only=names)):
                at = row[since]
                found.append((row["queue"], row["job_type"], status.value, row["priority"], 1, at, at))
    return depths_of(found)


async def dead(ground: Ground, limit: int) -> list[DeadGroup]:
    newest: dict[tuple[str, str], tuple[int, Instant, str]] = {}
    for partition in _partitions(ground, Status.FAILED):
        names = ("job_id", "job_type", "error_type", "completed_at")
        async for row in ground.tables.ask(Ask(table=Table.JOBS, index=STATUS.name, hash=partition, only=names)):
            place = (row["job_type"], row["error_type"])
            count, at, job_id = newest.get(place, (0, -1, ""))
            if row["completed_at"] > at:
                at, job_id = row["completed_at"], row["job_id"]
            newest[place] = (count + 1, at, job_id)
    groups = sorted(newest.items(), key=lambda each: (-each[1][0], each[0]))[:limit]
    found = await ground.tables.get(Table.JOBS, [(job_id,) for _, (_, _, job_id) in groups], only=("last_error",))
    return [
        DeadGroup(job_type, error_type, count, job_id, (item or {}).get("last_error", ""), at)
        for ((job_type, error_type), (count, at, job_id)), item in zip(groups, found, strict=True)
    ]


def _partitions(ground: Ground, status: Status) -> list[str]:
    return keys.all_shards(status.value, ground.shards)


# Workers and types


async def beat(ground: Ground, worker: WorkerRow) -> None:
    pk, sk = keys.worker(worker.worker_id)
    details = msgspec.json.encode(worker)
    if len(details) > DETAILS_BYTES_MAX:  # a beat must never fail for what it lists
        details = msgspec.json.encode(msgspec.structs.replace(worker, running=worker.running[:RUNNING_LISTED_MAX]))
    item = {
        "pk": pk,
        "sk": sk,
        "worker_id": worker.worker_id,
        "heartbeat_at": worker.heartbeat_at,
        "details": details.decode(),
    }
    await ground.tables.update(put(Table.RECORDS, item), lane=Lane.URGENT, verb="beat")


async def forget(ground: Ground, worker_ids: Sequence[str]) -> None:
    await ground.tables.delete_many(Table.RECORDS, [keys.worker(each) for each in worker_ids])


async def workers(ground: Ground) -> list[WorkerRow]:
    ask = Ask(table=Table.RECORDS, hash=keys.WORKERS, consistent=True)
    found = [
        records.worker(item["worker_id"], item["heartbeat_at"], item["details"])
        async for item in ground.tables.ask(ask)
    ]
    return sorted(found, key=lambda worker: worker.worker_id)


async def announce(ground: Ground, types: Sequence[JobType]) -> None:
    made: dict[Key, Item] = {}
    for each in types:
        pk, sk = key = keys.job_type(each.job_type)
        details = msgspec.json.encode(each)
        if len(details) > DETAILS_BYTES_MAX:
            raise ConfigurationError(
                f"what is announced of {each.job_type}, most of it the schema of its payload, has {len(details):,}"
                f" bytes, and DynamoDB keeps {DETAILS_BYTES_MAX:,}: give it a smaller model"
            )
        made[key] = {"pk": pk, "sk": sk, "details": details.decode()}
    await ground.tables.put_many(Table.RECORDS, list(made.values()))


async def job_types(ground: Ground) -> list[JobType]:
    ask = Ask(table=Table.RECORDS, hash=keys.TYPES, consistent=True)
    found = [msgspec.json.decode(item["details"], type=JobType) async for item in ground.tables.ask(ask)]
    return sorted(found, key=lambda each: each.job_type)
