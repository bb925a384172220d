"""Claimed jobs to running handlers: what fits is started in claim order, and of short jobs a few are claimed ahead."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from holdfast.batches import BatchHandler
from holdfast.clock import Clock
from holdfast.handlers import Handler
from holdfast.limits import AHEAD_SECONDS_MAX, PREFETCH_MAX, PREFETCH_SECONDS
from holdfast.store.types import ClaimedJob
from holdfast.suspects import is_called_alone, is_suspect, may_run_beside, may_wait
from holdfast.worker.execution import Execution
from holdfast.worker.fetcher import Room
from holdfast.worker.gathering import BatchLane, Turn
from holdfast.worker.items import Item
from holdfast.worker.lanes import Lane, Pace
from holdfast.worker.run import Run

TOO_LATE = "claimed ahead, and no slot was free in time"
NO_SLOT = "no slot was free, and it may not wait in a worker"
Work = Coroutine[Any, Any, None]


class Slots:
    def __init__(
        self,
        handlers: Mapping[str, Handler],
        clock: Clock,
        concurrency: int,
        live: dict[str, Run],
        *,
        work: Callable[[Run], Work],
        work_batch: Callable[[Sequence[Item]], Work],
        give_back: Callable[[Run, str], None],
        put_off: Callable[[Run], None],
        lose: Callable[[Run], None],
        room_changed: Callable[[], None],
    ) -> None:
        self.held: dict[str, Run] = {}  # everything whose claim is ours, until it is settled
        self.running: dict[str, Run] = {}  # started, by job id
        self.calls: set[Execution] = set()  # of batch handlers: what is stopped as one
        self.stuck: set[Run] = set()  # settled or lost, but the handler does not let go of its slot
        self.idle = asyncio.Event()
        self.idle.set()
        self.waits_for_batches = True  # tests do not
        self.lanes = {name: self._lane(handler, clock) for name, handler in handlers.items()}
        self._live = live  # what runs, of all workers of the app, which reads live progress from it
        self._concurrency = concurrency
        self._work, self._work_batch = work, work_batch
        self._give_back, self._put_off, self._lose, self._room_changed = give_back, put_off, lose, room_changed
        self._buffer: deque[Run | Turn] = deque()  # claimed, not started
        self._hurried: deque[Run] = deque()  # claimed, and started at the next moment or not at all
        self._suspects: set[Run] = set()  # claimed, and not yet settled, or still in a slot
        self._cleared = asyncio.Event()  # there is one suspect less
        self._taken = 0
        self._stopping = False
        self._patience: asyncio.TimerHandle | None = None  # with what was claimed ahead
        self._loop = asyncio.get_running_loop()
        # A task that is started when another ends would have all that its handler has set in context variables.
        self._clean = contextvars.copy_context()

    def _lane(self, handler: Handler, clock: Clock) -> Lane:
        if isinstance(handler, BatchHandler):
            return BatchLane(handler, Pace(clock), self._line_up)
        return Lane(handler, Pace(clock))

    # Claiming

    def rooms(self, wanted: Collection[str]) -> list[Room]:
        """What the next claims may take: free slots, and of types whose jobs are short a little ahead.

        Types that run one by one share a claim, which is no larger than what is free. Many jobs of a batch share a
        slot, so that each of these types has a claim of its own.

        Where a type that may have jobs, the `wanted` ones, is not claimed ahead, others now and then are not either
        unless a slot is free for it: they would fill the line again and again, and its turn would never come.
        """
        long_ago = self._loop.time() - 2 * PREFETCH_SECONDS
        free = max(0, self._concurrency - self._taken - sum(lane.next_up for lane in self.lanes.values()))
        total, prefetch_total, of_type, passed_over = free, 0, {}, False
        rooms = []
        for name, lane in self.lanes.items():
            prefetch = lane.pace.prefetch()
            if not lane.goes_ahead:
                prefetch = 0
                waits = free == 0 and not lane.is_full and name in wanted
                passed_over = passed_over or (waits and lane.asked_at < long_ago)
                if free > 0:
                    lane.asked_at = self._loop.time()
            if isinstance(lane, BatchLane):
                if (room := lane.room(free, ahead=prefetch > 0)) > 0:
                    rooms.append(Room(room, {name: room}))
                continue
            ahead = max(0, prefetch - lane.buffered)
            room = free + ahead
            if lane.limit is not None:
                room = min(room, lane.limit - lane.busy - lane.buffered + prefetch)
            if room > 0:
                of_type[name] = room
                total += ahead
                prefetch_total += prefetch
        if of_type and not passed_over and not (self._buffer and total < prefetch_total // 2):
            rooms.insert(0, Room(total, of_type))
        return rooms

    def take(self, jobs: list[ClaimedJob], token: str) -> None:
        now = self._loop.time()
        batches = []
        claimed: dict[Lane, bool] = {}  # and whether with jobs that may not wait
        for job in jobs:
            if (old := self.held.get(job.job_id)) is not None:
                self._lose(old)  # cancelled and retried before we heard of it: only the new claim holds
            lane = self.lanes[job.job_type]
            claimed[lane] = claimed.get(lane, False) or not may_wait(job)
            lane.asked_at = 0.0  # there may be more
            if isinstance(lane, BatchLane) and not is_called_alone(job):
                run: Run = lane.gather(job, token, now)
                batches.append(lane)
            else:
                run = self._line_up_alone(job, lane, token, now)
            self.held[job.job_id] = run
        for lane, hurried in claimed.items():
            lane.hurried = hurried or (lane.hurried and self._is_giving_back(lane))
        for lane in dict.fromkeys(batches):
            lane.look(at_once=not self.waits_for_batches)
        if self._patience is None:
            self._patience = self._loop.call_later(AHEAD_SECONDS_MAX, self._give_back_late)
        self._loop.call_soon(self._dispatch)  # after the next claim, which the store works on while handlers run

    def _line_up_alone(self, job: ClaimedJob, lane: Lane, token: str, now: float) -> Run:
        run = Item(job, lane, token) if isinstance(lane, BatchLane) else Run(job, lane, token)
        run.taken_at = now
        lane.buffered += 1
        (self._buffer if may_wait(job) else self._hurried).append(run)
        if is_suspect(job):
            self._suspects.add(run)
        return run

    def _is_giving_back(self, lane: Lane) -> bool:
        """Whether the next claim may still find one that is on its way back for want of a slot."""
        return any(run.lane is lane and run.settling and run.task is None for run in self.held.values())

    def _line_up(self, turn: Turn) -> None:
        """A batch is whole, or has waited for long enough."""
        self._buffer.append(turn)
        if self._patience is None:
            self._patience = self._loop.call_later(AHEAD_SECONDS_MAX, self._give_back_late)
        self._loop.call_soon(self._dispatch)

    def drop(self, run: Run) -> None:
        """A run that has not begun is not ours any more."""
        if isinstance(run.lane, BatchLane) and not is_called_alone(run.job):
            run.lane.drop(run)
        else:
            (self._buffer if may_wait(run.job) else self._hurried).remove(run)
            run.lane.buffered -= 1
        self.clear_of_suspicion(run)
        self._room_changed()

    def _give_back_late(self) -> None:
        """Jobs that were claimed ahead, because the last ones were short, and whose turn does not come: others may
        have a slot for them."""
        self._patience = None
        if self._stopping or not self._buffer:
            return
        since = self._loop.time() - AHEAD_SECONDS_MAX
        late = [each for each in self._buffer if each.taken_at <= since]
        self._buffer = deque(each for each in self._buffer if each.taken_at > since)
        for each in late:
            each.lane.pace.stalled()
            for run in self._unbuffered(each):
                self._give_back(run, TOO_LATE)
        if self._buffer:
            self._patience = self._loop.call_later(AHEAD_SECONDS_MAX / 2, self._give_back_late)
        self._room_changed()

    def _unbuffered(self, each: Run | Turn) -> Sequence[Run]:
        if isinstance(each, Turn):
            return each.lane.take()
        each.lane.buffered -= 1
        return (each,)

    def empty(self) -> Iterator[Run]:
        """No more starts from here on; what has not begun."""
        self._stopping = True
        while self._hurried:
            yield from self._unbuffered(self._hurried.popleft())
        while self._buffer:
            yield from self._unbuffered(self._buffer.popleft())
        for lane in self.lanes.values():
            if isinstance(lane, BatchLane):
                yield from lane.empty()

    # Starting and ending

    def _dispatch(self) -> None:
        """Start what fits, in claim order; a type that is full does not hold up the others."""
        if self._stopping:
            return
        while self._hurried:
            self._start_or_return(self._hurried.popleft())
        passed: list[Run | Turn] = []
        while self._buffer and self._taken < self._concurrency:
            each = self._buffer.popleft()
            lane = each.lane
            if lane.is_full:
                passed.append(each)
            elif isinstance(each, Turn):
                self._start_batch(each)
            else:
                lane.buffered -= 1
                self._start(each)
        if passed:
            self._buffer.extendleft(reversed(passed))

    def _start_or_return(self, run: Run) -> None:
        """One that may not wait here."""
        run.lane.buffered -= 1
        if any(self._is_at_work(other) for other in self._in_its_way(run)):
            self._put_off(run)
        elif self._taken >= self._concurrency or run.lane.is_full:
            self._give_back(run, NO_SLOT)
        else:
            self._start(run)

    def _is_at_work(self, run: Run) -> bool:
        return run in self.stuck or (run.task is not None and not run.settling)

    def _in_its_way(self, run: Run) -> list[Run]:
        """Other suspects that this one may not run beside."""
        if run not in self._suspects:
            return []
        isolation = run.handler.isolation
        return [
            other
            for other in self._suspects
            if other is not run and not may_run_beside(isolation, other.handler.isolation)
        ]

    async def _alone(self, run: Run, work: Callable[[], Work]) -> None:
        """A suspect begins when the claims of those that were put off for it are back in the store: not before, or its
        end could be theirs, too."""
        while self._in_its_way(run):
            self._cleared.clear()
            await self._cleared.wait()
        await work()

    def clear_of_suspicion(self, run: Run) -> None:
        if self._suspects:
            self._suspects.discard(run)
            self._cleared.set()

    def _start(self, run: Run) -> None:
        if isinstance(run, Item):
            self._begin((run,), lambda: self._work_batch((run,)))
        elif run in self._suspects:
            self._begin((run,), lambda: self._work(run))
        else:  # nearly every job
            self._occupy(run.lane)
            self.running[run.job.job_id] = self._live[run.job.job_id] = run
            run.task = asyncio.Task(self._work(run), loop=self._loop, name=run.job.job_id, context=self._clean.copy())

    def _start_batch(self, turn: Turn) -> None:
        if items := turn.lane.take():  # or all were cancelled while they waited
            self._begin(items, lambda: self._work_batch(items))

    def _begin(self, runs: Sequence[Run], work: Callable[[], Work]) -> None:
        first = runs[0]
        self._occupy(first.lane)
        coroutine = self._alone(first, work) if first in self._suspects else work()
        task = asyncio.Task(coroutine, loop=self._loop, name=first.job.job_id, context=self._clean.copy())
        for run in runs:
            self.running[run.job.job_id] = self._live[run.job.job_id] = run
            run.task = task

    def _occupy(self, lane: Lane) -> None:
        if self._taken == 0:
            self.idle.clear()
        self._taken += 1
        lane.busy += 1

    def free(self, runs: Sequence[Run]) -> None:
        """The handler has let go of the slot in which these were."""
        self._taken -= 1
        lane = runs[0].lane
        lane.busy -= 1
        lane.pace.ended += 1
        for run in runs:
            self.stuck.discard(run)
            if run.is_over:
                self.forget_running(run)
                if self.held.get(run.job.job_id) is not run:
                    self.clear_of_suspicion(run)
        if self._buffer:
            self._dispatch()
        if len(self._buffer) <= PREFETCH_MAX // 2:
            self._room_changed()
        if self._taken == 0:
            self.idle.set()

    def forget_running(self, run: Run) -> None:
        for where in (self.running, self._live):
            if where.get(run.job.job_id) is run:
                del where[run.job.job_id]

    def forget(self, run: Run) -> None:
        if self.held.get(run.job.job_id) is run:
            del self.held[run.job.job_id]
        self.forget_running(run)
        self.clear_of_suspicion(run)

    def executions(self) -> list[Execution]:
        """What can be stopped: jobs that run by themselves, and calls for many."""
        return [*(run for run in self.running.values() if not isinstance(run, Item)), *self.calls]
