"""The worker's main path: jobs come in from the fetcher, run in slots, and leave through the settler."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import socket
from collections import deque
from collections.abc import Callable, Mapping

from holdfast.clock import MICROS, Clock, Instant
from holdfast.errors import EffectFailed, StoreBusy
from holdfast.files import Files
from holdfast.handlers import Handler
from holdfast.lifecycle import ErrorEntry, GivenBack, Outcome, Raised, Transition, decide
from holdfast.limits import AHEAD_SECONDS_MAX, PREFETCH_MAX
from holdfast.retention import Retention
from holdfast.store.port import Store
from holdfast.store.types import ClaimedJob, Signal, Verdict, WorkerRow
from holdfast.waits import within
from holdfast.worker import capture, process_key
from holdfast.worker.deadlines import Deadlines
from holdfast.worker.executor import LOST, SHUT_DOWN, TIMED_OUT, Executor
from holdfast.worker.fetcher import Fetcher, Room
from holdfast.worker.janitor import Janitor
from holdfast.worker.lanes import Lane, Pace
from holdfast.worker.leases import LeaseKeeper
from holdfast.worker.mistakes import clean, entry
from holdfast.worker.recorder import Recorder
from holdfast.worker.run import Run
from holdfast.worker.scheduler import Scheduler
from holdfast.worker.settler import Settler
from holdfast.worker.upkeep import Upkeep

log = logging.getLogger("holdfast.worker")
_SIGNALS = frozenset({Signal.READY, Signal.DUE, Signal.PLANNED, Signal.STOPPED})
STOP_SECONDS = 5.0  # how long a cancelled handler may take to let go before its slot counts as stuck


class Worker:
    def __init__(
        self,
        store: Store,
        make_store: Callable[[], Store],
        handlers: Mapping[str, Handler],
        clock: Clock,
        files: Files | None,
        live: dict[str, Run],
        *,
        queues: tuple[str, ...],
        concurrency: int,
        lease_seconds: float,
        poll_seconds: float,
        claim_limit: int,
        grace_seconds: float,
        keep: Retention,
        version: str,
    ) -> None:
        self.worker_id = f"{_host()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._store = store
        self._handlers = handlers
        self._clock = clock
        self._queues = queues
        self._concurrency = concurrency
        self._lease_seconds = lease_seconds
        self._grace_seconds = grace_seconds
        self._version = version
        self._started_at = clock.now()
        self._stopping = False
        self.failure: BaseException | None = None  # why the worker stopped by itself

        self._buffer: deque[Run] = deque()  # claimed, not started
        self._running: dict[str, Run] = {}  # started, by job id
        self._live = live  # the same, of all workers of the app, which reads live progress from it
        self._held: dict[str, Run] = {}  # everything whose claim is ours, until it is settled
        self._stuck: set[Run] = set()  # settled or lost, but the handler does not let go of its slot
        self._lanes = {name: Lane(handler, Pace(clock)) for name, handler in handlers.items()}
        self._loop = asyncio.get_running_loop()
        self._slots_taken = 0
        self._patience: asyncio.TimerHandle | None = None  # with what was claimed ahead
        self._hurried = asyncio.Event()
        self._shutdown: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._ended = self._failed = self._busy_micros = 0  # attempts, for whoever asks how this worker does
        self._deadlines = Deadlines(lambda: self._running.values(), lambda run: self._stop_run(run, TIMED_OUT))

        self._executor = Executor(store, clock, files, self._deadlines.watch)
        self._settler = Settler(store, clock, self._settled, self._effect_failed)
        self._recorder = Recorder(store, clock, files, lambda: list(self._running.values()))
        self._upkeep = Upkeep(
            store,
            clock,
            worker_id=self.worker_id,
            lease_seconds=lease_seconds,
            sweep_seconds=min(poll_seconds, max(0.05, lease_seconds / 2)),
        )
        self._scheduler = Scheduler(store, clock, look_seconds=poll_seconds)
        self._janitor = Janitor(store, clock, files, keep)
        self._leases = LeaseKeeper(
            make_store,
            clock,
            lease_seconds,
            lambda: list(self._held.values()),
            self._describe,
            self._lose,
            lambda: self._fetcher.under_way,
        )
        self._fetcher = Fetcher(
            store,
            clock,
            worker_id=self.worker_id,
            version=version,
            queues=queues,
            versions={name: handler.version for name, handler in handlers.items()},
            lease_seconds=lease_seconds,
            poll_seconds=poll_seconds,
            claim_limit=claim_limit,
            room=self._room,
            take=self._take,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._unlisten: Callable[[], None] = lambda: None

    # Starting and stopping

    async def _sweep_first(self) -> None:
        """What a dead worker of this machine left behind runs again at once; what someone still holds comes later."""
        try:
            await self._upkeep.sweep_once()
        except StoreBusy as error:
            log.warning("the first look at lost claims is put off: %s", error)

    async def __aenter__(self) -> Worker:
        capture.install()
        try:
            await self._leases.start()
            await self._sweep_first()
        except BaseException:
            capture.remove()
            await asyncio.shield(self._leases.stop())
            raise
        self._unlisten = self._store.listen(_SIGNALS, self._hear)
        for work in (
            self._settler.work(),
            self._upkeep.promote(),
            self._upkeep.sweep(),
            self._recorder.work(),
            self._scheduler.work(),
            self._janitor.work(),
            self._fetcher.work(),
        ):
            task = asyncio.get_running_loop().create_task(work)
            task.add_done_callback(self._check_task)
            self._tasks.append(task)
        log.info(
            "worker %s started: queues %s, concurrency %d, on %s",
            self.worker_id,
            ", ".join(self._queues),
            self._concurrency,
            self._store.location,
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop claiming, give back what has not begun, let the rest finish or, after the grace, give it back too."""
        if self._shutdown is None:
            self._shutdown = asyncio.get_running_loop().create_task(self._shut_down())
        await asyncio.shield(self._shutdown)  # whoever asks waits for the one end there is

    def hurry(self) -> None:
        """While stopping: do not wait for the grace to end; what runs is stopped and given back now."""
        self._hurried.set()

    async def _shut_down(self) -> None:
        self._stopping = True
        self._leases.check_now()  # and says that it is stopping: nobody should count on it until then
        self._fetcher.stop()
        await asyncio.gather(self._tasks[-1], return_exceptions=True)
        self._unlisten()
        while self._buffer:
            run = self._buffer.popleft()
            run.lane.buffered -= 1
            self._settle(run, GivenBack(SHUT_DOWN))
        await within(self._grace_seconds, self._idle_or_hurried())
        for run in list(self._running.values()):
            self._stop_run(run, SHUT_DOWN)
        await within(STOP_SECONDS, self._idle.wait())
        await within(STOP_SECONDS, self._finished())
        await within(STOP_SECONDS, self._settler.drained())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._recorder.close(STOP_SECONDS)
        self._deadlines.close()
        await self._leases.stop()
        self._executor.close()
        capture.remove()
        if self._stuck:
            left = ", ".join(f"{run.job.job_type} {run.job.job_id}" for run in list(self._stuck)[:10])
            log.warning("worker %s leaves handlers behind that did not stop: %s", self.worker_id, left)
        log.info("worker %s stopped", self.worker_id)

    async def _finished(self) -> None:
        """Until every handler that has let go has handed its outcome to the settler."""
        ending = [run.task for run in self._held.values() if run.task is not None and run not in self._stuck]
        if ending:
            await asyncio.wait(ending)

    async def _idle_or_hurried(self) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (self._idle, self._hurried)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    def _check_task(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("a part of the worker broke; it stops", exc_info=error)
            self.failure = error
            asyncio.get_running_loop().create_task(self.stop())

    def _hear(self, signal: Signal) -> None:
        match signal:
            case Signal.READY:
                self._fetcher.ready()
            case Signal.DUE:
                self._upkeep.due_changed()
            case Signal.PLANNED:
                self._scheduler.changed()
            case Signal.STOPPED:
                if self._held:
                    self._leases.check_now()
            case _:
                pass

    # Claimed jobs to running handlers

    def _room(self) -> Room | None:
        """What the next claim may take: free slots, and of types whose jobs are short a little ahead."""
        free = max(0, self._concurrency - self._slots_taken - sum(lane.next_up for lane in self._lanes.values()))
        total, prefetch_total, of_type = free, 0, {}
        for name, lane in self._lanes.items():
            prefetch = lane.pace.prefetch()
            ahead = max(0, prefetch - lane.buffered)
            room = free + ahead
            if lane.limit is not None:
                room = min(room, lane.limit - lane.busy - lane.buffered + prefetch)
            if room > 0:
                of_type[name] = room
                total += ahead
                prefetch_total += prefetch
        if not of_type or (self._buffer and total < prefetch_total // 2):
            return None
        return Room(total, of_type)

    def _take(self, jobs: list[ClaimedJob], token: str) -> None:
        now = self._loop.time()
        for job in jobs:
            if (old := self._held.get(job.job_id)) is not None:
                self._lose(old)  # cancelled and retried before we heard of it: only the new claim holds
            lane = self._lanes[job.job_type]
            lane.buffered += 1
            run = Run(job, lane, token)
            run.taken_at = now
            self._held[job.job_id] = run
            self._buffer.append(run)
        if self._patience is None:
            self._patience = self._loop.call_later(AHEAD_SECONDS_MAX, self._give_back_late)
        self._loop.call_soon(self._dispatch)  # after the next claim, which the store works on while handlers run

    def _give_back_late(self) -> None:
        """Jobs that were claimed ahead, because the last ones were short, and whose turn does not come: others may
        have a slot for them."""
        self._patience = None
        if self._stopping or not self._buffer:
            return
        since = self._loop.time() - AHEAD_SECONDS_MAX
        late = [run for run in self._buffer if run.taken_at <= since]
        self._buffer = deque(run for run in self._buffer if run.taken_at > since)
        for run in late:
            run.lane.buffered -= 1
            run.lane.pace.stalled()
            self._settle(run, GivenBack("claimed ahead, and no slot was free in time"))
        if self._buffer:
            self._patience = self._loop.call_later(AHEAD_SECONDS_MAX / 2, self._give_back_late)
        self._fetcher.room_changed()

    def _dispatch(self) -> None:
        """Start what fits, in claim order; a type that is full does not hold up the others."""
        if self._stopping:
            return
        passed: list[Run] = []
        while self._buffer and self._slots_taken < self._concurrency:
            run = self._buffer.popleft()
            lane = run.lane
            if lane.limit is not None and lane.busy >= lane.limit:
                passed.append(run)
            else:
                self._start(run)
        if passed:
            self._buffer.extendleft(reversed(passed))

    def _start(self, run: Run) -> None:
        if self._slots_taken == 0:
            self._idle.clear()
        self._slots_taken += 1
        run.lane.buffered -= 1
        run.lane.busy += 1
        self._running[run.job.job_id] = self._live[run.job.job_id] = run
        run.task = asyncio.Task(self._run(run), loop=self._loop, name=run.job.job_id)

    async def _run(self, run: Run) -> None:
        outcome = None
        try:
            outcome = await self._executor.run(run)
        finally:
            self._free(run)
            if outcome is not None and not run.settling and not run.lost:
                await self._finish_or_let_go(run, outcome)

    async def _finish_or_let_go(self, run: Run, outcome: Outcome) -> None:
        """What cannot be settled as it ended is a failure; what cannot be settled at all is let go, and rescued."""
        try:
            await self._finish(run, outcome)
        except Exception as error:
            log.exception("%s job %s could not be settled", run.job.job_type, run.job.job_id)
            try:
                run.unsay()
                self._settle(run, Raised(entry(error, run.job.attempt, self._clock.now())))
            except Exception:
                log.exception("%s job %s is let go; its lease runs out", run.job.job_type, run.job.job_id)
                self._forget(run)

    async def _finish(self, run: Run, outcome: Outcome) -> None:
        run.settling = True  # its outcome is known: a stop that comes while its log is written must not lose it
        if run.dirty:
            await self._recorder.write_log(run)
        self._settle(run, outcome)

    def _free(self, run: Run) -> None:
        """The handler has let go of its slot."""
        self._slots_taken -= 1
        run.lane.busy -= 1
        run.lane.pace.ended += 1
        self._stuck.discard(run)
        if run.settling or run.lost:
            self._forget_running(run)
        if self._buffer:
            self._dispatch()
        if len(self._buffer) <= PREFETCH_MAX // 2:
            self._fetcher.room_changed()
        if self._slots_taken == 0:
            self._idle.set()

    def _forget_running(self, run: Run) -> None:
        for where in (self._running, self._live):
            if where.get(run.job.job_id) is run:
                del where[run.job.job_id]

    def _forget(self, run: Run) -> None:
        self._held.pop(run.job.job_id, None)
        self._forget_running(run)

    # Ending

    def _settle(self, run: Run, outcome: Outcome) -> None:
        run.settling = True
        self._settler.put(run, self._decide(run, outcome, self._clock.now()))

    def _decide(self, run: Run, outcome: Outcome, now: Instant) -> Transition:
        transition = decide(
            run.job,
            outcome,
            now=now,
            backoff=run.handler.backoff,
            draw=random.random(),
            token=run.token,
            by=self.worker_id,
            **run.said(),
        )
        self._ended += 1
        self._busy_micros += transition.ran_micros
        if transition.error is not None:
            self._failed += 1
            log.warning(
                "%s job %s attempt %d → %s%s: %s",
                run.job.job_type,
                run.job.job_id,
                run.job.attempt,
                transition.target.value,
                "" if transition.scheduled_for is None else f" in {(transition.scheduled_for - now) / MICROS:.3g} s",
                transition.reason,
            )
        elif log.isEnabledFor(logging.DEBUG):  # a line per job is too much for every day: there are thousands a second
            log.debug(
                "%s job %s attempt %d → %s after %.3g s",
                run.job.job_type,
                run.job.job_id,
                run.job.attempt,
                transition.target.value,
                transition.ran_micros / MICROS,
            )
        return transition

    def _effect_failed(self, run: Run, error: EffectFailed) -> Transition:
        """The handler's own SQL broke the completion: that is a failure of the attempt."""
        now = self._clock.now()
        failure = ErrorEntry(run.job.attempt, now, "EffectFailed", clean(str(error)))
        run.effects = ()
        return self._decide(run, Raised(failure), now)

    def _settled(self, run: Run, verdict: Verdict) -> None:
        if self._held.get(run.job.job_id) is run:
            del self._held[run.job.job_id]
        if run not in self._stuck:
            self._forget_running(run)
        if verdict is not Verdict.APPLIED:
            log.warning(
                "job %s attempt %d: its outcome was refused (%s); another run or a cancellation came first",
                run.job.job_id,
                run.job.attempt,
                verdict.value,
            )

    def _stop_run(self, run: Run, reason: str) -> None:
        """Stop a handler. One that cannot be stopped keeps its slot, but its job is settled without it."""
        if run.settling or run.lost:
            return
        run.stop(reason)
        if run.cancelled is not None:  # a thread
            self._abandon(run)
        else:
            asyncio.get_running_loop().call_later(STOP_SECONDS, self._abandon, run)

    def _abandon(self, run: Run) -> None:
        if run.settling or run.task is None or run.task.done():
            return
        self._stuck.add(run)
        log.warning(
            "%s job %s attempt %d does not stop: its slot stays taken until its handler returns",
            run.job.job_type,
            run.job.job_id,
            run.job.attempt,
        )
        if not run.lost:
            self._settle(run, self._executor.stopped(run))

    def _lose(self, run: Run) -> None:
        """The store says that this claim no longer holds."""
        if run.settling or run.lost or self._held.get(run.job.job_id) is not run:
            return
        log.warning(
            "%s job %s attempt %d: cancelled, or taken over by another worker; its handler is told to stop",
            run.job.job_type,
            run.job.job_id,
            run.job.attempt,
        )
        run.lost = True
        del self._held[run.job.job_id]
        if run.task is None:
            self._buffer.remove(run)
            run.lane.buffered -= 1
            self._fetcher.room_changed()
            return
        run.stop(LOST)
        self._stuck.add(run)

    # Telling others

    def _describe(self) -> WorkerRow:
        """Called from the lease keeper's thread: reads only."""
        return WorkerRow(
            worker_id=self.worker_id,
            host=_host(),
            pid=os.getpid(),
            process_key=process_key.own(),
            version=self._version,
            queues=self._queues,
            job_types=tuple(self._handlers),
            concurrency=self._concurrency,
            started_at=self._started_at,
            heartbeat_at=self._clock.now(),
            stopping=self._stopping,
            running=tuple(list(self._running)[:100]),
            limits={name: lane.limit for name, lane in self._lanes.items() if lane.limit is not None},
            busy={name: lane.busy for name, lane in self._lanes.items() if lane.busy},
            versions={name: handler.version for name, handler in self._handlers.items()},
            ended=self._ended,
            failed=self._failed,
            busy_micros=self._busy_micros,
            stuck=tuple(run.job.job_id for run in list(self._stuck)[:100]),
            lease_micros=round(self._lease_seconds * MICROS),
        )

    async def join(self) -> None:
        """Until this worker is stopped."""
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _host() -> str:
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in socket.gethostname())
    return name[:60] or "host"
