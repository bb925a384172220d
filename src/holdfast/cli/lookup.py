"""Which job is meant: a whole id, or enough of its beginning or its end to tell it from the others.

Ids begin with their time: those of one minute share eight characters, so that it is mostly the end that tells.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from holdfast import ids
from holdfast.app import Holdfast
from holdfast.errors import InvalidOption, JobNotFound
from holdfast.job import Job
from holdfast.lifecycle import Status
from holdfast.limits import FIND_LIMIT_MAX

PART_MIN = 6
OWN_END = 12  # 48 random bits: a job that ends so is the one, and the search is over
NEWEST_PAGES = 5  # how far back a search goes; jobs that have not completed are looked for a little further
_PART = re.compile(f"[0-9a-f]{{{PART_MIN},31}}")
_NAMED = 5  # jobs that an error lists


async def job_id(app: Holdfast, given: str) -> str:
    """The whole id. JobNotFound where no job fits, InvalidOption where several do."""
    part = given.strip().replace("-", "").lower()
    if not _PART.fullmatch(part):
        return _whole(given)
    found: dict[str, Job] = {}
    async for page in _pages(app):
        found |= {job.job_id: job for job in page if _fits(job.job_id.replace("-", ""), part)}
        if found and len(part) >= OWN_END and all(each.replace("-", "").endswith(part) for each in found):
            break
    if len(found) == 1:
        return next(iter(found))
    if found:
        named = list(found.values())[:_NAMED]
        listed = ", ".join(f"{job.job_id} ({job.job_type}, {job.status.value})" for job in named)
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise InvalidOption(f"{given!r:.40} fits {len(found)} jobs: {listed}{more}: give more of the id")
    raise JobNotFound(
        f"no job whose id begins or ends with {given!r:.40} among the newest: give the whole id, as"
        ' "holdfast list --json" has it; archived jobs are found by their whole id only'
    )


def _whole(given: str) -> str:
    try:
        return ids.canonical(given)
    except InvalidOption:
        raise InvalidOption(
            f"{given!r:.100} is not a job id: ids are UUIDs; {PART_MIN} or more of the first or last characters of one"
            " will do"
        ) from None


def _fits(whole: str, part: str) -> bool:
    return whole.startswith(part) or whole.endswith(part)


async def _pages(app: Holdfast) -> AsyncIterator[list[Job]]:
    after: str | None = None
    for _ in range(NEWEST_PAGES):
        page = await app.find(limit=FIND_LIMIT_MAX, after=after)
        yield page
        after = page.next
        if after is None:
            return
    for status in Status:
        if status is not Status.COMPLETED:
            yield await app.find(status=status, limit=FIND_LIMIT_MAX)
