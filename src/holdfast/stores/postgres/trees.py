"""Children of running jobs: at once, staged, and listed."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.clock import Instant
from holdfast.lifecycle import Status
from holdfast.store.types import Hold, Inserted, NewJob, Page, Verdict
from holdfast.stores.postgres import inserting, reading, unpacking
from holdfast.stores.postgres.tx import Tx
from holdfast.stores.transitions import held

_FIRST = "00000000-0000-0000-0000-000000000000"


async def insert_children(
    tx: Tx, hold: Hold, jobs: Sequence[NewJob], now: Instant, store_now: Instant | None, repeat: bool
) -> list[Inserted] | None:
    row = await tx.row("hold_claim", hold.job_id)  # held: a rescue waits until these are there, or is seen
    if held(hold, None if row is None else tuple(row)) is not Verdict.APPLIED:
        return None
    return await inserting.insert(tx, jobs, now, store_now, repeat)


async def stage(tx: Tx, hold: Hold, part: int, jobs: Sequence[NewJob]) -> Verdict:
    if await unpacking.stage(tx, hold, part, jobs):
        return Verdict.APPLIED
    found = await tx.row("standing", [hold.job_id])
    return held(hold, None if found is None else (found[1], found[2], found[3]))


def children_statement(get_statement: str) -> str:
    """Index: job_parent."""
    return get_statement.partition("WHERE ")[0] + (
        "WHERE parent_job_id = $1::uuid AND job_id > $2::uuid AND ($3::text IS NULL OR (status || '') = $3)"
        " ORDER BY job.job_id LIMIT $4"
    )


async def children(tx: Tx, job_id: str, after: str | None, limit: int, status: Status | None) -> Page:
    wanted = None if status is None else status.value
    found = await tx.connection.fetch(children_statement(tx.sql["get"]), job_id, after or _FIRST, wanted, limit + 1)
    items = await reading.with_edges(tx, found[:limit])
    return Page(items, items[-1].job_id if len(found) > limit else None)
