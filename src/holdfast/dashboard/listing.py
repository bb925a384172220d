"""Pages of jobs, with only those that the key sees."""

from __future__ import annotations

from typing import Unpack

import msgspec

from holdfast.app import Holdfast
from holdfast.finding import FindOptions
from holdfast.job import Job
from holdfast.server.principals import Principal

PAGE = 50
LOOKED_MAX = 10  # pages of a store that are read for one of ours, where most of what is found is not the key's


class Listed(msgspec.Struct, frozen=True):
    """`next` is the cursor of the page that follows, None at the end."""

    jobs: list[Job]
    next: str | None = None


async def find(app: Holdfast, who: Principal, options: FindOptions, *, limit: int = PAGE) -> Listed:
    """A page may be short, or even empty, and have a `next`: where a key sees little of what there is."""
    asked = within(who, options)
    if asked is None:
        return Listed([])
    if who.sees_all or asked.get("queue") is not None:
        page = await app.find(**having(asked, limit=limit))
        return Listed(list(page), page.next)
    found: list[Job] = []
    after = asked.get("after")
    for _ in range(LOOKED_MAX):
        page = await app.find(**having(asked, after=after, limit=limit - len(found)))
        found += [job for job in page if who.sees(job.queue)]
        after = page.next
        if after is None or len(found) >= limit:
            break
    return Listed(found, after)


def within(who: Principal, options: FindOptions) -> FindOptions | None:
    """The search in the one queue that the key names, where it names one; None where it asks for another's."""
    queue = options.get("queue")
    if queue is not None:
        return options if who.sees(queue) else None
    if len(who.queues) == 1 and "*" not in who.queues[0]:
        return having(options, queue=who.queues[0])
    return options


def having(options: FindOptions, **more: Unpack[FindOptions]) -> FindOptions:
    return {**options, **more}
