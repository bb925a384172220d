"""insert: plain jobs of one turn of the event loop become one commit; what is larger than a commit goes through the
journal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from holdfast.clock import Instant
from holdfast.errors import QueueFull, StoreError
from holdfast.store.types import Inserted, NewJob
from holdfast.stores.dynamodb import journal, storing
from holdfast.stores.dynamodb.commit import ITEMS_MAX, Write
from holdfast.stores.dynamodb.ground import Ground

TOGETHER_MAX = 90  # plain jobs of several callers in one commit, which leaves room for their counters

_Submit = tuple[Sequence[NewJob], Instant, "asyncio.Future[list[Inserted]]"]


class Submits:
    """The inserts of one store: plain ones of one turn of the loop are one commit."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._waiting: list[_Submit] = []
        self._under_way: set[asyncio.Task[None]] = set()

    async def insert(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        if not jobs:
            return []
        if len(jobs) > TOGETHER_MAX or any(job.special for job in jobs):
            return await insert(self._ground, jobs, now)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Inserted]] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._flush)
        self._waiting.append((jobs, now, future))
        return await future

    async def finish(self) -> None:
        """Wait for what is under way."""
        while self._under_way or self._waiting:
            await asyncio.gather(*self._under_way, asyncio.sleep(0), return_exceptions=True)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        group: list[_Submit] = []
        for submit in waiting:
            if group and sum(len(jobs) for jobs, _, _ in group) + len(submit[0]) > TOGETHER_MAX:
                self._begin(group)
                group = []
            group.append(submit)
        self._begin(group)

    def _begin(self, group: list[_Submit]) -> None:
        task = asyncio.create_task(self._run(group))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _run(self, group: list[_Submit]) -> None:
        now = max(at for _, at, _ in group)  # with the first one's, the others would be due later
        try:
            answers = iter(await insert(self._ground, [job for jobs, _, _ in group for job in jobs], now))
        except Exception as error:
            if len(group) > 1 and type(error) in (StoreError, QueueFull):  # what is refused harms only its own caller
                await asyncio.gather(*(self._run([submit]) for submit in group))
                return
            for _, _, future in group:
                if not future.done():
                    future.set_exception(error)
            return
        for jobs, _, future in group:
            share = [next(answers) for _ in jobs]
            if not future.done():
                future.set_result(share)


async def insert(
    ground: Ground, jobs: Sequence[NewJob], now: Instant, *, verb: str = "insert", also: Sequence[Write] = ()
) -> list[Inserted]:
    """All of them or none, with what else is to be in the commit; through the journal where one commit is too small."""
    if len(jobs) <= ITEMS_MAX:
        with contextlib.suppress(storing.TooLarge):
            return await storing.store(ground, jobs, now, verb=verb, also=also)
    return await journal.insert(ground, jobs, now, verb=verb, also=also)
