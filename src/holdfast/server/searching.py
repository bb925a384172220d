"""Searches that show a key only what it sees, without walking past everything else."""

from __future__ import annotations

from typing import Unpack

from holdfast.app import Holdfast, Page
from holdfast.finding import FindOptions
from holdfast.limits import MIB
from holdfast.server.principals import Principal

PART = 100  # jobs read at once for a longer page
PAGE_BYTES_MAX = 8 * MIB  # of payloads and results on a page, about: it is in memory twice
PAGES_MAX = 10  # looked at for one answer; it may then be short, or empty, and its `next` goes on


async def page_of(app: Holdfast, who: Principal, **options: Unpack[FindOptions]) -> Page:
    """As `found`, for an answer that has to stay within a size: a page of large jobs is shorter."""
    whole = Page()
    left, size = options.get("limit", 50), 0
    while True:
        options["limit"] = min(PART, left)
        part = await found(app, who, **options)
        whole += part
        whole.next = part.next
        left -= len(part)
        size += sum(len(job.record.payload) + len(job.record.result or "") for job in part)
        if part.next is None or not part or left <= 0 or size > PAGE_BYTES_MAX:
            return whole
        options["after"] = part.next


async def found(app: Holdfast, who: Principal, **options: Unpack[FindOptions]) -> Page:
    """As app.find, of the queues that `who` sees. A page can be short although more follow: `next` tells."""
    if who.sees_all:
        return await app.find(**options)
    if options.get("queue") is None and len(who.queues) == 1 and "*" not in who.queues[0]:
        options["queue"] = who.queues[0]
    if (queue := options.get("queue")) is not None:
        return await app.find(**options) if who.sees(queue) else await _none(app, options)
    return await _sifted(app, who, options)


async def _none(app: Holdfast, options: FindOptions) -> Page:
    """Another's queue looks like one without jobs; what is wrong with the question is said all the same."""
    options["limit"] = 1
    await app.find(**options)
    return Page()


async def _sifted(app: Holdfast, who: Principal, options: FindOptions) -> Page:
    """Pages as they come, without what the key does not see, until one has something in it."""
    for _ in range(PAGES_MAX):
        page = await app.find(**options)
        seen = Page(job for job in page if who.sees(job.queue))
        seen.next = page.next
        if seen or page.next is None:
            return seen
        options["after"] = page.next
    return seen
