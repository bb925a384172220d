"""Settlements in batches: at once when idle, together when they come faster than commits."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from holdfast import failpoints
from holdfast.clock import MICROS, Clock
from holdfast.errors import (
    ConfigurationError,
    EffectFailed,
    StoreBusy,
    StoreFull,
    StoreMoved,
    StoreUnavailable,
)
from holdfast.lifecycle import Transition
from holdfast.limits import SETTLE_BATCH_MAX
from holdfast.store.port import Store
from holdfast.store.types import Verdict
from holdfast.trouble import HOPELESS, Trouble
from holdfast.worker import moved
from holdfast.worker.run import Run

log = logging.getLogger("holdfast.worker")
ISOLATE_AFTER = 3  # tries of a batch, before one of its jobs is suspected
PAUSE_SECONDS = 0.2
PAUSE_SECONDS_MAX = 1.0  # leases run out meanwhile: what was done must be settled before another is sent to do it
# What is no job's fault, and over one day: keys that have run out come back as a ConfigurationError.
OF_THE_STORE = (StoreBusy, StoreFull, StoreUnavailable, ConfigurationError)


class Settler:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        settled: Callable[[Run, Verdict | None], None],
        effect_failed: Callable[[Run, EffectFailed], Transition],
        trouble: Trouble,
    ) -> None:
        self._store = store
        self._trouble = trouble
        self._clock = clock
        self._settled = settled
        self._effect_failed = effect_failed
        self._waiting: list[tuple[Run, Transition]] = []
        self._apart: set[asyncio.Task[None]] = set()
        self._stir = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def put(self, run: Run, transition: Transition) -> None:
        self._waiting.append((run, transition))
        self._stir.set()
        self._idle.clear()

    async def drained(self) -> None:
        await self._idle.wait()

    async def work(self) -> None:
        while True:
            await self._stir.wait()
            self._stir.clear()
            try:
                while self._waiting:
                    size = _fitting(self._waiting)
                    batch = self._waiting[:size]
                    del self._waiting[:size]
                    await self._settle(batch)
            except asyncio.CancelledError:
                for task in self._apart:
                    task.cancel()
                raise
            finally:
                if not self._apart:
                    self._idle.set()

    async def _settle(self, batch: list[tuple[Run, Transition]], until: float | None = None) -> None:
        """Until the store has answered: the guards make every repetition safe, and nobody else can say it for us.
        `until` is when a job that is alone here, and that the store cannot take, is let go."""
        transitions = [transition for _, transition in batch]
        failpoints.hit("settle.before")
        tries = 0
        while True:
            try:
                verdicts = await self._store.apply(transitions, self._clock.now())
                self._trouble.over("settling")
                break
            except EffectFailed as error:
                transitions = [
                    self._effect_failed(run, error) if run.job.job_id == error.job_id else transition
                    for (run, _), transition in zip(batch, transitions, strict=True)
                ]
            except StoreMoved as error:  # it moved without these jobs: their leases had run out, and others have them
                moved.say_once(error)
                verdicts = [Verdict.STALE] * len(batch)
                break
            except HOPELESS:
                raise  # the worker stops, and the leases run out
            except Exception as error:
                tries += 1
                if isinstance(error, StoreBusy) and len(batch) > 1:
                    self._settle_apart(batch, transitions)
                    return
                if tries >= ISOLATE_AFTER and not isinstance(error, OF_THE_STORE):
                    if until is None:
                        self._settle_apart(batch, transitions)
                        return
                    if transitions[0].effects:
                        run = batch[0][0]
                        transitions = [self._effect_failed(run, EffectFailed(str(error), job_id=run.job.job_id))]
                    elif self._clock.monotonic() >= until:
                        self._let_go(batch[0][0], error)
                        return
                self._trouble.met("settling", error)
                pause = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS * 2 ** min(tries - 1, 10))
                await asyncio.sleep(random.uniform(0.5, 1.0) * pause)
        failpoints.hit("settle.after")
        for (run, _), verdict in zip(batch, verdicts, strict=True):
            self._settled(run, verdict)

    def _settle_apart(self, batch: list[tuple[Run, Transition]], transitions: list[Transition]) -> None:
        """Someone keeps one of these jobs locked, or the store cannot take it: neither the others nor later ones wait
        for it. What was done is not thrown away before the lease is over, whatever the store says."""
        for (run, _), transition in zip(batch, transitions, strict=True):
            lease_seconds = max(0, run.job.lease_expires_at - run.job.started_at) / MICROS
            until = self._clock.monotonic() + lease_seconds
            task = asyncio.get_running_loop().create_task(self._settle([(run, transition)], until))
            self._apart.add(task)
            task.add_done_callback(self._settled_apart)

    def _settled_apart(self, task: asyncio.Task[None]) -> None:
        self._apart.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a job cannot be settled and is let go; its lease runs out: %s", error)
        if not self._apart and not self._waiting:
            self._idle.set()

    def _let_go(self, run: Run, error: Exception) -> None:
        log.error(
            "job %s attempt %d has ended, but the store could not take its outcome for as long as its lease: it is let"
            " go and will run again: %s",
            run.job.job_id,
            run.job.attempt,
            error,
        )
        self._settled(run, None)


def _fitting(waiting: list[tuple[Run, Transition]]) -> int:
    """How many go into one commit: children and statements that they bring count like jobs."""
    if len(waiting) <= 1:
        return len(waiting)
    weight = 0
    for count, (_, transition) in enumerate(waiting):
        weight += 1 + len(transition.children) + len(transition.effects)
        if weight > SETTLE_BATCH_MAX and count:
            return count
    return len(waiting)
