"""Runs jobs inside a test: everything that is runnable (drain), or each job as it is submitted (inline).

Both use a worker of the app on the app's own store, so that results, retries and errors are those of production. The
difference is a layer between the two: the store gives out one job at a time, and a retry is due at once.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, closing, contextmanager
from datetime import datetime, timedelta
from typing import Any, cast, overload

import msgspec

from backstay import sync
from backstay.app import Backstay
from backstay.clock import Clock, Instant, micros, to_datetime, to_instant, within
from backstay.core.dumps import FROM, refusal
from backstay.core.port import Store
from backstay.core.records import (
    ClaimedJob,
    ClaimRequest,
    Inserted,
    Lost,
    NewJob,
    Promoted,
    Signal,
    Transition,
    Verdict,
)
from backstay.core.states import Event, Status
from backstay.errors import ForkedStore, InvalidOption, StoreGone, StoreMoved
from backstay.handlers import BatchHandler
from backstay.job import Job
from backstay.lifespan import Resources
from backstay.limits import POLL_SECONDS, RESULT_POLL_SECONDS, SWEEP_BATCH_MAX
from backstay.testing.clock import ManualClock
from backstay.worker.maintenance import Scheduler

DRAIN_RUNS_MAX = 10_000  # runs in one drain: beyond this, a job submits itself endlessly
DRAIN_ADVANCES_MAX = 1_000  # clock advances in one drain: forty days of an hourly job; beyond this it never ends


def behind(app: Backstay, store: Any) -> Backstay:
    """Return the same open app with another store in front: its workers use that store, the app itself does not."""
    view = copy.copy(app)
    view._store = cast(Store, store)
    return view


class Front:
    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class AtOnce(Front):
    """Makes everything that would wait until later (such as a retry's backoff) due as soon as it is settled."""

    def __init__(self, store: Store, events: Collection[Event]) -> None:
        super().__init__(store)
        self._events = frozenset(events)

    async def apply(self, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
        return await self._store.apply([self._hurried(each, now) for each in transitions], now)

    def _hurried(self, transition: Transition, now: Instant) -> Transition:
        if transition.event not in self._events or transition.scheduled_for is None:
            return transition
        return msgspec.structs.replace(transition, scheduled_for=now)


class Turns(Front):
    """Gives a worker one job at a time, in claim order, and knows when none is left. For a type whose size is more than
    one, as many as one call takes.

    A worker on its own claims ahead and runs jobs concurrently: it would be unknown when it is done, and no two runs of
    a test would be alike.
    """

    def __init__(
        self, store: Store, clock: Clock, sizes: Mapping[str, int], *, advance: bool, until: Instant | None
    ) -> None:
        super().__init__(store)
        self._clock = clock
        self._sizes = sizes  # of every type: a worker claims batch types one by one, and would not see the others
        self._advance = advance
        self._until = until
        self._schedules = Scheduler(store, clock, look_seconds=POLL_SECONDS)
        self._also_queues: set[str] = set()
        self._held: list[str] = []
        self._runs = self._advances = 0
        self._turn = asyncio.Lock()
        self._stir = asyncio.Event()
        self.ran: dict[str, None] = {}  # ids, in the order in which they first ran
        self.done = asyncio.Event()
        self.problem: Exception | None = None  # why it ended while jobs were left
        self._unlisten: Callable[[], None] = store.listen(frozenset(Signal), lambda _: self._stir.set())

    def close(self) -> None:
        """Give out no more jobs; a claim that waits for its turn ends, so that the worker can stop."""
        self._unlisten()
        self._unlisten = lambda: None
        self.done.set()
        self._stir.set()

    async def claim(self, request: ClaimRequest, now: Instant) -> list[ClaimedJob]:
        async with self._turn:
            await self._settled()
            try:
                while not self.done.is_set():
                    if jobs := await self._take(request):
                        return jobs
            except (StoreGone, ForkedStore) as error:  # a worker would retry forever
                self.problem = error
                self.done.set()
            return []

    async def promote(self, now: Instant, limit: int) -> Promoted:
        """Do nothing: promotion by the worker during a turn, on PostgreSQL, skips rows that another is about to make
        pending, then finds nothing pending, and would conclude that all is done. It does not release either."""
        return Promoted(count=0, next_due_at=None)

    async def release(self, now: Instant, limit: int) -> int:
        return 0

    async def _settled(self) -> None:
        """Wait until the last job has ended, in whatever way: settled, cancelled, or rescued by another."""
        while self._held and not self.done.is_set():
            self._stir.clear()
            if Status.PROCESSING not in await self._store.statuses(self._held):
                self._held = []
            else:
                await within(RESULT_POLL_SECONDS, self._stir.wait())

    async def _take(self, request: ClaimRequest) -> list[ClaimedJob]:
        next_tick = await self._tick()
        now = self._clock.now()
        next_due_at = await self._promote(now)
        queues = tuple(sorted({*request.queues, *self._also_queues}))
        asked = msgspec.structs.replace(request, limit=1, queues=queues, slots=dict.fromkeys(self._sizes, 1))
        # One runs at a time here: one that has to run alone always may.
        alone = msgspec.structs.replace(asked, lost=Lost.ALONE)
        jobs = await self._store.claim(asked, now) or await self._store.claim(alone, now)
        if jobs and (more := self._sizes[jobs[0].job_type] - 1):
            of_type = msgspec.structs.replace(asked, limit=more, slots={jobs[0].job_type: more}, repeat=False)
            jobs += await self._store.claim(of_type, now)
        if jobs:
            self._note(jobs)
        elif not (
            await self._released(now) or await self._more_queues(queues) or self._moved(now, next_due_at, next_tick)
        ):
            self.done.set()
        return jobs

    async def _tick(self) -> Instant | None:
        """Submit the due jobs of schedules; return when the next one is due."""
        while (next_tick := await self._schedules.look()) is not None and next_tick <= self._clock.now():
            pass  # more ticks were missed than one call processes
        return next_tick

    async def _promote(self, now: Instant) -> Instant | None:
        """Promote due jobs before the next claim, so that priorities hold."""
        while (promoted := await self._store.promote(now, SWEEP_BATCH_MAX)).count:
            pass
        return promoted.next_due_at

    async def _released(self, now: Instant) -> bool:
        return bool(await self._store.release(now, SWEEP_BATCH_MAX))

    async def _more_queues(self, served: Collection[str]) -> bool:
        """Queues without a registered handler in which our jobs wait."""
        found = {
            each.queue
            for each in await self._store.depths()
            if each.status is Status.PENDING and each.job_type in self._sizes
        }
        self._also_queues |= found - set(served)
        return bool(found - set(served))

    def _moved(self, now: Instant, next_due_at: Instant | None, next_tick: Instant | None) -> bool:
        """Return whether time was advanced to what is due next. Schedules never end: they count only up to a given
        time."""
        coming = [each for each in (next_due_at, None if self._until is None else next_tick) if each is not None]
        if not (self._advance or self._until is not None) or not coming or not isinstance(self._clock, ManualClock):
            return False
        moment = min(coming)
        if moment <= now or (self._until is not None and moment > self._until):
            return False
        self._advances += 1
        if self._advances > DRAIN_ADVANCES_MAX:
            self.problem = AssertionError(
                f"drain moved the clock {DRAIN_ADVANCES_MAX:,} times (DRAIN_ADVANCES_MAX), to {self._clock.moment}, and"
                " there is still a job for later: does one snooze or resubmit itself forever? Give until="
            )
            return False
        self._clock.set(to_datetime(moment))
        return True

    def _note(self, jobs: Sequence[ClaimedJob]) -> None:
        self._held = [job.job_id for job in jobs]
        self.ran.update(dict.fromkeys(self._held))
        self._runs += len(jobs)
        if self._runs > DRAIN_RUNS_MAX:
            self.problem = AssertionError(
                f"drain ran {DRAIN_RUNS_MAX:,} jobs (DRAIN_RUNS_MAX) and there are more, the last one a"
                f" {jobs[-1].job_type}: does it keep resubmitting itself?"
            )
            self.done.set()


SLOTS = 100  # one job runs at a time, but a thread that was timed out keeps its slot, and must not stop the others


@overload
async def drain(
    app: Backstay, *, advance: bool = False, until: datetime | timedelta | None = None, batches: bool = False
) -> list[Job]: ...


@overload
def drain(
    app: sync.Backstay, *, advance: bool = False, until: datetime | timedelta | None = None, batches: bool = False
) -> list[Job]: ...


def drain(
    app: Backstay | sync.Backstay,
    *,
    advance: bool = False,
    until: datetime | timedelta | None = None,
    batches: bool = False,
) -> Any:
    """Run runnable jobs one after another until none is left; return the jobs that ran, as they are now.

    Jobs that are due later stay, unless a manual clock is advanced to them: to one due time after another until nothing
    is left (`advance=True`), or up to a given time (`until=`, a datetime, or a timedelta from now). With `until`,
    schedules fire as well. A batch handler is called for one job at a time, or with `batches=True` for as many as it
    takes.
    """
    if isinstance(app, sync.Backstay):
        return app._call(_drain(app.inner, advance, until, batches))
    return _drain(app, advance, until, batches)


async def _drain(app: Backstay, advance: bool, until: datetime | timedelta | None, batches: bool) -> list[Job]:
    if (advance or until is not None) and not isinstance(app.clock, ManualClock):
        raise InvalidOption(
            "advance and until move the clock: give the app a manual one, Backstay(url, clock=ManualClock())"
        )
    state = await app.store.moving()
    if state is not None and (state.role == FROM or not state.done):  # nothing is claimed: a worker would wait forever
        raise StoreMoved(refusal(state))
    last = None if until is None else _moment(until, app.clock.now())
    ran = await _run_all(app, advance=advance, until=last, batches=batches)
    if last is not None and last > app.clock.now():
        cast(ManualClock, app.clock).set(to_datetime(last))
    return [await app.get(job_id) for job_id in ran]


def _moment(until: datetime | timedelta, now: Instant) -> Instant:
    match until:
        case timedelta():
            return now + micros(until)
        case datetime():
            return to_instant(until)
        case _:
            raise InvalidOption(f"until={until!r:.80}: give a datetime, or a timedelta from now")


async def _run_all(
    app: Backstay, *, advance: bool = False, until: Instant | None = None, batches: bool = False
) -> list[str]:
    sizes = {
        name: handler.max_size if batches and isinstance(handler, BatchHandler) else 1
        for name, handler in app.handlers.items()
    }
    turns = Turns(app.store, app.clock, sizes, advance=advance, until=until)
    with closing(turns):
        worker = behind(app, turns).worker(concurrency=SLOTS)
        worker.call_batches_at_once()
        async with worker:
            try:
                while worker.failure is None and not await within(RESULT_POLL_SECONDS, turns.done.wait()):
                    pass
            finally:
                turns.close()  # before the worker stops, which waits for its last claim
                worker.hurry()  # what still runs was abandoned, or the test failed: do not wait for it
    if worker.failure is not None:
        raise worker.failure
    if turns.problem is not None:
        raise turns.problem
    return list(turns.ran)


@overload
def inline(app: Backstay) -> AbstractAsyncContextManager[Backstay]: ...


@overload
def inline(app: sync.Backstay) -> AbstractContextManager[sync.Backstay]: ...


def inline(app: Backstay | sync.Backstay) -> Any:
    """`async with inline(app):` opens the app; inside it, a submit returns when the job has run to its end.

    So has everything that the job caused: its retries, without waiting for their backoff, and the jobs that it
    submitted. A job for later stays scheduled.
    """
    return _inline_blocking(app) if isinstance(app, sync.Backstay) else _inline(app)


@asynccontextmanager
async def _inline(app: Backstay) -> AsyncIterator[Backstay]:
    async with app, Resources(app.lifespans):
        with _submits_run(app):
            yield app


@contextmanager
def _inline_blocking(app: sync.Backstay) -> Iterator[sync.Backstay]:
    with app:
        resources = Resources(app.inner.lifespans)
        app._call(resources.start())
        try:
            with _submits_run(app.inner):
                yield app
        finally:
            app._call(resources.end())


@contextmanager
def _submits_run(app: Backstay) -> Iterator[None]:
    store = app.store
    app._store = cast(Store, _Inline(store, app))
    try:
        yield
    finally:
        app._store = store


class _Inline(AtOnce):
    """An insert returns when the jobs it stored have run. A handler that submits waits in the same way: every insert
    has a worker of its own, so that nested submits never run out of slots."""

    def __init__(self, store: Store, app: Backstay) -> None:
        super().__init__(store, {Event.RETRY})
        self._app = app

    def insert_here(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted] | None:
        """Return None: the jobs run on the event loop."""

    async def insert(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        inserted = await self._store.insert(jobs, now)
        if new := [each.job_id for each in inserted if each.existing is None]:
            await self._run(new)
        return inserted

    async def _run(self, job_ids: list[str]) -> None:
        stir = asyncio.Event()
        unlisten = self._store.listen(frozenset(Signal), lambda _: stir.set())
        try:
            while True:
                stir.clear()
                await _run_all(self._app)
                if Status.PROCESSING not in await self._store.statuses(job_ids):
                    return
                await within(RESULT_POLL_SECONDS, stir.wait())  # a concurrent submit claimed it: it ends there
        finally:
            unlisten()
