"""Reads on DynamoDB: get, find, counts, depths, ahead; also the small records of workers and types.

Nothing is decided by a read of an index. `find` uses the index of one condition; what that returns is read again, and
the other conditions filter.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from backstay.clock import Instant
from backstay.core import result_tables as core_result_tables
from backstay.core import sensitive
from backstay.core.queues import depths_of
from backstay.core.records import (
    DEPENDENCY_FAILED,
    DeadGroup,
    Depth,
    FormerWorker,
    JobRecord,
    JobType,
    Page,
    Query,
    Verdict,
    WorkerRow,
)
from backstay.core.states import TERMINAL, Status
from backstay.core.workers import former_since
from backstay.engines import sql_rows
from backstay.engines.dynamodb import items, schema
from backstay.engines.dynamodb.commit import merged
from backstay.engines.dynamodb.expressions import Ask, Condition, all_of, equals, put
from backstay.engines.dynamodb.items import Edges
from backstay.engines.dynamodb.schema import (
    CONTENT,
    KEY,
    RATE,
    READY,
    ROOT,
    STATUS,
    SUBJECT,
    TYPE,
    WORKER,
    Item,
    Key,
    Table,
)
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.table import Failed
from backstay.engines.dynamodb.transport import Lane
from backstay.errors import ConfigurationError, InvalidOption, StoreBusy
from backstay.limits import FORMER_WORKERS_MAX, LISTED_EDGES_MAX

DETAILS_BYTES_MAX = 390_000  # an item holds 400 KB, including a key and two numbers
RUNNING_LISTED_MAX = 5_000  # ids listed for a worker that runs more jobs than fit


async def get(session: Session, job_ids: Sequence[str]) -> list[JobRecord | None]:
    found = await session.tables.get(Table.JOBS, [(each,) for each in job_ids])
    made = {each.job_id: each for each in await full(session, [item for item in found if item is not None])}
    return [made.get(job_id) for job_id in job_ids]


async def full(session: Session, found: Sequence[Item]) -> list[JobRecord]:
    """Return the records of items, with their texts and edges."""
    try:
        return await _full(session, found)
    except items.Missing:  # archived or changed since they were read
        anew = await session.tables.get(Table.JOBS, [(item["job_id"],) for item in found])
        return await _full(session, [item for item in anew if item is not None])


async def _full(session: Session, found: Sequence[Item]) -> list[JobRecord]:
    texts, edges = await asyncio.gather(items.fetch(session.tables, found), _edges(session, found))
    return [items.record(item, texts, edges.get(item["job_id"], items.NO_EDGES)) for item in found]


async def statuses(session: Session, job_ids: Sequence[str]) -> list[Status | None]:
    names = ("job_id", "status", "ended", "archived_at")
    found = await session.tables.get(Table.JOBS, [(each,) for each in job_ids], only=names)
    return [None if item is None else items.status_of(item) for item in found]


async def _edges(session: Session, found: Sequence[Item]) -> dict[str, Edges]:
    with_edges = [
        item
        for item in found
        if "archived_at" not in item and (item.get("awaited") or item.get("depends_on") or item.get("needs"))
    ]
    made = await asyncio.gather(*(_edges_of(session, item) for item in with_edges))
    return {item["job_id"]: edges for item, edges in zip(with_edges, made, strict=True)}


async def _edges_of(session: Session, item: Item) -> Edges:
    dependents: list[str] = []
    count = 0
    if item.get("awaited"):
        ask = Ask(table=Table.RECORDS, hash=schema.edges(item["job_id"]), only=("sk",), consistent=True)
        async for edge in session.tables.ask(ask):
            count += 1
            if len(dependents) < LISTED_EDGES_MAX:
                dependents.append(edge["sk"])
    return Edges(await _dependencies(session, item), tuple(dependents), count)


async def _dependencies(session: Session, item: Item) -> tuple[str, ...]:
    inline: list[str] = item.get("depends_on", [])
    if not item.get("needs"):
        return tuple(inline[:LISTED_EDGES_MAX])
    [chunk] = await session.tables.get(Table.RECORDS, [schema.needs(item["job_id"])])
    return tuple((chunk or {}).get("parents", [])[:LISTED_EDGES_MAX])


# Sums over the index of states


# In this order, a job that changes state during the count may be counted twice, but is never missed.
_FLOW = (Status.WAITING, Status.SCHEDULED, Status.RETRYING, Status.PENDING, Status.PROCESSING)


async def counts(session: Session) -> dict[str, int]:
    async def one(status: Status) -> int:
        asks = (Ask(table=Table.JOBS, index=STATUS.name, hash=each) for each in _partitions(session, status))
        return sum(await asyncio.gather(*(session.tables.count(ask) for ask in asks)))

    ran = await one(Status.PROCESSING)  # a running job may return to any of the states before it
    totals = {status: await one(status) for status in _FLOW}
    totals[Status.PROCESSING] = max(ran, totals[Status.PROCESSING])
    ended = sorted(TERMINAL)
    totals.update(zip(ended, await asyncio.gather(*(one(status) for status in ended)), strict=True))
    return {status.value: totals[status] for status in Status}


async def depths(session: Session) -> list[Depth]:
    found: list[tuple[str, str, str, int, int, Instant, Instant]] = []
    for status in _FLOW:
        since = "started_at" if status is Status.PROCESSING else "scheduled_for"
        for partition in _partitions(session, status):
            names = ("queue", "job_type", "priority", since)
            async for row in session.tables.ask(Ask(table=Table.JOBS, index=STATUS.name, hash=partition, only=names)):
                at = row[since]
                found.append((row["queue"], row["job_type"], status.value, row["priority"], 1, at, at))
    return depths_of(found)


async def dead(session: Session, limit: int) -> list[DeadGroup]:
    newest: dict[tuple[str, str], tuple[int, Instant, str]] = {}
    for partition in _partitions(session, Status.FAILED):
        names = ("job_id", "job_type", "error_type", "completed_at")
        async for row in session.tables.ask(Ask(table=Table.JOBS, index=STATUS.name, hash=partition, only=names)):
            place = (row["job_type"], row.get("error_type", DEPENDENCY_FAILED))
            count, at, job_id = newest.get(place, (0, -1, ""))
            if row["completed_at"] > at:
                at, job_id = row["completed_at"], row["job_id"]
            newest[place] = (count + 1, at, job_id)
    groups = sorted(newest.items(), key=lambda each: (-each[1][0], each[0]))[:limit]
    found = await session.tables.get(Table.JOBS, [(job_id,) for _, (_, _, job_id) in groups], only=("last_error",))
    return [
        DeadGroup(job_type, error_type, count, job_id, (item or {}).get("last_error", ""), at)
        for ((job_type, error_type), (count, at, job_id)), item in zip(groups, found, strict=True)
    ]


def _partitions(session: Session, status: Status) -> list[str]:
    return schema.all_shards(status.value, session.shards)


# Workers and types

CHANGE_ROUNDS = 20  # as of a queue
TYPES_AT_ONCE = 20


async def beat(session: Session, worker: WorkerRow) -> None:
    pk, sk = schema.worker(worker.worker_id)
    details = msgspec.json.encode(worker)
    if len(details) > DETAILS_BYTES_MAX:  # a heartbeat must never fail because of its job list
        details = msgspec.json.encode(msgspec.structs.replace(worker, running=worker.running[:RUNNING_LISTED_MAX]))
    item = {
        "pk": pk,
        "sk": sk,
        "worker_id": worker.worker_id,
        "heartbeat_at": worker.heartbeat_at,
        "details": details.decode(),
    }
    await session.tables.update(put(Table.RECORDS, item), lane=Lane.URGENT, verb="beat")


async def forget(session: Session, worker_ids: Sequence[str], now: Instant) -> None:
    """Remove workers. Their last rows are written first: after a crash in between, a worker is in both places, and
    counts as alive."""
    found = await session.tables.get(Table.RECORDS, [schema.worker(each) for each in worker_ids])
    kept = []
    for item in found:
        if item is not None:
            pk, sk = schema.former_worker(item["worker_id"])
            kept.append({**item, "pk": pk, "sk": sk, "left_at": now})
    await session.tables.put_many(Table.RECORDS, kept)
    await session.tables.delete_many(Table.RECORDS, [schema.worker(each) for each in worker_ids])
    outdated = [
        schema.former_worker(item["worker_id"])
        async for item in session.tables.ask(Ask(table=Table.RECORDS, hash=schema.FORMER_WORKERS))
        if item["left_at"] <= former_since(now)
    ]
    await session.tables.delete_many(Table.RECORDS, outdated)


async def former_workers(session: Session, now: Instant) -> list[FormerWorker]:
    ask = Ask(table=Table.RECORDS, hash=schema.FORMER_WORKERS, consistent=True)
    found = [
        FormerWorker(sql_rows.worker(item["worker_id"], item["heartbeat_at"], item["details"]), item["left_at"])
        async for item in session.tables.ask(ask)
        if item["left_at"] > former_since(now)
    ]
    ids = [each.row.worker_id for each in found]
    back = {worker.worker_id for worker in await workers(session, ids, "", "", None)} if ids else set()
    gone = [each for each in found if each.row.worker_id not in back]
    return sorted(gone, key=lambda each: (-each.left_at, each.row.worker_id))[:FORMER_WORKERS_MAX]


async def workers(session: Session, ids: Sequence[str], after: str, before: str, limit: int | None) -> list[WorkerRow]:
    if ids:
        keys = [schema.worker(worker_id) for worker_id in dict.fromkeys(ids)]
        read = [item for item in await session.tables.get(Table.RECORDS, keys) if item is not None]
    else:
        ask = Ask(
            table=Table.RECORDS,
            hash=schema.WORKERS,
            above=schema.part(after) if after else None,
            below=schema.part(before) if before else None,
            consistent=True,
        )
        read = await session.tables.first(ask, limit)
    found = [sql_rows.worker(item["worker_id"], item["heartbeat_at"], item["details"]) for item in read]
    return sorted(found, key=lambda worker: worker.worker_id)


async def count_workers(session: Session) -> int:
    return await session.tables.count(Ask(table=Table.RECORDS, hash=schema.WORKERS))


async def announce(session: Session, types: Sequence[JobType]) -> None:
    latest = {each.job_type: each for each in types}
    for each in latest.values():
        _details(each)  # refuses one that is too large, before any is written
    names = list(latest)
    for start in range(0, len(names), TYPES_AT_ONCE):
        part = names[start : start + TYPES_AT_ONCE]
        await asyncio.gather(*(_announce(session, latest[name]) for name in part))


async def _announce(session: Session, new: JobType) -> None:
    await _change_type(session, new.job_type, lambda stored: sensitive.announced(stored, new))


async def unmark(session: Session, job_type: str, marks: Sequence[str]) -> Verdict:
    def change(stored: JobType | None) -> JobType | None:
        return None if stored is None else sensitive.without(stored, marks)

    return await _change_type(session, job_type, change)


async def _change_type(session: Session, name: str, change: Callable[[JobType | None], JobType | None]) -> Verdict:
    """Read a type, and write it if it is still as it was read: two announcements at the same time lose no mark."""
    pk, sk = key = schema.job_type(name)
    for _ in range(CHANGE_ROUNDS):
        [found] = await session.tables.get(Table.RECORDS, [key])
        stored = None if found is None else msgspec.json.decode(found["details"], type=JobType)
        changed = change(stored)
        if changed is None:
            return Verdict.GONE
        if changed == stored:
            return Verdict.APPLIED
        wid = items.new_wid()
        item = {"pk": pk, "sk": sk, "details": _details(changed), "nonce": wid, "wid": wid}
        try:
            await session.tables.update(
                put(Table.RECORDS, item, equals("nonce", None if found is None else found.get("nonce")))
            )
        except Failed:
            continue
        return Verdict.APPLIED
    raise StoreBusy(f"{session.tables.shown}: other processes keep changing the job type {name}: try again")


async def restore_types(session: Session, types: Sequence[JobType]) -> None:
    """Store types as another store had them."""
    made: dict[Key, Item] = {}
    for each in types:
        pk, sk = key = schema.job_type(each.job_type)
        made[key] = {"pk": pk, "sk": sk, "details": _details(each)}
    await session.tables.put_many(Table.RECORDS, list(made.values()))


def _details(job_type: JobType) -> str:
    details = msgspec.json.encode(job_type)
    if len(details) > DETAILS_BYTES_MAX:
        raise ConfigurationError(
            f"the announcement of {job_type.job_type}, mostly the schema of its payload, has {len(details):,}"
            f" bytes, and DynamoDB keeps {DETAILS_BYTES_MAX:,}: give it a smaller model"
        )
    return details.decode()


async def job_types(session: Session) -> list[JobType]:
    ask = Ask(table=Table.RECORDS, hash=schema.TYPES, consistent=True)
    found = [msgspec.json.decode(item["details"], type=JobType) async for item in session.tables.ask(ask)]
    return sorted(found, key=lambda each: each.job_type)


LOOKED_AT_MAX = 2_000  # index entries read for one page; then the page ends, and its cursor continues from there
SORTED_MAX = 20_000  # entries sorted in memory if no index has the order
TIED_MAX = 100_000  # entries of one priority, which are sorted here by when they are due
CHUNK = 100
_CURSORS = {
    "created": re.compile(r"[0-9]{16}\|[0-9a-f]{32}"),
    "priority": re.compile(r"[0-9]{3}\|[0-9]{16}\|[0-9a-f]{32}"),
}
_tags = msgspec.json.Decoder(list[str])
Entries = AsyncIterator[tuple[str, Item]]  # entries of an index with their places


async def find(session: Session, query: Query) -> Page:
    _check(query)
    entries = _entries(session, query)
    if entries is None:
        return await _sorted(session, query)
    matches: list[Item] = []
    looked_at = 0
    seen: set[str] = set()
    last = None
    async for chunk in _chunks(entries):
        fresh = [entry for _, entry in chunk if entry["job_id"] not in seen]
        seen.update(entry["job_id"] for entry in fresh)
        looked_at += len(chunk)
        last = chunk[-1][0]
        matches += await _matching(session, query, [entry["job_id"] for entry in fresh])
        if len(matches) > query.limit:
            return await _page(session, query, matches, None)
        if looked_at >= LOOKED_AT_MAX:
            return await _page(session, query, matches, last)
    return await _page(session, query, matches, None)


def _check(query: Query) -> None:
    cursor = _CURSORS.get(query.order)
    if cursor is None:
        raise InvalidOption(f"order={query.order!r:.60}: a search is ordered by {' or '.join(_CURSORS)}")
    if query.after is not None and not cursor.fullmatch(query.after):
        raise InvalidOption(f"after={query.after!r:.60} is not a cursor of this search: pass `next` of a page")


def _entries(session: Session, query: Query) -> Entries | None:
    """Return the entries of an index that has the requested order; None if there is none."""
    if query.content_hash is not None or query.concurrency_key is not None or query.parent is not None:
        return None
    if query.worker is not None and query.status is not None:
        return None
    if query.order == "priority":
        if query.job_type is None or query.subject is not None or query.root is not None:
            return None
        return _by_priority(session, query.job_type, query.after)
    partitions, index, where = _by_arrival(session, query)
    return by_arrival(session, index, partitions, after=query.after, newest_first=True, where=where, page=CHUNK)


def _by_priority(session: Session, job_type: str, after: str | None) -> Entries:
    asks = [
        Ask(
            table=Table.JOBS,
            index=TYPE.name,
            hash=each,
            up_to=None if after is None else 100 - int(after[:3]),
            backwards=True,
            only=("job_id", TYPE.range, "scheduled_for"),
            page=CHUNK,
        )
        for each in schema.all_shards(job_type, session.shards)
    ]
    streams = merged([session.tables.ask(ask) for ask in asks], TYPE.range, backwards=True)

    def place(row: Item) -> str:
        return schema.place(row["priority"], row["scheduled_for"], row["job_id"])

    return in_order(streams, TYPE.range, place, after=after, most=TIED_MAX)


def by_arrival(
    session: Session,
    index: str,
    partitions: Sequence[str],
    *,
    after: str | None = None,
    until: Instant | None = None,
    newest_first: bool = False,
    where: Condition | None = None,
    only: Sequence[str] = (),
    page: int | None = None,
    lane: Lane = Lane.USUAL,
) -> Entries:
    """Yield entries of an index by time of creation, then id, with `created` of each as its place."""
    bound = None if after is None else core_result_tables.text(int(after[:16]))
    end = bound if newest_first else None if until is None else core_result_tables.text(until)
    asks = [
        Ask(
            table=Table.JOBS,
            index=index,
            hash=each,
            since=None if newest_first else bound,
            up_to=end,
            backwards=newest_first,
            page=page,
            only=("job_id", "created_at", *only),
            where=where,
        )
        for each in partitions
    ]
    streams = [session.tables.ask(ask, lane=lane) for ask in asks]
    rows = merged(streams, "created_at", backwards=newest_first)
    return in_order(rows, "created_at", _arrival, after=after, descending=newest_first)


def _arrival(row: Item) -> str:
    return schema.created(row["created_at"], row["job_id"])


async def in_order(
    rows: AsyncIterator[Item],
    key: str,
    place: Callable[[Item], str],
    *,
    after: str | None,
    descending: bool = False,
    most: int | None = None,
) -> Entries:
    """Yield rows that come by `key` in the order of their places, and only those beyond `after`. The index leaves open
    how it orders rows of the same key: they are read together and sorted."""
    tied: list[tuple[str, Item]] = []
    async for row in rows:
        if tied and tied[0][1][key] != row[key]:
            for each in _beyond(tied, after, descending):
                yield each
            tied = []
        tied.append((place(row), row))
        if most is not None and len(tied) > most:
            raise InvalidOption(
                f"more than {most:,} jobs of this type have the {key} {row[key]}: order the search by created"
            )
    for each in _beyond(tied, after, descending):
        yield each


def _beyond(tied: list[tuple[str, Item]], after: str | None, descending: bool) -> list[tuple[str, Item]]:
    tied.sort(key=lambda each: each[0], reverse=descending)
    if after is None:
        return tied
    return [each for each in tied if (each[0] < after if descending else each[0] > after)]


def _by_arrival(session: Session, query: Query) -> tuple[list[str], str, Condition | None]:
    if query.subject:
        return [query.subject], SUBJECT.name, None
    if query.root is not None:
        return [query.root], ROOT.name, None
    states = list(Status) if query.status is None else [query.status]
    partitions = [each for state in states for each in schema.all_shards(state.value, session.shards)]
    projected = {"job_type": query.job_type, "queue": query.queue, "created_by": query.created_by}
    given = [equals(name, value) for name, value in projected.items() if value is not None]
    return partitions, STATUS.name, all_of(*given) if given else None


async def _sorted(session: Session, query: Query) -> Page:
    """Return all jobs that the leading condition finds, sorted in memory."""
    ids: dict[str, None] = {}
    for ask in _unordered(session, query):
        async for entry in session.tables.ask(ask):
            ids[entry["sk" if ask.table is Table.RECORDS else "job_id"]] = None
            if len(ids) > SORTED_MAX:
                raise InvalidOption(
                    f"more than {SORTED_MAX:,} jobs would have to be sorted: give a job_type, or order by created"
                )
    matches = await _matching(session, query, list(ids))
    place = _place(query)
    matches.sort(key=place, reverse=query.order == "created")
    if query.after is not None:
        after = query.after
        matches = [
            item for item in matches if (place(item) < after if query.order == "created" else place(item) > after)
        ]
    return await _page(session, query, matches, None)


def _unordered(session: Session, query: Query) -> list[Ask]:
    only = ("job_id",)
    if query.parent is not None:
        return [Ask(table=Table.RECORDS, hash=schema.kids(query.parent), only=("sk",), consistent=True)]
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
    partitions, index, where = _by_arrival(session, query)
    return [Ask(table=Table.JOBS, index=index, hash=each, only=only, where=where) for each in partitions]


async def _matching(session: Session, query: Query, job_ids: Sequence[str]) -> list[Item]:
    """Return the jobs that match, read consistently, because an index may lag."""
    found = await session.tables.get(Table.JOBS, [(job_id,) for job_id in job_ids])
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
    """Return the sort key of a search; that of the last result is the cursor."""
    if query.order == "created":
        return _arrival
    return lambda item: schema.place(item["priority"], item["scheduled_for"], item["job_id"])


async def _page(session: Session, query: Query, matches: list[Item], last: str | None) -> Page:
    shown = matches[: query.limit]
    more = len(matches) > query.limit
    return Page(items=tuple(await full(session, shown)), next=_place(query)(shown[-1]) if more else last)


async def _chunks(entries: Entries) -> AsyncIterator[list[tuple[str, Item]]]:
    chunk: list[tuple[str, Item]] = []
    async for entry in entries:
        chunk.append(entry)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


# Jobs ahead of a pending one


async def ahead(session: Session, job_id: str, limit: int) -> int:
    [item] = await session.tables.get(Table.JOBS, [(job_id,)])
    if item is None or item.get("status") != Status.PENDING:
        return 0
    total = 0
    for ask in _before(session, item):
        total += await session.tables.count(ask, limit - total)
        if total >= limit:
            return limit
    return total


async def ahead_in(session: Session, job_id: str, lanes: Sequence[tuple[str, str]], limit: int) -> list[int]:
    [item] = await session.tables.get(Table.JOBS, [(job_id,)])
    if item is None or item.get("status") != Status.PENDING:
        return [0] * len(lanes)
    stands = schema.place(item["priority"], item["scheduled_for"], item["job_id"])
    return [await _ahead_in(session, lane, stands, limit) for lane in lanes]


async def _ahead_in(session: Session, lane: tuple[str, str], stands: str, limit: int) -> int:
    total = 0
    for each in schema.all_shards(schema.READY_JOBS, session.shards):
        ask = _held(READY.name, each, "".join(map(schema.in_lane, lane)), stands)
        total += await session.tables.count(ask, limit - total)
        if total >= limit:
            return limit
    return total


def _before(session: Session, item: Item) -> list[Ask]:
    stands = schema.place(item["priority"], item["scheduled_for"], item["job_id"])
    derived = schema.derived(item, session.shards)
    lane = schema.lane_of(item)
    match item.get("parked"):
        case "r":
            return [_held(RATE.name, derived["gb"], f"{side}|{lane}|", stands) for side in ("out", "in")]
        case "c":
            return [_held(KEY.name, item["concurrency_key"], f"{side}|{lane}|", stands) for side in ("out", "in")]
    if item.get("fairness_key") is None:
        in_lane = schema.in_lane(item["queue"]) + schema.in_lane(item["job_type"])
        shards = schema.all_shards(schema.READY_JOBS, session.shards)
        return [_held(READY.name, each, in_lane, stands) for each in shards]
    own = f"{schema.rank(item['priority'])}|{schema.part(item['fairness_key'])}|"
    return [Ask(table=Table.JOBS, index=READY.name, hash=derived["gr"], begins=own, below=derived["gq"])]


def _held(index: str, partition: str, begins: str, stands: str) -> Ask:
    return Ask(table=Table.JOBS, index=index, hash=partition, begins=begins, below=f"{begins}{stands}")
