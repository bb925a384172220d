"""The worker's main path: jobs come in from the fetcher, run in slots, and leave through the settler."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from holdfast import pace
from holdfast.clock import MICROS, Clock, Instant
from holdfast.errors import StoreBusy
from holdfast.files import Files
from holdfast.handlers import Handler
from holdfast.observing import Observers
from holdfast.retention import Retention
from holdfast.store.port import Store
from holdfast.store.types import Signal, WorkerRow
from holdfast.trouble import HOPELESS, Trouble
from holdfast.waits import within
from holdfast.worker import capture, process_key
from holdfast.worker.calling import Caller
from holdfast.worker.channels import Services
from holdfast.worker.children import Children, Targets
from holdfast.worker.chores import sweep_seconds
from holdfast.worker.deadlines import Deadlines
from holdfast.worker.ending import STOP_SECONDS, Ending
from holdfast.worker.executor import SHUT_DOWN, TIMED_OUT, Executor
from holdfast.worker.fetcher import Fetcher
from holdfast.worker.gathering import BatchLane
from holdfast.worker.items import Item
from holdfast.worker.janitor import Janitor
from holdfast.worker.leases import LeaseKeeper
from holdfast.worker.recorder import Recorder
from holdfast.worker.rows import Rows
from holdfast.worker.run import Run
from holdfast.worker.scheduler import Scheduler
from holdfast.worker.slots import Slots
from holdfast.worker.upkeep import Upkeep

log = logging.getLogger("holdfast.worker")
_SIGNALS = frozenset({Signal.READY, Signal.DUE, Signal.PLANNED, Signal.STOPPED, Signal.UNFINISHED})


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker was told, checked and with its defaults."""

    queues: tuple[str, ...]
    concurrency: int
    lease_seconds: float
    poll_seconds: float
    claim_limit: int
    grace_seconds: float
    keep: Retention
    version: str


class Worker:
    def __init__(
        self,
        store: Store,
        make_store: Callable[[], Store],
        handlers: Mapping[str, Handler],
        clock: Clock,
        files: Files | None,
        live: dict[str, Run],
        targets: Targets,
        settings: WorkerSettings,
        observers: Observers | None = None,
    ) -> None:
        self.worker_id = f"{_host()}:{os.getpid()}:{secrets.token_hex(3)}"
        self.failure: BaseException | None = None  # why the worker stopped by itself
        self._store = store
        self._handlers = handlers
        self._clock = clock
        self._settings = settings
        self._observers = observers
        self._started_at = clock.now()
        self._marks: tuple[tuple[Instant, int, int, int], ...] = ()
        self._trouble = Trouble(log, clock)
        self._stopping = False
        self._hurried = asyncio.Event()
        self._shutdown: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._unlisten: Callable[[], None] = lambda: None
        children = Children(store, clock, targets, observers)
        self._wire_runs(live, Services(store, clock, files, children, Rows(store, clock)))
        self._wire_chores(make_store, files)

    def _wire_runs(self, live: dict[str, Run], services: Services) -> None:
        """From a claim to a settlement."""
        store, clock, settings = self._store, self._clock, self._settings
        self._deadlines = Deadlines(lambda: self._slots.executions(), lambda each: self._ending.stop(each, TIMED_OUT))
        self._executor = Executor(services, self._deadlines.watch)
        self._recorder = Recorder(
            store, clock, services.files, lambda: list(self._slots.running.values()), self._trouble
        )
        self._ending = Ending(
            self.worker_id, store, clock, self._recorder, self._executor, self._trouble, self._observers
        )
        self._slots = self._ending.slots = Slots(
            self._handlers,
            clock,
            settings.concurrency,
            live,
            work=self._run if self._observers is None else self._run_observed,
            work_batch=self._run_batch if self._observers is None else self._run_batch_observed,
            give_back=self._ending.give_back,
            put_off=self._ending.put_off,
            lose=self._ending.lose,
            room_changed=lambda: self._fetcher.room_changed(),
        )
        self._caller = Caller(self._executor, clock, self._slots.calls, self._ending.finish, lambda: self._stopping)
        self._fetcher = Fetcher(
            store,
            clock,
            worker_id=self.worker_id,
            version=settings.version,
            queues=settings.queues,
            versions={name: handler.version for name, handler in self._handlers.items()},
            lease_seconds=settings.lease_seconds,
            poll_seconds=settings.poll_seconds,
            claim_limit=settings.claim_limit,
            rooms=self._slots.rooms,
            take=self._slots.take,
            trouble=self._trouble,
        )

    def _wire_chores(self, make_store: Callable[[], Store], files: Files | None) -> None:
        """What goes on beside the runs: leases are kept, what is due or lost is found, schedules tick, old jobs go."""
        store, clock, settings = self._store, self._clock, self._settings
        self._leases = LeaseKeeper(
            make_store,
            clock,
            settings.lease_seconds,
            lambda: list(self._slots.held.values()),
            self._describe,
            self._ending.lose,
            lambda: self._fetcher.under_way,
            self._trouble,
        )
        self._upkeep = Upkeep(
            store,
            clock,
            worker_id=self.worker_id,
            lease_seconds=settings.lease_seconds,
            sweep_seconds=sweep_seconds(settings.poll_seconds, settings.lease_seconds),
            trouble=self._trouble,
            settling=lambda: {run.job.job_id for run in self._slots.held.values() if run.settling},
            observers=self._observers,
        )
        self._scheduler = Scheduler(store, clock, look_seconds=settings.poll_seconds, trouble=self._trouble)
        self._janitor = Janitor(store, clock, files, settings.keep, self._trouble)

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
            self._ending.settler.work(),
            self._upkeep.promote(),
            self._upkeep.sweep(),
            self._upkeep.go_on(),
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
            ", ".join(self._settings.queues),
            self._settings.concurrency,
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

    def call_batches_at_once(self) -> None:
        """Do not wait for a batch to become larger: in a test no others come."""
        self._slots.waits_for_batches = False

    async def _shut_down(self) -> None:
        self._stopping = True
        self._leases.check_now()  # and says that it is stopping: nobody should count on it until then
        self._fetcher.stop()
        await asyncio.gather(self._tasks[-1], return_exceptions=True)
        self._unlisten()
        for run in self._slots.empty():
            self._ending.give_back(run, SHUT_DOWN)
        await within(self._settings.grace_seconds, self._idle_or_hurried())
        for execution in self._slots.executions():
            self._ending.stop(execution, SHUT_DOWN)
        await within(STOP_SECONDS, self._slots.idle.wait())
        await within(STOP_SECONDS, self._finished())
        await within(STOP_SECONDS, self._ending.settler.drained())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._recorder.close(STOP_SECONDS)
        self._deadlines.close()
        await self._leases.stop()
        self._executor.close()
        capture.remove()
        if self._slots.stuck:
            left = ", ".join(f"{run.job.job_type} {run.job.job_id}" for run in list(self._slots.stuck)[:10])
            log.warning("worker %s leaves handlers behind that did not stop: %s", self.worker_id, left)
        log.info("worker %s stopped", self.worker_id)

    async def _finished(self) -> None:
        """Until every handler that has let go has handed its outcome to the settler."""
        ending = {
            run.task for run in self._slots.held.values() if run.task is not None and run not in self._slots.stuck
        }
        if ending:
            await asyncio.wait(ending)

    async def _idle_or_hurried(self) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (self._slots.idle, self._hurried)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    def _check_task(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None or self.failure is not None:
            return
        self.failure = error
        if isinstance(error, HOPELESS):
            log.critical("the worker stops: %s", error)
        else:
            log.critical("a part of the worker broke; it stops", exc_info=error)
        asyncio.get_running_loop().create_task(self.stop())

    def _hear(self, signal: Signal) -> None:
        match signal:
            case Signal.READY:
                self._fetcher.ready()
            case Signal.DUE:
                self._upkeep.due_changed()
            case Signal.PLANNED:
                self._scheduler.changed()
            case Signal.UNFINISHED:
                self._upkeep.left_unfinished()
            case Signal.STOPPED:
                if self._slots.held:
                    self._leases.check_now()
            case _:
                pass

    # Running

    async def _run(self, run: Run) -> None:
        outcome = None
        try:
            outcome = await self._executor.run(run)
        finally:
            self._slots.free((run,))
            if outcome is not None and not run.is_over:
                await self._ending.finish(run, outcome)

    async def _run_batch(self, items: Sequence[Item]) -> None:
        try:
            await self._caller.call(items)
        finally:
            self._slots.free(items)

    async def _run_observed(self, run: Run) -> None:
        with self._watched((run,)):
            await self._run(run)

    async def _run_batch_observed(self, items: Sequence[Item]) -> None:
        with self._watched(items):
            await self._run_batch(items)

    @contextmanager
    def _watched(self, runs: Sequence[Run]) -> Iterator[None]:
        assert self._observers is not None  # noqa: S101 - who else would watch
        with self._observers.running([run.job for run in runs]) as traceparent:
            if traceparent is not None and runs[0].handler.isolation == "process":
                for run in runs:  # what runs in a child belongs to this attempt
                    run.job = msgspec.structs.replace(run.job, traceparent=traceparent)
            yield

    # Telling others

    def _describe(self) -> WorkerRow:
        """Called from the lease keeper's thread: it changes nothing that others do."""
        lanes = self._slots.lanes
        row = WorkerRow(
            worker_id=self.worker_id,
            host=_host(),
            pid=os.getpid(),
            process_key=process_key.own(),
            version=self._settings.version,
            queues=self._settings.queues,
            job_types=tuple(self._handlers),
            concurrency=self._settings.concurrency,
            started_at=self._started_at,
            heartbeat_at=self._clock.now(),
            stopping=self._stopping,
            running=tuple(list(self._slots.running)[:100]),
            limits={name: lane.limit for name, lane in lanes.items() if lane.limit is not None},
            busy={name: lane.busy for name, lane in lanes.items() if lane.busy},
            batches={name: lane.max_size for name, lane in lanes.items() if isinstance(lane, BatchLane)},
            versions={name: handler.version for name, handler in self._handlers.items()},
            ended=self._ending.ended,
            failed=self._ending.failed,
            busy_micros=self._ending.busy_micros,
            stuck=tuple(run.job.job_id for run in list(self._slots.stuck)[:100]),
            lease_micros=round(self._settings.lease_seconds * MICROS),
            marks=self._marks,
        )
        row = pace.marked(row)
        self._marks = row.marks
        return row

    async def join(self) -> None:
        """Until this worker is stopped."""
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _host() -> str:
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in socket.gethostname())
    return name[:60] or "host"
