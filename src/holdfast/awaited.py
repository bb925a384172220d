"""What a waiting job waits for, as far as an explanation names it: children of its own, or an identical job."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.lifecycle import Status
from holdfast.store.port import Store
from holdfast.store.types import JobRecord


async def open_children(store: Store, job: JobRecord, limit: int) -> list[tuple[str, Status]]:
    """A few of them, those first that show what it waits for."""
    found: list[tuple[str, Status]] = []
    for status in (Status.PROCESSING, Status.RETRYING, Status.PENDING, Status.SCHEDULED, Status.WAITING):
        if len(found) < limit:
            page = await store.children(job.job_id, None, limit, status)
            found += [(each.job_id, each.status) for each in page.items]
    return found[:limit]


async def joined(store: Store, job: JobRecord, waits_on: Sequence[str]) -> str | None:
    """The one that does the same work, whose result it will take."""
    if job.content_hash is None:
        return None
    same = (job.job_type, job.content_hash)
    found = await store.get(waits_on)
    return next((each.job_id for each in found if each and (each.job_type, each.content_hash) == same), None)
