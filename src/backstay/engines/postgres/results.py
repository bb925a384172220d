"""Result tables on PostgreSQL: declare them, write rows of running attempts, read rows of committed ones.

Statements are built from names that were checked when the table was declared, and are quoted here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import asyncpg
import msgspec

from backstay.clock import Instant, to_datetime, to_instant
from backstay.core import result_tables as core_result_tables
from backstay.core.records import Hold, Verdict
from backstay.core.result_tables import (
    Column,
    ColumnKind,
    ResultTable,
    RowBatch,
    RowOrigin,
    RowPage,
    RowQuery,
    StoredRow,
    Value,
)
from backstay.engines.places import token_key
from backstay.engines.postgres.connection import Tx, first_line
from backstay.engines.sql_rows import holds_by_key
from backstay.errors import ConfigurationError

INDEX_SECONDS = 3600.0  # no timeout: a new index on many rows can take long

# For each kind: the column type, the type of the array that carries its values, and the casts in and out.
_KINDS = {
    ColumnKind.INTEGER: ("bigint", "bigint[]", "", ""),
    ColumnKind.NUMBER: ("double precision", "double precision[]", "", ""),
    ColumnKind.TEXT: ('text COLLATE "C"', "text[]", "", ""),
    ColumnKind.BOOLEAN: ("boolean", "boolean[]", "", ""),
    ColumnKind.BYTES: ("bytea", "bytea[]", "", ""),
    ColumnKind.MOMENT: ("timestamptz", "timestamptz[]", "", ""),
    ColumnKind.UUID: ("uuid", "uuid[]", "", "::text"),
    ColumnKind.DECIMAL: ("numeric", "text[]", "::numeric", "::text"),
    # not jsonb, which changes the order of names and the digits of numbers
    ColumnKind.JSON: ("json", "text[]", "::json", "::text"),
    ColumnKind.VECTOR: ("vector", "text[]", "::real[]", "::real[]"),
}
_OWN = ("job_id", "bs_attempt", "bs_part", "created_at", "parent_job_id", "root_job_id", "job_stage")
_ORIGIN = "r.job_id::text, r.created_at, r.parent_job_id::text, r.root_job_id::text, r.job_stage"
_SOURCE = """SELECT j.job_id, j.status, j.attempt, j.rows_of, j.rows_attempt,
    coalesce((SELECT d.attempt FROM backstay.standing AS d WHERE d.job_id = j.rows_of),
        (SELECT (a.details::json ->> 'attempt')::integer FROM backstay.archive AS a WHERE a.job_id = j.rows_of))
    AS donor_attempt
FROM backstay.standing AS j WHERE j.job_id = $1::uuid"""


async def declare(tx: Tx, tables: Sequence[ResultTable]) -> list[str]:
    stored = {table.name: table for table in await result_tables(tx)}
    if all(_is_declared(stored.get(table.name), table) for table in tables):
        return []  # needs no permission to change anything
    await tx.execute("rows_declare_lock")
    try:
        return [table.name for table in tables if await _declare(tx, table)]
    except asyncpg.InsufficientPrivilegeError as error:
        raise ConfigurationError(
            f"this role is not allowed to create or change a result table ({first_line(error)}): open the app"
            f' once as a role that may create tables in the schema "{tx.sql.schema}"'
        ) from None


def _is_declared(stored: ResultTable | None, table: ResultTable) -> bool:
    return stored is not None and core_result_tables.declared(stored, table) == stored


async def _declare(tx: Tx, table: ResultTable) -> bool:
    """Declare a table; return whether anything was changed."""
    stored = await find(tx, table.name)
    wanted = core_result_tables.declared(stored, table)
    if stored == wanted:
        return False
    news = wanted.columns if stored is None else core_result_tables.missing(stored, table)
    vector = await _vector(tx, table, news)
    if stored is None:
        core_result_tables.refuse_too_many(len(await result_tables(tx)), table.name)
        try:
            await tx.connection.execute(_create(tx.sql.schema, wanted, vector))
        except asyncpg.DuplicateTableError:
            raise core_result_tables.not_ours(name_of(tx.sql.schema, table.name)) from None
    else:
        for column in news:
            added = f"ALTER TABLE {name_of(tx.sql.schema, table.name)} ADD COLUMN {_definition(column, vector)}"
            await tx.connection.execute(added)
    if wanted.subject_index and not (stored is not None and stored.subject_index):
        await tx.connection.execute("SET LOCAL statement_timeout = 0")
        await tx.connection.execute(_create_index(tx.sql.schema, wanted), timeout=INDEX_SECONDS)
    await tx.execute("rows_declare", wanted.name, msgspec.json.encode(wanted).decode())
    return True


async def _vector(tx: Tx, table: ResultTable, news: Sequence[Column]) -> str:
    """Return the qualified name of pgvector's type; create the extension if it is missing and this role may."""
    vectors = [column.name for column in news if column.kind is ColumnKind.VECTOR]
    if not vectors:
        return ""
    schema = await tx.value("rows_vector")
    if schema is None:
        try:
            async with tx.connection.transaction():
                await tx.connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except asyncpg.PostgresError as error:
            raise ConfigurationError(
                f"{table.name}.{vectors[0]} is a vector, but pgvector is not available ({first_line(error)}): install"
                " it and"
                ' run "CREATE EXTENSION vector" in the database as a role that may, or declare the field as list[float]'
            ) from None
        schema = await tx.value("rows_vector")
    return f"{quoted(schema)}.vector"


async def result_tables(tx: Tx) -> list[ResultTable]:
    return [msgspec.json.decode(text, type=ResultTable) for (text,) in await tx.rows("rows_tables")]


async def find(tx: Tx, name: str) -> ResultTable | None:
    text = await tx.value("rows_table", name)
    return None if text is None else msgspec.json.decode(text, type=ResultTable)


def _create(schema: str, table: ResultTable, vector: str) -> str:
    columns = ", ".join(
        _definition(column, vector) + (" NOT NULL" if column.name == table.key else "") for column in table.columns
    )
    return (
        f"CREATE TABLE {name_of(schema, table.name)} (job_id uuid NOT NULL, bs_attempt integer NOT NULL,"
        " bs_part integer NOT NULL, created_at timestamptz NOT NULL, parent_job_id uuid, root_job_id uuid,"
        f" job_stage text, {columns}, PRIMARY KEY (job_id, {quoted(table.key)}))"
    )


def _create_index(schema: str, table: ResultTable) -> str:
    return (
        f"CREATE INDEX {quoted(f'result_{table.name}_subject')} ON {name_of(schema, table.name)}"
        f" ({quoted(table.subject or '')}, created_at, job_id, {quoted(table.key)})"
    )


def _definition(column: Column, vector: str) -> str:
    kind = f"{vector}({column.dimensions})" if column.kind is ColumnKind.VECTOR else _KINDS[column.kind][0]
    return f"{quoted(column.name)} {kind}"


@lru_cache(maxsize=256)
def put(schema: str, table: ResultTable, stored: ResultTable) -> str:
    """Return the statement that stores rows of one attempt, each replacing one of an older attempt or earlier try;
    columns without a value become NULL."""
    names = [*_OWN, *(quoted(column.name) for column in table.columns)]
    news = [f"{name} = excluded.{name}" for name in names if name not in ("job_id", quoted(table.key))]
    olds = [f"{quoted(column.name)} = NULL" for column in core_result_tables.missing(table, stored)]
    values = ", ".join(f"n.v{i}{_KINDS[column.kind][2]}" for i, column in enumerate(table.columns))
    arrays = ", ".join(f"${i}::{_KINDS[column.kind][1]}" for i, column in enumerate(table.columns, len(_OWN) + 1))
    return (
        f"INSERT INTO {name_of(schema, table.name)} AS r ({', '.join(names)})"
        " SELECT $1::uuid, $2::integer, $3::integer, $4::timestamptz, $5::uuid, $6::uuid, $7::text,"
        f" {values} FROM unnest({arrays}) AS n ({', '.join(f'v{i}' for i in range(len(table.columns)))})"
        f" ON CONFLICT (job_id, {quoted(table.key)}) DO UPDATE SET {', '.join(news + olds)}"
        " WHERE excluded.bs_attempt > r.bs_attempt"
        " OR (excluded.bs_attempt = r.bs_attempt AND excluded.bs_part = r.bs_part)"
    )


@lru_cache(maxsize=256)
def page(
    schema: str, table: ResultTable, known: tuple[Column | None, ...], key: bool, after: bool, subject: bool
) -> str:
    """Return the statement for a job and its rows, by key, in one snapshot. Index: the table's primary key. $1 job, $2
    limit; then the key and the subject, if given."""
    number = iter(range(3, 5))
    kind = next(_KINDS[column.kind][1].removesuffix("[]") for column in table.columns if column.name == table.key)
    narrowed = f" AND r.{quoted(table.key)} {'=' if key else '>'} ${next(number)}::{kind}" if key or after else ""
    filtered = f" AND r.{quoted(table.subject or '')} = ${next(number)}::text" if subject else ""
    return (
        f"SELECT s.status, s.attempt, s.rows_of::text, s.rows_attempt, s.donor_attempt, r.*"
        f" FROM ({_SOURCE.replace('backstay.', f'{quoted(schema)}.')}) AS s"
        f" LEFT JOIN LATERAL (SELECT {selected(known)} FROM {name_of(schema, table.name)} AS r"
        " WHERE r.job_id = coalesce(s.rows_of, s.job_id) AND r.bs_attempt = coalesce(s.rows_attempt, s.attempt)"
        f"{narrowed}{filtered} ORDER BY r.{quoted(table.key)} LIMIT $2::integer) AS r ON s.status = 'completed'"
    )


@lru_cache(maxsize=256)
def by_subject(schema: str, table: ResultTable, known: tuple[Column | None, ...], after: bool) -> str:
    """Return the statement for rows of a subject across all completed jobs, in order of storage. Index: the table's
    subject index."""
    order = f"r.created_at, r.job_id, r.{quoted(table.key)}"
    narrowed = f" AND ({order}) > ($3, $4, $5)" if after else ""
    return (
        f"SELECT {selected(known)} FROM {name_of(schema, table.name)} AS r"
        f" JOIN {quoted(schema)}.ended AS j ON j.job_id = r.job_id AND j.attempt = r.bs_attempt"
        f" WHERE r.{quoted(table.subject or '')} = $1 AND (j.status || '') = 'completed'{narrowed}"
        f" ORDER BY {order} LIMIT $2::integer"
    )


def taken(schema: str, table: ResultTable) -> str:
    """Return the statement for a key that another part of the attempt, or a newer attempt, has written. $1 job, $2
    attempt, $3 part, $4 keys."""
    kind = next(_KINDS[column.kind] for column in table.columns if column.name == table.key)
    return (
        f"SELECT r.{quoted(table.key)}{kind[3]}, r.bs_attempt FROM {name_of(schema, table.name)} AS r"
        f" WHERE r.job_id = $1::uuid AND r.{quoted(table.key)} = ANY ($4::{kind[1]})"
        " AND NOT (r.bs_attempt = $2::integer AND r.bs_part = $3::integer) ORDER BY 1 LIMIT 1"
    )


def drop(schema: str, name: str) -> str:
    table = name_of(schema, name)
    return f"DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {table} WHERE job_id = $1 LIMIT $2::integer))"


def selected(known: tuple[Column | None, ...]) -> str:
    named = (
        f"NULL AS v{i}" if column is None else f"r.{quoted(column.name)}{_KINDS[column.kind][3]} AS v{i}"
        for i, column in enumerate(known)
    )
    return ", ".join([_ORIGIN, *named])


def name_of(schema: str, table: str) -> str:
    return f"{quoted(schema)}.{quoted(f'result_{table}')}"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_OF_JOB = 5  # columns that identify the job, before those of the row


async def put_rows(tx: Tx, batches: Sequence[RowBatch], now: Instant) -> list[Verdict]:
    """Store rows, in the order of job ids, like every transaction that locks several jobs."""
    verdicts: dict[int, Verdict] = {}
    for i in sorted(range(len(batches)), key=lambda i: batches[i].hold.job_id):
        verdicts[i] = await _put(tx, batches[i], now)
    return [verdicts[i] for i in range(len(batches))]


async def _put(tx: Tx, batch: RowBatch, now: Instant) -> Verdict:
    table, hold = batch.table, batch.hold
    stored = core_result_tables.writable(await find(tx, table.name), table)
    verdict = await _marked(tx, hold, table.name)
    if verdict is not Verdict.APPLIED or not batch.rows:
        return verdict
    columns = [
        [sent(column.kind, value) for value in values]
        for column, values in zip(table.columns, zip(*batch.rows, strict=True), strict=True)
    ]
    own = (hold.job_id, hold.attempt, batch.part, to_datetime(now), *msgspec.structs.astuple(batch.origin))
    status = await tx.connection.execute(put(tx.sql.schema, table, stored), *own, *columns)
    if int(status.rpartition(" ")[2]) < len(batch.rows):
        await _refuse_duplicate(tx, batch, columns[core_result_tables.key_position(table)])
    return Verdict.APPLIED


async def _marked(tx: Tx, hold: Hold, table: str) -> Verdict:
    """Record the table in the job before a row is stored: retention relies on it. If it is recorded already, the claim
    is only read: rows stored after it was lost belong to an attempt that no one reads."""
    found = await tx.row("rows_holder", hold.job_id)
    if found is None:
        return holds_by_key(hold, None)
    attempt, token, tables = found
    verdict = holds_by_key(hold, (attempt, token))
    if verdict is not Verdict.APPLIED or table in msgspec.json.decode(tables or "[]"):
        return verdict
    marked = await tx.execute("rows_add_table", table, hold.job_id, hold.attempt, token_key(hold.token))
    return Verdict.APPLIED if marked else Verdict.STALE


async def _refuse_duplicate(tx: Tx, batch: RowBatch, keys: list[Any]) -> None:
    hold = batch.hold
    statement = taken(tx.sql.schema, batch.table)
    key = await tx.connection.fetchval(statement, hold.job_id, hold.attempt, batch.part, keys)
    raise core_result_tables.duplicate(batch.table, key, hold.job_id)


async def rows(tx: Tx, table: ResultTable, ask: RowQuery) -> RowPage:
    known = tuple(core_result_tables.readable(await find(tx, table.name), table))
    wanted = [each for each in (ask.after if ask.key is None else ask.key, ask.subject) if each is not None]
    statement = page(tx.sql.schema, table, known, ask.key is not None, ask.after is not None, ask.subject is not None)
    found = await tx.connection.fetch(statement, ask.job_id, ask.limit + 1, *wanted)
    source, attempt = core_result_tables.source(ask, tuple(found[0])[:_OF_JOB] if found else None)
    if source is None:
        return RowPage(())
    stored = [row_of(table.columns, tuple(row)[_OF_JOB:]) for row in found if row[_OF_JOB] is not None]
    at = core_result_tables.key_position(table)
    stored.sort(key=lambda row: _in_order(row.values[at]))
    return core_result_tables.page(table, stored, ask.limit, attempt)


def _in_order(key: Value) -> Any:
    """Sort the rows as requested: a join does not guarantee an order."""
    return key.encode() if isinstance(key, str) else key


async def rows_by_subject(tx: Tx, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
    known = tuple(core_result_tables.readable(await find(tx, table.name), table))
    wanted: list[Any] = [subject, limit + 1]
    if after is not None:
        created_at, job_id, key = core_result_tables.place(after)
        wanted += [to_datetime(created_at), job_id, key]
    found = await tx.connection.fetch(by_subject(tx.sql.schema, table, known, after is not None), *wanted)
    return core_result_tables.page_by_subject(table, [row_of(table.columns, tuple(row)) for row in found], limit)


async def latest(tx: Tx, subject: str, job_type: str) -> str | None:
    found: str | None = await tx.value("rows_latest", subject, job_type)
    return found


async def drop_rows(tx: Tx, job_id: str, limit: int) -> int:
    named = await tx.value("rows_archived", job_id)
    dropped = 0
    for name in msgspec.json.decode(named or "[]"):
        if dropped < limit and await find(tx, name) is not None:
            status = await tx.connection.execute(drop(tx.sql.schema, name), job_id, limit - dropped)
            dropped += int(status.rpartition(" ")[2])
    return dropped


def row_of(columns: Sequence[Column], row: tuple[Any, ...]) -> StoredRow:
    job_id, created_at, *origin = row[:5]
    values = tuple(_value(column.kind, value) for column, value in zip(columns, row[5:], strict=True))
    return StoredRow(job_id, to_instant(created_at), RowOrigin(*origin), values)


def sent(kind: ColumnKind, value: Any) -> Any:
    if value is None:
        return None
    match kind:
        case ColumnKind.MOMENT:
            return to_datetime(value)
        case ColumnKind.VECTOR:
            return f"{{{str(_numbers(value))[1:-1]}}}"
        case _:
            return value


def _value(kind: ColumnKind, value: Any) -> Value:
    if value is None:
        return None
    match kind:
        case ColumnKind.MOMENT:
            return to_instant(value)
        case ColumnKind.VECTOR:
            return struct.pack(f"<{len(value)}f", *value)
        case _:
            return value  # type: ignore[no-any-return]


def _numbers(vector: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(vector) // 4}f", vector))
