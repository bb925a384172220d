"""`Coalescer`: submits that arrive together share a commit, in every engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

from backstay.clock import Instant
from backstay.core.records import Inserted, NewJob
from backstay.errors import NotOpen, QueueFull, StoreError

_Submit = tuple[Sequence[NewJob], Instant, asyncio.Future[list[Inserted]]]


class Coalescer:
    """Joins the submits of one turn of the event loop into one insert, in the order in which they came.

    `insert` stores jobs in one commit, which has at most `jobs_max` jobs. With `at_once`, a submit that seems to be
    alone does not wait for the end of the turn; if others come after all, they need a second commit."""

    def __init__(
        self,
        insert: Callable[[Sequence[NewJob], Instant], Awaitable[list[Inserted]]],
        *,
        jobs_max: int | None = None,
        at_once: bool = False,
    ) -> None:
        self._insert = insert
        self._jobs_max = jobs_max
        self._at_once = at_once
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[_Submit] = []
        self._comes_alone = True  # whether submits come one at a time, as far as the last turn tells
        self._running = 0  # inserts that are to be answered
        self._none_running = asyncio.Event()
        self._none_running.set()
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop itself keeps only weak references

    def open(self) -> None:
        """From now on, take submits of the running event loop only."""
        self._loop = asyncio.get_running_loop()

    def refuse_other_loop(self) -> None:
        """Raise for a submit on another event loop: its answer would never come, nor those of others that share its
        commit."""
        if self._loop is not None and asyncio.get_running_loop() is not self._loop:
            raise NotOpen(
                "this app was opened on another event loop: use backstay.sync from threads, or open an app per loop"
            )

    async def insert(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        self.refuse_other_loop()
        if self._at_once and self._comes_alone and not self._running:
            self._begin()
            try:
                return await self._insert(jobs, now)
            finally:
                self._end()
        loop = asyncio.get_running_loop()
        if not self._waiting:
            self._begin()
            task = loop.create_task(self._flush())
            self._tasks.add(task)
            task.add_done_callback(self._flushed)
        answer: asyncio.Future[list[Inserted]] = loop.create_future()
        self._waiting.append((jobs, now, answer))
        return await answer

    async def finish(self) -> None:
        """Wait until every submit so far has its answer."""
        await self._none_running.wait()

    async def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._comes_alone = len(waiting) == 1 and self._running == 1
        first, *others = [waiting] if self._jobs_max is None else _groups(waiting, self._jobs_max)
        if others:
            await asyncio.gather(*map(self._insert_group, (first, *others)))
        else:
            await self._insert_group(first)

    def _flushed(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._end()

    async def _insert_group(self, group: list[_Submit]) -> None:
        now = max(now for _, now, _ in group)  # with an earlier one, jobs of the others would not be due yet
        try:
            inserted = await self._insert([job for jobs, _, _ in group for job in jobs], now)
        except Exception as error:
            if len(group) > 1 and type(error) in (StoreError, QueueFull):  # refused because of one: ask for each
                for submit in group:
                    await self._insert_group([submit])
                return
            for _, _, answer in group:
                if not answer.done():  # else its caller was cancelled
                    answer.set_exception(error)
            return
        start = 0
        for jobs, _, answer in group:
            end = start + len(jobs)
            if not answer.done():
                answer.set_result(inserted[start:end])
            start = end

    def _begin(self) -> None:
        self._running += 1
        self._none_running.clear()

    def _end(self) -> None:
        self._running -= 1
        if not self._running:
            self._none_running.set()


def _groups(waiting: list[_Submit], jobs_max: int) -> Iterator[list[_Submit]]:
    group: list[_Submit] = []
    size = 0
    for submit in waiting:
        if group and size + len(submit[0]) > jobs_max:
            yield group
            group, size = [], 0
        group.append(submit)
        size += len(submit[0])
    yield group
