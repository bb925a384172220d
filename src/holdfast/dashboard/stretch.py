"""The newest jobs, and those before them, for pages that find things in jobs: so many at a time, never all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.app import Holdfast
from holdfast.job import Job
from holdfast.limits import MIB
from holdfast.reading import Page
from holdfast.server import searching
from holdfast.server.principals import Principal

PART = 200  # read at once
PARTS_MAX = 3  # of them for one answer, where few of the jobs have what is looked for
BYTES_MAX = 8 * MIB  # of payloads and results, about


async def read(
    app: Holdfast, who: Principal, after: str | None, found: Callable[[Sequence[Job]], int], wanted: int
) -> Page:
    """Jobs until enough is found among them, or the budget is used up; with `next` it goes on from there."""
    jobs = Page()
    jobs.next = after
    size = 0
    for _ in range(PARTS_MAX):
        part = await searching.found(app, who, limit=PART, after=jobs.next)
        jobs += part
        jobs.next = part.next
        size += sum(len(job.record.payload) + len(job.record.result or "") for job in part)
        if part.next is None or size > BYTES_MAX or found(jobs) >= wanted:
            break
    return jobs
