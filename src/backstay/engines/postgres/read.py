"""Reads on PostgreSQL: get, find, counts and the like."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from backstay.clock import Instant
from backstay.core.admission import BY_RATE
from backstay.core.output import OutputEnd, OutputPlace, StoredPart
from backstay.core.queues import depths_of
from backstay.core.records import (
    Counter,
    DeadGroup,
    Depth,
    ExpiredClaim,
    FormerWorker,
    HistoryEvent,
    JobRecord,
    JobType,
    LimitRow,
    Page,
    Query,
    QueueRow,
    WorkerRow,
)
from backstay.core.states import Status
from backstay.engines import sql_rows
from backstay.engines.postgres.connection import _LISTS, RECORD, Tx
from backstay.engines.sql_rows import ABOVE_ALL, LINED, PENDING_SORTED_MAX, WINDOW, WINDOWS_MAX
from backstay.errors import InvalidOption
from backstay.limits import FORMER_WORKERS_MAX, LISTED_EDGES_MAX

_record = msgspec.json.Decoder(JobRecord)
_events = msgspec.json.Decoder(tuple[HistoryEvent, ...])
_COLUMNS = tuple(sql_rows.RENAMED.get(name, name) for name in RECORD)
_JOB_ID = RECORD.index("job_id")
_WORKER = (
    "{0} IN (SELECT worker_id FROM backstay.running WHERE job_id = j.job_id"
    " UNION ALL SELECT worker_id FROM backstay.ended WHERE job_id = j.job_id"
    " UNION ALL SELECT worker_id FROM backstay.detail WHERE job_id = j.job_id)"
)
_FILTERS = {
    "job_type": "j.job_type = {0}",
    "queue": "j.queue = {0}",
    "subject": "j.subject = {0}",
    "worker": _WORKER,
    "tag": "j.tags::jsonb ? {0}",
    "created_by": "j.created_by = {0}",
    "root": "j.root_job_id = {0}::uuid",
    "parent": "j.parent_job_id = {0}::uuid",
    "content_hash": "j.content_hash = {0}",
    "concurrency_key": "j.concurrency_key = {0}",
}
# Where the jobs of a state stand. Of the second kind there are few, or an index has them by id: a search begins there,
# because the newest jobs may all be in another state.
_NOT_ELSEWHERE = " AND ".join(
    f"NOT EXISTS (SELECT FROM backstay.{place} WHERE job_id = j.job_id)"
    for place in ("ended", "running", "later", "waiting")
)
_STANDS = {
    Status.COMPLETED: "EXISTS (SELECT FROM backstay.ended WHERE job_id = j.job_id AND (status || '') = 'completed')",
    Status.PENDING: _NOT_ELSEWHERE,
}
_PLACES = {
    Status.COMPLETED: ("ended", "x.status = 'completed'"),
    Status.FAILED: ("ended", "x.status = 'failed'"),
    Status.CANCELLED: ("ended", "x.status = 'cancelled'"),
    Status.SCHEDULED: ("later", "x.status = 'scheduled'"),
    Status.RETRYING: ("later", "x.status = 'retrying'"),
    Status.WAITING: ("waiting", "true"),
    Status.PROCESSING: ("running", "true"),
}
_FIRST = "00000000-0000-0000-0000-000000000000"
_LAST = "ffffffff-ffff-ffff-ffff-ffffffffffff"  # a place after all jobs


async def get(tx: Tx, job_ids: Sequence[str]) -> list[JobRecord | None]:
    if not job_ids:
        return []
    found = await tx.rows("get", list(job_ids))
    known = {job.job_id: job for job in await with_edges(tx, found)}
    if len(known) < len(set(job_ids)):
        for job_id, archived_at, status, details in await tx.rows("archive_get", list(job_ids)):
            known[job_id] = msgspec.structs.replace(
                _record.decode(details), archived_at=archived_at, status=Status(status)
            )
    return [known.get(job_id) for job_id in job_ids]


async def with_edges(tx: Tx, found: Sequence[Any]) -> tuple[JobRecord, ...]:
    """Return the records of rows with the columns of the statement `get`."""
    edges = await _edges(tx, [row[_JOB_ID] for row in found])
    return tuple(record(tuple(row), edges.get(row[_JOB_ID])) for row in found)


def record(row: tuple[Any, ...], edges: tuple[str, str, int] | None = None) -> JobRecord:
    """Return a record from the columns of RECORD and its stored events."""
    return sql_rows.record_from(*fields_of(row), edges)


def fields_of(row: tuple[Any, ...]) -> tuple[dict[str, Any], tuple[HistoryEvent, ...]]:
    """Return the columns of a job by name, and its stored events."""
    *values, events = row
    return dict(zip(_COLUMNS, values, strict=True)), _events.decode(events) if events else ()


async def _edges(tx: Tx, job_ids: list[str]) -> dict[str, tuple[str, str, int]]:
    if not job_ids:
        return {}
    return {job_id: tuple(edges) for job_id, *edges in await tx.rows("edges_of", job_ids, LISTED_EDGES_MAX)}


async def statuses(tx: Tx, job_ids: Sequence[str]) -> list[Status | None]:
    known = {job_id: Status(status) for job_id, status in await tx.rows("statuses", list(job_ids))}
    return [known.get(job_id) for job_id in job_ids]


async def find(tx: Tx, query: Query) -> Page:
    following: str | None = None
    if query.order == "created" and await _walks(tx, query):
        found, following = await _walked(tx, query)
    elif _is_lined(query):
        place = (ABOVE_ALL, 0, _FIRST) if query.after is None else _position(query)
        found = await tx.rows("lined", query.queue, query.job_type, query.limit + 1, *place)
    else:
        statement, values = search(query)
        found = await tx.connection.fetch(tx.sql.named(statement), *values)
    items = found[: query.limit]
    return Page(
        items=await with_edges(tx, [tuple(row)[:-1] for row in items]),
        next=_cursor(query, items[-1]) if len(found) > query.limit else following,
    )


def _is_lined(query: Query) -> bool:
    """Return whether the line itself has what is searched for in its order."""
    asked = {name for name in _FILTERS if getattr(query, name) is not None}
    return query.order == "priority" and query.status is Status.PENDING and asked <= LINED


async def _walks(tx: Tx, query: Query) -> bool:
    """Return whether the search walks in windows: other conditions may leave few of the jobs that an index finds."""
    if any(getattr(query, name) is not None for name in ("subject", "content_hash", "parent", "root")):
        return False
    if query.status is Status.PROCESSING:
        return False
    if query.status is not Status.PENDING:
        return True
    return await tx.value("pending_beyond", PENDING_SORTED_MAX) is not None


async def _walked(tx: Tx, query: Query) -> tuple[list[Any], str | None]:
    """Read window after window until there is one row more than a page has; otherwise return where to continue, if
    anywhere."""
    found: list[Any] = []
    below = _LAST if query.after is None else _position(query)[0]
    start = tx.sql.named(window_of(query.status))
    for _ in range(WINDOWS_MAX):
        floor = await tx.connection.fetchval(start, below, WINDOW)
        missing = msgspec.structs.replace(query, limit=query.limit - len(found))
        statement, values = search(missing, (floor or _FIRST, below))
        found += await tx.connection.fetch(tx.sql.named(statement), *values)
        if len(found) > query.limit or floor is None:
            return found, None
        below = floor
    return found, str(below)


def window_of(status: Status | None) -> str:
    """Return the statement for the start of a window: the place so many jobs before another; of those of one state, if
    an index has them by id. NULL if there are fewer."""
    table, state = _PLACES.get(status, ("job", "true")) if status is not None else ("job", "true")
    return (
        "SELECT greatest("  # noqa: S608 - constants
        f"(SELECT x.job_id FROM backstay.{table} AS x WHERE {state} AND x.job_id < $1::uuid"
        " ORDER BY x.job_id DESC LIMIT 1 OFFSET $2::integer - 1),"
        " (SELECT arrival FROM backstay.job WHERE arrival < $1::uuid"
        " ORDER BY arrival DESC LIMIT 1 OFFSET $2::integer - 1))::text"
    )


def search(query: Query, window: tuple[str, str] | None = None) -> tuple[str, list[Any]]:
    """Return a search built from constants; only values are bound. `window`: a range of places, the first included,
    instead of `after`."""
    if query.order not in ("created", "priority"):
        raise InvalidOption(f"order={query.order!r:.60}: a search is ordered by created or priority")
    values: list[Any] = []

    def bound(value: Any) -> str:
        values.append(value)
        return f"${len(values)}"

    conditions: list[str] = []
    source = "backstay.job AS j"
    low: str | None
    high: str | None
    if query.status in _PLACES and not (query.status is Status.COMPLETED and _is_narrow(query)):
        table, state = _PLACES[query.status]
        source = f"backstay.{table} AS x JOIN backstay.job AS j ON j.job_id = x.job_id"
        conditions.append(state)
    elif query.status is Status.PENDING and window is None and not _is_narrow(query):
        source = "backstay.ready AS x JOIN backstay.job AS j ON j.job_id = x.job_id"
    elif query.status is not None:
        conditions.append(_STANDS[query.status])
    for name, condition in _FILTERS.items():
        value = getattr(query, name)
        if value is not None:
            conditions.append(condition.format(bound(value)))
    if query.order == "priority":
        hits = _by_priority(query, source, conditions, bound)
        order = "-h.priority, h.scheduled_for, h.job_id"
        cursor = "json_build_array(h.priority, h.scheduled_for, h.job_id)::text"
    else:
        if window is not None:
            low, high = (bound(each) for each in window)
        else:
            low, high = None, None if query.after is None else bound(_position(query)[0])
        hits = _by_arrival(query, source, conditions, low, high, bound(query.limit + 1))
        order, cursor = "h.place DESC", "h.place::text"
    columns = _LISTS["record_columns"]
    statement = (
        f"SELECT {columns}, {cursor} FROM ({hits}) AS h CROSS JOIN LATERAL"  # noqa: S608 - constants
        f" (SELECT * FROM backstay.standing AS s WHERE s.job_id = h.job_id OFFSET 0) AS standing ORDER BY {order}"
    )
    return statement, values


def _is_narrow(query: Query) -> bool:
    return any(getattr(query, name) is not None for name in ("subject", "content_hash", "parent", "root"))


def _by_arrival(
    query: Query, source: str, conditions: Sequence[str], low: str | None, high: str | None, limit: str
) -> str:
    """Return the statement for the newest jobs: of those whose ids are by time, and of the others by `arrival`."""

    def branch(source: str, conditions: Sequence[str], place: str, *more: str) -> str:
        bounds = [f"{place} < {high}::uuid"] if high is not None else []
        bounds += [f"{place} >= {low}::uuid"] if low is not None else []
        every = " AND ".join([*conditions, *bounds, *more]) or "true"
        return f"(SELECT j.job_id, {place} AS place FROM {source} WHERE {every} ORDER BY {place} DESC LIMIT {limit})"  # noqa: S608

    key = "x.job_id" if " AS x" in source and "ready" not in source else "j.job_id"
    by_id = branch(source, conditions, key, "j.arrival IS NULL")
    others = branch(source, conditions, "j.arrival", "j.arrival IS NOT NULL")
    return f"SELECT * FROM ({by_id} UNION ALL {others}) AS every ORDER BY place DESC LIMIT {limit}"  # noqa: S608 - constants


def _by_priority(query: Query, source: str, conditions: Sequence[str], bound: Callable[[Any], str]) -> str:
    kept = list(conditions)
    if query.after is not None:
        places_after = tuple(bound(part) for part in _position(query))
        kept.append(
            "(-coalesce(d.priority, j.priority), coalesce(d.scheduled_for, j.scheduled_for), j.job_id)"
            " > (-{}::integer, {}::bigint, {}::uuid)".format(*places_after)
        )
    every = " AND ".join(kept) or "true"
    return (
        "SELECT j.job_id, coalesce(d.priority, j.priority) AS priority,"  # noqa: S608 - constants
        " coalesce(d.scheduled_for, j.scheduled_for) AS scheduled_for"
        f" FROM {source} LEFT JOIN backstay.detail AS d ON d.job_id = j.job_id WHERE {every}"
        f" ORDER BY -coalesce(d.priority, j.priority), 3, 1 LIMIT {bound(query.limit + 1)}"
    )


def _position(query: Query) -> tuple[Any, ...]:
    """Decode a cursor: the sort key of the last row of the previous page, opaque to callers."""
    assert query.after is not None  # noqa: S101 - the caller has checked
    try:
        if query.order == "created":
            return (str(msgspec.convert(query.after, type=uuid.UUID)),)
        priority, due, job_id = query.after.split("~")
        return (_number(priority), _number(due), str(msgspec.convert(job_id, type=uuid.UUID)))
    except (ValueError, msgspec.ValidationError):
        raise InvalidOption(
            f"after={query.after!r:.60} is not a cursor of this search: pass `next` of a page"
        ) from None


def _number(text: str) -> int:
    number = int(text)
    if abs(number) >= 2**63:
        raise ValueError("beyond what the server compares")
    return number


def _cursor(query: Query, row: Any) -> str:
    if query.order == "created":
        return str(row[-1])
    return "~".join(map(str, msgspec.json.decode(row[-1])))


async def expired(tx: Tx, store_now: Instant | None, limit: int, dead_workers: Sequence[str]) -> list[ExpiredClaim]:
    return [ExpiredClaim(*row) for row in await tx.rows("expired", store_now, limit, list(dead_workers))]


async def counts(tx: Tx) -> dict[str, int]:
    return sql_rows.counts_of(tuple(row) for row in await tx.rows("counts"))


async def queues(tx: Tx) -> list[QueueRow]:
    return [sql_rows.queue(row) for row in await tx.rows("queues")]


async def limits(tx: Tx) -> list[LimitRow]:
    return [sql_rows.limit(row) for row in await tx.rows("limits")]


async def depths(tx: Tx) -> list[Depth]:
    return depths_of(tuple(row) for row in await tx.rows("depths"))


async def ahead(tx: Tx, job_id: str, limit: int) -> int:
    row = await tx.row("place", job_id)
    if row is None:
        return 0
    queue, job_type, version, *turn, fairness_key, parked, key, rate_key, rate_count, rate_micros = row
    lane = (queue, job_type, version)
    count: int
    if parked == BY_RATE:
        count = await tx.value("rate_ahead", rate_key, rate_count, rate_micros, *lane, *turn, limit)
    elif parked:
        count = await tx.value("key_ahead", key, *lane, *turn, limit)
    elif fairness_key is None:
        count = await tx.value("ahead", queue, job_type, *turn, limit)
    else:
        count = await tx.value("fair_ahead", queue, job_type, *turn, limit, fairness_key)
    return min(count, limit)


async def ahead_in(tx: Tx, job_id: str, lanes: Sequence[tuple[str, str]], limit: int) -> list[int]:
    row = await tx.row("place", job_id)
    if row is None:
        return [0] * len(lanes)
    _, _, _, *turn, _, _, _, _, _, _ = row
    return [await tx.value("ahead", *lane, *turn, limit) for lane in lanes]


async def counters(tx: Tx, since: Instant, until: Instant, width: int | None, kinds: bool) -> list[Counter]:
    return [sql_rows.counter(*row) for row in await tx.rows("counters", since, until, width, kinds)]


async def dead(tx: Tx, limit: int) -> list[DeadGroup]:
    return [DeadGroup(*row) for row in await tx.rows("dead", limit)]


async def former_workers(tx: Tx, since: Instant) -> list[FormerWorker]:
    found = await tx.rows("former_workers", since, FORMER_WORKERS_MAX)
    return [FormerWorker(sql_rows.worker(*worker), left_at) for *worker, left_at in found]


async def workers(tx: Tx, ids: Sequence[str], after: str, before: str, limit: int | None) -> list[WorkerRow]:
    if ids:
        found = await tx.rows("workers_named", list(ids))
    else:
        found = await tx.rows("workers", after, before or sql_rows.HIGH, limit)
    return [sql_rows.worker(*row) for row in found]


async def count_workers(tx: Tx) -> int:
    return int(await tx.value("count_workers"))


async def job_types(tx: Tx) -> list[JobType]:
    return [msgspec.json.decode(details, type=JobType) for details in await tx.column("job_types")]


async def output(tx: Tx, job_id: str, after: OutputPlace, limit: int) -> list[StoredPart]:
    return [StoredPart(*row) for row in await tx.rows("output", job_id, *after, limit)]


async def output_end(tx: Tx, job_id: str) -> OutputEnd | None:
    row = await tx.row("output_end", job_id)
    if row is None:
        return None
    *place, size = row
    return OutputEnd(OutputPlace(*place), size)
