"""A summary of all workers of a store: their states, order, and the queues and types they serve.

There may be ten thousand workers. A summary keeps a little of each; a page that shows some of them reads their rows.
Where there are many, a summary is read in parts, once for all requests, and for a share of the time at most.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec
from fastapi import Request

from backstay.app import Backstay
from backstay.clock import Instant
from backstay.core import workers
from backstay.core.records import WorkerRow
from backstay.core.states import Status
from backstay.core.workers import State
from backstay.job import Job

FEW = 100  # workers, which are read again for every request
PAGE = 1_000
REST = 8  # a reading of more is not repeated for this many times as long as it took
WAIT_SECONDS = 0.2  # for a reading; after that the previous summary will do
_LIKELY = 50


class Brief(msgspec.Struct, frozen=True, gc=False):
    """What is kept of a worker, as it was at its last heartbeat."""

    worker_id: str
    heartbeat_at: Instant
    lease_micros: int
    said: State
    stopping: bool
    takes_jobs: bool

    def state(self, now: Instant) -> State:
        return "silent" if workers.is_silent(self, now) else self.said


class Served(msgspec.Struct, frozen=True):
    """Workers that serve the same queues and types, as most of a fleet do."""

    queues: tuple[str, ...]
    job_types: frozenset[str]
    workers: list[Brief]


class WorkerSummary(msgspec.Struct, frozen=True):
    served: Sequence[Served] = ()

    def seen_by(self, sees: Callable[[str], bool]) -> WorkerSummary:
        """Return the workers that serve a queue which is seen."""
        return WorkerSummary([each for each in self.served if any(map(sees, each.queues))])

    def __iter__(self) -> Iterator[Brief]:
        return (brief for each in self.served for brief in each.workers)

    def states(self, now: Instant) -> Counter[State]:
        return Counter(brief.state(now) for brief in self)

    def ids(self, now: Instant, states: Sequence[State] = workers.STATES) -> list[str]:
        """Return the ids as lists have them: by id, silent workers last."""
        found = [(brief.state(now), brief.worker_id) for brief in self]
        return [name for _, name in sorted((state == "silent", name) for state, name in found if state in states)]

    def serving(self, now: Instant) -> Counter[str]:
        """Count the workers of each queue that are not silent."""
        found: Counter[str] = Counter()
        for each in self.served:
            living = sum(not workers.is_silent(brief, now) for brief in each.workers)
            found.update(dict.fromkeys(each.queues, living))
        return +found

    def handled(self) -> frozenset[str]:
        """Return the types of workers that are not stopping."""
        return frozenset().union(
            *(each.job_types for each in self.served if not all(brief.stopping for brief in each.workers))
        )

    def able(self, queue: str, job_type: str, now: Instant, limit: int) -> list[str]:
        """Return some workers that take jobs of this kind, if they have room."""
        found: list[str] = []
        for each in self.served:
            if queue in each.queues and job_type in each.job_types:
                takers = (brief for brief in each.workers if brief.takes_jobs and not workers.is_silent(brief, now))
                found += [brief.worker_id for brief in takers][: limit - len(found)]
        return found


class WorkerSummaries:
    """The latest summary; one of these per server."""

    def __init__(self, app: Backstay) -> None:
        self._app = app
        self._last: WorkerSummary | None = None  # of many workers
        self._took = self._rests_until = 0.0  # seconds
        self._reading: asyncio.Task[WorkerSummary] | None = None

    async def latest(self) -> WorkerSummary:
        rows = await self._app.workers(limit=FEW + 1)
        if len(rows) <= FEW:
            self._last = None
            return WorkerSummary(_served({}, rows))
        if self._last is not None and self._app.clock.monotonic() < self._rests_until:
            return self._last
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read())
            self._reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self._last is not None:
            done, _ = await asyncio.wait({self._reading}, timeout=0 if self._took > WAIT_SECONDS else WAIT_SECONDS)
            return self._reading.result() if done else self._last
        return await asyncio.shield(self._reading)

    async def _read(self) -> WorkerSummary:
        began = self._app.clock.monotonic()
        found: dict[tuple[tuple[str, ...], tuple[str, ...]], Served] = {}
        rows = await self._app.workers(limit=PAGE)
        served = _served(found, rows)
        while len(rows) == PAGE:
            rows = await self._app.workers(after=rows[-1].worker_id, limit=PAGE)
            served = _served(found, rows)
        self._last = WorkerSummary(served)
        ended = self._app.clock.monotonic()
        self._took, self._rests_until = ended - began, ended + REST * (ended - began)
        return self._last


def _served(
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], Served], rows: Sequence[WorkerRow]
) -> Sequence[Served]:
    for row in rows:
        kind = (row.queues, row.job_types)
        if kind not in found:
            found[kind] = Served(row.queues, frozenset(row.job_types), [])
        found[kind].workers.append(_brief(row))
    return list(found.values())


def _brief(row: WorkerRow) -> Brief:
    at = row.heartbeat_at
    state, takes = workers.state_of(row, at), workers.takes_jobs(row, at)
    return Brief(row.worker_id, at, row.lease_micros, state, row.stopping, takes)


async def summary(request: Request) -> WorkerSummary:
    summaries: WorkerSummaries = request.app.state.worker_summaries
    return await summaries.latest()


async def likely(request: Request, job: Job) -> list[str]:
    """Return workers that could run a pending job, for an explanation that need not look for them among all."""
    if job.status is not Status.PENDING:
        return []
    app: Backstay = request.app.state.backstay
    return (await summary(request)).able(job.queue, job.job_type, app.clock.now(), _LIKELY)
