"""`Worker`: makes runs, settler, executor, slots, fetcher, leases and maintenance, and starts and stops them.

A server whose workers all connect over HTTP runs the maintenance alone. Without it a retry would never become due, and
the job of a silent worker would never be rescued.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from backstay.clock import Clock, within
from backstay.core import workers
from backstay.core.checks import count, span
from backstay.core.port import Store
from backstay.core.records import Signal
from backstay.files.local import Files
from backstay.handlers import Handler
from backstay.lifespan import Lifespans, Resources
from backstay.observers import Observers
from backstay.ops.wait import HOPELESS, Trouble
from backstay.worker import errors
from backstay.worker.batch import Caller
from backstay.worker.channels import Children, Rows, Services, Targets
from backstay.worker.executor import Deadlines, Executor
from backstay.worker.fetcher import Fetcher, WorkerSettings
from backstay.worker.leases import LeaseKeeper
from backstay.worker.maintenance import Maintenance
from backstay.worker.outputs import Outputs
from backstay.worker.pulse import STALL_SECONDS, Pulse
from backstay.worker.recorder import Recorder
from backstay.worker.releaser import StoreReleaser
from backstay.worker.run import SHUT_DOWN, Run, Runs
from backstay.worker.settler import STOP_SECONDS, Settler
from backstay.worker.slots import Slots
from backstay.worker.waits import Waits
from backstay.worker.watchdog import Watchdog

if TYPE_CHECKING:
    from backstay.worker.lifetime import Lifetime, Reason

log = logging.getLogger("backstay.worker")


MINUTE_SECONDS = 60.0
_SIGNALS = Maintenance.SIGNALS | {Signal.STOPPED}


class Figures(NamedTuple):
    """What a worker has done since its start."""

    ended: int  # attempts
    failed: int
    busy_micros: int


def minute(before: Figures, now: Figures, running: int) -> str | None:
    """Summarise in one line what a worker did in a minute; None if no job ended."""
    ended, failed, busy = (new - old for old, new in zip(before, now, strict=True))
    if not ended:
        return None
    return (
        f"in the last minute, {count(ended, 'attempt')} ended and {failed:,} of them failed; average duration"
        f" {span(busy / ended / 1e6)}; {count(running, 'job')} running now"
    )


class Worker:
    """Makes the objects of a worker, each of which knows only those before it."""

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
        lifespans: Lifespans | None = None,
    ) -> None:
        self.worker_id = f"{workers.host_name()}:{os.getpid()}:{secrets.token_hex(3)}"
        self.lease_seconds = settings.lease_seconds
        self.failure: BaseException | None = None  # why the worker stopped by itself
        self._store = store
        self._settings = settings
        self._hurried = asyncio.Event()
        self._shutdown: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._unlisten: Callable[[], None] = lambda: None
        trouble = Trouble(log, clock)
        self._resources = Resources(lifespans)
        self._outputs = Outputs(store, clock, trouble)
        services = Services(
            store,
            clock,
            files,
            Children(store, clock, targets, observers),
            Rows(store, clock),
            Waits(store, clock),
            self._resources,
            self._outputs,
        )
        self._runs = Runs(live)
        self._pulse = Pulse(self._runs.executions)
        self._recorder = Recorder(store, clock, files, self._runs.running, trouble)
        self._settler = Settler(self.worker_id, store, clock, self._runs, self._recorder, observers, trouble)
        self._deadlines = Deadlines(self._runs.executions, self._settler.stop, self._pulse)
        self._executor = Executor(services, self._deadlines, settings.max_memory)
        caller = Caller(clock, self._runs, self._settler, self._executor)
        self._slots = Slots(
            handlers, settings.concurrency, self._runs, self._settler, self._executor, caller, observers
        )
        self._fetcher = Fetcher(self.worker_id, store, clock, settings, self._slots, self._settler, trouble)
        self._lifetime: Lifetime | None = None
        if settings.is_limited:
            from backstay.worker.lifetime import Lifetime  # here: other workers spare themselves the memory

            self._lifetime = Lifetime(
                store, clock, settings, self._runs, self._settler, self._fetcher, self._stop_by_itself
            )
        releaser = StoreReleaser(self.worker_id, clock, self._runs, self._settler, self._fetcher, self._slots.lose)
        self._watchdog = Watchdog(clock, settings.lease_seconds, self._pulse, releaser, trouble)
        self._leases = LeaseKeeper(
            self.worker_id,
            make_store,
            clock,
            settings,
            self._runs,
            self._settler,
            self._slots,
            self._fetcher,
            self._watchdog,
            releaser,
            trouble,
        )
        self._maintenance = Maintenance(
            store,
            clock,
            files,
            name=self.worker_id,
            lease_seconds=settings.lease_seconds,
            poll_seconds=settings.poll_seconds,
            keep=settings.keep,
            observers=observers,
            trouble=trouble,
            settling=self._runs.settling,
            code=settings.code,
        )

    # Starting and stopping

    async def __aenter__(self) -> Worker:
        await self._resources.start()  # before anything that others see: a worker without it runs no job
        errors.install()
        self._pulse.start()
        try:
            await self._leases.start()
            await self._maintenance.sweep_first()
            await self._maintenance.declare_first()
        except BaseException:
            errors.remove()
            await asyncio.shield(self._leases.stop())
            self._pulse.stop()
            await asyncio.shield(self._resources.end())
            raise
        self._unlisten = self._store.listen(_SIGNALS, self._hear)
        self._maintenance.start(self._check_task)
        own = () if self._lifetime is None else (self._lifetime.work(),)
        for work in (*own, self._sum_up_minutes(), self._settler.work(), self._recorder.work(), self._fetcher.work()):
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

    @property
    def ended_for(self) -> Reason | None:
        """Why it has ended by itself, without anything being wrong; None if it was told to."""
        return None if self._lifetime is None else self._lifetime.reason

    def _stop_by_itself(self) -> None:
        self._stopping = asyncio.get_running_loop().create_task(self.stop())

    async def stop(self) -> None:
        """Stop claiming, give back what has not started, and let the rest finish, or give it back too after the grace
        period."""
        if self._shutdown is None:
            self._shutdown = asyncio.get_running_loop().create_task(self._shut_down())
        await asyncio.shield(self._shutdown)  # every caller waits for the same end

    def hurry(self) -> None:
        """While stopping: do not wait for the grace period to end; stop running jobs and give them back now."""
        self._hurried.set()

    def on_dead_loop(self, call: Callable[[], None]) -> None:
        """Set the function that is called, in another thread, once a handler has blocked the event loop beyond its
        timeout and all other jobs are given back: nothing in this process can run jobs any more."""
        self._watchdog.on_dead = call

    def is_blocked(self) -> bool:
        """Whether the event loop is late; from any thread."""
        return self._pulse.late() > STALL_SECONDS

    def abandon(self, seconds: float) -> None:
        """Give back all jobs without the event loop, from another thread, right before the process ends."""
        self._leases.abandon(seconds)

    def call_batches_at_once(self) -> None:
        """Do not wait for batches to grow: in a test no more jobs arrive."""
        self._slots.waits_for_batches = False

    async def _shut_down(self) -> None:
        self._runs.stopping = True
        self._leases.check_now()  # and reports that the worker is stopping: others should not count on it
        self._fetcher.stop()
        await asyncio.gather(self._tasks[-1], return_exceptions=True)
        self._unlisten()
        self._slots.close()
        await within(self._settings.grace_seconds, self._idle_or_hurried())
        for execution in self._runs.executions():
            self._settler.stop(execution, SHUT_DOWN)
        await within(STOP_SECONDS, self._slots.idle.wait())
        await within(STOP_SECONDS, self._finished())
        await within(STOP_SECONDS, self._settler.drained())
        await self._maintenance.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._outputs.close()
        await self._recorder.close(STOP_SECONDS)
        self._deadlines.close()
        await self._leases.stop()
        self._pulse.stop()
        await asyncio.gather(self._executor.end(), self._resources.end())
        self._executor.close()
        errors.remove()
        if self._runs.stuck:
            left = ", ".join(f"{run.job.job_type} {run.job.job_id}" for run in list(self._runs.stuck)[:10])
            log.warning("worker %s stopped, but these handlers are still running: %s", self.worker_id, left)
        log.info("worker %s stopped", self.worker_id)

    async def _finished(self) -> None:
        """Wait until every handler that has returned has passed its outcome to the settler."""
        ending = {run.task for run in self._runs.held.values() if run.task is not None and run not in self._runs.stuck}
        if ending:
            await asyncio.wait(ending)

    async def _idle_or_hurried(self) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (self._slots.idle, self._hurried)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def _sum_up_minutes(self) -> None:
        """Log one line for each minute in which jobs ended. At thousands of jobs a second, a line for each job is for
        debugging."""
        before = self._figures()
        while True:
            await asyncio.sleep(MINUTE_SECONDS)
            now = self._figures()
            if line := minute(before, now, len(self._runs.running)):
                log.info("%s", line)
            before = now

    def _figures(self) -> Figures:
        return Figures(self._settler.ended, self._settler.failed, self._settler.busy_micros)

    def _check_task(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None or self.failure is not None:
            return
        self.failure = error
        if isinstance(error, HOPELESS):
            log.critical("the worker is stopping: %s", error)
        else:
            log.critical("an internal error stopped the worker", exc_info=error)
        asyncio.get_running_loop().create_task(self.stop())

    def _hear(self, signal: Signal) -> None:
        if signal is not Signal.STOPPED:
            self._maintenance.hear(signal)
        elif self._runs.held:
            self._leases.check_now()

    async def join(self) -> None:
        """Wait until this worker has stopped."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
