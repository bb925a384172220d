"""Searches that show a key only what it sees, without walking past everything else."""

from __future__ import annotations

from typing import Unpack

from holdfast.app import Holdfast, Page
from holdfast.finding import FindOptions
from holdfast.server.principals import Principal

PAGES_MAX = 10  # looked at for one answer; it may then be short, or empty, and its `next` goes on


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
