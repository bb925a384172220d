"""Result tables on DynamoDB: each is a table of its own; rows of running attempts, read when committed.

Tables and attributes are named like the model and its fields, so that another program can read them. A definition is
written once its table can be used, and only grows. Numbers are N where DynamoDB keeps them exactly, else texts: it has
no negative zero, and nothing beyond 1E±126.

A row carries its attempt, and the completion publishes rows by being the job's attempt: no row is touched. Rows are
written one by one, because only a single put can be conditional at the price of one. So a part is not atomic here, but
rows of a failed attempt are never read, and a repeat overwrites its own.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from backstay import failpoints
from backstay.clock import Instant
from backstay.core import result_tables as core_result_tables
from backstay.core.records import Hold, Verdict
from backstay.core.result_tables import (
    ColumnKind,
    ResultTable,
    RowBatch,
    RowOrigin,
    RowPage,
    RowQuery,
    StoredRow,
    Value,
)
from backstay.core.states import Status
from backstay.engines.dynamodb import holder, items, ownership, schema, transitions
from backstay.engines.dynamodb import table as dynamodb_table
from backstay.engines.dynamodb.address import Address
from backstay.engines.dynamodb.definition import billing, key_schema
from backstay.engines.dynamodb.expressions import Ask, Condition, Placeholders, absent, below, equals, present, update
from backstay.engines.dynamodb.schema import SUBJECT, Item, Table, decode, encode
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.table import DELETES_MAX, GETS_MAX, SECONDS, Failed, Patience, Tables
from backstay.engines.dynamodb.transport import Answer, Lane, Refused, Unanswered, answer, translate
from backstay.errors import ConfigurationError, SchemaMismatch
from backstay.limits import LATEST_LOOKED_MAX

_ORIGIN = RowOrigin.__struct_fields__
_SMALLEST, _LARGEST = 1e-130, 9.9e125


def item(batch: RowBatch, row: tuple[Value, ...], now: Instant) -> Item:
    table = batch.table
    made: Item = {
        "job_id": batch.hold.job_id,
        "bs_attempt": batch.hold.attempt,
        "bs_part": batch.part,
        "created_at": core_result_tables.text(now),
    }
    made |= {name: value for name in _ORIGIN if (value := getattr(batch.origin, name)) is not None}
    for column, value in zip(table.columns, row, strict=True):
        if value is None:
            continue
        if column.name == table.subject and value == "":
            made["bs_empty"] = 1  # a key of an index may not be the empty string
        else:
            made[column.name] = _stored_value(column.kind, value)
    return made


def stored(table: ResultTable, found: Item) -> StoredRow:
    values = tuple(
        "" if column.name == table.subject and "bs_empty" in found else _value(column.kind, found.get(column.name))
        for column in table.columns
    )
    origin = RowOrigin(**{name: found[name] for name in _ORIGIN if name in found})
    return StoredRow(found["job_id"], core_result_tables.instant(found["created_at"]), origin, values)


def _stored_value(kind: ColumnKind, value: Any) -> Any:
    match kind:
        case ColumnKind.MOMENT:
            return core_result_tables.text(value)
        case ColumnKind.NUMBER:
            return value if _is_exact(value) else repr(value)
        case ColumnKind.JSON:
            return _native(value)
        case _:
            return value


NESTED_MAX = 30  # of DynamoDB's 32 levels
WHOLE_MAX: int = 10**38  # DynamoDB keeps 38 digits
NATIVE_BYTES_MORE = 60_000  # by which a list of small numbers may outgrow its text; a row's text has at most 300 KiB


def _native(text: str) -> Any:
    """Return a list or an object as DynamoDB has them, so that other programs read it as such. A single value stays
    JSON, and so does what DynamoDB would refuse or change."""
    value = msgspec.json.decode(text)
    if not isinstance(value, list | dict) or not _is_storable(value, NESTED_MAX):
        return text
    return value if schema.size_of(value) <= len(text.encode()) + NATIVE_BYTES_MORE else text


def _is_storable(value: Any, levels: int) -> bool:
    match value:
        case bool() | None | str():
            return True
        case int():
            return abs(value) < WHOLE_MAX
        case float():
            return value == 0 or _is_exact(value)
        case list():
            return levels > 0 and all(_is_storable(each, levels - 1) for each in value)
        case _:
            return levels > 0 and all(name != "" and _is_storable(each, levels - 1) for name, each in value.items())


def _is_exact(number: float) -> bool:
    if number == 0:
        return math.copysign(1, number) > 0
    return _SMALLEST <= abs(number) <= _LARGEST


def _value(kind: ColumnKind, value: Any) -> Value:
    if value is None:
        return None
    match kind:
        case ColumnKind.MOMENT:
            return core_result_tables.instant(value)
        case ColumnKind.NUMBER:
            return float(value)
        case ColumnKind.JSON:
            return value if isinstance(value, str) else msgspec.json.encode(value).decode()
        case _:
            return value  # type: ignore[no-any-return]


SUBJECT_INDEX = "ConversationIndex"
_RENAME = "give the result table another name"
_definition = msgspec.json.Decoder(ResultTable)


async def declare(session: Session, tables: Sequence[ResultTable]) -> list[str]:
    return [table.name for table in tables if await _declare(session, table)]


async def _declare(session: Session, table: ResultTable) -> bool:
    while True:
        [item] = await session.tables.get(Table.RECORDS, [schema.result_table(table.name)])
        stored = None if item is None else _definition.decode(item["definition"])
        wanted = core_result_tables.declared(stored, table)
        if stored == wanted:
            return False
        if stored is None:
            core_result_tables.refuse_too_many(len(await result_tables(session)), table.name)
        await _make(session.tables, wanted, known=stored is not None)
        if await _write_definition(session.tables, wanted, item):
            return True


async def _write_definition(tables: Tables, table: ResultTable, before: Item | None) -> bool:
    """Write a definition; return False if another process was faster, perhaps with more columns."""
    pk, sk = schema.result_table(table.name)
    text = msgspec.json.encode(table).decode()
    item = {"pk": pk, "sk": sk, "definition": text, "wid": items.new_wid()}
    try:
        await tables.put(Table.RECORDS, item, equals("definition", None if before is None else before["definition"]))
    except Failed:
        return False
    return True


async def result_tables(session: Session) -> list[ResultTable]:
    return await _all(session.tables)


async def _all(tables: Tables) -> list[ResultTable]:
    ask = Ask(table=Table.RECORDS, hash=schema.RESULTS, consistent=True)
    return [_definition.decode(row["definition"]) async for row in tables.ask(ask)]


async def names(tables: Tables) -> list[str]:
    """Return the names of the tables that hold rows."""
    return [name_of(tables, each.name) for each in await _all(tables)]


async def find(session: Session, table: ResultTable) -> ResultTable | None:
    """Return the stored definition. A cached one is enough if it has all requested columns."""
    known = session.result_tables.get(table.name)
    if known is not None and not core_result_tables.missing(known, table):
        return known
    [item] = await session.tables.get(Table.RECORDS, [schema.result_table(table.name)])
    if item is None:
        return None
    found = session.result_tables[table.name] = _definition.decode(item["definition"])
    return found


def name_of(tables: Tables, table: str) -> str:
    """Return the name of the table that holds its rows."""
    name = f"{tables.wire.address.prefix}_{table}"
    if name in tables.names.values():
        raise ConfigurationError(
            f"result table {table}: on DynamoDB {name} is used by Backstay itself; choose another name"
        )
    return name


# Creating tables


async def _make(tables: Tables, table: ResultTable, *, known: bool) -> None:
    name, address = name_of(tables, table.name), tables.wire.address
    found = await dynamodb_table.described(tables, name)
    if found is None:
        await dynamodb_table.run(tables, "CreateTable", _body(name, table, address))
    found = await dynamodb_table.active(tables, name)
    _refuse_other(name, table, found)
    if not known and await ownership.has_items(tables, name):
        # a process that declares the same table writes its definition before any row
        [item] = await tables.get(Table.RECORDS, [schema.result_table(table.name)])
        if item is None:
            raise ownership.foreign(name, "it has items, and this queue did not make it", _RENAME)
    there = {each["IndexName"] for each in found.get("GlobalSecondaryIndexes", ())}
    if table.subject_index and SUBJECT_INDEX not in there:
        index = {"Create": _index(table, address)}
        body = {
            "TableName": name,
            "AttributeDefinitions": _attributes(table),
            "GlobalSecondaryIndexUpdates": [index],
        }
        await dynamodb_table.run(tables, "UpdateTable", body)
        await dynamodb_table.active(tables, name)


def _refuse_other(name: str, table: ResultTable, found: dynamodb_table.Described) -> None:
    schema = list(ownership.key_of(found))
    kinds = {each["AttributeName"]: each["AttributeType"] for each in found["AttributeDefinitions"]}
    if schema != ["job_id", table.key] or kinds[table.key] != key_kind(table):
        raise SchemaMismatch(
            f"{name} already exists with the key {', '.join(schema)}, and {table.name} is declared with job_id,"
            f" {table.key}: {_RENAME}"
        )
    if table.subject_index:
        wanted = (table.subject or "", "created_at")
        attributes = [each for part in wanted for each in _attributes(table) if each["AttributeName"] == part]
        ownership.refuse_other_indexes(name, found, {SUBJECT_INDEX: attributes}, _RENAME)


def _body(name: str, table: ResultTable, address: Address) -> dict[str, Any]:
    body = {
        "TableName": name,
        "AttributeDefinitions": _attributes(table),
        "KeySchema": key_schema("job_id", table.key),
        **billing(address.provisioned, 10),
    }
    if table.subject_index:
        body["GlobalSecondaryIndexes"] = [_index(table, address)]
    return body


def _index(table: ResultTable, address: Address) -> dict[str, Any]:
    """Return the subject index, usually with keys only: a row with a vector of 1,000 dimensions should not be stored
    twice."""
    index: dict[str, Any] = {
        "IndexName": SUBJECT_INDEX,
        "KeySchema": key_schema(table.subject or "", "created_at"),
        "Projection": {"ProjectionType": "ALL" if address.whole else "KEYS_ONLY"},
    }
    if address.provisioned:
        index["ProvisionedThroughput"] = {"ReadCapacityUnits": 5, "WriteCapacityUnits": 5}
    return index


def _attributes(table: ResultTable) -> list[dict[str, str]]:
    kinds = {"job_id": "S", table.key: key_kind(table)}
    if table.subject_index and table.subject is not None:
        kinds |= {table.subject: kinds.get(table.subject, "S"), "created_at": "S"}
    return [{"AttributeName": name, "AttributeType": kind} for name, kind in kinds.items()]


def key_kind(table: ResultTable) -> str:
    kind = next(column.kind for column in table.columns if column.name == table.key)
    return "N" if kind is ColumnKind.INTEGER else "S"


RowKey = tuple[str, Value]  # job_id, and the table's own key


class RowAsk(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one job by key, or of one subject by time."""

    job_id: str | None = None
    subject: str | None = None
    after: Value = None  # beyond this key
    since: str | None = None  # from this time on
    where: Condition | None = None
    page: int | None = None
    only_keys: bool = False


async def put(tables: Tables, table: ResultTable, item: Item, condition: Condition) -> Item | None:
    """Store a row; return None, or the conflicting row."""
    holders = Placeholders()
    body: dict[str, Any] = {
        "TableName": name_of(tables, table.name),
        "Item": encode(item),
        "ConditionExpression": holders.condition(condition),
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    try:
        await tables.wire.persist("PutItem", {**body, **holders.attributes()}, lane=Lane.USUAL, seconds=SECONDS)
    except Refused as refused:
        if answer(refused) is not Answer.CONDITION:
            raise translate(refused, tables.shown, maybe_applied=True) from None
        return refused.item or {}
    except Unanswered as unanswered:
        raise translate(unanswered, tables.shown, maybe_applied=unanswered.sent) from None
    return None


async def get(tables: Tables, table: ResultTable, places: Sequence[RowKey]) -> dict[RowKey, Item]:
    """Read rows consistently."""
    name = name_of(tables, table.name)
    found: dict[RowKey, Item] = {}
    for start in range(0, len(places), GETS_MAX):
        wanted = [encode(_key(table, place)) for place in places[start : start + GETS_MAX]]
        patience = Patience(tables.shown)
        while wanted:
            body = {"RequestItems": {name: {"Keys": wanted, "ConsistentRead": True}}}
            reply = await tables.call("BatchGetItem", body)
            for wired in reply.get("Responses", {}).get(name, ()):
                item = decode(wired)
                found[item["job_id"], item[table.key]] = item
            wanted = reply.get("UnprocessedKeys", {}).get(name, {}).get("Keys", [])
            await patience.pause(len(wanted))
    return found


async def ask(tables: Tables, table: ResultTable, ask: RowAsk) -> AsyncIterator[Item]:
    body = _query(name_of(tables, table.name), table, ask)
    while True:
        reply = await tables.call("Query", body)
        for wired in reply.get("Items", ()):
            yield decode(wired)
        if not reply.get("LastEvaluatedKey"):
            return
        body = {**body, "ExclusiveStartKey": reply["LastEvaluatedKey"]}


def _query(name: str, table: ResultTable, ask: RowAsk) -> dict[str, Any]:
    holders = Placeholders()
    body: dict[str, Any] = {"TableName": name}
    if ask.job_id is not None:
        text = f"{holders.name('job_id')} = {holders.value(ask.job_id)}"
        if ask.after is not None:
            text += f" AND {holders.name(table.key)} > {holders.value(ask.after)}"
        body["ConsistentRead"] = True
    else:
        text = f"{holders.name(table.subject or '')} = {holders.value(ask.subject)}"
        if ask.since is not None:
            text += f" AND {holders.name('created_at')} >= {holders.value(ask.since)}"
        body["IndexName"] = SUBJECT_INDEX
    body["KeyConditionExpression"] = text
    if ask.where is not None:
        body["FilterExpression"] = holders.condition(ask.where)
    if ask.only_keys:
        body["ProjectionExpression"] = ", ".join(map(holders.name, ("job_id", table.key)))
    if ask.page is not None:
        body["Limit"] = ask.page
    return {**body, **holders.attributes()}


async def delete(tables: Tables, table: ResultTable, places: Sequence[RowKey]) -> None:
    await _write_rows(tables, table, [{"DeleteRequest": {"Key": encode(_key(table, place))}} for place in places])


async def put_many(tables: Tables, table: ResultTable, rows: Sequence[Item]) -> None:
    """Store rows unconditionally and not atomically: for rows that are not visible before a later write."""
    await _write_rows(tables, table, [{"PutRequest": {"Item": encode(row)}} for row in rows])


async def _write_rows(tables: Tables, table: ResultTable, requests: list[dict[str, Any]]) -> None:
    name = name_of(tables, table.name)
    batches = [requests[start : start + DELETES_MAX] for start in range(0, len(requests), DELETES_MAX)]
    turn = asyncio.Semaphore(8)

    async def one(batch: list[dict[str, Any]]) -> None:
        patience = Patience(tables.shown)
        async with turn:
            while batch:
                reply = await tables.call("BatchWriteItem", {"RequestItems": {name: batch}}, lane=Lane.IDLE)
                batch = reply.get("UnprocessedItems", {}).get(name, [])
                await patience.pause(len(batch))

    await asyncio.gather(*map(one, batches))


def _key(table: ResultTable, place: RowKey) -> Item:
    return {"job_id": place[0], table.key: place[1]}


TOGETHER = 32  # concurrent puts; the store's connections are shared with other calls


# Writing


async def put_rows(session: Session, batches: Sequence[RowBatch], now: Instant) -> list[Verdict]:
    for batch in batches:
        core_result_tables.writable(await find(session, batch.table), batch.table)
    turn = asyncio.Semaphore(TOGETHER)
    verdicts = []
    for batch in batches:
        verdict = await _enter(session, batch.hold, batch.table.name)
        if verdict is Verdict.APPLIED:
            verdict = await _put(session, batch, turn, now)
        verdicts.append(verdict)
    return verdicts


async def _enter(session: Session, hold: Hold, table: str) -> Verdict:
    """Return whether the claim holds. Records the table in the job before a row is stored: retention relies on it."""
    [job] = await session.tables.get(Table.JOBS, [(hold.job_id,)], only=_HELD, lane=Lane.URGENT)
    verdict = holder.judge(hold, job)
    if job is None or verdict is not Verdict.APPLIED or table in job.get("tables", ()):
        return verdict
    named = update(Table.JOBS, (hold.job_id,), adds={"tables": {table}}, condition=holder.holds(hold))
    try:
        await session.tables.update(named, lane=Lane.URGENT)
    except Failed as failed:
        return holder.judge(hold, failed.item)
    return Verdict.APPLIED


async def _put(session: Session, batch: RowBatch, turn: asyncio.Semaphore, now: Instant) -> Verdict:
    hold, table = batch.hold, batch.table
    free = _free(hold.attempt, batch.part)

    async def one(row: Item) -> Item | None:
        async with turn:
            return await put(session.tables, table, row, free)

    failpoints.hit_moment("put_rows", "uncommitted")
    found = await asyncio.gather(*(one(item(batch, row, now)) for row in batch.rows))
    failpoints.hit_moment("put_rows", "committed")
    in_the_way = [standing for standing in found if standing is not None]
    if any(standing.get("bs_attempt", 0) > hold.attempt for standing in in_the_way):
        return Verdict.STALE
    if in_the_way:
        raise core_result_tables.duplicate(table, in_the_way[0].get(table.key), hold.job_id)
    return Verdict.APPLIED


def _free(attempt: int, part: int) -> Condition:
    """Return the condition that the row does not exist, or is from an older attempt or an earlier try."""
    earlier_try = equals("bs_attempt", attempt) & equals("bs_part", part)
    return absent("job_id") | below("bs_attempt", attempt) | earlier_try


# Reading


_HELD = ("job_id", "status", "attempt", "claim_token", "tables", "archived_at")
_SOUGHT = ("job_id", "status", "attempt", "rows_of", "rows_attempt", "archived_at", "details")


async def rows(session: Session, table: ResultTable, query: RowQuery) -> RowPage:
    core_result_tables.readable(await find(session, table), table)
    source, attempt = core_result_tables.source(query, await _sought(session, query.job_id))
    if source is None:
        return RowPage(())
    if query.key is not None:
        found = (await get(session.tables, table, [(source, query.key)])).values()
        shown = [row for row in found if row["bs_attempt"] == attempt]
        return RowPage(tuple(stored(table, row) for row in shown), attempt)
    where = equals("bs_attempt", attempt)
    if query.subject is not None:
        where &= present("bs_empty") if query.subject == "" else equals(table.subject or "", query.subject)
    asked = RowAsk(job_id=source, after=query.after, where=where, page=query.limit + 1)
    some: list[StoredRow] = []
    async for row in ask(session.tables, table, asked):
        some.append(stored(table, row))
        if len(some) > query.limit:
            break
    return core_result_tables.page(table, some, query.limit, attempt)


async def _sought(session: Session, job_id: str) -> core_result_tables.Sought | None:
    [job] = await session.tables.get(Table.JOBS, [(job_id,)], only=_SOUGHT)
    if job is None or not transitions.is_there(job):
        return None
    donor_id = job.get("rows_of")
    donor = None
    if donor_id is not None:
        [donor] = await session.tables.get(Table.JOBS, [(donor_id,)], only=_SOUGHT)
    return job["status"], job.get("attempt", 0), donor_id, job.get("rows_attempt"), transitions.attempt_of(donor)


async def rows_by_subject(session: Session, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
    """Return rows of a subject. The index sorts by time only: rows of the same instant are sorted here."""
    core_result_tables.readable(await find(session, table), table)
    beyond = None if after is None else core_result_tables.place(after)
    asked = RowAsk(
        subject=subject, since=None if beyond is None else core_result_tables.text(beyond[0]), page=limit + 1
    )
    shown: list[StoredRow] = []
    moment: list[Item] = []
    if subject:
        async for entry in ask(session.tables, table, asked):
            if moment and entry["created_at"] != moment[0]["created_at"]:
                shown += await _of_moment(session, table, moment, beyond)
                moment = []
                if len(shown) > limit:
                    break
            moment.append(entry)
        shown += await _of_moment(session, table, moment, beyond)
    return core_result_tables.page_by_subject(table, shown, limit)


async def _of_moment(
    session: Session, table: ResultTable, entries: Sequence[Item], beyond: tuple[Instant, str, int | str] | None
) -> list[StoredRow]:
    """Return the rows of one instant that belong to completed jobs, read consistently, by job and key."""
    places: list[RowKey] = [(entry["job_id"], entry[table.key]) for entry in entries]
    if not places:
        return []
    jobs = dict.fromkeys(job_id for job_id, _ in places)
    named = ("job_id", "status", "attempt")
    found, standing = await asyncio.gather(
        get(session.tables, table, places),
        session.tables.get(Table.JOBS, [(job_id,) for job_id in jobs], only=named),
    )
    committed = {
        job["job_id"]: job.get("attempt", 0)
        for job in standing
        if job is not None and job.get("status") == Status.COMPLETED
    }
    at = core_result_tables.key_position(table)
    of_moment = [
        stored(table, row)
        for row in found.values()
        if committed.get(row["job_id"]) == row["bs_attempt"] and row["created_at"] == entries[0]["created_at"]
    ]
    in_order = sorted(of_moment, key=lambda row: (row.job_id, _ordered(row.values[at])))
    if beyond is None:
        return in_order
    after = (beyond[0], beyond[1], _ordered(beyond[2]))
    return [row for row in in_order if (row.created_at, row.job_id, _ordered(row.values[at])) > after]


def _ordered(key: object) -> tuple[int, bytes]:
    """Return a sort key as DynamoDB sorts: numbers by value, texts by bytes."""
    return (key, b"") if isinstance(key, int) else (0, str(key).encode())


# The latest


async def latest(session: Session, subject: str, job_type: str) -> str | None:
    [pointer] = await session.tables.get(Table.RECORDS, [schema.latest(subject, job_type)])
    if pointer is None:
        return None
    [job] = await session.tables.get(Table.JOBS, [(pointer["job_id"],)], only=_LATEST)
    if job is not None and _has_rows(job, job_type) and await _with_rows(session, [job]):
        return str(pointer["job_id"])
    return await _latest_of_subject(session, subject, job_type)


_LATEST = ("job_id", "job_type", "status", "completed_at", "tables", "rows_of", "rows_attempt")


def _has_rows(job: Item, job_type: str) -> bool:
    return (job.get("status"), job.get("job_type")) == (Status.COMPLETED, job_type) and "tables" in job


async def _with_rows(session: Session, jobs: Sequence[Item]) -> list[Item]:
    """Return jobs with valid rows: not those whose rows belong to a job that was run again."""
    owners = list({job["rows_of"] for job in jobs if "rows_of" in job})
    found = await session.tables.get(Table.JOBS, [(job_id,) for job_id in owners], only=_SOUGHT) if owners else []
    by_id = dict(zip(owners, found, strict=True))
    return [job for job in jobs if "rows_of" not in job or transitions.has_rows_of(job, by_id[job["rows_of"]])]


async def _latest_of_subject(session: Session, subject: str, job_type: str) -> str | None:
    """Find the latest job of a subject if the recorded one was run again or no longer exists."""
    if not subject:
        return None
    ids: list[str] = []
    ask = Ask(table=Table.JOBS, index=SUBJECT.name, hash=subject, backwards=True, page=LATEST_LOOKED_MAX)
    async for row in session.tables.ask(ask):
        ids.append(row["job_id"])
        if len(ids) == LATEST_LOOKED_MAX:
            break
    found = await session.tables.get(Table.JOBS, [(job_id,) for job_id in ids], only=_LATEST)
    done = await _with_rows(session, [job for job in found if job is not None and _has_rows(job, job_type)])
    return max(done, key=lambda job: (job["completed_at"], job["job_id"]))["job_id"] if done else None


# Retention


class _Kept(msgspec.Struct):
    result_tables: tuple[str, ...] = ()


_kept = msgspec.json.Decoder(_Kept)


async def drop_rows(session: Session, job_id: str, limit: int) -> int:
    [job] = await session.tables.get(Table.JOBS, [(job_id,)], lane=Lane.IDLE)
    if job is None or transitions.is_there(job):
        return 0
    known = {table.name: table for table in await result_tables(session)}
    dropped = 0
    for name in _kept.decode(job["details"]).result_tables:
        if name in known and dropped < limit:
            dropped += await _drop(session, known[name], job_id, limit - dropped)
    return dropped


async def _drop(session: Session, table: ResultTable, job_id: str, limit: int) -> int:
    places: list[RowKey] = []
    async for row in ask(session.tables, table, RowAsk(job_id=job_id, page=limit, only_keys=True)):
        places.append((row["job_id"], row[table.key]))
        if len(places) == limit:
            break
    await delete(session.tables, table, places)
    return len(places)
