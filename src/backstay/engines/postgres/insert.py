"""`insert` on PostgreSQL: plain jobs in one statement, many by COPY, special ones by a function in SQL.

Also submitting inside a transaction of the caller's own. Each driver is recognised by the modules its classes come
from, so that none has to be installed that is not used. What is sent is one statement with two values. The function
behind it catches what it refuses and returns it, so that the caller's transaction can continue; the wake-up goes out
with their commit, and disappears with a rollback.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import compress, groupby
from operator import attrgetter, not_
from typing import Any

import msgspec

from backstay.clock import Instant
from backstay.core.dependencies import moved
from backstay.core.records import NEW_DEFAULTS, Inserted, JobRecord, NewJob, Signal
from backstay.core.states import Counted, Status
from backstay.engines.postgres import read, release
from backstay.engines.postgres.connection import INSERTED, USUAL, Tx, refused
from backstay.errors import InvalidOption
from backstay.limits import MIB

_NAMES = ("scheduled_for", *INSERTED)
_row = attrgetter(*INSERTED)
_RARE = {
    name: NEW_DEFAULTS[name] for name in _NAMES if name in NEW_DEFAULTS
}  # NULL, or the table's default, stands for them
_usual_row = attrgetter(*USUAL)
_rare_row = attrgetter(*_RARE)
_NOTHING_RARE = tuple(_RARE.values())
SPECIAL_PART_MAX = 10_000  # special jobs in one statement …
SPECIAL_PART_CHARACTERS_MAX = 4 * MIB  # … and the maximum total size of their payloads
COPY_JOBS_MIN = 200  # from this number on, COPY is faster despite its extra round trips


class Terms(StrEnum):
    """The conditions of an insert, as the function in the database reads them."""

    ASKED = "{}"
    ADMITTED = '{"admitted": true}'  # children of an admitted parent: no queue limit applies
    PROMISED = '{"admitted": true, "promised": true}'  # their parent has been settled with them: none is refused


async def insert(
    tx: Tx,
    jobs: Sequence[NewJob],
    now: Instant,
    store_now: Instant | None,
    repeat: bool,
    terms: Terms = Terms.ASKED,
) -> list[Inserted]:
    if not any(job.special for job in jobs):
        return await insert_plain(tx, jobs, now, store_now, repeat)
    special = [job for job in jobs if job.special]
    if len(special) > SPECIAL_PART_MAX or len(special) < len(jobs):  # else its one statement holds it
        await tx.value("hold_for", msgspec.json.encode(special).decode(), now)
    answers = []
    for is_special, some in groupby(jobs, attrgetter("special")):
        if is_special:
            for part in _parts(some):
                answers += await _insert_special(tx, part, now, store_now, repeat, terms)
        else:
            answers += await insert_plain(tx, list(some), now, store_now, repeat)
    # Children of a settlement are counted with all of it: a parent that waits is not looked at before its own are in.
    if tx.broods and terms is Terms.ASKED:
        await release.spread(tx, (), int(await tx.value("now")) if store_now is None else store_now)
    return answers


async def insert_plain(
    tx: Tx, jobs: Sequence[NewJob], now: Instant, store_now: Instant | None, repeat: bool, carried: str | None = None
) -> list[Inserted]:
    """`carried` is a wake-up that a single job sends with its commit."""
    if repeat and await tx.value("present", [job.job_id for job in jobs]) == len(jobs):
        return _inserted(tx, jobs, now)  # the earlier try was applied; only its answer was lost
    if is_single(jobs, now):
        [job] = jobs
        name, row = ("insert_usual", _usual_row) if _rare_row(job) == _NOTHING_RARE else ("insert_one", _row)
        await tx.execute(name, now, store_now, job.scheduled_for, carried, *row(job))
    else:
        await tx.execute("insert_plain", now, store_now, *columns(jobs))
    return _inserted(tx, jobs, now)


def is_single(jobs: Sequence[NewJob], now: Instant) -> bool:
    """Return whether this is one job that is due."""
    return len(jobs) == 1 and jobs[0].scheduled_for <= now


async def insert_copied(tx: Tx, jobs: Sequence[NewJob], now: Instant, at: Instant, repeat: bool) -> list[Inserted]:
    """Insert many plain jobs as complete rows, which the server only has to store; only the columns that some of them
    use."""
    if repeat and await tx.value("present", [job.job_id for job in jobs]) == len(jobs):
        return _inserted(tx, jobs, now)
    column: dict[str, list[Any]] = {name: list(map(attrgetter(name), jobs)) for name in _NAMES}
    later = [when > now for when in column["scheduled_for"]]
    due = list(map(not_, later))
    coming = sorted(Counter(compress(column["queue"], due)).items())
    await tx.rows("refuse_over_limit", [queue for queue, _ in coming], [count for _, count in coming])
    column["scheduled_for"] = [  # by the store's clock
        max(when, at + 1) if waits else when + at - now
        for when, waits in zip(column["scheduled_for"], later, strict=True)
    ]
    used = {name: column[name] for name in _NAMES if name not in _RARE or column[name].count(_RARE[name]) < len(jobs)}
    await _copy(tx, "job", {**used, "created_at": _each(at)})
    if any(due):
        await _copy(tx, "ready", _in_line(used), due)
    if any(later):
        await _copy(tx, "later", {**{name: column[name] for name in _ANY_PLACE}, **_SCHEDULED}, later)
    kinds = list(zip(column["job_type"], column["queue"], column["priority"], strict=True))
    for kind, count in Counter(kinds).items():
        tx.count(kind, Counted.SUBMITTED, at, count)
    for kind, count in Counter(compress(kinds, later)).items():
        tx.tally(kind, Status.SCHEDULED.value, count)
    return _inserted(tx, jobs, now)


async def _copy(tx: Tx, table: str, column: Mapping[str, Iterable[Any]], chosen: Iterable[bool] | None = None) -> None:
    rows: Iterable[tuple[Any, ...]] = zip(*column.values(), strict=False)  # some columns repeat one value for ever
    if chosen is not None:
        rows = compress(rows, chosen)
    await tx.connection.copy_records_to_table(table, schema_name=tx.sql.schema, columns=column, records=rows)


_each = itertools.repeat
_ANY_PLACE = ("job_id", "scheduled_for", "priority", "queue", "job_type")
_SCHEDULED = {
    name: _each(value)
    for name, value in {"attempt": 0, "failures": 0, "version": 1, "awaited": False, "status": "scheduled"}.items()
}


def _in_line(used: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the columns of plain jobs in the line; jobs with a fairness key are in that of turns. What is the same for
    nearly all is left to the table's defaults."""
    line = {name: used[name] for name in (*_ANY_PLACE, "payload_version") if name in used}
    if "content_hash" in used:
        line["findable"] = [each is not None for each in used["content_hash"]]
    if "fairness_key" in used:
        keys = line["fairness_key"] = used["fairness_key"]
        weights = used.get("fairness_weight", _each(1))
        line["line"] = [0 if key is None else 2 for key in keys]
        line["fairness_weight"] = [None if key is None else weight for key, weight in zip(keys, weights, strict=False)]
    return line


def columns(jobs: Sequence[NewJob]) -> list[list[Any] | None]:
    """Return the columns of `insert_plain`: None in place of an array of them."""
    found = {name: list(map(attrgetter(name), jobs)) for name in _NAMES}
    return [
        None if _RARE.get(name, ...) is None and values.count(None) == len(jobs) else values
        for name, values in found.items()
    ]


def _inserted(tx: Tx, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
    later = [job.scheduled_for > now for job in jobs]
    tx.signals |= {Signal.DUE if waits else Signal.READY for waits in set(later)}
    status = {False: Status.PENDING, True: Status.SCHEDULED}
    return [Inserted(job.job_id, status[waits]) for job, waits in zip(jobs, later, strict=True)]


def encoded(jobs: Sequence[NewJob]) -> str:
    """Return jobs as the function in the database reads them. Those of a round have nothing to do with one another, and
    are stored as a set; each comes in a later round than any earlier job that it has to do with."""
    texts = [msgspec.json.encode(job).decode() for job in jobs]
    if len(jobs) > 1:
        rounds = _rounds(jobs)
        texts = [
            f'{text[:-1]},"round":{number}}}' if number else text for text, number in zip(texts, rounds, strict=True)
        ]
    return f"[{','.join(texts)}]"


def _rounds(jobs: Sequence[NewJob]) -> list[int]:
    last: dict[tuple[str, ...], int] = {}  # the last round of each job id, dedup key and content
    rounds = []
    for job in jobs:
        own: list[tuple[str, ...]] = [("id", job.job_id)]
        if job.dedup_key is not None:
            own.append(("key", job.dedup_key))
        if job.content_hash is not None:
            own.append(("content", job.job_type, job.content_hash))
        needed = [("id", parent) for parent in job.depends_on]
        if job.parent_job_id is not None:
            needed.append(("id", job.parent_job_id))
        number = 1 + max((last[name] for name in (*own, *needed) if name in last), default=-1)
        last.update(dict.fromkeys(own, number))
        rounds.append(number)
    return rounds


def _parts(jobs: Iterable[NewJob]) -> Iterator[list[NewJob]]:
    """Split jobs into parts that are sent in one statement."""
    part: list[NewJob] = []
    size = 0
    for job in jobs:
        if part and (len(part) == SPECIAL_PART_MAX or size + len(job.payload) > SPECIAL_PART_CHARACTERS_MAX):
            yield part
            part, size = [], 0
        part.append(job)
        size += len(job.payload)
    if part:
        yield part


async def _insert_special(
    tx: Tx, jobs: Sequence[NewJob], now: Instant, store_now: Instant | None, repeat: bool, terms: Terms
) -> list[Inserted]:
    asked = terms.value
    if repeat:
        # then an existing job may be returned instead
        jobs = [msgspec.structs.replace(job, own_id=True) for job in jobs]
        asked = msgspec.json.encode(msgspec.json.decode(asked) | {"repeated": True}).decode()
    text = await tx.value("insert_jobs", encoded(jobs), now, store_now, asked)
    answers = msgspec.json.decode(text)
    there = [answer["job_id"] for answer in answers if answer["existing"]]
    existing = dict(zip(there, await read.get(tx, there), strict=True)) if there else {}
    return [
        _answered(tx, job, answer, existing.get(answer["job_id"]), repeat)
        for job, answer in zip(jobs, answers, strict=True)
    ]


def _answered(tx: Tx, job: NewJob, answer: dict[str, Any], existing: JobRecord | None, repeat: bool) -> Inserted:
    status = Status(answer["status"])
    if answer["existing"]:
        if job.dedup_replaces:
            tx.signals |= {Signal.READY, Signal.DUE}
        same = repeat and answer["job_id"] == job.job_id
        return Inserted(answer["job_id"], status, existing=None if same else existing)
    tx.broods.add(job.parent_job_id, moved(None, status))
    if answer["rate_parked"]:
        tx.signals.add(Signal.DUE)
    match status:
        case Status.PENDING:
            tx.signals.add(Signal.READY)
        case Status.SCHEDULED:
            tx.signals.add(Signal.DUE)
        case Status.COMPLETED | Status.CANCELLED | Status.FAILED:
            tx.signals.add(Signal.ENDED)
        case _:
            pass
    return Inserted(job.job_id, status, reused_from=answer.get("reused_from"))


_KINDS = "an asyncpg, psycopg 3 or SQLAlchemy 2 connection"
_NO_TRANSACTION = (
    "connection= has no transaction, and the job would be stored at once: begin one, or submit without connection="
)
_CLOSED = "connection= is closed: give one that is open, with your transaction on it"


async def insert_jobs(
    connection: Any, schema: str, jobs: str, now: Instant, store_now: Instant | None, notify: bool, where: str
) -> list[dict[str, Any]]:
    """Insert jobs; return the answer for each."""
    call = f'"{schema}".insert_in'
    flag = "true" if notify else "false"
    at = "NULL" if store_now is None else str(int(store_now))
    match _driver(connection):
        case "asyncpg":
            statement = f"SELECT {call}($1::jsonb, $2, {at}, {flag})"
            text = await _asyncpg(connection, statement, (jobs, now))
        case "psycopg":
            statement = f"SELECT {call}(%s::jsonb, %s, {at}, {flag})::text"
            text = await _psycopg(connection, statement, (jobs, now))
        case "sqlalchemy":
            statement = f"SELECT {call}(CAST(:jobs AS jsonb), :now, {at}, {flag})::text"
            text = await _sqlalchemy(connection, statement, {"jobs": jobs, "now": now})
        case _:
            raise InvalidOption(f"connection={type(connection)!r}: give {_KINDS}")
    answer = msgspec.json.decode(text)
    if isinstance(answer, dict):
        raise refused(answer["sqlstate"], answer["message"], answer["detail"], where)
    return list(answer)


def _driver(connection: Any) -> str | None:
    """Return the driver of a connection by any of its base classes: many frameworks derive from a driver's class."""
    modules = {cls.__module__.partition(".")[0] for cls in type(connection).__mro__}
    return next((name for name in ("asyncpg", "psycopg", "sqlalchemy") if name in modules), None)


def _is_a(connection: Any, *names: str) -> bool:
    return any(cls.__name__ in names for cls in type(connection).__mro__)


async def _asyncpg(connection: Any, statement: str, values: tuple[Any, ...]) -> str:
    if not hasattr(connection, "is_in_transaction"):  # for example, a pool
        raise InvalidOption(f"connection={type(connection)!r}: give {_KINDS}")
    if connection.is_closed():
        raise InvalidOption(_CLOSED)
    if not connection.is_in_transaction():
        raise InvalidOption(_NO_TRANSACTION)
    return str(await connection.fetchval(statement, *values))


async def _psycopg(connection: Any, statement: str, values: tuple[Any, ...]) -> str:
    from psycopg.pq import TransactionStatus
    from psycopg.rows import tuple_row  # independent of the row factory that the caller has set

    if _is_a(connection, "Cursor", "AsyncCursor"):
        raise InvalidOption("connection= is a cursor: give its connection")
    if not _is_a(connection, "Connection", "AsyncConnection"):
        raise InvalidOption(f"connection={type(connection)!r}: give {_KINDS}")
    if connection.closed:
        raise InvalidOption(_CLOSED)
    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise InvalidOption(_NO_TRANSACTION)
    cursor = connection.cursor(row_factory=tuple_row)
    if _is_a(connection, "AsyncConnection"):
        await cursor.execute(statement, values)
        row = await cursor.fetchone()
    else:
        row = await asyncio.to_thread(lambda: cursor.execute(statement, values).fetchone())
    return str(row[0])


async def _sqlalchemy(connection: Any, statement: str, values: dict[str, Any]) -> str:
    from sqlalchemy import text

    if _is_a(connection, "AsyncConnection", "AsyncSession"):
        plain = await connection.connection() if _is_a(connection, "AsyncSession") else connection
        _refuse_autocommit(plain.sync_connection)
        return str((await connection.execute(text(statement), values)).scalar_one())
    if _is_a(connection, "Connection", "Session"):

        def run() -> str:
            _refuse_autocommit(connection.connection() if _is_a(connection, "Session") else connection)
            return str(connection.execute(text(statement), values).scalar_one())

        return await asyncio.to_thread(run)
    raise InvalidOption(f"connection={type(connection)!r}: give {_KINDS}")


def _refuse_autocommit(connection: Any) -> None:
    """Refuse a connection in autocommit mode: otherwise SQLAlchemy begins a transaction with the first statement."""
    if connection is None or connection.closed:
        raise InvalidOption(_CLOSED)
    engine_wide = getattr(connection.dialect, "_on_connect_isolation_level", None)
    level = connection.get_execution_options().get("isolation_level", engine_wide)
    if str(level).upper() == "AUTOCOMMIT":
        raise InvalidOption(_NO_TRANSACTION)
