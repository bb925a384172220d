"""Upkeep: promote what is due, rescue what was lost, release what waits. Idempotent; any worker may do it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from holdfast import failpoints
from holdfast.clock import MICROS, Clock
from holdfast.errors import StoreMoved
from holdfast.lifecycle import rescue
from holdfast.limits import SWEEP_BATCH_MAX
from holdfast.observing import Observers
from holdfast.store.port import Store
from holdfast.store.types import ExpiredClaim, JobRecord, Verdict, WorkerRow
from holdfast.trouble import HOPELESS, Trouble
from holdfast.waits import within
from holdfast.worker import moved, process_key

log = logging.getLogger("holdfast.worker")
PROMOTING, SWEEPING = "looking for due jobs", "looking for lost jobs"
FORGET_AFTER_LEASES = 10  # a worker that is silent for so long is no longer listed


class Upkeep:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        worker_id: str,
        lease_seconds: float,
        sweep_seconds: float,
        trouble: Trouble | None = None,
        settling: Callable[[], Collection[str]] = tuple,
        observers: Observers | None = None,
    ) -> None:
        self._store = store
        self._trouble = trouble or Trouble(log, clock)
        self._clock = clock
        self._worker_id = worker_id
        self._lease_seconds = lease_seconds
        self._sweep_seconds = sweep_seconds
        self._settling = settling  # jobs of this worker that have ended, and that only the store does not know of yet
        self._observers = observers
        self._due = asyncio.Event()
        self._unfinished = asyncio.Event()
        self._releasing = asyncio.Lock()
        self._wall, self._monotonic = clock.now(), clock.monotonic()
        self._no_rescue_before = 0.0

    def due_changed(self) -> None:
        self._due.set()

    def left_unfinished(self) -> None:
        """A commit has released or stored only a part of what follows from it."""
        self._unfinished.set()

    async def promote(self) -> None:
        """Sleep until the next job is due, then make it claimable."""
        while True:
            self._due.clear()
            pause = self._sweep_seconds
            try:
                promoted = await self._store.promote(self._clock.now(), SWEEP_BATCH_MAX)
                self._trouble.over(PROMOTING)
                if promoted.count == SWEEP_BATCH_MAX:
                    continue
                if promoted.next_due_at is not None:
                    pause = min(pause, max(0.0, (promoted.next_due_at - self._clock.now()) / MICROS))
            except StoreMoved as error:
                moved.say_once(error)
            except HOPELESS:
                raise
            except Exception as error:
                self._trouble.met(PROMOTING, error)
                pause = min(pause, 1.0)
            await within(pause, self._due.wait())

    async def sweep(self) -> None:
        """Rescue and release, again and again."""
        while True:
            try:
                await self.sweep_once()
                self._trouble.over(SWEEPING)
            except StoreMoved as error:
                moved.say_once(error)
            except HOPELESS:
                raise
            except Exception as error:
                self._trouble.met(SWEEPING, error)
            await asyncio.sleep(self._sweep_seconds)

    async def go_on(self) -> None:
        """Release and store, as soon as a commit has left a part of that; the sweep finds what nobody told us of."""
        while True:
            await self._unfinished.wait()
            try:
                await self._release()
            except StoreMoved as error:
                moved.say_once(error)
            except HOPELESS:
                raise
            except Exception as error:
                self._trouble.met(SWEEPING, error)

    async def sweep_once(self) -> int:
        dead, silent = await self._bury()
        rescued = 0
        if not self._clock_jumped():
            while (count := await self._rescue(dead)) == SWEEP_BATCH_MAX:
                rescued += count
            rescued += count
        await self._release()
        if dead or silent:
            await self._store.forget(dead + silent)
        return rescued

    async def _release(self) -> None:
        """In bounded steps, between which others come to the store, until nothing is left. One at a time: two of one
        process would only be in each other's way."""
        async with self._releasing:
            self._unfinished.clear()
            while await self._store.release(self._clock.now(), SWEEP_BATCH_MAX):
                pass

    async def _rescue(self, dead: list[str]) -> int:
        now = self._clock.now()
        settling = self._settling()
        claims = [
            claim
            for claim in await self._store.expired(now, SWEEP_BATCH_MAX, dead)
            if claim.worker_id != self._worker_id or claim.job_id not in settling
        ]
        if not claims:
            return 0
        failpoints.hit("rescue.before")
        decided = [
            rescue(claim, lease=claim.lease_expires_at, now=now, reason=_reason(claim, dead), by=self._worker_id)
            for claim in claims
        ]
        failpoints.hit("rescue.decided")
        attempts = [] if self._observers is None else await self._attempts(claims)
        verdicts = await self._store.apply(decided, now)
        for place, (claim, verdict) in enumerate(zip(claims, verdicts, strict=True)):
            if verdict is not Verdict.APPLIED:
                continue
            log.warning("rescued job %s from worker %s", claim.job_id, claim.worker_id)
            if self._observers is not None and (attempt := attempts[place]) is not None:
                self._observers.ended(attempt[0], decided[place], attempt[1])
        return len(claims)

    async def _attempts(self, claims: Sequence[ExpiredClaim]) -> list[tuple[JobRecord, str | None] | None]:
        """For observers: the jobs, while their dead workers still have them, and the schemas of their payloads."""
        schemas = {each.job_type: each.payload_schema for each in await self._store.job_types()}
        records = await self._store.get([claim.job_id for claim in claims])
        return [None if record is None else (record, schemas.get(record.job_type)) for record in records]

    async def _bury(self) -> tuple[list[str], list[str]]:
        """Workers that are certainly dead, and those that were silent for long: these are only forgotten, because
        they may live with a longer lease than ours, and their claims end with it."""
        now = self._clock.now()
        dead: list[str] = []
        silent: list[str] = []
        for worker in await self._store.workers():
            if worker.worker_id == self._worker_id:
                continue
            if process_key.is_dead(worker.process_key):
                dead.append(worker.worker_id)
            elif self._silent(worker, now):
                silent.append(worker.worker_id)
        return dead, silent

    def _silent(self, worker: WorkerRow, now: int) -> bool:
        return now - worker.heartbeat_at > self._lease_seconds * FORGET_AFTER_LEASES * MICROS

    def _clock_jumped(self) -> bool:
        """After a jump of the wall clock every lease looks expired: give their holders one lease to extend them."""
        wall, monotonic = self._clock.now(), self._clock.monotonic()
        drift = abs((wall - self._wall) / MICROS - (monotonic - self._monotonic))
        self._wall, self._monotonic = wall, monotonic
        if drift > self._lease_seconds / 2:
            log.warning("the clock jumped by %.0f s: no rescue for one lease", drift)
            self._no_rescue_before = monotonic + self._lease_seconds
        return monotonic < self._no_rescue_before


def _reason(claim: ExpiredClaim, dead: list[str]) -> str:
    if claim.worker_id in dead:
        return f"worker {claim.worker_id} died"
    return f"worker {claim.worker_id} let the lease run out: it died, stalled or lost the store"
