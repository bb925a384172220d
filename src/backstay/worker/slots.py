"""Assigns claimed jobs to free slots in claim order, and gathers the jobs of a batch handler into calls.

A few short jobs are claimed ahead. A batch call starts when it has enough jobs, or when the first has waited long
enough.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from backstay.core.lifecycle import GivenBack
from backstay.core.records import ClaimedJob
from backstay.core.suspicion import OPEN, Held, Opening, Turns, Waiting
from backstay.handlers import BatchHandler, Handler
from backstay.limits import AHEAD_SECONDS_MAX, PREFETCH_MAX, PREFETCH_SECONDS
from backstay.observers import Observers
from backstay.worker import errors
from backstay.worker.batch import Caller
from backstay.worker.executor import Executor
from backstay.worker.run import LOST, SHUT_DOWN, Item, Run, Runs
from backstay.worker.settler import Settler

log = logging.getLogger("backstay.worker")


def may_wait(job: ClaimedJob) -> bool:
    """Return whether a worker may claim the job before it has a free slot for it. If that worker died, a last attempt
    would be spent without a run, and a suspect would be charged with a crash that it did not cause."""
    return job.failures + 1 < job.max_attempts and not job.suspicion


def is_called_alone(job: ClaimedJob) -> bool:
    """Return whether a job of a batch type gets a call of its own: the job that crashed a call must not crash the
    others again."""
    return job.failures > 0 or job.suspicion > 0


class Room(msgspec.Struct, frozen=True):
    """How many jobs fit: in total, and of each type."""

    total: int
    of_type: dict[str, int]


PACE_JOBS_MIN = 8  # that ended, to tell a pace in less than PREFETCH_SECONDS


class Pace:
    """How many jobs of a type this worker finishes per second, which limits how many it may claim ahead."""

    def __init__(self, now: float) -> None:
        self._since = now
        self.ended = 0
        self._per_second = 0.0

    def prefetch(self, now: float) -> int:
        """Return how many jobs may be claimed ahead. A single job that ends within a millisecond does not mean a
        thousand per second: a measurement takes some time, or several jobs."""
        span = max(now - self._since, 0.001)
        if span >= PREFETCH_SECONDS or self.ended >= PACE_JOBS_MIN:
            self._per_second = (self._per_second + self.ended / span) / 2
            self._since, self.ended = now, 0
        return min(PREFETCH_MAX, int(self._per_second * PREFETCH_SECONDS))

    def stalled(self, now: float) -> None:
        """Jobs that were claimed ahead had to be given back: claim no more ahead until jobs end again."""
        self._since, self.ended, self._per_second = now, 0, 0.0


class Lane:
    """The jobs of one type in this worker."""

    __slots__ = ("asked_at", "buffered", "busy", "handler", "hurried", "limit", "pace")

    def __init__(self, handler: Handler, pace: Pace) -> None:
        self.handler = handler
        self.limit = handler.concurrency
        self.pace = pace
        self.busy = 0
        self.buffered = 0  # claimed, each with a place of its own in line
        self.hurried = False  # the last claim brought some that may not wait for a slot
        self.asked_at = 0.0  # when it was last asked for, on the event loop's clock; 0: it is asked for next

    @property
    def goes_ahead(self) -> bool:
        """Whether its jobs may be claimed ahead of free slots. Not if they would fail for good should this worker die:
        see `may_wait`."""
        return self.handler.max_attempts > 1 and not self.hurried

    @property
    def in_child(self) -> bool:
        """Whether its jobs run in child processes."""
        return self.handler.isolation == "process"

    @property
    def is_full(self) -> bool:
        return self.limit is not None and self.busy >= self.limit

    @property
    def next_up(self) -> int:
        """Return how many of its waiting jobs would take a free slot. A type that is at its limit leaves slots to the
        others."""
        return self.buffered if self.limit is None else min(self.buffered, max(0, self.limit - self.busy))


class Turn:
    """A place in line for a call. The jobs of the call are chosen when its turn comes, because more may have
    arrived."""

    __slots__ = ("lane", "taken_at")

    def __init__(self, lane: BatchLane, taken_at: float) -> None:
        self.lane = lane
        self.taken_at = taken_at


class BatchLane(Lane):
    """The jobs of one batch type. `busy` and `limit` count calls.

    It has only jobs that share a call; a job that is called alone has its own place in line."""

    __slots__ = ("_due", "_fresh", "_line_up", "_loop", "_timer", "_turns", "max_size", "max_wait")

    def __init__(self, handler: BatchHandler, pace: Pace, line_up: Callable[[Turn], None]) -> None:
        super().__init__(handler, pace)
        self.max_size = handler.max_size
        self.max_wait = handler.max_wait_seconds
        self._line_up = line_up
        self._fresh: deque[Item] = deque()
        self._turns = 0  # in line
        self._due = False  # the oldest has waited for long enough
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def _calls(self) -> int:
        """Return how many calls the waiting jobs need."""
        return -(-len(self._fresh) // self.max_size)

    @property
    def next_up(self) -> int:
        """Return how many slots to keep free: for calls that are ready, and for one that will be in a moment. No slot
        is kept for a batch that may take long to fill."""
        soon = self.buffered + (self._calls if self.max_wait <= AHEAD_SECONDS_MAX else self._ready)
        return soon if self.limit is None else min(soon, max(0, self.limit - self.busy))

    @property
    def _ready(self) -> int:
        return self._calls if self._due else len(self._fresh) // self.max_size

    def room(self, free: int, *, ahead: bool) -> int:
        """Return how many jobs may be claimed if this many slots are free: a batch for each, and one more ahead of
        them."""
        calls = free + self.next_up
        if self.limit is not None:
            calls = min(calls, max(0, self.limit - self.busy))
        batches = max(0, calls - self.buffered) + (1 if ahead else 0)
        return max(0, batches * self.max_size - len(self._fresh))

    def gather(self, job: ClaimedJob, token: str, now: float) -> Item:
        item = Item(job, self.handler, token, now)
        self._fresh.append(item)
        return item

    def look(self, *, at_once: bool = False) -> None:
        """Put ready batches in line; the other jobs wait for more."""
        if self._fresh and (at_once or self.max_wait == 0):
            self._due = True
        while self._turns < self._ready:
            self._turns += 1
            self._line_up(Turn(self, self._loop.time()))
        if self._fresh and not self._due and self._timer is None:
            self._timer = self._loop.call_at(self._fresh[0].taken_at + self.max_wait, self._waited)

    def _waited(self) -> None:
        self._timer = None
        self._due = bool(self._fresh)
        self.look()

    def take(self) -> list[Item]:
        """Use up a turn and return the jobs of the next call; none if all were lost meanwhile."""
        self._turns -= 1
        items = [self._fresh.popleft() for _ in range(min(self.max_size, len(self._fresh)))]
        self._reset_timer()
        self.look()
        return items

    def drop(self, run: Run) -> None:
        """Remove a job that was lost or cancelled while it waited."""
        if run in self._fresh:
            self._fresh.remove(run)  # type: ignore[arg-type]
        if not self._fresh:
            self._reset_timer()

    def empty(self) -> list[Item]:
        left = list(self._fresh)
        self._fresh.clear()
        self._reset_timer()
        return left

    def _reset_timer(self) -> None:
        self._due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


TOO_LATE = "claimed ahead, and no slot was free in time"
NO_SLOT = "no slot was free, and it may not wait in a worker"
Work = Coroutine[Any, Any, None]


class Slots:
    def __init__(
        self,
        handlers: Mapping[str, Handler],
        concurrency: int,
        runs: Runs,
        settler: Settler,
        executor: Executor,
        caller: Caller,
        observers: Observers | None,
    ) -> None:
        self._runs = runs
        self._settler = settler
        self._executor = executor
        self._caller = caller
        self._observers = observers
        self.changed = asyncio.Event()  # there may be room for more
        self.idle = asyncio.Event()
        self.idle.set()
        self.waits_for_batches = True  # tests do not
        self._concurrency = concurrency
        self._work = self._run if observers is None else self._run_observed
        self._work_batch = self._run_batch if observers is None else self._run_batch_observed
        self._buffer: deque[Run | Turn] = deque()  # claimed, not started
        self._hurried: deque[Run] = deque()  # claimed, and started at the next moment or not at all
        self._taken = 0
        self._stopping = False
        self._patience: asyncio.TimerHandle | None = None  # with what was claimed ahead
        self._turns = Turns()  # of jobs that run alone
        self._loop = asyncio.get_running_loop()
        # A task that is started when another ends would have all that its handler has set in context variables.
        self._clean = contextvars.copy_context()
        self.lanes = {name: self._lane(handler) for name, handler in handlers.items()}

    def _lane(self, handler: Handler) -> Lane:
        pace = Pace(self._loop.time())
        if isinstance(handler, BatchHandler):
            return BatchLane(handler, pace, self._line_up)
        return Lane(handler, pace)

    # Claiming

    def opening(self, alone: Collection[str], *, idle: bool) -> Opening:
        """Return which jobs that lost a worker may be claimed next, given what is held here. `alone`: the types that
        have jobs which wait to run alone."""
        runs = self._runs
        runs.suspects = {run for run in runs.suspects if runs.held.get(run.job.job_id) is run}
        if not alone and not runs.suspects and self._turns.began_at is None:
            runs.left = None
            return OPEN
        now = self._loop.time()
        fitting = [lane for name in alone if not (lane := self.lanes[name]).is_full]
        waiting = Waiting(any(not lane.in_child for lane in fitting), any(lane.in_child for lane in fitting))
        found = self._turns.opening(self._held(now), waiting, now, idle=idle)
        runs.left = None if found is OPEN else self.changed
        if not found.shared:
            for lane in self.lanes.values():
                if isinstance(lane, BatchLane):
                    lane.look(at_once=True)
        return found

    def _held(self, now: float) -> list[Held]:
        """Return what this worker holds, including jobs whose handlers did not stop: these are settled already, and are
        not suspected."""
        held = self._runs.held
        found = [
            Held(
                run.job.suspicion,
                run.handler.isolation == "process",
                0.0 if run.task is None or run.settling else now - run.taken_at,
            )
            for run in held.values()
        ]
        for run in self._runs.stuck:
            if held.get(run.job.job_id) is not run:
                found.append(Held(0, run.handler.isolation == "process", now - run.taken_at))
        return found

    def alone_room(self, opening: Opening, alone: Collection[str]) -> Room | None:
        """Return how many jobs the next claim of jobs that run alone may take."""
        if not (opening.alone or opening.alone_in_child):
            return None
        free = self._free_slots()
        total = min(free, 1) if opening.alone else free
        of_type = {
            name: total if lane.limit is None else min(total, lane.limit - lane.busy)
            for name in alone
            if not (lane := self.lanes[name]).is_full and (opening.alone or lane.in_child)
        }
        return Room(total, of_type) if total > 0 and of_type else None

    def _free_slots(self) -> int:
        return max(0, self._concurrency - self._taken - sum(lane.next_up for lane in self.lanes.values()))

    def rooms(self, wanted: Collection[str], opening: Opening = OPEN) -> list[Room]:
        """Return what the next claims may take: free slots, and a few jobs ahead of types whose jobs are short.

        Types whose jobs run one by one share a claim, limited to the free slots. Many jobs of a batch share a slot, so
        each batch type has a claim of its own. While the line is full of short jobs, no slot is ever free, and a type
        that is not claimed ahead would wait until all of those are done, however urgent its jobs are. So a type that
        may have jobs, one of the `wanted`, gets a place in the line. A type whose jobs may not wait in it is served
        differently: now and then nothing else is claimed ahead, until a slot is free for it."""
        now = self._loop.time()
        long_ago = now - 2 * PREFETCH_SECONDS
        free = self._free_slots()
        ahead_of = {name: lane.pace.prefetch(now) if lane.goes_ahead else 0 for name, lane in self.lanes.items()}
        fills_the_line = free == 0 and any(ahead_of.values())
        total, prefetch_total, of_type, passed_over = free, 0, {}, False
        rooms = []
        for name, lane in self.lanes.items():
            if not (opening.shared or lane.in_child):
                continue
            prefetch = ahead_of[name]
            if not lane.goes_ahead:
                waits = free == 0 and not lane.is_full and name in wanted
                passed_over = passed_over or (waits and lane.asked_at < long_ago)
                if free > 0:
                    lane.asked_at = now
            elif prefetch == 0 and fills_the_line and not lane.is_full and name in wanted:
                prefetch = 1
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
        held = self._runs.held
        batches = []
        claimed: dict[Lane, bool] = {}  # and whether with jobs that may not wait
        for job in jobs:
            if (old := held.get(job.job_id)) is not None:
                self.lose(old)  # cancelled and retried before this worker knew: only the new claim holds
            lane = self.lanes[job.job_type]
            waits = may_wait(job)
            if not waits or lane not in claimed:
                claimed[lane] = not waits
                lane.asked_at = 0.0  # there may be more
            if isinstance(lane, BatchLane) and not is_called_alone(job):
                run: Run = lane.gather(job, token, now)
                batches.append(lane)
            else:
                run = self._line_up_alone(job, lane, token, now, waits)
            held[job.job_id] = run
        for lane, hurried in claimed.items():
            lane.hurried = hurried or (lane.hurried and self._is_giving_back(lane))
        for lane in dict.fromkeys(batches):
            lane.look(at_once=not self.waits_for_batches)
        if self._patience is None:
            self._patience = self._loop.call_later(AHEAD_SECONDS_MAX, self._give_back_late)
        self._loop.call_soon(self._dispatch)  # after the next claim, which the store works on while handlers run

    def _line_up_alone(self, job: ClaimedJob, lane: Lane, token: str, now: float, waits: bool) -> Run:
        run = (Item if isinstance(lane, BatchLane) else Run)(job, lane.handler, token, now)
        lane.buffered += 1
        if waits:
            self._buffer.append(run)
        else:
            self._hurried.append(run)
            if job.suspicion:
                self._runs.suspects.add(run)
        return run

    def _is_giving_back(self, lane: Lane) -> bool:
        """Whether the next claim might get back a job that is just being given back for want of a slot."""
        mine = lane.handler
        return any(run.handler is mine and run.settling and run.task is None for run in self._runs.held.values())

    def _line_up(self, turn: Turn) -> None:
        """Put batches in line that are full or have waited long enough."""
        self._buffer.append(turn)
        if self._patience is None:
            self._patience = self._loop.call_later(AHEAD_SECONDS_MAX, self._give_back_late)
        self._loop.call_soon(self._dispatch)

    @property
    def unsettled(self) -> int:
        """Return how many jobs are held and not settled."""
        return sum(not run.settling for run in self._runs.held.values())

    def lose(self, run: Run) -> None:
        """Stop a run whose claim no longer holds, as the store has answered."""
        if run.settling or self._runs.held.get(run.job.job_id) is not run:
            return
        if not run.lost:  # or the watchdog let it go, and said so
            log.warning(
                "%s job %s attempt %d: cancelled, or taken over by another worker; telling its handler to stop",
                run.job.job_type,
                run.job.job_id,
                run.job.attempt,
            )
        run.lost = True
        del self._runs.held[run.job.job_id]
        if run.task is None:
            self._drop(run)
        else:
            run.stop(LOST)
            self._runs.stuck.add(run)

    def _drop(self, run: Run) -> None:
        """Remove a run that is lost before it has started."""
        lane = self.lanes[run.job.job_type]
        if isinstance(lane, BatchLane) and not is_called_alone(run.job):
            lane.drop(run)
        else:
            (self._buffer if may_wait(run.job) else self._hurried).remove(run)
            lane.buffered -= 1
        self.changed.set()

    def _give_back_late(self) -> None:
        """Give back jobs that were claimed ahead, because earlier ones were short, but whose turn does not come: other
        workers may have a slot for them."""
        self._patience = None
        if self._stopping or not self._buffer:
            return
        now = self._loop.time()
        since = now - AHEAD_SECONDS_MAX
        late = [each for each in self._buffer if each.taken_at <= since]
        self._buffer = deque(each for each in self._buffer if each.taken_at > since)
        for each in late:
            self._lane_of(each).pace.stalled(now)
            for run in self._unbuffered(each):
                self._settler.give_back(run, TOO_LATE)
        if self._buffer:
            self._patience = self._loop.call_later(AHEAD_SECONDS_MAX / 2, self._give_back_late)
        self.changed.set()

    def _lane_of(self, each: Run | Turn) -> Lane:
        return each.lane if isinstance(each, Turn) else self.lanes[each.job.job_type]

    def _unbuffered(self, each: Run | Turn) -> Sequence[Run]:
        if isinstance(each, Turn):
            return each.lane.take()
        self.lanes[each.job.job_type].buffered -= 1
        return (each,)

    def close(self) -> None:
        """Start no more jobs, and give back those that have not started."""
        self._stopping = True
        left: list[Run] = []
        while self._hurried:
            left += self._unbuffered(self._hurried.popleft())
        while self._buffer:
            left += self._unbuffered(self._buffer.popleft())
        for lane in self.lanes.values():
            if isinstance(lane, BatchLane):
                left += lane.empty()
        for run in left:
            self._settler.settle(run, GivenBack(SHUT_DOWN))

    # Starting and ending

    def _dispatch(self) -> None:
        """Start what fits, in claim order. A type that is at its limit does not hold up the others."""
        if self._stopping:
            return
        while self._hurried:
            self._start_or_return(self._hurried.popleft())
        buffer = self._buffer
        passed: list[Run | Turn] = []
        while buffer and self._taken < self._concurrency:
            each = buffer.popleft()
            if isinstance(each, Turn):
                if each.lane.is_full:
                    passed.append(each)
                else:
                    self._start_batch(each)
                continue
            lane = self.lanes[each.job.job_type]
            if lane.limit is not None and lane.busy >= lane.limit:
                passed.append(each)
            else:
                lane.buffered -= 1
                self._start(each, lane)
        if passed:
            buffer.extendleft(reversed(passed))

    def _start_or_return(self, run: Run) -> None:
        """Start a job that may not wait here, or give it back."""
        lane = self.lanes[run.job.job_type]
        lane.buffered -= 1
        if self._taken >= self._concurrency or lane.is_full:
            self._settler.give_back(run, NO_SLOT)
        else:
            self._start(run, lane)

    def _start(self, run: Run, lane: Lane) -> None:
        if isinstance(run, Item):
            self._begin((run,), lane, self._work_batch((run,)))
        else:
            if self._taken == 0:
                self.idle.clear()
            self._taken += 1
            lane.busy += 1
            self._runs.start(run)
            run.taken_at = self._loop.time()
            run.task = asyncio.Task(self._work(run), loop=self._loop, name=run.job.job_id, context=self._clean.copy())

    def _start_batch(self, turn: Turn) -> None:
        if items := turn.lane.take():  # or all were cancelled while they waited
            self._begin(items, turn.lane, self._work_batch(items))

    def _begin(self, runs: Sequence[Run], lane: Lane, work: Work) -> None:
        self._occupy(lane)
        task = asyncio.Task(work, loop=self._loop, name=runs[0].job.job_id, context=self._clean.copy())
        now = self._loop.time()
        for run in runs:
            self._runs.start(run)
            run.taken_at = now
            run.task = task

    def _occupy(self, lane: Lane) -> None:
        if self._taken == 0:
            self.idle.clear()
        self._taken += 1
        lane.busy += 1

    async def _run(self, run: Run) -> None:
        try:
            outcome = await self._executor.run(run)
        except BaseException as error:  # of our own, or the loop ends: no claim may be held for ever
            self._free((run,))
            if not (run.settling or run.lost):
                self._settler.fail(run, error)
            raise
        self._free((run,))
        if not (run.settling or run.lost):
            if run.dirty:
                await self._settler.finish(run, outcome)
            else:
                self._settler.conclude(run, outcome)
        errors.current.set(None)  # the run has this task, whose context has the run: only the collector would free them

    async def _run_batch(self, items: Sequence[Item]) -> None:
        try:
            await self._caller.call(items)
        finally:
            self._free(items)

    async def _run_observed(self, run: Run) -> None:
        with self._observed((run,)):
            await self._run(run)

    async def _run_batch_observed(self, items: Sequence[Item]) -> None:
        with self._observed(items):
            await self._run_batch(items)

    @contextmanager
    def _observed(self, runs: Sequence[Run]) -> Iterator[None]:
        assert self._observers is not None  # noqa: S101 - or this would not be called
        with self._observers.running([run.job for run in runs]) as traceparent:
            if traceparent is not None and runs[0].handler.isolation == "process":
                for run in runs:  # what runs in a child belongs to this attempt
                    run.job = msgspec.structs.replace(run.job, traceparent=traceparent)
            yield

    def _free(self, runs: Sequence[Run]) -> None:
        """Free the slot of these runs: their handler has returned."""
        self._taken -= 1
        lane = self.lanes[runs[0].job.job_type]
        lane.busy -= 1
        lane.pace.ended += 1
        for run in runs:
            self._runs.stuck.discard(run)
            if run.settling or run.lost:
                self._runs.forget_running(run)
        if self._buffer:
            self._dispatch()
        if len(self._buffer) <= PREFETCH_MAX // 2:
            self.changed.set()
        if self._taken == 0:
            self.idle.set()
