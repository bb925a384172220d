"""Claimed jobs to running handlers: what fits is started in claim order, and of short jobs a few are claimed ahead."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from holdfast.batches import BatchHandler
from holdfast.clock import Clock
from holdfast.handlers import Handler
from holdfast.limits import AHEAD_SECONDS_MAX, PREFETCH_MAX
from holdfast.store.types import ClaimedJob
from holdfast.worker.execution import Execution
from holdfast.worker.fetcher import Room
from holdfast.worker.gathering import BatchLane, Turn
from holdfast.worker.items import Item
from holdfast.worker.lanes import Lane, Pace
from holdfast.worker.run import Run

TOO_LATE = "claimed ahead, and no slot was free in time"
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
        self._give_back, self._lose, self._room_changed = give_back, lose, room_changed
        self._buffer: deque[Run | Turn] = deque()  # claimed, not started
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

    def rooms(self) -> list[Room]:
        """What the next claims may take: free slots, and of types whose jobs are short a little ahead.

        Types that run one by one share a claim, which is no larger than what is free. Many jobs of a batch share a
        slot, so that each of these types has a claim of its own.
        """
        free = max(0, self._concurrency - self._taken - sum(lane.next_up for lane in self.lanes.values()))
        total, prefetch_total, of_type = free, 0, {}
        rooms = []
        for name, lane in self.lanes.items():
            prefetch = lane.pace.prefetch()
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
        if of_type and not (self._buffer and total < prefetch_total // 2):
            rooms.insert(0, Room(total, of_type))
        return rooms

    def take(self, jobs: list[ClaimedJob], token: str) -> None:
        now = self._loop.time()
        batches = []
        for job in jobs:
            if (old := self.held.get(job.job_id)) is not None:
                self._lose(old)  # cancelled and retried before we heard of it: only the new claim holds
            lane = self.lanes[job.job_type]
            if isinstance(lane, BatchLane):
                run: Run = lane.gather(job, token, now)
                batches.append(lane)
            else:
                lane.buffered += 1
                run = Run(job, lane, token)
                run.taken_at = now
                self._buffer.append(run)
            self.held[job.job_id] = run
        for lane in dict.fromkeys(batches):
            lane.look(at_once=not self.waits_for_batches)
        if self._patience is None:
            self._patience = self._loop.call_later(AHEAD_SECONDS_MAX, self._give_back_late)
        self._loop.call_soon(self._dispatch)  # after the next claim, which the store works on while handlers run

    def _line_up(self, turn: Turn) -> None:
        """A batch is whole, or has waited for long enough."""
        self._buffer.append(turn)
        if self._patience is None:
            self._patience = self._loop.call_later(AHEAD_SECONDS_MAX, self._give_back_late)
        self._loop.call_soon(self._dispatch)

    def drop(self, run: Run) -> None:
        """A run that has not begun is not ours any more."""
        if isinstance(run.lane, BatchLane):
            run.lane.drop(run)
        else:
            self._buffer.remove(run)
            run.lane.buffered -= 1
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
        passed: list[Run | Turn] = []
        while self._buffer and self._taken < self._concurrency:
            each = self._buffer.popleft()
            lane = each.lane
            if lane.limit is not None and lane.busy >= lane.limit:
                passed.append(each)
            elif isinstance(each, Turn):
                self._start_batch(each)
            else:
                lane.buffered -= 1
                self._start(each)
        if passed:
            self._buffer.extendleft(reversed(passed))

    def _start(self, run: Run) -> None:
        self._occupy(run.lane)
        self.running[run.job.job_id] = self._live[run.job.job_id] = run
        run.task = asyncio.Task(self._work(run), loop=self._loop, name=run.job.job_id, context=self._clean.copy())

    def _start_batch(self, turn: Turn) -> None:
        items = turn.lane.take()
        if not items:  # cancelled while they waited
            return
        self._occupy(turn.lane)
        task = asyncio.Task(
            self._work_batch(items), loop=self._loop, name=items[0].job.job_id, context=self._clean.copy()
        )
        for item in items:
            self.running[item.job.job_id] = self._live[item.job.job_id] = item
            item.task = task

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

    def executions(self) -> list[Execution]:
        """What can be stopped: jobs that run by themselves, and calls for many."""
        return [*(run for run in self.running.values() if not isinstance(run, Item)), *self.calls]
