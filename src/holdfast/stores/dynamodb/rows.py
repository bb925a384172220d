"""Rows of result tables: put by running attempts, read of the committed one.

A row carries its attempt, and the completion publishes those of its own by being the job's attempt: nothing is touched.
Rows are put one by one, because only a put by itself can be conditional at the price of one: a part is not whole or
nothing here, but what is put of an attempt that fails is never read, and a repeat overwrites its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from holdfast import failpoints
from holdfast.clock import Instant
from holdfast.lifecycle import Status
from holdfast.limits import LATEST_LOOKED_MAX
from holdfast.store.tables import ResultTable, RowBatch, RowPage, RowQuery, StoredRow
from holdfast.store.types import Hold, Verdict
from holdfast.stores import declaring, moments, paging
from holdfast.stores.dynamodb import holding, keys, moving, row_items, row_tables, tables
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.commit import update
from holdfast.stores.dynamodb.expressions import Condition, absent, below, equals, present
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import SUBJECT, Table
from holdfast.stores.dynamodb.row_tables import RowAsk, RowKey
from holdfast.stores.dynamodb.table import Failed
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane

TOGETHER = 32  # puts under way at once; the connections of the store's pool are shared with others


# Putting


async def put_rows(ground: Ground, batches: Sequence[RowBatch], now: Instant) -> list[Verdict]:
    for batch in batches:
        declaring.writable(await tables.find(ground, batch.table), batch.table)
    turn = asyncio.Semaphore(TOGETHER)
    verdicts = []
    for batch in batches:
        verdict = await _enter(ground, batch.hold, batch.table.name)
        if verdict is Verdict.APPLIED:
            verdict = await _put(ground, batch, turn, now)
        verdicts.append(verdict)
    return verdicts


async def _enter(ground: Ground, hold: Hold, table: str) -> Verdict:
    """Whether the claim holds. The job names the table before a row is in it: retention goes by that."""
    [job] = await ground.tables.get(Table.JOBS, [(hold.job_id,)], only=_HELD, lane=Lane.URGENT)
    verdict = holding.judge(hold, job)
    if job is None or verdict is not Verdict.APPLIED or table in job.get("tables", ()):
        return verdict
    named = update(Table.JOBS, (hold.job_id,), adds={"tables": {table}}, condition=holding.holds(hold))
    try:
        await ground.tables.update(named, lane=Lane.URGENT)
    except Failed as failed:
        return holding.judge(hold, failed.item)
    return Verdict.APPLIED


async def _put(ground: Ground, batch: RowBatch, turn: asyncio.Semaphore, now: Instant) -> Verdict:
    hold, table = batch.hold, batch.table
    free = _free(hold.attempt, batch.part)

    async def one(row: Item) -> Item | None:
        async with turn:
            return await row_tables.put(ground.tables, table, row, free)

    failpoints.hit_moment("put_rows", "uncommitted")
    found = await asyncio.gather(*(one(row_items.item(batch, row, now)) for row in batch.rows))
    failpoints.hit_moment("put_rows", "committed")
    in_the_way = [standing for standing in found if standing is not None]
    if any(standing.get("hf_attempt", 0) > hold.attempt for standing in in_the_way):
        return Verdict.STALE
    if in_the_way:
        raise declaring.duplicate(table, in_the_way[0].get(table.key), hold.job_id)
    return Verdict.APPLIED


def _free(attempt: int, part: int) -> Condition:
    """Nothing is there, or what an older attempt or an earlier try has put."""
    earlier_try = equals("hf_attempt", attempt) & equals("hf_part", part)
    return absent("job_id") | below("hf_attempt", attempt) | earlier_try


# Reading


_HELD = ("job_id", "status", "attempt", "claim_token", "tables", "archived_at")
_SOUGHT = ("job_id", "status", "attempt", "rows_of", "rows_attempt", "archived_at", "details")


async def rows(ground: Ground, table: ResultTable, ask: RowQuery) -> RowPage:
    declaring.readable(await tables.find(ground, table), table)
    source, attempt = paging.source(ask, await _sought(ground, ask.job_id))
    if source is None:
        return RowPage(())
    if ask.key is not None:
        found = (await row_tables.get(ground.tables, table, [(source, ask.key)])).values()
        shown = [row for row in found if row["hf_attempt"] == attempt]
        return RowPage(tuple(row_items.stored(table, row) for row in shown), attempt)
    where = equals("hf_attempt", attempt)
    if ask.subject is not None:
        where &= present("hf_empty") if ask.subject == "" else equals(table.subject or "", ask.subject)
    asked = RowAsk(job_id=source, after=ask.after, where=where, page=ask.limit + 1)
    some: list[StoredRow] = []
    async for row in row_tables.ask(ground.tables, table, asked):
        some.append(row_items.stored(table, row))
        if len(some) > ask.limit:
            break
    return paging.page(table, some, ask.limit, attempt)


async def _sought(ground: Ground, job_id: str) -> paging.Sought | None:
    [job] = await ground.tables.get(Table.JOBS, [(job_id,)], only=_SOUGHT)
    if job is None or not moving.is_there(job):
        return None
    donor_id = job.get("rows_of")
    donor = None
    if donor_id is not None:
        [donor] = await ground.tables.get(Table.JOBS, [(donor_id,)], only=_SOUGHT)
    return job["status"], job.get("attempt", 0), donor_id, job.get("rows_attempt"), moving.attempt_of(donor)


async def rows_by_subject(ground: Ground, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
    """The index knows the order of time alone: what came in one moment is put in order here."""
    declaring.readable(await tables.find(ground, table), table)
    beyond = None if after is None else paging.place(after)
    asked = RowAsk(subject=subject, since=None if beyond is None else moments.text(beyond[0]), page=limit + 1)
    shown: list[StoredRow] = []
    moment: list[Item] = []
    if subject:
        async for entry in row_tables.ask(ground.tables, table, asked):
            if moment and entry["created_at"] != moment[0]["created_at"]:
                shown += await _of_moment(ground, table, moment, beyond)
                moment = []
                if len(shown) > limit:
                    break
            moment.append(entry)
        shown += await _of_moment(ground, table, moment, beyond)
    return paging.page_by_subject(table, shown, limit)


async def _of_moment(
    ground: Ground, table: ResultTable, entries: Sequence[Item], beyond: tuple[Instant, str, int | str] | None
) -> list[StoredRow]:
    """Of rows that came at once those of completed jobs, as they stand, in order of job and key."""
    places: list[RowKey] = [(entry["job_id"], entry[table.key]) for entry in entries]
    if not places:
        return []
    jobs = dict.fromkeys(job_id for job_id, _ in places)
    named = ("job_id", "status", "attempt")
    found, standing = await asyncio.gather(
        row_tables.get(ground.tables, table, places),
        ground.tables.get(Table.JOBS, [(job_id,) for job_id in jobs], only=named),
    )
    committed = {
        job["job_id"]: job.get("attempt", 0)
        for job in standing
        if job is not None and job.get("status") == Status.COMPLETED
    }
    at = paging.key_position(table)
    of_moment = [
        row_items.stored(table, row)
        for row in found.values()
        if committed.get(row["job_id"]) == row["hf_attempt"] and row["created_at"] == entries[0]["created_at"]
    ]
    in_order = sorted(of_moment, key=lambda row: (row.job_id, _ordered(row.values[at])))
    if beyond is None:
        return in_order
    after = (beyond[0], beyond[1], _ordered(beyond[2]))
    return [row for row in in_order if (row.created_at, row.job_id, _ordered(row.values[at])) > after]


def _ordered(key: object) -> tuple[int, bytes]:
    """Numbers by size, texts by their bytes, as DynamoDB has them."""
    return (key, b"") if isinstance(key, int) else (0, str(key).encode())


# The latest


async def latest(ground: Ground, subject: str, job_type: str) -> str | None:
    [pointer] = await ground.tables.get(Table.RECORDS, [keys.latest(subject, job_type)])
    if pointer is None:
        return None
    [job] = await ground.tables.get(Table.JOBS, [(pointer["job_id"],)], only=_LATEST)
    if job is not None and _has_rows(job, job_type) and await _with_rows(ground, [job]):
        return str(pointer["job_id"])
    return await _latest_of_subject(ground, subject, job_type)


_LATEST = ("job_id", "job_type", "status", "completed_at", "tables", "rows_of", "rows_attempt")


def _has_rows(job: Item, job_type: str) -> bool:
    return (job.get("status"), job.get("job_type")) == (Status.COMPLETED, job_type) and "tables" in job


async def _with_rows(ground: Ground, jobs: Sequence[Item]) -> list[Item]:
    """Without those that have their rows from a job that has run again."""
    owners = list({job["rows_of"] for job in jobs if "rows_of" in job})
    found = await ground.tables.get(Table.JOBS, [(job_id,) for job_id in owners], only=_SOUGHT) if owners else []
    by_id = dict(zip(owners, found, strict=True))
    return [job for job in jobs if "rows_of" not in job or moving.has_rows_of(job, by_id[job["rows_of"]])]


async def _latest_of_subject(ground: Ground, subject: str, job_type: str) -> str | None:
    """Where the one that was has been run again, or is gone."""
    if not subject:
        return None
    ids: list[str] = []
    ask = Ask(table=Table.JOBS, index=SUBJECT.name, hash=subject, backwards=True, page=LATEST_LOOKED_MAX)
    async for row in ground.tables.ask(ask):
        ids.append(row["job_id"])
        if len(ids) == LATEST_LOOKED_MAX:
            break
    found = await ground.tables.get(Table.JOBS, [(job_id,) for job_id in ids], only=_LATEST)
    done = await _with_rows(ground, [job for job in found if job is not None and _has_rows(job, job_type)])
    return max(done, key=lambda job: (job["completed_at"], job["job_id"]))["job_id"] if done else None


# Retention


class _Kept(msgspec.Struct):
    result_tables: tuple[str, ...] = ()


_kept = msgspec.json.Decoder(_Kept)


async def drop_rows(ground: Ground, job_id: str, limit: int) -> int:
    [job] = await ground.tables.get(Table.JOBS, [(job_id,)], lane=Lane.IDLE)
    if job is None or moving.is_there(job):
        return 0
    known = {table.name: table for table in await tables.result_tables(ground)}
    dropped = 0
    for name in _kept.decode(job["details"]).result_tables:
        if name in known and dropped < limit:
            dropped += await _drop(ground, known[name], job_id, limit - dropped)
    return dropped


async def _drop(ground: Ground, table: ResultTable, job_id: str, limit: int) -> int:
    places: list[RowKey] = []
    async for row in row_tables.ask(ground.tables, table, RowAsk(job_id=job_id, page=limit, only_keys=True)):
        places.append((row["job_id"], row[table.key]))
        if len(places) == limit:
            break
    await row_tables.delete(ground.tables, table, places)
    return len(places)
