"""Reads on SQLite: get, find, counts and the like.

Each read is short: a long one would keep the WAL from being checkpointed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
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
from backstay.engines.sql_rows import EVERYTHING, PENDING_SORTED_MAX, WINDOW, WINDOWS_MAX
from backstay.engines.sqlite import connection as sqlite_connection
from backstay.engines.sqlite.connection import load
from backstay.errors import InvalidOption
from backstay.limits import LISTED_EDGES_MAX

_record = msgspec.json.Decoder(JobRecord)
GET = load("get")
GET_ARCHIVED = load("archive_get")
EDGES_OF = load("edges_of")
DEAD = load("dead")
COUNTS = load("counts")
COUNTERS = load("counters")
DEPTHS = load("depths")
EXPIRED = load("expired")
HELD_BY = load("held_by")
STANDING = load("standing")
AHEAD = load("ahead")
FAIR_AHEAD = load("fair_ahead")
KEY_AHEAD = load("key_ahead")
RATE_AHEAD = load("rate_ahead")
_PLACE = (
    "SELECT queue, job_type, payload_version, priority, scheduled_for, job_id, fairness_key, parked, rate_parked,"
    " concurrency_key, rate_key, rate_count, rate_micros FROM job WHERE job_id = ? AND +status = 'pending'"
)

# A search: one qualifier leads through its index, the others filter. Composed once, from constants only.
_LEADS = {
    "subject": "FROM job INDEXED BY job_subject WHERE subject = :subject",
    "content_hash": "FROM job INDEXED BY job_content WHERE content_hash = :content_hash",
    "parent": "FROM job INDEXED BY job_parent WHERE parent_job_id = :parent",
    "root": "FROM job INDEXED BY job_root WHERE root_job_id = :root",
    "worker": "FROM job INDEXED BY job_lease WHERE status = 'processing' AND worker_id = :worker",
    "processing": "FROM job INDEXED BY job_lease WHERE status = 'processing'",
    "pending": "FROM job NOT INDEXED WHERE seq IN ("
    "SELECT seq FROM job INDEXED BY job_ready WHERE status = 'pending' AND fairness_key IS NULL"
    " UNION ALL SELECT seq FROM job INDEXED BY job_fair WHERE status = 'pending' AND fairness_key IS NOT NULL)",
    "concurrency_key": "FROM job INDEXED BY job_key WHERE concurrency_key = :concurrency_key",
    "holders": "FROM job INDEXED BY job_key WHERE concurrency_key = :concurrency_key AND status = :status",
    "later": "FROM job INDEXED BY job_later WHERE status = :status AND status > 'processing'",
    "ended_badly": "FROM job INDEXED BY job_ended_badly WHERE status = :status AND status IN ('failed', 'cancelled')",
    "arrival": "FROM job NOT INDEXED WHERE true",
}
_FILTERS = """
  AND (:status IS NULL OR status = :status)
  AND (:job_type IS NULL OR job_type = :job_type)
  AND (:queue IS NULL OR queue = :queue)
  AND (:subject IS NULL OR subject = :subject)
  AND (:worker IS NULL OR worker_id = :worker)
  AND (:tag IS NULL OR EXISTS (SELECT 1 FROM json_each(tags) WHERE value = :tag))
  AND (:created_by IS NULL OR created_by = :created_by)
  AND (:root IS NULL OR root_job_id = :root)
  AND (:parent IS NULL OR parent_job_id = :parent)
  AND (:content_hash IS NULL OR content_hash = :content_hash)
  AND (:concurrency_key IS NULL OR concurrency_key = :concurrency_key)
"""
_ORDERS = {
    "created": " AND (:after_seq IS NULL OR seq < :after_seq) ORDER BY seq DESC LIMIT :limit",
    "priority": " AND (:after_id IS NULL"
    " OR (-priority, scheduled_for, job_id) > (-:after_priority, :after_due, :after_id))"
    " ORDER BY priority DESC, scheduled_for, job_id LIMIT :limit",
}
_SELECT = f"{GET.partition('FROM job')[0].rstrip()}, seq\n"
# by arrival, if other conditions leave few of the jobs that the index finds
_IN_WINDOWS = ("later", "ended_badly", "arrival")
FIND = {
    (lead, order): f"{_SELECT}{source}{_FILTERS}{tail}"
    for lead, source in _LEADS.items()
    for order, tail in _ORDERS.items()
    if (lead, order) not in [(each, "created") for each in _IN_WINDOWS]
}
WINDOW_OF = {
    lead: f"{_SELECT}{_LEADS[lead]}{_FILTERS} AND seq < :below AND seq >= :floor ORDER BY seq DESC LIMIT :limit"
    for lead in _IN_WINDOWS
}
NEWEST = {lead: f"SELECT seq {_LEADS[lead]} AND seq < :below ORDER BY seq DESC LIMIT 1" for lead in _IN_WINDOWS}
MANY_PENDING = (
    "SELECT 1 FROM job INDEXED BY job_ready WHERE status = 'pending' AND fairness_key IS NULL"
    " UNION ALL SELECT 1 FROM job INDEXED BY job_fair WHERE status = 'pending' AND fairness_key IS NOT NULL"
    " LIMIT 1 OFFSET ?"
)


def get(connection: apsw.Connection, job_ids: Sequence[str]) -> list[JobRecord | None]:
    found: list[tuple[Any, ...]] = connection.execute(GET, (msgspec.json.encode(job_ids).decode(),)).fetchall()
    known = {row[0]: with_edges(connection, row) for row in found}
    if len(known) < len(job_ids) and (missing := [each for each in job_ids if each not in known]):
        known.update(get_archived(connection, missing))
    return [known.get(job_id) for job_id in job_ids]


def get_archived(connection: apsw.Connection, job_ids: Sequence[str]) -> dict[str, JobRecord]:
    found = sqlite_connection.rows(connection, GET_ARCHIVED, (msgspec.json.encode(job_ids).decode(),))
    return {
        job_id: msgspec.structs.replace(_record.decode(details), archived_at=archived_at, status=Status(status))
        for job_id, archived_at, status, details in found
    }


def statuses(connection: apsw.Connection, job_ids: Sequence[str]) -> list[Status | None]:
    rows: list[tuple[Any, ...]] = connection.execute(STANDING, (msgspec.json.encode(job_ids).decode(),)).fetchall()
    found = {row[0]: Status(row[1]) for row in rows}
    if len(found) < len(job_ids) and (missing := [each for each in job_ids if each not in found]):
        found.update({job_id: record.status for job_id, record in get_archived(connection, missing).items()})
    return [found.get(job_id) for job_id in job_ids]


def with_edges(connection: apsw.Connection, row: tuple[Any, ...]) -> JobRecord:
    """The record of a row that has the columns of the statement `get`."""
    edges: Any = connection.execute(EDGES_OF, (row[0], LISTED_EDGES_MAX)).fetchone()
    return sql_rows.record(row, edges)


def find(connection: apsw.Connection, query: Query) -> Page:
    bindings: dict[str, Any] = {
        "status": None if query.status is None else query.status.value,
        "job_type": query.job_type,
        "queue": query.queue,
        "subject": query.subject,
        "worker": query.worker,
        "tag": query.tag,
        "created_by": query.created_by,
        "root": query.root,
        "parent": query.parent,
        "content_hash": query.content_hash,
        "concurrency_key": query.concurrency_key,
        "limit": query.limit + 1,
        **_position(query),
    }
    lead = _lead(query)
    if (
        lead == "pending"
        and query.order == "created"
        and sqlite_connection.rows(connection, MANY_PENDING, (PENDING_SORTED_MAX,))
    ):
        lead = "arrival"
    following: str | None = None
    if query.order == "created" and lead in _IN_WINDOWS:
        found, following = _walked(connection, lead, bindings)
    else:
        found = sqlite_connection.rows(connection, FIND[lead, query.order], bindings)
    items = found[: query.limit]
    return Page(
        items=tuple(with_edges(connection, row[:-1]) for row in items),
        next=_cursor(query, items[-1]) if len(found) > query.limit else following,
    )


def _walked(
    connection: apsw.Connection, lead: str, bindings: dict[str, Any]
) -> tuple[list[tuple[Any, ...]], str | None]:
    """Read window after window until there is one row more than a page has; otherwise return where to continue, if
    anywhere."""
    found: list[tuple[Any, ...]] = []
    wanted = bindings["limit"]
    below = EVERYTHING if bindings["after_seq"] is None else bindings["after_seq"]
    for _ in range(WINDOWS_MAX):
        newest = sqlite_connection.row(connection, NEWEST[lead], {"status": bindings["status"], "below": below})
        if newest is None:
            return found, None
        floor = max(0, newest[0] - WINDOW + 1)
        window = {**bindings, "below": below, "floor": floor, "limit": wanted - len(found)}
        found += sqlite_connection.rows(connection, WINDOW_OF[lead], window)
        if len(found) >= wanted or floor == 0:
            return found, None
        below = floor
    return found, str(below)


def _lead(query: Query) -> str:
    for name in ("subject", "content_hash", "parent", "root", "concurrency_key"):
        if getattr(query, name) is not None:
            return "holders" if name == "concurrency_key" and query.status is not None else name
    match query.status:
        case Status.PROCESSING:
            return "processing" if query.worker is None else "worker"
        case Status.PENDING:
            return "pending"
        case Status.WAITING | Status.SCHEDULED | Status.RETRYING:
            return "later"
        case Status.FAILED | Status.CANCELLED:
            return "ended_badly"
        case _:
            return "arrival"


def _position(query: Query) -> dict[str, Any]:
    """Decode a cursor: the sort key of the last row of the previous page, opaque to callers."""
    if query.order not in _ORDERS:
        raise InvalidOption(f"order={query.order!r:.60}: a search is ordered by {' or '.join(_ORDERS)}")
    position: dict[str, Any] = {
        "after_seq": None,
        "after_priority": None,
        "after_due": None,
        "after_id": None,
    }
    if query.after is None:
        return position
    try:
        if query.order == "created":
            position["after_seq"] = _number(query.after)
        else:
            priority, due, job_id = query.after.split("~")
            position.update(after_priority=_number(priority), after_due=_number(due), after_id=job_id)
    except ValueError:
        raise InvalidOption(
            f"after={query.after!r:.60} is not a cursor of this search: pass `next` of a page"
        ) from None
    return position


def _number(text: str) -> int:
    number = int(text)
    if abs(number) >= 2**63:
        raise ValueError("beyond what SQLite compares")
    return number


def _cursor(query: Query, row: tuple[Any, ...]) -> str:
    if query.order == "created":
        return str(row[-1])
    named = dict(zip(sql_rows.COLUMNS, row, strict=False))
    return f"{named['priority']}~{named['scheduled_for']}~{named['job_id']}"


def expired(connection: apsw.Connection, now: int, limit: int, dead_workers: Sequence[str]) -> list[ExpiredClaim]:
    found = sqlite_connection.rows(connection, EXPIRED, {"now": now, "limit": limit})
    if dead_workers and len(found) < limit:
        workers = msgspec.json.encode(dead_workers).decode()
        found += sqlite_connection.rows(connection, HELD_BY, {"workers": workers, "limit": limit - len(found)})
    return [ExpiredClaim(*row) for row in dict.fromkeys(found)]


def counts(connection: apsw.Connection) -> dict[str, int]:
    totals = {status.value: 0 for status in Status}
    totals.update(sqlite_connection.rows(connection, COUNTS))
    everything = totals[Status.COMPLETED]
    totals[Status.COMPLETED] = everything - sum(totals.values()) + everything
    return totals


QUEUES = "SELECT name, paused_at, paused_by, pause_reason, max_pending FROM queue"


def queues(connection: apsw.Connection) -> list[QueueRow]:
    return [sql_rows.queue(row) for row in sqlite_connection.rows(connection, f"{QUEUES} ORDER BY name")]


def depths(connection: apsw.Connection) -> list[Depth]:
    return depths_of(sqlite_connection.rows(connection, DEPTHS))


def ahead(connection: apsw.Connection, job_id: str, limit: int) -> int:
    row = sqlite_connection.row(connection, _PLACE, (job_id,))
    if row is None:
        return 0
    queue, job_type, version, *turn, fairness_key, parked, by_rate, key, rate_key, rate_count, rate_micros = row
    lane = (queue, job_type, version)
    count: int
    if by_rate:
        count = sqlite_connection.value(
            connection, RATE_AHEAD, (rate_key, rate_count, rate_micros, *lane, *turn, limit)
        )
    elif parked:
        count = sqlite_connection.value(connection, KEY_AHEAD, (key, *lane, *turn, limit))
    elif fairness_key is None:
        count = sqlite_connection.value(connection, AHEAD, (queue, job_type, *turn, limit))
    else:
        count = sqlite_connection.value(connection, FAIR_AHEAD, (queue, job_type, *turn, limit, fairness_key))
    return min(count, limit)


def counters(connection: apsw.Connection, since: Instant, until: Instant) -> list[Counter]:
    return [sql_rows.counter(*row) for row in sqlite_connection.rows(connection, COUNTERS, (since, until))]


def dead(connection: apsw.Connection, limit: int) -> list[DeadGroup]:
    return [DeadGroup(*row) for row in sqlite_connection.rows(connection, DEAD, (limit,))]


def workers(connection: apsw.Connection) -> list[WorkerRow]:
    found = sqlite_connection.rows(connection, "SELECT worker_id, heartbeat_at, details FROM worker ORDER BY worker_id")
    return [sql_rows.worker(*row) for row in found]


def job_types(connection: apsw.Connection) -> list[JobType]:
    found = sqlite_connection.rows(connection, "SELECT details FROM job_type ORDER BY job_type")
    return [msgspec.json.decode(details, type=JobType) for (details,) in found]


def step(connection: apsw.Connection, job_id: str, name: str) -> str | None:
    row = sqlite_connection.row(connection, "SELECT answer FROM step WHERE job_id = ? AND name = ?", (job_id, name))
    return None if row is None else str(row[0])
