"""Jobs that move: read in the order in which they came, with what lies around each, and written as they were.

The index of states has that order, and may be behind. So whoever has read to its end looks whether it has shown all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import msgspec

from holdfast.errors import StoreBusy
from holdfast.lifecycle import Status
from holdfast.store import dumps
from holdfast.store.dumps import Dump, EdgeDump, JobDump
from holdfast.store.types import JobRecord, Rate
from holdfast.stores import dumping
from holdfast.stores.dynamodb import bodies, items, keys, linking, plan, reading
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.deciding import INLINE_DEPENDENCIES_MAX
from holdfast.stores.dynamodb.expressions import absent, below
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import STATUS, Table
from holdfast.stores.dynamodb.merging import merged
from holdfast.stores.dynamodb.storing import NEEDS_MAX
from holdfast.stores.dynamodb.table import Failed
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.writes import put

SOME = 50  # jobs that are read at once: of the largest there are, what fits into memory
WID = "moved"  # who wrote them: the same for every try, so that a repeat writes the same
_NUMBERS = {"open": "open_children", "bad": "failed_children", "left": "cancelled_children"}
_ELSEWHERE = frozenset(
    {
        "status", "errors", "history", "parked", "trigger_rule", "result_tables", "dependencies", "dependent_jobs",
        "dependent_count", "processing_micros", "archived_at", "lease_expires_at", *_NUMBERS.values(),
    }
)  # fmt: skip
_ALWAYS = frozenset(each.name for each in msgspec.structs.fields(JobRecord) if each.required) | {"version"}
_USUAL = {each.name: each.default for each in msgspec.structs.fields(JobRecord) if not each.required}


# Reading out


async def export(ground: Ground, after: str | None, limit: int) -> AsyncIterator[tuple[Dump, str]]:
    partitions = [each for status in Status for each in keys.all_shards(status.value, ground.shards)]
    asks = [
        Ask(table=Table.JOBS, index=STATUS.name, hash=each, above=after, only=("job_id", "gc"), page=SOME)
        for each in partitions
    ]
    entries: dict[str, str] = {}
    async for row in merged([ground.tables.ask(ask) for ask in asks], "gc"):
        entries[row["job_id"]] = row["gc"]
        if len(entries) == SOME:
            for dump in await _dumps(ground, list(entries)):
                yield dump, entries[dump.record.job_id]
            entries.clear()
    for dump in await _dumps(ground, list(entries)):
        yield dump, entries[dump.record.job_id]
    await _refuse_lagging(ground)


async def _refuse_lagging(ground: Ground) -> None:
    body = {
        "TableName": ground.tables.names[Table.JOBS],
        "ConsistentRead": True,
        "Select": "COUNT",
        "FilterExpression": "attribute_exists(gs)",
    }
    stored = 0
    while True:
        reply = await ground.tables.call("Scan", body)
        stored += reply["Count"]
        if not reply.get("LastEvaluatedKey"):
            break
        body = {**body, "ExclusiveStartKey": reply["LastEvaluatedKey"]}
    shown = sum((await reading.counts(ground)).values())
    if shown != stored:
        raise StoreBusy(f"{ground.tables.shown}: its index shows {shown:,} of {stored:,} jobs as yet: try again")


async def _dumps(ground: Ground, job_ids: Sequence[str]) -> list[JobDump]:
    read = await ground.tables.get(Table.JOBS, [(job_id,) for job_id in job_ids])
    found = [item for item in read if item is not None and "archived_at" not in item]
    texts = await bodies.fetch(ground.tables, found)
    edges = await asyncio.gather(*(_edges(ground, item) for item in found))
    return [_dump(item, items.record(item, texts), of) for item, of in zip(found, edges, strict=True)]


async def _edges(ground: Ground, item: Item) -> tuple[EdgeDump, ...]:
    parents = sorted(await linking.dependencies(ground, item))
    read = await ground.tables.get(Table.RECORDS, [keys.edge(parent, item["job_id"]) for parent in parents])
    return tuple(
        EdgeDump(parent, edge is None or "met" in edge, edge is not None and "joined" in edge)
        for parent, edge in zip(parents, read, strict=True)
    )


def _dump(item: Item, record: JobRecord, edges: tuple[EdgeDump, ...]) -> JobDump:
    rate = Rate(item["rate_count"], item["rate_micros"]) if "rate_count" in item else None
    return JobDump(
        record=dumps.bare(record),
        edges=edges,
        unmet=item.get("unmet", 0),
        joins=item.get("joins"),
        awaited=bool(item.get("awaited")),
        rate=rate,
        join=item.get("join"),
    )


# Writing


async def restore(ground: Ground, packed: Sequence[bytes]) -> None:
    """What a job names comes before it; all of it the same whenever it is written again."""
    jobs = dumps.all_unpacked(dumps.JOBS, packed, JobDump)
    for queue, job_type in {(job.record.queue, job.record.job_type) for job in jobs if job.record.fairness_key}:
        await ground.board.mark_fair(queue, job_type)
    spilled = [bodies.spill(item_of(job)) for job in jobs]
    around = [record for job in jobs for record in _around(job)]
    await ground.tables.put_many(Table.RECORDS, [*around, *(text for _, texts in spilled for text in texts)])
    made = [item for item, _ in spilled]
    await ground.tables.put_many(Table.JOBS, [{**item, **keys.derived(item, ground.shards)} for item in made])
    await _point_to_latest(ground, made)


def item_of(dump: JobDump) -> Item:
    record = dump.record
    fields = msgspec.structs.asdict(record)
    item: Item = {
        name: value
        for name, value in fields.items()
        if name not in _ELSEWHERE and (name in _ALWAYS or value != _USUAL[name])
    }
    item |= {"status": record.status.value, "history": dumping.history_text(record.history), "wid": WID}
    if record.errors:
        item["errors"] = msgspec.json.encode(record.errors).decode()
    if record.trigger_rule != _USUAL["trigger_rule"]:
        item["rule"] = record.trigger_rule
    if record.result_tables:
        item["tables"] = set(record.result_tables)
    if record.children:
        item |= {name: number for name, field in _NUMBERS.items() if (number := fields[field]) or name == "open"}
    return items.without_empty_keys(items.fit(item | _beside(dump)))


def _beside(dump: JobDump) -> Item:
    """What an item has that is not in a record."""
    parents = [edge.parent_id for edge in dump.edges]
    item: Item = {
        "unmet": dump.unmet or None,
        "joins": dump.joins,
        "joined": next((edge.parent_id for edge in dump.edges if edge.joined), None),
        "awaited": 1 if dump.awaited else None,
        "join": dump.join,
        "rate_count": None if dump.rate is None else dump.rate.count,
        "rate_micros": None if dump.rate is None else dump.rate.micros,
    }
    if len(parents) > INLINE_DEPENDENCIES_MAX:
        item["needs"] = len(parents)
    elif parents:
        item["depends_on"] = parents
    return {name: value for name, value in item.items() if value is not None}


def _around(dump: JobDump) -> list[Item]:
    """Records that lie around a job: its edges, and its place among the children of its parent."""
    job_id, parent = dump.record.job_id, dump.record.parent_job_id
    found = [linking.edge(edge.parent_id, job_id, met=edge.met, joined=edge.joined).item or {} for edge in dump.edges]
    parents = [edge.parent_id for edge in dump.edges]
    if len(parents) > INLINE_DEPENDENCIES_MAX:
        for number, start in enumerate(range(0, len(parents), NEEDS_MAX)):
            pk, sk = keys.needs(job_id, number)
            found.append({"pk": pk, "sk": sk, "parents": parents[start : start + NEEDS_MAX]})
    if parent is not None:
        pk, sk = keys.kid(parent, job_id)
        found.append({"pk": pk, "sk": sk})
    return found


async def _point_to_latest(ground: Ground, made: Sequence[Item]) -> None:
    for item in made:
        for write in plan.latest(item):
            newer = absent("pk") | below("completed_at", item["completed_at"])
            with contextlib.suppress(Failed):
                await ground.tables.update(put(write.table, write.item or {}, newer))


def fit(item: bytes) -> bytes:
    """What a job's item holds of it: long reasons, errors and logs are cut."""
    dump = dumps.unpacked(dumps.JOBS, item, JobDump)
    kept = items.record(item_of(dump), {})
    cut = {name: getattr(kept, name) for name in ("errors", "last_error", "logs", "history", "metrics")}
    return dumps.packed(msgspec.structs.replace(dump, record=msgspec.structs.replace(dump.record, **cut)))
