"""Searches that show a key only what it sees, without walking past everything else."""

from __future__ import annotations

from typing import Unpack

from holdfast.app import Holdfast, Page
from holdfast.finding import FindOptions
from holdfast.job import Job
from holdfast.limits import MIB, SIFTED_ROWS_MAX
from holdfast.server.principals import Principal

PART = 100  # jobs read at once for a longer page
PAGE_BYTES_MAX = 8 * MIB  # of payloads and results on a page, about: it is in memory twice


async def page_of(app: Holdfast, who: Principal, **options: Unpack[FindOptions]) -> Page:
    """As `found`, for an answer that has to stay within a size: a page of large jobs is shorter."""
    if _has_to_sift(who, options):
        return await _sifted(app, who, options)
    whole = Page()
    left, size = options.get("limit", 50), 0
    while True:
        options["limit"] = min(PART, left)
        part = await found(app, who, **options)
        whole += part
        whole.next = part.next
        left -= len(part)
        size += sum(map(_bytes, part))
        if part.next is None or not part or left <= 0 or size > PAGE_BYTES_MAX:
            return whole
        options["after"] = part.next


async def found(app: Holdfast, who: Principal, **options: Unpack[FindOptions]) -> Page:
    """As app.find, of the queues that `who` sees. A page can be short although more follow: `next` tells."""
    if who.sees_all:
        return await app.find(**options)
    if _has_to_sift(who, options):
        return await _sifted(app, who, options)
    queue = options["queue"] = options.get("queue") or who.queues[0]
    return await app.find(**options) if who.sees(queue) else await _none(app, options)


def _has_to_sift(who: Principal, options: FindOptions) -> bool:
    """Whether no index tells what the key sees: it has patterns, or several queues."""
    one = options.get("queue") is not None or (len(who.queues) == 1 and "*" not in who.queues[0])
    return not who.sees_all and not one


async def _none(app: Holdfast, options: FindOptions) -> Page:
    """Another's queue looks like one without jobs; what is wrong with the question is said all the same."""
    options["limit"] = 1
    await app.find(**options)
    return Page()


async def _sifted(app: Holdfast, who: Principal, options: FindOptions) -> Page:
    """What the key sees of the next rows, up to a fixed number of these however few were asked for. It may then be
    short, or empty, and its `next` goes on."""
    whole = Page()
    wanted, size = options.get("limit", 50), 0
    for _ in range(SIFTED_ROWS_MAX // PART):
        options["limit"] = PART
        page = await app.find(**options)
        places = [place for place, job in enumerate(page) if who.sees(job.queue)]
        if len(places) >= wanted - len(whole):  # read again as far as it is wanted, for a cursor that goes on there
            options["limit"] = places[wanted - len(whole) - 1] + 1
            page = page if options["limit"] == len(page) else await app.find(**options)
        seen = [job for job in page if who.sees(job.queue)]
        whole += seen
        whole.next = page.next
        size += sum(map(_bytes, seen))
        if page.next is None or len(whole) >= wanted or size > PAGE_BYTES_MAX:
            break
        options["after"] = page.next
    return whole


def _bytes(job: Job) -> int:
    return len(job.record.payload) + len(job.record.result or "")
