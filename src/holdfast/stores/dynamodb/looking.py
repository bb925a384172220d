"""What an insert has to know before it decides: read consistently, but for the index that proposes identical jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.lifecycle import ACTIVE, Status
from holdfast.store.types import NewJob
from holdfast.stores.dynamodb import bodies, keys, moving
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import CONTENT, Table
from holdfast.stores.dynamodb.table import Ask
from holdfast.stores.dynamodb.values import Item

Content = tuple[str, str]  # hash and job type: what makes jobs identical
_PROPOSED_MAX = 20  # identical jobs that are looked at; one that is not found among them is not reused, only


class Looked(msgspec.Struct):
    """Jobs by id, those of the archive too; guards by key; of identical ones the newest completed, with its result as
    text, and the oldest on its way."""

    items: dict[str, Item] = {}
    guards: dict[str, Item] = {}
    payloads: dict[str, str] = {}  # of the jobs that keys stand for, where a conflict is an error
    donors: dict[Content, Item] = {}
    leaders: dict[Content, Item] = {}


async def look(ground: Ground, jobs: Sequence[NewJob], *, every_id: bool = False) -> Looked:
    """`every_id`: whether ids that the store gave are looked up too, because this may be a repetition."""
    special = [job for job in jobs if job.special]
    wanted = {job.job_id for job in (jobs if every_id else special) if every_id or job.own_id}
    for job in special:
        wanted.update(job.depends_on)
        if job.parent_job_id is not None:
            wanted.add(job.parent_job_id)
    guarded = list(dict.fromkeys(job.dedup_key for job in special if job.dedup_key is not None))
    contents: list[Content] = list(
        {(job.content_hash, job.job_type) for job in special if job.reuse_since is not None and job.content_hash}
    )
    if not wanted and not guarded and not contents:
        return Looked()
    looked = Looked()
    looked.items, guards = await asyncio.gather(get_jobs(ground, wanted), _guards(ground, guarded))
    looked.guards = guards
    targets = {guard["job_id"] for guard in guards.values()} - wanted
    looked.items.update(await get_jobs(ground, targets))
    identical = await asyncio.gather(*(_identical(ground, hashed, kind) for hashed, kind in contents))
    for content, (donor, leader) in zip(contents, identical, strict=True):
        if donor is not None:
            looked.donors[content] = donor
        if leader is not None:
            looked.leaders[content] = leader
    strict = {job.dedup_key for job in special if job.dedup_conflict_is_error}
    looked.payloads = await _payloads(ground, looked, [key for key in guards if key in strict])
    return looked


async def get_jobs(ground: Ground, job_ids: Iterable[str]) -> dict[str, Item]:
    """Those there are, or were: what the archive keeps lies in the same place."""
    wanted = list(job_ids)
    if not wanted:
        return {}
    found = await ground.tables.get(Table.JOBS, [(job_id,) for job_id in wanted])
    return {job_id: item for job_id, item in zip(wanted, found, strict=True) if item is not None}


async def _guards(ground: Ground, guarded: list[str]) -> dict[str, Item]:
    if not guarded:
        return {}
    found = await ground.tables.get(Table.RECORDS, [keys.guard(key) for key in guarded])
    return {key: item for key, item in zip(guarded, found, strict=True) if item is not None}


async def _payloads(ground: Ground, looked: Looked, guarded: list[str]) -> dict[str, str]:
    targets = [
        looked.items[guard["job_id"]]
        for guard in map(looked.guards.__getitem__, guarded)
        if moving.is_there(looked.items.get(guard["job_id"]))
    ]
    texts = await bodies.fetch(ground.tables, targets)
    return {item["job_id"]: bodies.payload(item, texts) for item in targets}


async def _identical(ground: Ground, content_hash: str, job_type: str) -> tuple[Item | None, Item | None]:
    """The newest finished job, and the oldest on its way: which of them serves, the insert decides."""
    kind = keys.part(job_type)
    # In this order: one that completes in between is found as completed, and not missed as both.
    under_way = await _proposed(ground, content_hash, f"{kind}|open|", backwards=False)
    done = await _proposed(ground, content_hash, f"{kind}|done|", backwards=True)
    donor = await _donor(ground, [item for item in done if item["status"] == Status.COMPLETED])
    leader = next((item for item in under_way if Status(item["status"]) in ACTIVE and "joins" not in item), None)
    try:
        return None if donor is None else await with_result(ground, donor), leader
    except bodies.Missing:  # retired since: it has nothing to give
        return None, leader


async def _donor(ground: Ground, done: Sequence[Item]) -> Item | None:
    """The newest whose rows, if it has some from another, are not withdrawn, nor about to be: that one runs again."""
    owners = await get_jobs(ground, {item["rows_of"] for item in done if "rows_of" in item})
    for item in done:
        owner = owners.get(item.get("rows_of", ""))
        if "rows_of" not in item or (
            moving.has_rows_of(item, owner) and owner is not None and moving.status_of(owner) is Status.COMPLETED
        ):
            return item
    return None


async def _proposed(ground: Ground, content_hash: str, begins: str, *, backwards: bool) -> list[Item]:
    ask = Ask(
        table=Table.JOBS,
        index=CONTENT.name,
        hash=content_hash,
        begins=begins,
        backwards=backwards,
        page=_PROPOSED_MAX,
    )
    ids = []
    async for row in ground.tables.ask(ask):
        ids.append(row["job_id"])
        if len(ids) == _PROPOSED_MAX:
            break
    found = await get_jobs(ground, ids)
    return [found[job_id] for job_id in ids if moving.is_there(found.get(job_id))]


async def with_result(ground: Ground, donor: Item) -> Item:
    """The donor with its result as text, wherever that lies: who reuses it keeps a copy."""
    if "result_body" not in donor:
        return donor
    texts = await bodies.fetch(ground.tables, [donor])
    whole = {name: value for name, value in donor.items() if name != "result_body"}
    result = bodies.result(donor, texts)
    return whole if result is None else {**whole, "result": result}
