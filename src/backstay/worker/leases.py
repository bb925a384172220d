"""Extends the leases of all running jobs and reports the worker as alive, from its own thread and store.

A handler that blocks the event loop, or a store call that waits, must not cost the worker its claims. The thread reads
the worker's runs and writes only to the store; what it learns is handed to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable

from backstay import failpoints
from backstay.clock import MICROS, Clock, Instant, within
from backstay.core import workers
from backstay.core.port import Store
from backstay.core.records import Hold, Verdict, WorkerRow
from backstay.core.workers import renewal_seconds
from backstay.errors import BackstayError, StoreMoved
from backstay.ops.wait import Trouble
from backstay.worker import errors
from backstay.worker.fetcher import Fetcher, WorkerSettings
from backstay.worker.pulse import LOOK_SECONDS
from backstay.worker.releaser import StoreReleaser, unread
from backstay.worker.run import Run, Runs
from backstay.worker.settler import Settler
from backstay.worker.slots import BatchLane, Slots
from backstay.worker.watchdog import Watchdog

log = logging.getLogger("backstay.worker")
LOCKED_SECONDS = 0.1  # until a lease is asked for again whose job another transaction had: most last milliseconds


class LeaseKeeper:
    def __init__(
        self,
        worker_id: str,
        make_store: Callable[[], Store],
        clock: Clock,
        settings: WorkerSettings,
        runs: Runs,
        settler: Settler,
        slots: Slots,
        fetcher: Fetcher,
        watchdog: Watchdog[Run],
        releaser: StoreReleaser,
        trouble: Trouble,
    ) -> None:
        self._worker_id = worker_id
        self._trouble = trouble
        self._make_store = make_store
        self._clock = clock
        self._settings = settings
        self._runs = runs
        self._settler = settler
        self._slots = slots
        self._fetcher = fetcher
        self._watchdog = watchdog
        self._releaser = releaser
        self._store: Store | None = None
        self._started_at = clock.now()
        self._marks: tuple[tuple[Instant, int, int, int], ...] = ()
        self._main = asyncio.get_running_loop()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stir: asyncio.Event | None = None
        self._stopping = False
        self._is_owed = False  # an extension that the last round did not get
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="backstay-leases", daemon=True)

    async def start(self) -> None:
        self._thread.start()
        await asyncio.get_running_loop().run_in_executor(None, self._started.wait)
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        self._stopping = True
        self.check_now()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def check_now(self) -> None:
        """Check at once whether a running job that was cancelled is one of this worker's."""
        if self._loop is not None and self._stir is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stir.set)

    def _run(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        self._loop, self._stir = asyncio.get_running_loop(), asyncio.Event()
        store = self._make_store()
        try:
            await store.open()
            await store.beat(self.describe())
        except BaseException as error:
            self._failure = error
            self._started.set()
            return
        self._store = store
        self._releaser.open(store)
        self._started.set()
        next_at = self._loop.time()
        watch = self._loop.create_task(self._watch())
        try:
            while not self._stopping:
                pause = renewal_seconds(self._settings.lease_seconds)
                if self._is_owed:
                    pause = min(LOCKED_SECONDS, pause)
                next_at = max(next_at + pause, self._loop.time())  # a slow round delays no other
                await within(max(0.0, next_at - self._loop.time()), self._stir.wait())
                self._stir.clear()
                if not self._stopping:
                    await self._keep(store)
            await self._bye(store)
        finally:
            watch.cancel()
            await asyncio.wait({watch})
            await store.close()

    async def _watch(self) -> None:
        while True:
            before = asyncio.get_running_loop().time()
            await asyncio.sleep(LOOK_SECONDS)
            stood_still = max(0.0, asyncio.get_running_loop().time() - before - LOOK_SECONDS)
            try:
                if await self._watchdog.look(stood_still):
                    self.check_now()  # the worker's row has changed
            except Exception as error:
                self._trouble.met("watching the event loop", error)

    def abandon(self, seconds: float) -> None:
        """Give back all jobs, from a thread that is neither the loop's nor this one, because the process is about to
        end."""
        if self._loop is None or self._store is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._abandon(self._store), self._loop).result(seconds)
        except Exception as error:  # their leases expire
            log.warning("could not give back all jobs: %s", str(error) or type(error).__name__)

    async def _abandon(self, store: Store) -> None:
        await self._watchdog.abandon()
        await self._bye(store)

    async def _keep(self, store: Store) -> None:
        try:
            await self._extend(store)
            await store.beat(self.describe())
        except Exception as error:
            self._trouble.met("extending leases", error)
        else:
            self._trouble.over("extending leases")

    async def _extend(self, store: Store) -> None:
        unheard = await self._unheard_of(store)
        runs = [run for run in list(self._runs.held.values()) if self._releaser.holds(run)]
        if not runs and not unheard:
            return
        failpoints.hit("extend.before")
        now = self._clock.now()
        expiry = now + round(self._settings.lease_seconds * MICROS)
        try:
            verdicts = await store.extend([*(run.hold for run in runs), *unheard], expiry, now)
        except StoreMoved as error:  # it moved once nothing of it ran: these have been rescued before
            errors.say_once(error)
            verdicts = [Verdict.STALE] * len(runs)
        self._is_owed = Verdict.LOCKED in verdicts
        for run, verdict in zip(runs, verdicts, strict=False):
            if verdict not in (Verdict.APPLIED, Verdict.LOCKED) and not run.settling:
                self._main.call_soon_threadsafe(self._slots.lose, run)

    async def _unheard_of(self, store: Store) -> list[Hold]:
        """Return the claims that the store has granted, but whose answer the blocked event loop has not read."""
        request = self._fetcher.under_way
        if request is None:
            return []
        return [
            Hold(job.job_id, job.attempt, request.token)
            for job in await unread(store, request, self._clock)
            if not self._fetcher.is_released(job)
        ]

    async def _bye(self, store: Store) -> None:
        try:
            await store.beat(self.describe())  # its last figures are kept
            await store.forget([self._worker_id], self._clock.now())
        except BackstayError as error:
            log.warning("could not unregister: %s", error)

    def describe(self) -> WorkerRow:
        """Return the worker's row. It reads state of the event loop from another thread, and changes nothing there."""
        lanes = self._slots.lanes
        row = WorkerRow(
            worker_id=self._worker_id,
            host=workers.host_name(),
            pid=os.getpid(),
            process_key=workers.own(),
            version=self._settings.version,
            queues=self._settings.queues,
            job_types=tuple(lanes),
            concurrency=self._settings.concurrency,
            started_at=self._started_at,
            heartbeat_at=self._clock.now(),
            stopping=self._runs.stopping,
            running=tuple(list(self._runs.running)[:100]),
            limits={name: lane.limit for name, lane in lanes.items() if lane.limit is not None},
            busy={name: lane.busy for name, lane in lanes.items() if lane.busy},
            batches={name: lane.max_size for name, lane in lanes.items() if isinstance(lane, BatchLane)},
            versions={name: lane.handler.version for name, lane in lanes.items()},
            ended=self._settler.ended,
            failed=self._settler.failed,
            busy_micros=self._settler.busy_micros,
            stuck=tuple(run.job.job_id for run in list(self._runs.stuck)[:100]),
            lease_micros=round(self._settings.lease_seconds * MICROS),
            marks=self._marks,
            blocked=self._watchdog.blocked,
            origin=None if (code := self._settings.code) is None else code.origin,
            declares=None if code is None else code.digest,
        )
        row = workers.marked(row)
        self._marks = row.marks
        return row
