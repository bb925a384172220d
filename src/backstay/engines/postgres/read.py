"""Reads on PostgreSQL: get, find, counts and the like."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from backstay.clock import Instant
from backstay.core.queues import depths_of
from backstay.core.records import (
    Counter,
    DeadGroup,
    Depth,
    ExpiredClaim,
    JobRecord,
    JobType,
    Page,
    Query,
    QueueRow,
    WorkerRow,
)
from backstay.core.states import Status
from backstay.engines import sql_rows
from backstay.engines.postgres.connection import Tx
from backstay.engines.sql_rows import EVERYTHING, PENDING_SORTED_MAX, WINDOW, WINDOWS_MAX
from backstay.errors import InvalidOption
from backstay.limits import LISTED_EDGES_MAX

_record = msgspec.json.Decoder(JobRecord)
_FILTERS = {
    "job_type": "job_type = {}",
    "queue": "queue = {}",
    "subject": "subject = {}",
    "worker": "worker_id = {}",
    "tag": "tags::jsonb ? {}",
    "created_by": "created_by = {}",
    "root": "root_job_id = {}::uuid",
    "parent": "parent_job_id = {}::uuid",
    "content_hash": "content_hash = {}",
    "concurrency_key": "concurrency_key = {}",
}
_ORDERS = {
    "created": ("seq < {}", "seq DESC"),
    "priority": (
        "(-priority, scheduled_for, job_id) > (-{}::integer, {}::bigint, {}::uuid)",
        "priority DESC, scheduled_for, job_id",
    ),
}
# Constants, because the planner uses an index of one state only if it sees the state. Each pending job is in one of
# three indexes.
_STATES = {status: f"status = '{status.value}'" for status in Status}
_STATES[Status.PENDING] = (
    "(status = 'pending' AND fairness_key IS NULL AND concurrency_key IS NULL AND rate_key IS NULL"
    " OR status = 'pending' AND fairness_key IS NULL AND (concurrency_key IS NOT NULL OR rate_key IS NOT NULL)"
    " OR status = 'pending' AND fairness_key IS NOT NULL)"
)
_BY_ARRIVAL = frozenset(
    (Status.WAITING, Status.SCHEDULED, Status.RETRYING, Status.FAILED, Status.CANCELLED)
)  # as the index job_state has them


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
    edges = await _edges(tx, [row[0] for row in found])
    return tuple(sql_rows.record(tuple(row), edges.get(row[0])) for row in found)


async def _edges(tx: Tx, job_ids: list[str]) -> dict[str, tuple[str, str, int]]:
    if not job_ids:
        return {}
    return {row[0]: (row[1], row[2], row[3]) for row in await tx.rows("edges_of", job_ids, LISTED_EDGES_MAX)}


async def statuses(tx: Tx, job_ids: Sequence[str]) -> list[Status | None]:
    known = {row[0]: Status(row[1]) for row in await tx.rows("statuses", list(job_ids))}
    return [known.get(job_id) for job_id in job_ids]


async def find(tx: Tx, query: Query) -> Page:
    following: str | None = None
    if query.order == "created" and await _walks(tx, query):
        found, following = await _walked(tx, query)
    else:
        statement, values = search(tx.sql["get"], query)
        found = await tx.connection.fetch(statement, *values)
    items = found[: query.limit]
    return Page(
        items=await with_edges(tx, [tuple(row)[:-1] for row in items]),
        next=_cursor(query, items[-1]) if len(found) > query.limit else following,
    )


async def _walks(tx: Tx, query: Query) -> bool:
    """Return whether the search walks in windows: other conditions may leave few of the jobs that an index finds."""
    if any(getattr(query, name) is not None for name in ("subject", "content_hash", "parent", "root")):
        return False
    if query.concurrency_key is not None or query.status is Status.PROCESSING:
        return False
    if query.status is not Status.PENDING:
        return True
    many = f"SELECT 1 FROM {_source(tx.sql['get'])} WHERE {_STATES[query.status]} LIMIT 1 OFFSET $1"  # noqa: S608 - constants
    return await tx.connection.fetchval(many, PENDING_SORTED_MAX) is not None


async def _walked(tx: Tx, query: Query) -> tuple[list[Any], str | None]:
    """Read window after window until there is one row more than a page has; otherwise return where to continue, if
    anywhere."""
    found: list[Any] = []
    below = EVERYTHING if query.after is None else _position(query)[0]
    newest = newest_of(tx.sql["get"], query.status)
    for _ in range(WINDOWS_MAX):
        at = await tx.connection.fetchval(newest, below)
        if at is None:
            return found, None
        floor = max(0, at - WINDOW + 1)
        missing = msgspec.structs.replace(query, limit=query.limit - len(found))
        statement, values = search(tx.sql["get"], missing, (floor, below))
        found += await tx.connection.fetch(statement, *values)
        if len(found) > query.limit or floor == 0:
            return found, None
        below = floor
    return found, str(below)


def newest_of(get_statement: str, status: Status | None) -> str:
    """Return the statement for the start of a window: the newest job before a position; of one state, if an index has
    its jobs by arrival."""
    state = _STATES[status] if status in _BY_ARRIVAL else "true"
    source = _source(get_statement)
    return f"SELECT seq FROM {source} WHERE {state} AND seq < $1 ORDER BY seq DESC LIMIT 1"  # noqa: S608 - constants


def _source(get_statement: str) -> str:
    return get_statement.partition("FROM ")[2].partition("WHERE ")[0]


def search(get_statement: str, query: Query, window: tuple[int, int] | None = None) -> tuple[str, list[Any]]:
    """Return a search built from constants; only values are bound. `window`: a range of positions in order of arrival,
    instead of `after`."""
    if query.order not in _ORDERS:
        raise InvalidOption(f"order={query.order!r:.60}: a search is ordered by {' or '.join(_ORDERS)}")
    select, source = get_statement.partition("FROM ")[0], _source(get_statement)
    conditions: list[str] = ["true"]
    values: list[Any] = []

    def bound(value: Any) -> str:
        values.append(value)
        return f"${len(values)}"

    if query.status is not None:
        by_window = window is not None and query.status not in _BY_ARRIVAL
        conditions.append(f"(status = '{query.status.value}') IS TRUE" if by_window else _STATES[query.status])
    for name, condition in _FILTERS.items():
        value = getattr(query, name)
        if value is not None:
            conditions.append(condition.format(bound(value)))
    after, order = _ORDERS[query.order]
    if window is not None:
        conditions.append(f"seq >= {bound(window[0])} AND seq < {bound(window[1])}")
    elif query.after is not None:
        conditions.append(after.format(*(bound(part) for part in _position(query))))
    statement = (
        f"{select.rstrip()}, seq FROM {source} WHERE {' AND '.join(conditions)}"
        f" ORDER BY {order} LIMIT {bound(query.limit + 1)}"
    )
    return statement, values


def _position(query: Query) -> tuple[Any, ...]:
    """Decode a cursor: the sort key of the last row of the previous page, opaque to callers."""
    assert query.after is not None  # noqa: S101 - the caller has checked
    try:
        if query.order == "created":
            return (_number(query.after),)
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
    named = dict(zip(sql_rows.COLUMNS, tuple(row), strict=False))
    return f"{named['priority']}~{named['scheduled_for']}~{named['job_id']}"


async def expired(tx: Tx, store_now: Instant | None, limit: int, dead_workers: Sequence[str]) -> list[ExpiredClaim]:
    return [ExpiredClaim(*row) for row in await tx.rows("expired", store_now, limit, list(dead_workers))]


async def counts(tx: Tx) -> dict[str, int]:
    totals = {status.value: 0 for status in Status}
    totals.update({row[0]: row[1] for row in await tx.rows("counts")})
    return totals


async def queues(tx: Tx) -> list[QueueRow]:
    return [sql_rows.queue(row) for row in await tx.rows("queues")]


async def depths(tx: Tx) -> list[Depth]:
    return depths_of(tuple(row) for row in await tx.rows("depths"))


async def ahead(tx: Tx, job_id: str, limit: int) -> int:
    row = await tx.row("place", job_id)
    if row is None:
        return 0
    queue, job_type, version, *turn, fairness_key, parked, by_rate, key, rate_key, rate_count, rate_micros = row
    lane = (queue, job_type, version)
    count: int
    if by_rate:
        count = await tx.value("rate_ahead", rate_key, rate_count, rate_micros, *lane, *turn, limit)
    elif parked:
        count = await tx.value("key_ahead", key, *lane, *turn, limit)
    elif fairness_key is None:
        count = await tx.value("ahead", queue, job_type, *turn, limit)
    else:
        count = await tx.value("fair_ahead", queue, job_type, *turn, limit, fairness_key)
    return min(count, limit)


async def counters(tx: Tx, since: Instant, until: Instant) -> list[Counter]:
    return [sql_rows.counter(*row) for row in await tx.rows("counters", since, until)]


async def dead(tx: Tx, limit: int) -> list[DeadGroup]:
    return [DeadGroup(*row) for row in await tx.rows("dead", limit)]


async def workers(tx: Tx) -> list[WorkerRow]:
    return [sql_rows.worker(*row) for row in await tx.rows("workers")]


async def job_types(tx: Tx) -> list[JobType]:
    return [msgspec.json.decode(row[0], type=JobType) for row in await tx.rows("job_types")]
