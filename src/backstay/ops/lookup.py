"""Which job a part of an id means: 6 or more of its first or last characters.

Ids begin with their time: those of one minute share eight characters, so that it is mostly the end that distinguishes
them.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from backstay.core.records import Page
from backstay.core.states import Status
from backstay.options import FindOptions

Find = Callable[[FindOptions], Awaitable[Page]]

PART_MIN = 6
OWN_END = 12  # 48 random bits: a job that ends so is the one, and the search is over
PAGE = 100  # jobs read at once: whole records, of which only the ids are kept
NEWEST_PAGES = 50  # how far back a search goes; jobs that have not completed are looked for a little further
STATUS_PAGES = 10
_PART = re.compile(f"[0-9a-f]{{{PART_MIN},31}}")


class Match(msgspec.Struct, frozen=True):
    """A job whose id matches."""

    job_id: str
    job_type: str
    status: Status


def part_of(given: str) -> str | None:
    """Return the hexadecimal digits of what was given, or None if it cannot be part of an id."""
    part = given.strip().removeprefix("…").replace("-", "").lower()
    return part if _PART.fullmatch(part) else None


async def matches(find: Find, part: str) -> list[Match]:
    """Find recent jobs, and older ones that have not completed, whose ids begin or end with this part. Archived jobs
    are not searched."""
    found: dict[str, Match] = {}
    async for some in _searched(find, part):
        found |= {match.job_id: match for match in some}
        if found and len(part) >= OWN_END and all(each.replace("-", "").endswith(part) for each in found):
            break
    return list(found.values())


def _fits(whole: str, part: str) -> bool:
    return whole.startswith(part) or whole.endswith(part)


async def _searched(find: Find, part: str) -> AsyncIterator[list[Match]]:
    """Yield matches page by page. Pages are not kept in memory, because payloads may be large."""
    after: str | None = None
    for _ in range(NEWEST_PAGES):
        some, after = _of(await find({"limit": PAGE, "after": after}), part)
        yield some
        if after is None:
            return
    for status in Status:
        if status is Status.COMPLETED:
            continue
        after = None
        for _ in range(STATUS_PAGES):
            some, after = _of(await find({"status": status, "limit": PAGE, "after": after}), part)
            yield some
            if after is None:
                break


def _of(page: Page, part: str) -> tuple[list[Match], str | None]:
    fitting = (job for job in page.items if _fits(job.job_id.replace("-", ""), part))
    return [Match(job.job_id, job.job_type, job.status) for job in fitting], page.next
