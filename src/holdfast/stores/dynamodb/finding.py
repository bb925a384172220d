"""find and ahead. One qualifier leads through its index; what that names is read again, and the others filter."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from holdfast.errors import InvalidOption
from holdfast.lifecycle import Status
from holdfast.store.types import Page, Query
from holdfast.stores.dynamodb import keys, reading
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.expressions import Condition, all_of, equals
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import CONTENT, KEY, RATE, READY, ROOT, STATUS, SUBJECT, TYPE, WORKER, Table
from holdfast.stores.dynamodb.merging import merged
from holdfast.stores.dynamodb.values import Item

LOOKED_AT_MAX = 2_000  # entries of an index behind one page; then the page ends, and its cursor goes on from there
SORTED_MAX = 20_000  # entries that are sorted here, where no index has the order
CHUNK = 100
_CURSORS = {
    "created": re.compile(r"[0-9]{16}\|[0-9a-f]{32}"),
    "priority": re.compile(r"[0-9]{3}\|[0-9]{16}\|[0-9a-f]{32}"),
}
_tags = msgspec.json.Decoder(list[str])


async def find(ground: Ground, query: Query) -> Page:
    _check(query)
    asks = _streams(ground, query)
    if asks is None:
        return await _sorted(ground, query)
    matches: list[Item] = []
    looked_at = 0
    seen: set[str] = set()
    last = None
    name = "gc" if query.order == "created" else "gp"
    entries = merged([ground.tables.ask(ask) for ask in asks], name, backwards=query.order == "created")
    async for chunk in _chunks(entries):
        fresh = [entry for entry in chunk if entry["job_id"] not in seen]
        seen.update(entry["job_id"] for entry in fresh)
        looked_at += len(chunk)
        last = chunk[-1][name]
        matches += await _matching(ground, query, [entry["job_id"] for entry in fresh])
        if len(matches) > query.limit:
            return await _page(ground, query, matches, None)
        if looked_at >= LOOKED_AT_MAX:
            return await _page(ground, query, matches, last)
    return await _page(ground, query, matches, None)


def _check(query: Query) -> None:
    cursor = _CURSORS.get(query.order)
    if cursor is None:
        raise InvalidOption(f"order={query.order!r:.60}: a search is ordered by {' or '.join(_CURSORS)}")
    if query.after is not None and not cursor.fullmatch(query.after):
        raise InvalidOption(f"after={query.after!r:.60} is not a cursor of this search: pass `next` of a page")


def _streams(ground: Ground, query: Query) -> list[Ask] | None:
    """Where an index has the jobs in the order that was asked for; None: nowhere."""
    if query.content_hash is not None or query.concurrency_key is not None or query.parent is not None:
        return None
    if query.worker is not None and query.status is not None:
        return None
    if query.order == "priority":
        if query.job_type is None or query.subject is not None or query.root is not None:
            return None
        partitions = keys.all_shards(keys.part(query.job_type), ground.shards)
        return [
            Ask(table=Table.JOBS, index=TYPE.name, hash=each, above=query.after, only=("job_id", "gp"), page=CHUNK)
            for each in partitions
        ]
    partitions, index, where = _by_arrival(ground, query)
    return [
        Ask(
            table=Table.JOBS,
            index=index,
            hash=each,
            below=query.after,
            backwards=True,
            page=CHUNK,
            only=("job_id", "gc"),
            where=where,
        )
        for each in partitions
    ]


def _by_arrival(ground: Ground, query: Query) -> tuple[list[str], str, Condition | None]:
    if query.subject:
        return [query.subject], SUBJECT.name, None
    if query.root is not None:
        return [query.root], ROOT.name, None
    states = list(Status) if query.status is None else [query.status]
    partitions = [each for state in states for each in keys.all_shards(state.value, ground.shards)]
    projected = {"job_type": query.job_type, "queue": query.queue, "created_by": query.created_by}
    given = [equals(name, value) for name, value in projected.items() if value is not None]
    return partitions, STATUS.name, all_of(*given) if given else None


async def _sorted(ground: Ground, query: Query) -> Page:
    """All that the lead names, sorted here."""
    ids: dict[str, None] = {}
    for ask in _unordered(ground, query):
        async for entry in ground.tables.ask(ask):
            ids[entry["sk" if ask.table is Table.RECORDS else "job_id"]] = None
            if len(ids) > SORTED_MAX:
                raise InvalidOption(
                    f"more than {SORTED_MAX:,} jobs would have to be sorted: name a job_type, or order by created"
                )
    matches = await _matching(ground, query, list(ids))
    place = _place(query)
    matches.sort(key=place, reverse=query.order == "created")
    if query.after is not None:
        after = query.after
        matches = [
            item for item in matches if (place(item) < after if query.order == "created" else place(item) > after)
        ]
    return await _page(ground, query, matches, None)


def _unordered(ground: Ground, query: Query) -> list[Ask]:
    only = ("job_id",)
    if query.parent is not None:
        return [Ask(table=Table.RECORDS, hash=keys.kids(query.parent), only=("sk",), consistent=True)]
    if query.subject:
        return [Ask(table=Table.JOBS, index=SUBJECT.name, hash=query.subject, only=only)]
    if query.content_hash:
        return [Ask(table=Table.JOBS, index=CONTENT.name, hash=query.content_hash, only=only)]
    if query.root is not None:
        return [Ask(table=Table.JOBS, index=ROOT.name, hash=query.root, only=only)]
    if query.concurrency_key:
        running = "run|" if query.status is Status.PROCESSING else None
        return [Ask(table=Table.JOBS, index=KEY.name, hash=query.concurrency_key, begins=running, only=only)]
    if query.worker and query.status is not None:
        state = query.status.value
        return [Ask(table=Table.JOBS, index=WORKER.name, hash=query.worker, begins=state, only=only)]
    partitions, index, where = _by_arrival(ground, query)
    return [Ask(table=Table.JOBS, index=index, hash=each, only=only, where=where) for each in partitions]


async def _matching(ground: Ground, query: Query, job_ids: Sequence[str]) -> list[Item]:
    """Those that are what was asked for, read consistently: an index may be behind."""
    found = await ground.tables.get(Table.JOBS, [(job_id,) for job_id in job_ids])
    return [item for item in found if item is not None and _matches(item, query)]


def _matches(item: Item, query: Query) -> bool:
    if "archived_at" in item:
        return False
    empty = item.get("empty", ())
    wanted: dict[str, Any] = {
        "status": query.status,
        "job_type": query.job_type,
        "queue": query.queue,
        "subject": query.subject,
        "worker_id": query.worker,
        "created_by": query.created_by,
        "root_job_id": query.root,
        "parent_job_id": query.parent,
        "content_hash": query.content_hash,
        "concurrency_key": query.concurrency_key,
    }
    for name, value in wanted.items():
        if value is not None and ("" if name in empty else item.get(name)) != value:
            return False
    return query.tag is None or query.tag in _tags.decode(item.get("tags") or "[]")


def _place(query: Query) -> Callable[[Item], str]:
    """The key that orders a search; of the last one shown it is the cursor."""
    if query.order == "created":
        return lambda item: keys.created(item["created_at"], item["job_id"])
    return lambda item: keys.place(item["priority"], item["scheduled_for"], item["job_id"])


async def _page(ground: Ground, query: Query, matches: list[Item], last: str | None) -> Page:
    shown = matches[: query.limit]
    more = len(matches) > query.limit
    return Page(items=tuple(await reading.full(ground, shown)), next=_place(query)(shown[-1]) if more else last)


async def _chunks(entries: AsyncIterator[Item]) -> AsyncIterator[list[Item]]:
    chunk: list[Item] = []
    async for entry in entries:
        chunk.append(entry)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


# Who comes before a pending job


async def ahead(ground: Ground, job_id: str, limit: int) -> int:
    [item] = await ground.tables.get(Table.JOBS, [(job_id,)])
    if item is None or item.get("status") != Status.PENDING:
        return 0
    total = 0
    for ask in _before(ground, item):
        total += await ground.tables.count(ask, limit - total)
        if total >= limit:
            return limit
    return total


def _before(ground: Ground, item: Item) -> list[Ask]:
    stands = keys.place(item["priority"], item["scheduled_for"], item["job_id"])
    derived = keys.derived(item, ground.shards)
    lane = keys.lane_of(item)
    match item.get("parked"):
        case "r":
            return [_held(RATE.name, derived["gb"], f"{side}|{lane}|", stands) for side in ("out", "in")]
        case "c":
            return [_held(KEY.name, item["concurrency_key"], f"{side}|{lane}|", stands) for side in ("out", "in")]
    if item.get("fairness_key") is None:
        lanes = keys.all_shards(keys.ready(item["queue"], item["job_type"]), ground.shards)
        return [Ask(table=Table.JOBS, index=READY.name, hash=each, below=stands) for each in lanes]
    own = f"{keys.rank(item['priority'])}|{keys.part(item['fairness_key'])}|"
    return [Ask(table=Table.JOBS, index=READY.name, hash=derived["gr"], begins=own, below=derived["gq"])]


def _held(index: str, partition: str, begins: str, stands: str) -> Ask:
    return Ask(table=Table.JOBS, index=index, hash=partition, begins=begins, below=f"{begins}{stands}")
