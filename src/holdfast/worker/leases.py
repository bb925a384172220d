"""Keeping leases from a thread of its own, with a store of its own.

A handler that blocks the event loop, or a store call that waits, must not cost the worker its claims. The thread reads
the worker's runs and writes nothing but the store; what it learns goes back to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

import msgspec

from holdfast import failpoints
from holdfast.clock import MICROS, Clock
from holdfast.errors import HoldfastError, StoreMoved
from holdfast.store.port import Store
from holdfast.store.types import ClaimRequest, Hold, Verdict, WorkerRow
from holdfast.trouble import Trouble
from holdfast.waits import within
from holdfast.worker import moved
from holdfast.worker.run import Run

log = logging.getLogger("holdfast.worker")
LOCKED_SECONDS = 0.1  # until a lease is asked for again whose job somebody's transaction had: most last milliseconds


class LeaseKeeper:
    def __init__(
        self,
        make_store: Callable[[], Store],
        clock: Clock,
        lease_seconds: float,
        runs: Callable[[], list[Run]],
        describe: Callable[[], WorkerRow],
        lost: Callable[[Run], None],
        claim_under_way: Callable[[], ClaimRequest | None],
        trouble: Trouble,
    ) -> None:
        self._trouble = trouble
        self._make_store = make_store
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._runs = runs
        self._describe = describe
        self._lost = lost
        self._claim_under_way = claim_under_way
        self._main = asyncio.get_running_loop()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stir: asyncio.Event | None = None
        self._stopping = False
        self._is_owed = False  # an extension that the last round did not get
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-leases", daemon=True)

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
        """Someone cancelled a running job: find out whether it is one of ours."""
        if self._loop is not None and self._stir is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stir.set)

    def _run(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        self._loop, self._stir = asyncio.get_running_loop(), asyncio.Event()
        store = self._make_store()
        try:
            await store.open()
            await store.beat(self._describe())
        except BaseException as error:
            self._failure = error
            self._started.set()
            return
        self._started.set()
        next_at = self._loop.time()
        try:
            while not self._stopping:
                pause = min(LOCKED_SECONDS, self._lease_seconds / 3) if self._is_owed else self._lease_seconds / 3
                next_at = max(next_at + pause, self._loop.time())  # a slow round delays no other
                await within(max(0.0, next_at - self._loop.time()), self._stir.wait())
                self._stir.clear()
                if not self._stopping:
                    await self._keep(store)
            await self._bye(store)
        finally:
            await store.close()

    async def _keep(self, store: Store) -> None:
        try:
            await self._extend(store)
            await store.beat(self._describe())
        except Exception as error:
            self._trouble.met("extending leases", error)
        else:
            self._trouble.over("extending leases")

    async def _extend(self, store: Store) -> None:
        unheard = await self._unheard_of(store)
        runs = self._runs()
        if not runs and not unheard:
            return
        failpoints.hit("extend.before")
        now = self._clock.now()
        expiry = now + round(self._lease_seconds * MICROS)
        try:
            verdicts = await store.extend([*(run.hold for run in runs), *unheard], expiry, now)
        except StoreMoved as error:  # it moved once nothing of it ran: these have been rescued before
            moved.say_once(error)
            verdicts = [Verdict.STALE] * len(runs)
        self._is_owed = Verdict.LOCKED in verdicts
        for run, verdict in zip(runs, verdicts, strict=False):
            if verdict not in (Verdict.APPLIED, Verdict.LOCKED) and not run.settling:
                self._main.call_soon_threadsafe(self._lost, run)

    async def _unheard_of(self, store: Store) -> list[Hold]:
        """What a claim took whose answer a blocked event loop has not read. A repeat without slots takes nothing."""
        request = self._claim_under_way()
        if request is None:
            return []
        only_ask = msgspec.structs.replace(request, slots={}, limit=0, repeat=True)
        return [Hold(job.job_id, job.attempt, request.token) for job in await store.claim(only_ask, self._clock.now())]

    async def _bye(self, store: Store) -> None:
        try:
            await store.forget([self._describe().worker_id])
        except HoldfastError as error:
            log.warning("could not sign off: %s", error)
