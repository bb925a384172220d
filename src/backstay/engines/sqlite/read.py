"""Reads on SQLite: get, find, counts and the like.

Each read is short: a long one would keep the WAL from being checkpointed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import apsw
import msgspec

from backstay.clock import Instant
from backstay.core.admission import BY_RATE
from backstay.core.event_details import EventDetails
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
from backstay.core.states import Event, Status
from backstay.core.waits import StepKind
from backstay.core.workers import former_since
from backstay.engines import sql_rows
from backstay.engines.places import HISTORY
from backstay.engines.sql_rows import EVERYTHING, PENDING_SORTED_MAX, WINDOW, WINDOWS_MAX
from backstay.engines.sqlite import connection as sqlite_connection
from backstay.engines.sqlite.connection import LISTS, RECORD_COLUMNS, load
from backstay.errors import InvalidOption
from backstay.limits import FORMER_WORKERS_MAX, LISTED_EDGES_MAX

_record = msgspec.json.Decoder(JobRecord)
_details = msgspec.json.Decoder(EventDetails)
GET = load("get")
GET_BY_SEQ = load("get_by_seq")
GET_ARCHIVED = load("archive_get")
EDGES_OF = load("edges_of")
EVENTS_OF = load("events_of")
DEAD = load("dead")
COUNTS = load("counts")
COUNTERS = load("counters")
DEPTHS = load("depths")
EXPIRED = load("expired")
OVERDUE = load("overdue")
HELD_BY = load("held_by")
STATUSES = load("statuses")
LINE = load("line")
AHEAD = load("ahead")
FAIR_AHEAD = load("fair_ahead")
KEY_AHEAD = load("key_ahead")
RATE_AHEAD = load("rate_ahead")

# A search finds positions first, and reads the records of a page then. One qualifier leads through its index, the
# others filter. Composed from constants only. A lead is a table with an index, and how the job is found from it.
_FROM = {
    "subject": ("job AS j INDEXED BY job_subject", "j.subject = :subject"),
    "content_hash": ("job AS j INDEXED BY job_content", "j.content_hash = :content_hash"),
    "parent": ("job AS j INDEXED BY job_parent", "j.parent_job_id = :parent"),
    "root": ("job AS j INDEXED BY job_root", "j.root_job_id = :root"),
    "concurrency_key": ("job AS j INDEXED BY job_key", "j.concurrency_key = :concurrency_key"),
    "holders": (
        "running AS lead INDEXED BY running_key CROSS JOIN job AS j ON j.seq = lead.seq",
        "lead.concurrency_key = :concurrency_key",
    ),
    "processing": ("running AS lead CROSS JOIN job AS j ON j.seq = lead.seq", "true"),
    "pending": ("ready AS lead CROSS JOIN job AS j ON j.seq = lead.seq", "true"),
    "later": ("later AS lead NOT INDEXED CROSS JOIN job AS j ON j.seq = lead.seq", "lead.status = :status"),
    "waiting": ("waiting AS lead NOT INDEXED CROSS JOIN job AS j ON j.seq = lead.seq", "true"),
    "ended_badly": (
        "ended AS lead INDEXED BY ended_badly CROSS JOIN job AS j ON j.seq = lead.seq",
        "lead.status = :status AND lead.status IN ('failed', 'cancelled')",
    ),
    # Nearly all that ended have completed, so that the others are walked past.
    "completed": ("ended AS lead NOT INDEXED CROSS JOIN job AS j ON j.seq = lead.seq", "true"),
    "arrival": ("job AS j NOT INDEXED", "true"),
}
_IMPLY_STATUS = ("holders", "processing", "pending", "later", "waiting", "ended_badly")
_PLACES = """
LEFT JOIN ended AS e ON e.seq = j.seq LEFT JOIN running AS r ON r.seq = j.seq LEFT JOIN later AS l ON l.seq = j.seq
LEFT JOIN waiting AS w ON w.seq = j.seq"""
_DETAIL = " LEFT JOIN detail AS d ON d.seq = j.seq"
_WORKER = "coalesce(e.worker_id, r.worker_id, d.worker_id) = :worker"
_LED_STATUS = {"completed": "lead.status = :status"}
_FILTERS = {
    "status": f"{LISTS['status']} = :status",
    "job_type": "j.job_type = :job_type",
    "queue": "j.queue = :queue",
    "subject": "j.subject = :subject",
    "worker": _WORKER,
    "tag": "EXISTS (SELECT 1 FROM json_each(j.tags) WHERE value = :tag)",
    "created_by": "j.created_by = :created_by",
    "root": "j.root_job_id = :root",
    "parent": "j.parent_job_id = :parent",
    "content_hash": "j.content_hash = :content_hash",
    "concurrency_key": "j.concurrency_key = :concurrency_key",
}
_NOW = ("coalesce(d.priority, j.priority)", "coalesce(d.scheduled_for, j.scheduled_for)")
_AFTER = f" AND (-{_NOW[0]}, {_NOW[1]}, j.job_id) > (-:after_priority, :after_due, :after_id)"
_BY_PRIORITY = f" ORDER BY {_NOW[0]} DESC, {_NOW[1]}, j.job_id LIMIT :limit"
_BY_ARRIVAL = " ORDER BY j.seq DESC LIMIT :limit"
# by arrival, if other conditions leave few of the jobs that the index finds
_IN_WINDOWS = ("later", "waiting", "ended_badly", "completed", "arrival")
_LED = {
    "completed": "lead.seq",
    "later": "lead.seq",
    "waiting": "lead.seq",
    "ended_badly": "lead.seq",
    "arrival": "j.seq",
}
MANY_PENDING = load("many_pending")
LANES_IN_ORDER = load("lanes_in_order")
LANE_IN_ORDER = load("lane_in_order")


def positions(lead: str, order: str, filters: Collection[str], *, more: bool) -> str:
    """Return the statement for the positions of a page; `more`: it begins after a cursor."""
    tail = (_AFTER if more else "") + _BY_PRIORITY if order == "priority" else ""
    if order == "created":
        tail = (" AND j.seq < :after_seq" if more else "") + _BY_ARRIVAL
    return _search(lead, filters) + tail


def window(lead: str, filters: Collection[str]) -> str:
    seq = _LED[lead]
    return f"{_search(lead, filters)} AND {seq} < :below AND {seq} >= :floor ORDER BY {seq} DESC LIMIT :limit"


def _search(lead: str, filters: Collection[str]) -> str:
    source, where = _FROM[lead]
    told = lead in _IMPLY_STATUS or lead in _LED_STATUS  # of the state, by the lead itself
    conditions = [where, *(_FILTERS[name] for name in filters if not (name == "status" and told))]
    conditions += [_LED_STATUS[lead]] if lead in _LED_STATUS else []
    joins = _PLACES if "worker" in filters or ("status" in filters and not told) else ""
    return f"SELECT j.seq FROM {source}{joins}{_DETAIL} WHERE {' AND '.join(conditions)}"  # noqa: S608


def newest(lead: str) -> str:
    """Return the statement for the newest position that a lead has before another."""
    source, where = _FROM[lead]
    table, seq = source.partition(" CROSS JOIN")[0], _LED[lead]
    return f"SELECT {seq} FROM {table} WHERE {where} AND {seq} < :below ORDER BY {seq} DESC LIMIT 1"  # noqa: S608


def get(connection: apsw.Connection, job_ids: Sequence[str]) -> list[JobRecord | None]:
    found = records_of(connection, GET, job_ids)
    known = {record.job_id: record for record in found}
    if len(known) < len(job_ids) and (missing := [each for each in job_ids if each not in known]):
        known.update(get_archived(connection, missing))
    return [known.get(job_id) for job_id in job_ids]


def records(connection: apsw.Connection, seqs: Sequence[int]) -> list[JobRecord]:
    """Return the jobs at these positions, in their order."""
    return records_of(connection, GET_BY_SEQ, seqs)


def records_of(connection: apsw.Connection, statement: str, asked: Sequence[str | int]) -> list[JobRecord]:
    rows = fields_of(connection, statement, (msgspec.json.encode(asked).decode(),))
    changed = [fields["key"] for fields in rows if fields["stored"]]
    stored = events_of(connection, changed) if changed else {}
    return [
        sql_rows.record_from(fields, stored.get(fields["key"], ()), _edges(connection, fields["job_id"]))
        for fields in rows
    ]


def fields_of(connection: apsw.Connection, statement: str, bindings: Sequence[Any]) -> list[dict[str, Any]]:
    """Return rows of {record_columns}, by name."""
    return [dict(zip(RECORD_COLUMNS, row, strict=True)) for row in connection.execute(statement, tuple(bindings))]


def events_of(connection: apsw.Connection, seqs: Sequence[int]) -> dict[int, list[HistoryEvent]]:
    """Return the stored events of jobs, by job and in order."""
    found: dict[int, list[HistoryEvent]] = {}
    for seq, *values in connection.execute(EVENTS_OF, (msgspec.json.encode(seqs).decode(),)):
        row = dict(zip(HISTORY, values, strict=True))
        row["event"], row["target"] = Event(row["event"]), Status(row["target"])
        row["source"] = row["source"] and Status(row["source"])
        row["forget_steps"] = bool(row["forget_steps"])
        row["details"] = row["details"] and _details.decode(row["details"])
        found.setdefault(seq, []).append(HistoryEvent(**row))
    return found


def _edges(connection: apsw.Connection, job_id: str) -> tuple[str, str, int]:
    edges: Any = connection.execute(EDGES_OF, (job_id, LISTED_EDGES_MAX)).fetchone()
    found: tuple[str, str, int] = edges
    return found


def get_archived(connection: apsw.Connection, job_ids: Sequence[str]) -> dict[str, JobRecord]:
    found = sqlite_connection.rows(connection, GET_ARCHIVED, (msgspec.json.encode(job_ids).decode(),))
    return {
        job_id: msgspec.structs.replace(_record.decode(details), archived_at=archived_at, status=Status(status))
        for job_id, archived_at, status, details in found
    }


def statuses(connection: apsw.Connection, job_ids: Sequence[str]) -> list[Status | None]:
    rows = connection.execute(STATUSES, (msgspec.json.encode(job_ids).decode(),))
    found = {job_id: Status(status) for job_id, status in rows}
    if len(found) < len(job_ids) and (missing := [each for each in job_ids if each not in found]):
        found.update({job_id: record.status for job_id, record in get_archived(connection, missing).items()})
    return [found.get(job_id) for job_id in job_ids]


def find(connection: apsw.Connection, query: Query) -> Page:
    asked = {name: value for name in _FILTERS if (value := getattr(query, name)) is not None}
    position = _position(query)
    bindings: dict[str, Any] = {**asked, **position, "limit": query.limit + 1}
    lead = _lead(query)
    if (
        lead == "pending"
        and query.order == "created"
        and sqlite_connection.rows(connection, MANY_PENDING, (PENDING_SORTED_MAX,))
    ):
        lead = "arrival"
    following: str | None = None
    if query.order == "created" and lead in _IN_WINDOWS:
        found, following = _walked(connection, lead, asked, bindings)
    elif query.order == "priority" and lead == "pending" and asked.keys() <= sql_rows.LINED:
        found = _lined(connection, query, position)
    else:
        statement = positions(lead, query.order, asked, more=bool(position))
        found = [seq for (seq,) in sqlite_connection.rows(connection, statement, bindings)]
    items = records(connection, found[: query.limit])
    more = len(found) > query.limit
    return Page(items=tuple(items), next=_cursor(query, found[query.limit - 1], items[-1]) if more else following)


def _walked(
    connection: apsw.Connection, lead: str, asked: Collection[str], bindings: dict[str, Any]
) -> tuple[list[int], str | None]:
    """Read window after window until there is one row more than a page has; otherwise return where to continue, if
    anywhere."""
    found: list[int] = []
    wanted = bindings["limit"]
    below = bindings.get("after_seq", EVERYTHING)
    for _ in range(WINDOWS_MAX):
        begin = sqlite_connection.row(connection, newest(lead), {**bindings, "below": below})
        if begin is None:
            return found, None
        floor = max(0, begin[0] - WINDOW + 1)
        span = {**bindings, "below": below, "floor": floor, "limit": wanted - len(found)}
        found += [seq for (seq,) in sqlite_connection.rows(connection, window(lead, asked), span)]
        if len(found) >= wanted or floor == 0:
            return found, None
        below = floor
    return found, str(below)


def _lined(connection: apsw.Connection, query: Query, position: dict[str, Any]) -> list[int]:
    """Return the first pending jobs in claim order, one row more than a page has: those of the lanes whose first jobs
    come first, of which no more have to be looked at than there are jobs on the page."""
    bindings = {
        "priority": position.get("after_priority", sql_rows.ABOVE_ALL),
        "due": position.get("after_due", 0),
        "job_id": position.get("after_id", ""),
        "limit": query.limit + 1,
    }
    asked = {"queue": query.queue, "job_type": query.job_type}
    found: list[tuple[int, Instant, str, int]] = []
    for lane in sqlite_connection.rows(connection, LANES_IN_ORDER, bindings | asked):
        named = dict(zip(("queue", "job_type", "fair", "parked"), lane, strict=True))
        for priority, due, job_id, seq in sqlite_connection.rows(connection, LANE_IN_ORDER, bindings | named):
            found.append((-priority, due, job_id, seq))
    return [seq for *_, seq in sorted(found)[: query.limit + 1]]


def _lead(query: Query) -> str:
    for name in ("subject", "content_hash", "parent", "root", "concurrency_key"):
        if getattr(query, name) is not None:
            holders = name == "concurrency_key" and query.status is Status.PROCESSING
            return "holders" if holders else name
    match query.status:
        case Status.PROCESSING | Status.PENDING | Status.WAITING | Status.COMPLETED:
            return query.status.value
        case Status.SCHEDULED | Status.RETRYING:
            return "later"
        case Status.FAILED | Status.CANCELLED:
            return "ended_badly"
        case _:
            return "arrival"


def _position(query: Query) -> dict[str, Any]:
    """Decode a cursor: the sort key of the last row of the previous page, opaque to callers."""
    if query.order not in ("created", "priority"):
        raise InvalidOption(f"order={query.order!r:.60}: a search is ordered by created or priority")
    if query.after is None:
        return {}
    try:
        if query.order == "created":
            return {"after_seq": _number(query.after)}
        priority, due, job_id = query.after.split("~")
        return {"after_priority": _number(priority), "after_due": _number(due), "after_id": job_id}
    except ValueError:
        raise InvalidOption(
            f"after={query.after!r:.60} is not a cursor of this search: pass `next` of a page"
        ) from None


def _number(text: str) -> int:
    number = int(text)
    if abs(number) >= 2**63:
        raise ValueError("beyond what SQLite compares")
    return number


def _cursor(query: Query, seq: int, last: JobRecord) -> str:
    return str(seq) if query.order == "created" else f"{last.priority}~{last.scheduled_for}~{last.job_id}"


def expired(connection: apsw.Connection, now: int, limit: int, dead_workers: Sequence[str]) -> list[ExpiredClaim]:
    found = sqlite_connection.rows(connection, EXPIRED, {"now": now, "limit": limit})
    if dead_workers and len(found) < limit:
        workers = msgspec.json.encode(dead_workers).decode()
        found += sqlite_connection.rows(connection, HELD_BY, {"workers": workers, "limit": limit - len(found)})
    return [ExpiredClaim(*row) for row in dict.fromkeys(found)]


def overdue(connection: apsw.Connection, now: int, limit: int) -> list[str]:
    return [job_id for (job_id,) in sqlite_connection.rows(connection, OVERDUE, (now, limit))]


def counts(connection: apsw.Connection) -> dict[str, int]:
    return sql_rows.counts_of(sqlite_connection.rows(connection, COUNTS))


QUEUES = load("queues")
QUEUE = load("queue")
LIMITS = load("limits")
LIMIT = load("limit")
FORMER_WORKERS = load("former_workers")
WORKERS_NAMED = load("workers_named")
WORKERS_BETWEEN = load("workers_between")
COUNT_WORKERS = load("count_workers")
JOB_TYPES = load("job_types")
STEP = load("step")
OUTPUT = load("output")
OUTPUT_END = load("output_end")


def queues(connection: apsw.Connection) -> list[QueueRow]:
    return [sql_rows.queue(row) for row in sqlite_connection.rows(connection, QUEUES)]


def limits(connection: apsw.Connection) -> list[LimitRow]:
    return [sql_rows.limit(row) for row in sqlite_connection.rows(connection, LIMITS)]


def depths(connection: apsw.Connection) -> list[Depth]:
    return depths_of(sqlite_connection.rows(connection, DEPTHS))


def ahead(connection: apsw.Connection, job_id: str, limit: int) -> int:
    row = sqlite_connection.row(connection, LINE, (job_id,))
    if row is None:
        return 0
    queue, job_type, version, *turn, fairness_key, parked, key, rate_key, rate_count, rate_micros = row
    lane = (queue, job_type, version)
    count: int
    if parked == BY_RATE:
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


def ahead_in(connection: apsw.Connection, job_id: str, lanes: Sequence[tuple[str, str]], limit: int) -> list[int]:
    row = sqlite_connection.row(connection, LINE, (job_id,))
    if row is None:
        return [0] * len(lanes)
    _, _, _, *turn, _, _, _, _, _, _ = row
    return [sqlite_connection.value(connection, AHEAD, (*lane, *turn, limit)) for lane in lanes]


def counters(
    connection: apsw.Connection, since: Instant, until: Instant, width: int | None, kinds: bool
) -> list[Counter]:
    found = sqlite_connection.rows(connection, COUNTERS, (since, until, width, kinds))
    return [sql_rows.counter(*row) for row in found]


def dead(connection: apsw.Connection, limit: int) -> list[DeadGroup]:
    return [DeadGroup(*row) for row in sqlite_connection.rows(connection, DEAD, (limit,))]


def former_workers(connection: apsw.Connection, now: Instant) -> list[FormerWorker]:
    found = sqlite_connection.rows(connection, FORMER_WORKERS, (former_since(now), FORMER_WORKERS_MAX))
    return [FormerWorker(sql_rows.worker(*worker), left_at) for *worker, left_at in found]


def workers(
    connection: apsw.Connection, ids: Sequence[str], after: str, before: str, limit: int | None
) -> list[WorkerRow]:
    if ids:
        found = sqlite_connection.rows(connection, WORKERS_NAMED, (msgspec.json.encode(ids).decode(),))
    else:
        bounds = (after, before or sql_rows.HIGH, -1 if limit is None else limit)
        found = sqlite_connection.rows(connection, WORKERS_BETWEEN, bounds)
    return [sql_rows.worker(*row) for row in found]


def count_workers(connection: apsw.Connection) -> int:
    return int(connection.execute(COUNT_WORKERS).get)


def job_types(connection: apsw.Connection) -> list[JobType]:
    found = sqlite_connection.rows(connection, JOB_TYPES)
    return [msgspec.json.decode(details, type=JobType) for (details,) in found]


def step(connection: apsw.Connection, job_id: str, name: str, kind: StepKind) -> str | None:
    answer = sqlite_connection.value(connection, STEP, (job_id, kind.value, name))
    return None if answer is None else str(answer)


def output(connection: apsw.Connection, job_id: str, after: OutputPlace, limit: int) -> list[StoredPart]:
    end = output_end(connection, job_id)
    if end is None:
        return []
    attempt, take, _ = end.place
    number = after.number if after.is_same_take(end.place) else 0
    found = sqlite_connection.rows(connection, OUTPUT, (job_id, attempt, take, number, limit))
    return [StoredPart(*row) for row in found]


def output_end(connection: apsw.Connection, job_id: str) -> OutputEnd | None:
    for *place, size in sqlite_connection.rows(connection, OUTPUT_END, (job_id,)):
        return OutputEnd(OutputPlace(*place), size)
    return None
