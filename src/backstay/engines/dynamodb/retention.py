"""Retention on DynamoDB: ended jobs past their time are replaced, in place, by an archived form.

It walks the ended jobs in order of arrival, a step at a time. The write that archives a job compares what was read, so
that a job that is retried, or gets a child, in between stays. A tree is archived in one commit or not at all; one that
is larger than a commit is frozen first:

    every member is frozen as it was read ──▶ a mark: no way back from here ──▶ members are archived, commit by commit

A frozen job accepts no child and no retry, so nothing of the tree comes back to life in between. A crash before the
mark leaves frozen jobs that thaw after a minute; a crash after it leaves the rest to `release`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence

import msgspec

from backstay.clock import MICROS, Instant
from backstay.core.records import RetentionPolicy, Retired, Verdict
from backstay.core.states import TERMINAL
from backstay.engines import sql_rows
from backstay.engines.dynamodb import access, dependencies, items, outbox, plan, read, schema, transitions
from backstay.engines.dynamodb.commit import Cancelled, Commit, merged
from backstay.engines.dynamodb.expressions import (
    Ask,
    Write,
    absent,
    add,
    delete,
    equals,
    present,
    replace,
    unchanged,
    update,
)
from backstay.engines.dynamodb.outbox import Mark, MarkKind, place
from backstay.engines.dynamodb.schema import ARCHIVE, CONTENT, ROOT, STATUS, Item, Key, Table
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.table import Failed
from backstay.engines.dynamodb.transport import Lane

_TOGETHER = 16


async def remove(session: Session, items: Sequence[Item]) -> None:
    for start in range(0, len(items), _TOGETHER):
        found = await asyncio.gather(*(_around(session, item) for item in items[start : start + _TOGETHER]))
        await session.tables.delete_many(Table.RECORDS, [key for of_one in found for key in of_one], lane=Lane.IDLE)
    for item in items:
        for pointer in plan.latest(item):
            own = delete(Table.RECORDS, pointer.key, equals("job_id", item["job_id"]))
            with contextlib.suppress(Failed):  # a later job has replaced it
                await session.tables.update(own, lane=Lane.IDLE)


async def _around(session: Session, item: Item) -> list[Key]:
    job_id = item["job_id"]
    found: list[Key] = []
    if item.get("attempt"):
        found += await _all_in(session, schema.steps(job_id))
    if item.get("streamed"):
        found += await _all_in(session, schema.output(job_id))
    if items.names_of(item):
        found += await _all_in(session, f"body|{job_id}")
    if item.get("awaited"):
        found += await _all_in(session, schema.edges(job_id))
    if item.get("depends_on") or item.get("needs"):
        found += [schema.edge(parent, job_id) for parent in await dependencies.dependencies(session, item)]
    if item.get("children"):
        found += await _all_in(session, schema.kids(job_id))
    if item.get("needs"):
        found += await _all_in(session, schema.needs(job_id)[0])
    return found


async def _all_in(session: Session, partition: str) -> list[Key]:
    ask = Ask(table=Table.RECORDS, hash=partition, only=("pk", "sk"))
    return [(row["pk"], row["sk"]) async for row in session.tables.ask(ask, lane=Lane.IDLE)]


async def remove_job(session: Session, job_id: str, version: int, now: Instant) -> Verdict:
    """Delete a job that has ended, or its archived form: the item with its key and its place among its siblings in one
    commit, and then what only the item led to. A crash in between leaves records of a job that does not exist, which
    the sweep removes."""
    [item] = await session.tables.get(Table.JOBS, [(job_id,)])
    if item is None:
        return Verdict.GONE
    if "frozen" in item or transitions.status_of(item) not in TERMINAL or transitions.version_of(item) != version:
        return Verdict.STALE
    if await _is_needed(session, item):
        return Verdict.BLOCKED
    is_archived = not transitions.is_there(item)
    standing = equals("archived_at", item["archived_at"]) if is_archived else equals("version", version)
    commit = Commit(session.tables, "remove", now)
    commit.write(delete(Table.JOBS, (job_id,), standing & unchanged(item, "awaited", "children", "open", "frozen")))
    if (key := item.get("dedup_key")) is not None:
        [guard] = await session.tables.get(Table.RECORDS, [schema.guard(key)])
        if guard is not None and guard["job_id"] == job_id:
            commit.write(delete(Table.RECORDS, schema.guard(key), equals("nonce", guard["nonce"])))
    if (parent_id := item.get("parent_job_id")) is not None:
        commit.write(delete(Table.RECORDS, schema.kid(parent_id, job_id)))
        [parent] = await session.tables.get(Table.JOBS, [(parent_id,)])
        if transitions.is_there(parent):
            commit.write(add(Table.JOBS, (parent_id,), {"children": -1}, present("status")))
    try:
        await commit.run(Lane.URGENT)
    except Cancelled:
        return Verdict.STALE
    if not is_archived:
        await remove(session, [item])
    return Verdict.APPLIED


async def _is_needed(session: Session, item: Item) -> bool:
    """Return whether a job has children, or others wait on it, or something of its end is still to be done."""
    job_id = item["job_id"]
    if not transitions.is_there(item):
        return False
    if len(await _without_marks(session, [{**item, "awaited": 1}])) == 0:
        return True
    kids = [(key[1],) for key in await _all_in(session, schema.kids(job_id))]
    if any(transitions.is_there(kid) for kid in await session.tables.get(Table.JOBS, kids)):
        return True
    waiting = [(child,) for child in await dependencies.unmet(session, job_id, _UNMET_MAX)]
    found = await session.tables.get(Table.JOBS, waiting)
    return any(child is not None and transitions.waits_on_others(child) for child in found)


_UNMET_MAX = 1_000  # dependents that may still wait on an ended job: none, but in the moment of its end

_MOVED_AT_ONCE = 90
THAW_MICROS = 60 * MICROS  # no process freezes jobs for this long without a mark


async def retire_tree(session: Session, root: str, members: Sequence[Item], now: Instant) -> int:
    stamp = secrets.token_hex(8)
    frozen: list[Item] = []
    for start in range(0, len(members), _TOGETHER):
        batch = members[start : start + _TOGETHER]
        held = await asyncio.gather(*(_freeze(session, item, stamp, now) for item in batch))
        frozen += [item for item, done in zip(batch, held, strict=True) if done]
        if not all(held):
            await asyncio.gather(*(_unfreeze(session, item, stamp) for item in frozen))
            return 0
    mark = outbox.new_mark(MarkKind.TREE, root, now, stamp=stamp)
    commit = Commit(session.tables, "retire", now)
    commit.write(outbox.written(mark))
    await commit.run(Lane.IDLE)
    return await go_on(session, mark, now)


async def _freeze(session: Session, item: Item, stamp: str, now: Instant) -> bool:
    standing = equals("version", item["version"]) & unchanged(item, "awaited", "children", "open") & absent("frozen")
    write = update(Table.JOBS, (item["job_id"],), sets={"frozen": stamp, "frozen_at": now}, condition=standing)
    try:
        await session.tables.update(write, lane=Lane.IDLE)
    except Failed as failed:
        return failed.item is not None and failed.item.get("frozen") == stamp  # an earlier try of this write
    return True


async def _unfreeze(session: Session, item: Item, stamp: str) -> bool:
    write = update(Table.JOBS, (item["job_id"],), removes=("frozen", "frozen_at"), condition=equals("frozen", stamp))
    try:
        await session.tables.update(write, lane=Lane.IDLE)
    except Failed:
        return False
    return True


async def thaw(session: Session, item: Item, now: Instant) -> bool:
    """Thaw jobs that were frozen long ago and have no mark."""
    if abs(now - item.get("frozen_at", 0)) <= THAW_MICROS:
        return False
    root = item.get("root_job_id") or item["job_id"]
    [mark] = await session.tables.get(Table.RECORDS, [outbox.place(MarkKind.TREE, root)], lane=Lane.IDLE)
    if mark is not None and mark.get("stamp") == item["frozen"]:
        return False
    return await _unfreeze(session, item, item["frozen"])


async def go_on(session: Session, mark: Mark, now: Instant) -> int:
    """Archive the rest of a tree that has a mark; return how many jobs."""
    moved = 0
    stamp = mark.item["stamp"]
    while members := await _left(session, mark.name, stamp):
        for start in range(0, len(members), _MOVED_AT_ONCE):
            batch = members[start : start + _MOVED_AT_ONCE]
            moved += await _archive_tree(session, batch, now)
    await outbox.finish(session.tables, mark)
    return moved


async def _left(session: Session, root: str, stamp: str) -> list[Item]:
    ids = {root: None}
    ask = Ask(table=Table.JOBS, index=ROOT.name, hash=root)
    async for row in session.tables.ask(ask, lane=Lane.IDLE):
        ids[row["job_id"]] = None
    found = await session.tables.get(Table.JOBS, [(job_id,) for job_id in ids], lane=Lane.IDLE)
    return [
        item
        for item in found
        if item is not None
        and transitions.is_there(item)
        and item.get("frozen") == stamp
        and transitions.status_of(item) in TERMINAL
    ]


async def _archive_tree(session: Session, batch: Sequence[Item], now: Instant) -> int:
    commit = Commit(session.tables, "retire", now)
    commit.write(*(replace(item, items.archived(item, now), also=equals("frozen", item["frozen"])) for item in batch))
    try:
        await commit.run(Lane.IDLE)
    except Cancelled:
        return 0  # another process continues from the same mark
    await remove(session, batch)
    return len(batch)


TREE_MAX = 90  # jobs of one commit


async def retire(session: Session, policy: RetentionPolicy, now: Instant, limit: int, after: str | None) -> Retired:
    newest = sql_rows.newest_cutoff(policy, now)
    found = sql_rows.Found([], None)
    archived = 0
    if newest is not None:
        rows = await _step(session, newest, limit, after)
        if len(rows) == limit:
            found.next = rows[-1][0]
        over = [row["job_id"] for _, row in rows if _is_row_over(policy, row, now)]
        archived = await _archive(session, policy, over, now)
    dropped = await _drop(session, policy, now, limit)
    await access.keep_up(session.tables, now)
    await access.drop(session, now, limit)
    return sql_rows.answer(found, archived, dropped, limit)


async def _step(session: Session, newest: Instant, limit: int, after: str | None) -> list[tuple[str, Item]]:
    """Return the next ended jobs by arrival. Jobs submitted after `newest` cannot have ended before it."""
    partitions = [each for status in sorted(TERMINAL) for each in schema.all_shards(status.value, session.shards)]
    entries = read.by_arrival(
        session,
        STATUS.name,
        partitions,
        after=after,
        until=newest,
        only=("job_type", "status", "completed_at"),
        page=limit,
        lane=Lane.IDLE,
    )
    rows = []
    async for entry in entries:
        rows.append(entry)
        if len(rows) == limit:
            break
    return rows


def _is_row_over(policy: RetentionPolicy, row: Item, now: Instant) -> bool:
    return sql_rows.is_over(policy, row["job_type"], row["status"], row.get("completed_at"), now)


def is_over(policy: RetentionPolicy, item: Item, now: Instant) -> bool:
    return sql_rows.is_over(policy, item["job_type"], item["status"], item.get("completed_at"), now)


# Archiving


async def _archive(session: Session, policy: RetentionPolicy, job_ids: Sequence[str], now: Instant) -> int:
    found = await session.tables.get(Table.JOBS, [(job_id,) for job_id in job_ids], lane=Lane.IDLE)
    standing = [
        item for item in found if item is not None and transitions.is_there(item) and is_over(policy, item, now)
    ]
    alone = [item for item in standing if root_of(item) is None and item.get("open", 0) <= 0]
    roots = {root: None for item in standing if (root := root_of(item)) is not None}
    alone = await _without_marks(session, alone)
    moved = 0
    for start in range(0, len(alone), _TOGETHER):
        batch = alone[start : start + _TOGETHER]
        moved += sum(await asyncio.gather(*(_move_one(session, item, now) for item in batch)))
    for root in roots:
        moved += await _move_tree(session, policy, root, now)
    return moved


def root_of(item: Item) -> str | None:
    """Return the root of its tree, if it is in one."""
    root: str | None = item.get("root_job_id")
    if root is None and item.get("children"):
        root = item["job_id"]
    return root


def archived(item: Item, now: Instant) -> Write:
    """Return the write that archives a job if it is unchanged since it was read: no new dependents and no new
    children."""
    return replace(item, items.archived(item, now), also=unchanged(item, "awaited", "children", "open", "frozen"))


async def _move_one(session: Session, item: Item, now: Instant) -> bool:
    if "frozen" in item:
        await thaw(session, item, now)
        return False  # archived in the next pass
    try:
        await session.tables.update(archived(item, now), lane=Lane.IDLE, verb="retire")
    except Failed:
        return False
    await remove(session, [item])
    return True


async def _without_marks(session: Session, found: Sequence[Item]) -> list[Item]:
    """Return the jobs whose end has been propagated to all that waited for it."""
    asked = [item for item in found if item.get("awaited") or item.get("needs")]
    places = [place(kind, item["job_id"]) for item in asked for kind in (MarkKind.ENDED, MarkKind.LINK)]
    marks = await session.tables.get(Table.RECORDS, places, only=("name",), lane=Lane.IDLE)
    marked = {mark["name"] for mark in marks if mark is not None}
    return [item for item in found if item["job_id"] not in marked]


async def members_of(session: Session, root: str) -> list[Item]:
    """Return every job of a tree that is not archived."""
    ids = {root: None}
    ask = Ask(table=Table.JOBS, index=ROOT.name, hash=root)
    async for row in session.tables.ask(ask, lane=Lane.IDLE):
        ids[row["job_id"]] = None
    found = await session.tables.get(Table.JOBS, [(job_id,) for job_id in ids], lane=Lane.IDLE)
    return [item for item in found if item is not None and transitions.is_there(item)]


async def _move_tree(session: Session, policy: RetentionPolicy, root: str, now: Instant) -> int:
    members = await members_of(session, root)
    if not members or not all(is_over(policy, item, now) for item in members) or not _is_whole(members):
        return 0
    if ice := [item for item in members if "frozen" in item]:
        for item in ice:
            await thaw(session, item, now)
        return 0  # archived in the next pass
    if len(await _without_marks(session, members)) < len(members):
        return 0
    if len(members) > TREE_MAX:
        return await retire_tree(session, root, members, now)
    commit = Commit(session.tables, "retire", now)
    commit.write(*(archived(item, now) for item in members))
    try:
        await commit.run(Lane.IDLE)
    except Cancelled:
        return 0  # part of it is active again
    await remove(session, members)
    return len(members)


def _is_whole(members: Iterable[Item]) -> bool:
    """Return whether the index has shown every child: each parent knows how many it has, and whether more are to be
    stored."""
    listed = list(members)
    shown = Counter(item.get("parent_job_id") for item in listed)
    return all(item.get("children", 0) <= shown[item["job_id"]] and item.get("open", 0) <= 0 for item in listed)


# The end of the archive, and files


def _archived(session: Session, kind: str, limit: int, *, before: str | None = None) -> AsyncIterator[Item]:
    """Yield archived jobs, oldest first, across all shards."""
    asks = [
        Ask(table=Table.JOBS, index=ARCHIVE.name, hash=hash_value, below=before, page=limit)
        for hash_value in schema.all_shards(kind, session.shards)
    ]
    return merged([session.tables.ask(ask, lane=Lane.IDLE) for ask in asks], ARCHIVE.range)


async def _drop(session: Session, policy: RetentionPolicy, now: Instant, limit: int) -> int:
    if policy.archive_micros is None:
        return 0
    cutoff = now - policy.archive_micros
    ids: list[str] = []
    async for row in _archived(session, "clean", limit, before=schema.at(cutoff)):
        ids.append(row["job_id"])
        if len(ids) == limit:
            break
    found = await session.tables.get(Table.JOBS, [(job_id,) for job_id in ids], lane=Lane.IDLE)
    over = [item for item in found if item is not None and item.get("archived_at", cutoff) < cutoff]
    for start in range(0, len(over), _TOGETHER):
        await asyncio.gather(*(_drop_one(session, item) for item in over[start : start + _TOGETHER]))
    return len(over)


async def _drop_one(session: Session, item: Item) -> None:
    standing = equals("archived_at", item["archived_at"]) & absent("files")
    with contextlib.suppress(Failed):
        await session.tables.update(delete(Table.JOBS, (item["job_id"],), standing), lane=Lane.IDLE)
        if "dedup_key" in item:
            own = equals("job_id", item["job_id"])
            await session.tables.update(delete(Table.RECORDS, schema.guard(item["dedup_key"]), own), lane=Lane.IDLE)


class _Kept(msgspec.Struct):
    job_type: str
    content_hash: str | None = None


_kept = msgspec.json.Decoder(_Kept)


async def with_files(session: Session, limit: int) -> list[str]:
    """Return archived jobs with files, except those whose large result or rows are still used by a job that reused
    them."""
    names: list[str] = []
    async for row in _archived(session, "files", limit):
        [item] = await session.tables.get(Table.JOBS, [(row["job_id"],)], lane=Lane.IDLE)
        if item is not None and "files" in item and not await _is_reused(session, item):
            names.append(item["job_id"])
            if len(names) == limit:
                break
    return names


async def _is_reused(session: Session, item: Item) -> bool:
    kept = _kept.decode(item["details"])
    if not kept.content_hash:
        return False
    ask = Ask(table=Table.JOBS, index=CONTENT.name, hash=kept.content_hash, begins=f"{schema.part(kept.job_type)}|")
    ids = [(row["job_id"],) async for row in session.tables.ask(ask, lane=Lane.IDLE)]
    found = await session.tables.get(Table.JOBS, ids, only=("result_artifact", "rows_of"), lane=Lane.IDLE)
    job_id = item["job_id"]
    return any(
        each is not None and (each.get("rows_of") == job_id or job_id in each.get("result_artifact", ""))
        for each in found
    )


async def cleaned(session: Session, job_ids: Sequence[str]) -> None:
    for start in range(0, len(job_ids), _TOGETHER):
        await asyncio.gather(*(_cleaned(session, job_id) for job_id in job_ids[start : start + _TOGETHER]))


async def _cleaned(session: Session, job_id: str) -> None:
    sets = {"ga": schema.archive("clean", job_id, session.shards)}
    write = update(Table.JOBS, (job_id,), sets=sets, removes=("files",), condition=present("archived_at"))
    with contextlib.suppress(Failed):
        await session.tables.update(write, lane=Lane.IDLE)
