"""Result tables: which there are, and the statements on each. They are made of names that were checked when the table
was declared, and quoted here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import asyncpg
import msgspec

from holdfast.errors import ConfigurationError
from holdfast.store.tables import Column, ColumnKind, ResultTable
from holdfast.stores import declaring
from holdfast.stores.postgres.errors import first_line
from holdfast.stores.postgres.tx import Tx

INDEX_SECONDS = 3600.0  # a new index on many rows takes as long as it takes

# Of each kind: the column, the array in which its values come, and how they are cast on the way in and out.
_KINDS = {
    ColumnKind.INTEGER: ("bigint", "bigint[]", "", ""),
    ColumnKind.NUMBER: ("double precision", "double precision[]", "", ""),
    ColumnKind.TEXT: ('text COLLATE "C"', "text[]", "", ""),
    ColumnKind.BOOLEAN: ("boolean", "boolean[]", "", ""),
    ColumnKind.BYTES: ("bytea", "bytea[]", "", ""),
    ColumnKind.MOMENT: ("timestamptz", "timestamptz[]", "", ""),
    ColumnKind.UUID: ("uuid", "uuid[]", "", "::text"),
    ColumnKind.DECIMAL: ("numeric", "text[]", "::numeric", "::text"),
    ColumnKind.JSON: ("json", "text[]", "::json", "::text"),  # not jsonb, which has an order and digits of its own
    ColumnKind.VECTOR: ("vector", "text[]", "::real[]", "::real[]"),
}
_OWN = ("job_id", "hf_attempt", "hf_part", "created_at", "parent_job_id", "root_job_id", "job_stage")
_ORIGIN = "r.job_id::text, r.created_at, r.parent_job_id::text, r.root_job_id::text, r.job_stage"
_SOURCE = """SELECT j.job_id, j.status, j.attempt, j.rows_of, j.rows_attempt, coalesce(d.attempt,
    (SELECT (a.details::json ->> 'attempt')::integer FROM holdfast.archive AS a WHERE a.job_id = j.rows_of))
    AS donor_attempt
FROM holdfast.job AS j LEFT JOIN holdfast.job AS d ON d.job_id = j.rows_of WHERE j.job_id = $1::uuid"""


async def declare(tx: Tx, tables: Sequence[ResultTable]) -> list[str]:
    stored = {table.name: table for table in await result_tables(tx)}
    if all(_is_declared(stored.get(table.name), table) for table in tables):
        return []  # and no right to change anything is needed for that
    await tx.execute("rows_declare_lock")
    try:
        return [table.name for table in tables if await _declare(tx, table)]
    except asyncpg.InsufficientPrivilegeError as error:
        raise ConfigurationError(
            f"this role may not make or change a result table ({first_line(error)}): open the app once as one that may"
            f' create tables in the schema "{tx.sql.schema}"'
        ) from None


def _is_declared(stored: ResultTable | None, table: ResultTable) -> bool:
    return stored is not None and declaring.declared(stored, table) == stored


async def _declare(tx: Tx, table: ResultTable) -> bool:
    """Whether anything was changed."""
    stored = await find(tx, table.name)
    wanted = declaring.declared(stored, table)
    if stored == wanted:
        return False
    news = wanted.columns if stored is None else declaring.missing(stored, table)
    vector = await _vector(tx, table, news)
    if stored is None:
        declaring.refuse_too_many(len(await result_tables(tx)), table.name)
        await tx.connection.execute(_create(tx.sql.schema, wanted, vector))
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
    """What pgvector's type is called here; made where it is missing and may be."""
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
                f"{table.name}.{vectors[0]} is a vector, and there is no pgvector ({first_line(error)}): install it and"
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
        f"CREATE TABLE {name_of(schema, table.name)} (job_id uuid NOT NULL, hf_attempt integer NOT NULL,"
        " hf_part integer NOT NULL, created_at timestamptz NOT NULL, parent_job_id uuid, root_job_id uuid,"
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
    """Rows of one attempt, each over one of an older attempt or an earlier try; what they do not bring is empty
    afterwards."""
    names = [*_OWN, *(quoted(column.name) for column in table.columns)]
    news = [f"{name} = excluded.{name}" for name in names if name not in ("job_id", quoted(table.key))]
    olds = [f"{quoted(column.name)} = NULL" for column in declaring.missing(table, stored)]
    values = ", ".join(f"n.v{i}{_KINDS[column.kind][2]}" for i, column in enumerate(table.columns))
    arrays = ", ".join(f"${i}::{_KINDS[column.kind][1]}" for i, column in enumerate(table.columns, len(_OWN) + 1))
    return (
        f"INSERT INTO {name_of(schema, table.name)} AS r ({', '.join(names)})"
        " SELECT $1::uuid, $2::integer, $3::integer, $4::timestamptz, $5::uuid, $6::uuid, $7::text,"
        f" {values} FROM unnest({arrays}) AS n ({', '.join(f'v{i}' for i in range(len(table.columns)))})"
        f" ON CONFLICT (job_id, {quoted(table.key)}) DO UPDATE SET {', '.join(news + olds)}"
        " WHERE excluded.hf_attempt > r.hf_attempt"
        " OR (excluded.hf_attempt = r.hf_attempt AND excluded.hf_part = r.hf_part)"
    )


@lru_cache(maxsize=256)
def page(
    schema: str, table: ResultTable, known: tuple[Column | None, ...], key: bool, after: bool, subject: bool
) -> str:
    """A job and the rows that it answers with, by key, as of one moment. Index: the table's primary key. $1 job, $2
    limit; then the key and the subject, where they are asked for."""
    number = iter(range(3, 5))
    kind = next(_KINDS[column.kind][1].removesuffix("[]") for column in table.columns if column.name == table.key)
    narrowed = f" AND r.{quoted(table.key)} {'=' if key else '>'} ${next(number)}::{kind}" if key or after else ""
    filtered = f" AND r.{quoted(table.subject or '')} = ${next(number)}::text" if subject else ""
    return (
        f"SELECT s.status, s.attempt, s.rows_of::text, s.rows_attempt, s.donor_attempt, r.*"
        f" FROM ({_SOURCE.replace('holdfast.', f'{quoted(schema)}.')}) AS s"
        f" LEFT JOIN LATERAL (SELECT {selected(known)} FROM {name_of(schema, table.name)} AS r"
        " WHERE r.job_id = coalesce(s.rows_of, s.job_id) AND r.hf_attempt = coalesce(s.rows_attempt, s.attempt)"
        f"{narrowed}{filtered} ORDER BY r.{quoted(table.key)} LIMIT $2::integer) AS r ON s.status = 'completed'"
    )


@lru_cache(maxsize=256)
def by_subject(schema: str, table: ResultTable, known: tuple[Column | None, ...], after: bool) -> str:
    """Rows of a subject over all completed jobs, in the order in which they came. Index: the table's subject index."""
    order = f"r.created_at, r.job_id, r.{quoted(table.key)}"
    narrowed = f" AND ({order}) > ($3, $4, $5)" if after else ""
    return (
        f"SELECT {selected(known)} FROM {name_of(schema, table.name)} AS r"
        f" JOIN {quoted(schema)}.job AS j ON j.job_id = r.job_id AND j.attempt = r.hf_attempt"
        f" WHERE r.{quoted(table.subject or '')} = $1 AND (j.status || '') = 'completed'{narrowed}"
        f" ORDER BY {order} LIMIT $2::integer"
    )


def taken(schema: str, table: ResultTable) -> str:
    """A key that another part of the attempt, or a newer attempt, has put. $1 job, $2 attempt, $3 part, $4 keys."""
    kind = next(_KINDS[column.kind] for column in table.columns if column.name == table.key)
    return (
        f"SELECT r.{quoted(table.key)}{kind[3]}, r.hf_attempt FROM {name_of(schema, table.name)} AS r"
        f" WHERE r.job_id = $1::uuid AND r.{quoted(table.key)} = ANY ($4::{kind[1]})"
        " AND NOT (r.hf_attempt = $2::integer AND r.hf_part = $3::integer) ORDER BY 1 LIMIT 1"
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
