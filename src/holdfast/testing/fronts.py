"""Stores in front of a store: each changes one verb, and everything else goes straight through."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import msgspec

from holdfast.app import Holdfast
from holdfast.clock import Clock, Instant, to_datetime
from holdfast.errors import ForkedStore, StoreGone
from holdfast.lifecycle import Event, Status, Transition
from holdfast.limits import POLL_SECONDS, RESULT_POLL_SECONDS, SWEEP_BATCH_MAX
from holdfast.store.port import Store
from holdfast.store.types import ClaimedJob, ClaimRequest, Promoted, Signal, Verdict
from holdfast.testing.manual_clock import ManualClock
from holdfast.waits import within
from holdfast.worker.scheduler import Scheduler

DRAIN_RUNS_MAX = 10_000  # runs in one drain: beyond this a job submits itself again and again
DRAIN_ADVANCES_MAX = 1_000  # moves of the clock in one drain: forty days of an hourly job; beyond this it never ends


def behind(app: Holdfast, store: Any) -> Holdfast:
    """The same open app with another store in front: a worker of it works through that, the app itself does not."""
    view = copy.copy(app)
    view._store = cast(Store, store)
    return view


class Front:
    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class AtOnce(Front):
    """Whatever would wait until a later time (a retry its backoff) is due as soon as it is settled."""

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
    """Hands a worker one job at a time, in claim order, and knows when there is none left. Of a type whose size is more
    than one, as many as one call takes.

    A worker on its own claims ahead and runs jobs side by side: nobody could say when it has nothing to do, and no two
    runs of a test would be alike.
    """

    def __init__(
        self, store: Store, clock: Clock, sizes: Mapping[str, int], *, advance: bool, until: Instant | None
    ) -> None:
        super().__init__(store)
        self._clock = clock
        self._sizes = sizes  # of every type: a worker asks for batch types one by one, and would not see the others
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
        self.problem: Exception | None = None  # why it ended before there was nothing left
        self._unlisten: Callable[[], None] = store.listen(frozenset(Signal), lambda _: self._stir.set())

    def close(self) -> None:
        """No further job; a claim that waits for its turn ends, or the worker could not stop."""
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
            except (StoreGone, ForkedStore) as error:  # a worker would try for ever
                self.problem = error
                self.done.set()
            return []

    async def promote(self, now: Instant, limit: int) -> Promoted:
        """Not by the worker, beside a turn: on PostgreSQL that passes over rows which another is about to make pending,
        finds nothing pending yet either, and would take it for the end. Nor does it release."""
        return Promoted(count=0, next_due_at=None)

    async def release(self, now: Instant, limit: int) -> int:
        return 0

    async def _settled(self) -> None:
        """Until the last job has left our hands, whichever way: settled, cancelled, or rescued by another."""
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
        jobs = await self._store.claim(asked, now)
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
        """The jobs of schedules join the others when their time has come; when the next one comes."""
        while (next_tick := await self._schedules.look()) is not None and next_tick <= self._clock.now():
            pass  # more ticks were missed than one look decides
        return next_tick

    async def _promote(self, now: Instant) -> Instant | None:
        """What is due joins the others before the next is taken, so that priorities hold."""
        while (promoted := await self._store.promote(now, SWEEP_BATCH_MAX)).count:
            pass
        return promoted.next_due_at

    async def _released(self, now: Instant) -> bool:
        return bool(await self._store.release(now, SWEEP_BATCH_MAX))

    async def _more_queues(self, served: Collection[str]) -> bool:
        """Queues that no handler is registered for, but in which jobs of ours wait."""
        found = {
            each.queue
            for each in await self._store.depths()
            if each.status is Status.PENDING and each.job_type in self._sizes
        }
        self._also_queues |= found - set(served)
        return bool(found - set(served))

    def _moved(self, now: Instant, next_due_at: Instant | None, next_tick: Instant | None) -> bool:
        """Whether time was moved to what is due next. Schedules never end: they count only up to a moment."""
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
                " there is still a job for later: one that snoozes or submits itself again for ever? Give until="
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
                f" {jobs[-1].job_type}: does it submit itself again and again?"
            )
            self.done.set()
