"""Retention: ended jobs that are over their time are replaced, in place, by what is kept of them.

It walks the ended jobs in order of arrival, a step at a time. What was read is compared by the write that moves it, so
that a job which someone retries, or gives a child, in between stays. A tree goes in one commit, or not at all; one
that is larger than a commit is frozen first (see retiring_trees).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence

import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import TERMINAL
from holdfast.store.types import RetentionPolicy, Retired
from holdfast.stores import retiring
from holdfast.stores.dynamodb import items, keys, leftovers, moving, retiring_trees, totalling, trailing
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.commit import Cancelled, Commit, Write, delete, replace, update
from holdfast.stores.dynamodb.expressions import absent, equals, present, unchanged
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import ARCHIVE, CONTENT, ROOT, STATUS, Table
from holdfast.stores.dynamodb.merging import merged
from holdfast.stores.dynamodb.outbox import MarkKind, place
from holdfast.stores.dynamodb.table import Failed
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane

_TOGETHER = 16
TREE_MAX = 90  # jobs of one commit


async def retire(ground: Ground, policy: RetentionPolicy, now: Instant, limit: int, after: str | None) -> Retired:
    newest = retiring.newest_cutoff(policy, now)
    found = retiring.Found([], None)
    archived = 0
    if newest is not None:
        rows = await _step(ground, newest, limit, after)
        if len(rows) == limit:
            found.next = str(rows[-1]["gc"])
        over = [row["job_id"] for row in rows if _is_row_over(policy, row, now)]
        archived = await _move(ground, policy, over, now)
    dropped = await _drop(ground, policy, now, limit)
    await totalling.keep_up(ground.tables, now)
    await trailing.drop(ground, now, limit)
    return retiring.answer(found, archived, dropped, limit)


async def _step(ground: Ground, newest: Instant, limit: int, after: str | None) -> list[Item]:
    """The next ended jobs by arrival. What came after `newest` cannot have ended before it."""
    asks = [
        Ask(
            table=Table.JOBS,
            index=STATUS.name,
            hash=hash_value,
            above=after,
            below=keys.at(newest),
            page=limit,
        )
        for status in sorted(TERMINAL)
        for hash_value in keys.all_shards(status.value, ground.shards)
    ]
    rows = []
    async for row in merged([ground.tables.ask(ask, lane=Lane.IDLE) for ask in asks], STATUS.range):
        rows.append(row)
        if len(rows) == limit:
            break
    return rows


def _is_row_over(policy: RetentionPolicy, row: Item, now: Instant) -> bool:
    status = str(row["gs"]).partition("#")[0]
    return retiring.is_over(policy, row["job_type"], status, row.get("completed_at"), now)


def is_over(policy: RetentionPolicy, item: Item, now: Instant) -> bool:
    return retiring.is_over(policy, item["job_type"], item["status"], item.get("completed_at"), now)


# Moving


async def _move(ground: Ground, policy: RetentionPolicy, job_ids: Sequence[str], now: Instant) -> int:
    found = await ground.tables.get(Table.JOBS, [(job_id,) for job_id in job_ids], lane=Lane.IDLE)
    standing = [item for item in found if item is not None and moving.is_there(item) and is_over(policy, item, now)]
    alone = [item for item in standing if root_of(item) is None and item.get("open", 0) <= 0]
    roots = {root: None for item in standing if (root := root_of(item)) is not None}
    alone = await _without_marks(ground, alone)
    moved = 0
    for start in range(0, len(alone), _TOGETHER):
        batch = alone[start : start + _TOGETHER]
        moved += sum(await asyncio.gather(*(_move_one(ground, item, now) for item in batch)))
    for root in roots:
        moved += await _move_tree(ground, policy, root, now)
    return moved


def root_of(item: Item) -> str | None:
    """The root of its tree, if it is in one."""
    root: str | None = item.get("root_job_id")
    if root is None and item.get("children"):
        root = item["job_id"]
    return root


def archived(item: Item, now: Instant) -> Write:
    """What is kept of a job, if it stands as it was read: nobody waits for it who did not then, nor is its child."""
    return replace(item, items.archived(item, now), also=unchanged(item, "awaited", "children", "open", "frozen"))


async def _move_one(ground: Ground, item: Item, now: Instant) -> bool:
    if "frozen" in item:
        await retiring_trees.thaw(ground, item, now)
        return False  # it goes with the next pass
    try:
        await ground.tables.update(archived(item, now), lane=Lane.IDLE, verb="retire")
    except Failed:
        return False
    await leftovers.remove(ground, [item])
    return True


async def _without_marks(ground: Ground, found: Sequence[Item]) -> list[Item]:
    """Those whose end has reached all that waited for it."""
    asked = [item for item in found if item.get("awaited") or item.get("needs")]
    places = [place(kind, item["job_id"]) for item in asked for kind in (MarkKind.ENDED, MarkKind.LINK)]
    marks = await ground.tables.get(Table.RECORDS, places, only=("name",), lane=Lane.IDLE)
    marked = {mark["name"] for mark in marks if mark is not None}
    return [item for item in found if item["job_id"] not in marked]


async def members_of(ground: Ground, root: str) -> list[Item]:
    """Every job of a tree that is still here."""
    ids = {root: None}
    ask = Ask(table=Table.JOBS, index=ROOT.name, hash=root)
    async for row in ground.tables.ask(ask, lane=Lane.IDLE):
        ids[row["job_id"]] = None
    found = await ground.tables.get(Table.JOBS, [(job_id,) for job_id in ids], lane=Lane.IDLE)
    return [item for item in found if item is not None and moving.is_there(item)]


async def _move_tree(ground: Ground, policy: RetentionPolicy, root: str, now: Instant) -> int:
    members = await members_of(ground, root)
    if not members or not all(is_over(policy, item, now) for item in members) or not _is_whole(members):
        return 0
    if ice := [item for item in members if "frozen" in item]:
        for item in ice:
            await retiring_trees.thaw(ground, item, now)
        return 0  # it goes with the next pass
    if len(await _without_marks(ground, members)) < len(members):
        return 0
    if len(members) > TREE_MAX:
        return await retiring_trees.retire(ground, root, members, now)
    commit = Commit(ground.tables, "retire", now)
    commit.write(*(archived(item, now) for item in members))
    try:
        await commit.run(Lane.IDLE)
    except Cancelled:
        return 0  # a part of it is in use again
    await leftovers.remove(ground, members)
    return len(members)


def _is_whole(members: Iterable[Item]) -> bool:
    """Whether the index has shown every child: each parent knows how many it has, and whether some are to come."""
    listed = list(members)
    shown = Counter(item.get("parent_job_id") for item in listed)
    return all(item.get("children", 0) <= shown[item["job_id"]] and item.get("open", 0) <= 0 for item in listed)


# The end of the archive, and files


def _archived(ground: Ground, kind: str, limit: int, *, before: str | None = None) -> AsyncIterator[Item]:
    """The oldest first, over all shards."""
    asks = [
        Ask(table=Table.JOBS, index=ARCHIVE.name, hash=hash_value, below=before, page=limit)
        for hash_value in keys.all_shards(kind, ground.shards)
    ]
    return merged([ground.tables.ask(ask, lane=Lane.IDLE) for ask in asks], ARCHIVE.range)


async def _drop(ground: Ground, policy: RetentionPolicy, now: Instant, limit: int) -> int:
    if policy.archive_micros is None:
        return 0
    cutoff = now - policy.archive_micros
    ids: list[str] = []
    async for row in _archived(ground, "clean", limit, before=keys.at(cutoff)):
        ids.append(row["job_id"])
        if len(ids) == limit:
            break
    found = await ground.tables.get(Table.JOBS, [(job_id,) for job_id in ids], lane=Lane.IDLE)
    over = [item for item in found if item is not None and item.get("archived_at", cutoff) < cutoff]
    for start in range(0, len(over), _TOGETHER):
        await asyncio.gather(*(_drop_one(ground, item) for item in over[start : start + _TOGETHER]))
    return len(over)


async def _drop_one(ground: Ground, item: Item) -> None:
    standing = equals("archived_at", item["archived_at"]) & absent("files")
    with contextlib.suppress(Failed):
        await ground.tables.update(delete(Table.JOBS, (item["job_id"],), standing), lane=Lane.IDLE)
        if "dedup_key" in item:
            own = equals("job_id", item["job_id"])
            await ground.tables.update(delete(Table.RECORDS, keys.guard(item["dedup_key"]), own), lane=Lane.IDLE)


class _Kept(msgspec.Struct):
    job_type: str
    content_hash: str | None = None


_kept = msgspec.json.Decoder(_Kept)


async def with_files(ground: Ground, limit: int) -> list[str]:
    """All but those in which a large result, or rows, lie that a job which reused them still has."""
    names: list[str] = []
    async for row in _archived(ground, "files", limit):
        [item] = await ground.tables.get(Table.JOBS, [(row["job_id"],)], lane=Lane.IDLE)
        if item is not None and "files" in item and not await _is_reused(ground, item):
            names.append(item["job_id"])
            if len(names) == limit:
                break
    return names


async def _is_reused(ground: Ground, item: Item) -> bool:
    kept = _kept.decode(item["details"])
    if not kept.content_hash:
        return False
    ask = Ask(table=Table.JOBS, index=CONTENT.name, hash=kept.content_hash, begins=f"{keys.part(kept.job_type)}|")
    ids = [(row["job_id"],) async for row in ground.tables.ask(ask, lane=Lane.IDLE)]
    found = await ground.tables.get(Table.JOBS, ids, only=("result_artifact", "rows_of"), lane=Lane.IDLE)
    job_id = item["job_id"]
    return any(
        each is not None and (each.get("rows_of") == job_id or job_id in each.get("result_artifact", ""))
        for each in found
    )


async def cleaned(ground: Ground, job_ids: Sequence[str]) -> None:
    for start in range(0, len(job_ids), _TOGETHER):
        await asyncio.gather(*(_cleaned(ground, job_id) for job_id in job_ids[start : start + _TOGETHER]))


async def _cleaned(ground: Ground, job_id: str) -> None:
    sets = {"ga": keys.archive("clean", job_id, ground.shards)}
    write = update(Table.JOBS, (job_id,), sets=sets, removes=("files",), condition=present("archived_at"))
    with contextlib.suppress(Failed):
        await ground.tables.update(write, lane=Lane.IDLE)
