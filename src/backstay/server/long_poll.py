"""Long polls: claims over HTTP that wait for jobs.

Workers that ask for the same jobs share a line. The one that is woken claims while the others wait for its answer: if
it is empty, it is theirs too, so that a thousand waiting workers cost one claim. Jobs that were claimed for a client
that has disconnected are given back.

While jobs wait to run alone, the server decides from what a worker holds whether it has room for one: see
core/suspicion.py. A remote worker does not have to know of it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec.structs import replace

from backstay.app import Backstay
from backstay.backoff import Backoff
from backstay.clock import MICROS, within
from backstay.core.lifecycle import GivenBack, decide
from backstay.core.records import ClaimedJob, ClaimRequest, Lost, Signal, WorkerRow
from backstay.core.states import Status
from backstay.core.suspicion import OPEN, Opening, Turns, Waiting
from backstay.errors import BackstayError
from backstay.limits import ALONE_LOOK_SECONDS, FIND_LIMIT_MAX, KEY_LONG_POLLS_MAX, LONG_POLLS_MAX
from backstay.server.problems import Problem
from backstay.server.watch import Places, Signals

log = logging.getLogger("backstay.server")
UNDELIVERED = "its worker disconnected before it received the job"
_FULL_SECONDS = 1.0  # between looks at a worker that has no free slot
_LATER_SECONDS = 5
_TURN_SECONDS = 0.25  # between looks at whose turn it is, while jobs wait to run alone
_FORGET_SECONDS = 60.0  # how long an unused look is kept
_Kind = tuple[tuple[str, ...], tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]


class _Line:
    """Requests for jobs of the same types from the same queues."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.standing = 0
        self.nothing_at = -1  # how many signals had come before a claim that found nothing
        self.look_at = 0.0  # when to look even without a signal


class _Look:
    """Whether jobs wait to run alone, when the store was asked, and how many signals had come before."""

    waits = False
    at = -math.inf
    signals = -1


class Ask(msgspec.Struct, frozen=True):
    """What a worker asks for."""

    worker: WorkerRow
    limit: int
    wait_seconds: float
    token: str  # as stored
    repeat: bool
    key_id: str | None = None  # the key whose share of waiting requests it uses


class _Ends(msgspec.Struct, frozen=True):
    """What ends a wait early: the client disconnects, or the server stops."""

    gone: asyncio.Event
    stopping: asyncio.Event

    @property
    def come(self) -> bool:
        return self.gone.is_set() or self.stopping.is_set()


class Claims:
    def __init__(self, app: Backstay) -> None:
        self._app = app
        self._signals = Signals(app, frozenset({Signal.READY}))
        self._lines: dict[_Kind, _Line] = {}
        self._waiting = Places()
        self._turns: dict[str, Turns] = {}  # of the workers that may have to make room for a job that runs alone
        self._looks: dict[_Kind, _Look] = {}
        self._asked: dict[str, object] = {}  # by token: the latest request, to which the jobs belong
        self._leftovers: set[asyncio.Task[None]] = set()

    async def take(self, ask: Ask, gone: asyncio.Future[None], stopping: asyncio.Event) -> list[ClaimedJob]:
        """Return jobs as soon as there are any, or none after the wait or when the server stops. `gone` is done when
        the client has disconnected: jobs claimed after that are given back."""
        mine = self._asked[ask.token] = object()
        ended = asyncio.Event()
        gone.add_done_callback(lambda _: ended.set())
        taking = asyncio.get_running_loop().create_task(self._wait(ask, _Ends(ended, stopping)))
        delivered = False
        try:
            jobs = await asyncio.shield(taking)
            delivered = not gone.done()
            return jobs if delivered else []
        finally:
            latest = self._asked.get(ask.token) is mine
            if latest:
                del self._asked[ask.token]
            if not delivered and latest and not _has_failed(taking):  # otherwise a repeat of this request has them
                ended.set()
                left = asyncio.get_running_loop().create_task(self._give_back(ask, taking))
                self._leftovers.add(left)
                left.add_done_callback(self._leftovers.discard)

    async def _wait(self, ask: Ask, ends: _Ends) -> list[ClaimedJob]:
        request = await self._request(ask)
        until = self._app.clock.monotonic() + ask.wait_seconds
        jobs = await self._claim(ask, request)
        if jobs or not ask.limit or not ask.wait_seconds:
            return jobs
        with self._counted(ask.key_id):
            while not request.slots and not self._is_over(ends, until):
                await self._first_of(min(_FULL_SECONDS, until - self._app.clock.monotonic()), ends)
                request = await self._request(ask)
            with self._in_line(request) as line, self._signals.listening():
                while not jobs and not self._is_over(ends, until):
                    if ask.worker.worker_id in self._turns or await self._look(request, self._signals.count):
                        if not (jobs := await self._claim(ask, request)):
                            await self._first_of(_TURN_SECONDS, ends)
                    else:
                        jobs = await self._take_turn(line, request, ends, min(until, self._look_at(request)))
        return jobs

    # Jobs that run alone

    async def _claim(self, ask: Ask, request: ClaimRequest) -> list[ClaimedJob]:
        """Claim what this worker has room for."""
        work = self._app.remote_work
        opening = await self._opening(ask, request)
        if opening.alone:
            if jobs := await work.claim(replace(request, lost=Lost.ALONE, limit=min(1, request.limit))):
                return jobs
            self._looks[_kind(request)] = _Look()  # others were faster
        if opening.alone or opening.shared:
            return await work.claim(replace(request, lost=opening.lost))
        return await work.claim(replace(request, slots={}, limit=0)) if request.repeat else []

    async def _opening(self, ask: Ask, request: ClaimRequest) -> Opening:
        """Return what the worker may claim next to what it holds: nearly always everything that need not run alone."""
        worker_id = ask.worker.worker_id
        if not request.slots:
            return OPEN
        waits = await self._look(request)
        if not waits and worker_id not in self._turns:
            return OPEN
        if len(self._turns) > LONG_POLLS_MAX:
            self._turns.clear()  # of workers that never came back, most of them
        turns = self._turns.setdefault(worker_id, Turns())
        held = await self._app.remote_work.held(worker_id)
        now = self._app.clock.monotonic()
        opening = turns.opening(held, Waiting(in_worker=waits, in_child=False), now, idle=False)
        if opening is OPEN and not waits:
            self._turns.pop(worker_id, None)
        return opening

    async def _look(self, request: ClaimRequest, signals: int | None = None) -> bool:
        """Return whether jobs wait to run alone. The store is asked at most once a second for all workers of a kind,
        and for a waiting worker only after a signal."""
        look = self._looks.setdefault(_kind(request), _Look())
        now = self._app.clock.monotonic()
        quiet = signals is not None and signals == look.signals and now < look.at + self._app.poll_seconds
        if now >= look.at + ALONE_LOOK_SECONDS and not quiet:
            look.at, look.signals = now, self._signals.count
            look.waits = await self._app.remote_work.wait_alone(replace(request, lost=Lost.ALONE))
            for kind in [kind for kind, each in self._looks.items() if now > each.at + _FORGET_SECONDS]:
                del self._looks[kind]
        return look.waits

    def _look_at(self, request: ClaimRequest) -> float:
        """Return when a waiting worker should look again."""
        look = self._looks.setdefault(_kind(request), _Look())
        return look.at + (ALONE_LOOK_SECONDS if look.signals != self._signals.count else _FORGET_SECONDS)

    # The line

    def _is_over(self, ends: _Ends, until: float) -> bool:
        return ends.come or self._app.clock.monotonic() >= until

    async def _take_turn(self, line: _Line, request: ClaimRequest, ends: _Ends, until: float) -> list[ClaimedJob]:
        """Return jobs; or none if a signal has come since, or it is time to look again."""
        clock = self._app.clock
        async with line.turn:
            seen = self._signals.count
            if line.nothing_at != seen or clock.monotonic() >= line.look_at:
                if jobs := await self._app.remote_work.claim(request):
                    return jobs
                line.nothing_at = seen
                line.look_at = clock.monotonic() + self._app.poll_seconds * random.uniform(0.8, 1.2)
        await self._first_of(min(until, line.look_at) - clock.monotonic(), ends, self._signals.wait(seen))
        return []

    async def _first_of(self, seconds: float, ends: _Ends, *others: Coroutine[Any, Any, object]) -> None:
        waits = [asyncio.ensure_future(each) for each in (ends.gone.wait(), ends.stopping.wait(), *others)]
        try:
            await within(max(0.0, seconds), asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED))
        finally:
            for each in waits:
                each.cancel()

    @contextmanager
    def _counted(self, key_id: str | None) -> Iterator[None]:
        leave = self._waiting.take(key_id, most=LONG_POLLS_MAX, share=KEY_LONG_POLLS_MAX, refused=_too_many)
        try:
            yield
        finally:
            leave()

    @contextmanager
    def _in_line(self, request: ClaimRequest) -> Iterator[_Line]:
        kind = _kind(request)
        line = self._lines.setdefault(kind, _Line())
        line.standing += 1
        try:
            yield line
        finally:
            line.standing -= 1
            if not line.standing:
                del self._lines[kind]

    async def _request(self, ask: Ask) -> ClaimRequest:
        worker = ask.worker
        return ClaimRequest(
            worker_id=worker.worker_id,
            worker_version=worker.version,
            queues=worker.queues,
            slots=await self._slots(worker, ask.limit),
            limit=ask.limit,
            lease_micros=round(self._app.lease_seconds * MICROS),
            token=ask.token,
            versions=worker.versions,
            repeat=ask.repeat,
        )

    async def _slots(self, worker: WorkerRow, limit: int) -> dict[str, int]:
        """Return how many jobs of each type to claim. Jobs that the worker holds count towards its limit for their
        type."""
        if not limit:
            return {}
        held: dict[str, int] = {}
        if worker.limits:
            running = await self._app.find(worker=worker.worker_id, status=Status.PROCESSING, limit=FIND_LIMIT_MAX)
            for job in running:
                held[job.job_type] = held.get(job.job_type, 0) + 1
        rooms = {name: worker.limits.get(name, limit) - held.get(name, 0) for name in worker.job_types}
        return {name: min(limit, room) for name, room in rooms.items() if room > 0}

    async def _give_back(self, ask: Ask, taking: asyncio.Task[list[ClaimedJob]]) -> None:
        """Give back jobs that were claimed for a client that has disconnected. If this fails, their leases expire."""
        app = self._app
        try:
            if not (jobs := await taking):
                return
            now = app.clock.now()
            decided = [
                decide(
                    job,
                    GivenBack(UNDELIVERED),
                    now=now,
                    backoff=Backoff(),
                    draw=random.random(),
                    token=ask.token,
                    by=ask.worker.worker_id,
                )
                for job in jobs
            ]
            await app.remote_work.settle(decided, now)
        except BackstayError as error:
            log.warning(
                "worker %s disconnected; its jobs return when their leases expire: %s", ask.worker.worker_id, error
            )


def _kind(request: ClaimRequest) -> _Kind:
    return request.queues, tuple(sorted(request.slots.items())), tuple(sorted(request.versions.items()))


def _too_many(whose: str) -> Problem:
    return Problem(
        429,
        "too-many-waiting",
        f"{whose} requests waiting for jobs, which is the limit: try again later",
        retry_after=_LATER_SECONDS,
    )


def _has_failed(task: asyncio.Task[list[ClaimedJob]]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None
