"""Settlements in batches: at once when idle, together when they come faster than commits."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from holdfast import failpoints
from holdfast.clock import Clock
from holdfast.errors import EffectFailed, ForkedStore, StoreBusy, StoreFull, StoreGone, StoreUnavailable
from holdfast.lifecycle import Transition
from holdfast.limits import SETTLE_BATCH_MAX
from holdfast.store.port import Store
from holdfast.store.types import Verdict
from holdfast.worker.run import Run

log = logging.getLogger("holdfast.worker")
ISOLATE_AFTER = 3  # tries of a batch, before one of its jobs is suspected


class Settler:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        settled: Callable[[Run, Verdict], None],
        effect_failed: Callable[[Run, EffectFailed], Transition],
    ) -> None:
        self._store = store
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
                    batch = self._waiting[:SETTLE_BATCH_MAX]
                    del self._waiting[:SETTLE_BATCH_MAX]
                    await self._settle(batch)
            except asyncio.CancelledError:
                for task in self._apart:
                    task.cancel()
                raise
            finally:
                if not self._apart:
                    self._idle.set()

    async def _settle(self, batch: list[tuple[Run, Transition]]) -> None:
        """Until the store has answered: the guards make every repetition safe, and nobody else can say it for us."""
        transitions = [transition for _, transition in batch]
        failpoints.hit("settle.before")
        tries = 0
        while True:
            try:
                verdicts = await self._store.apply(transitions, self._clock.now())
                break
            except EffectFailed as error:
                transitions = [
                    self._effect_failed(run, error) if run.job.job_id == error.job_id else transition
                    for (run, _), transition in zip(batch, transitions, strict=True)
                ]
            except (StoreGone, ForkedStore):
                raise  # no try will ever succeed: the worker stops, and the leases run out
            except Exception as error:
                tries += 1
                if isinstance(error, StoreBusy) and len(batch) > 1:
                    self._settle_apart(batch, transitions)
                    return
                if tries >= ISOLATE_AFTER and not isinstance(error, StoreBusy | StoreFull | StoreUnavailable):
                    await self._isolate(batch, transitions, error)
                    return
                log.warning("settling %d jobs failed, trying again: %s", len(batch), error)
                await asyncio.sleep(random.uniform(0.5, 1.0) * min(5.0, 0.1 * 2**tries))
        failpoints.hit("settle.after")
        for (run, _), verdict in zip(batch, verdicts, strict=True):
            self._settled(run, verdict)

    def _settle_apart(self, batch: list[tuple[Run, Transition]], transitions: list[Transition]) -> None:
        """Someone keeps one of these jobs locked, maybe for long: neither the others nor later ones wait for it."""
        for (run, _), transition in zip(batch, transitions, strict=True):
            task = asyncio.get_running_loop().create_task(self._settle([(run, transition)]))
            self._apart.add(task)
            task.add_done_callback(self._settled_apart)

    def _settled_apart(self, task: asyncio.Task[None]) -> None:
        self._apart.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a job cannot be settled and is let go; its lease runs out: %s", error)
        if not self._apart and not self._waiting:
            self._idle.set()

    async def _isolate(
        self, batch: list[tuple[Run, Transition]], transitions: list[Transition], error: Exception
    ) -> None:
        """One job that the store cannot take must not keep the others from being settled."""
        if len(batch) > 1:
            for (run, _), transition in zip(batch, transitions, strict=True):
                await self._settle([(run, transition)])
            return
        run, transition = batch[0][0], transitions[0]
        if transition.effects:
            failed = self._effect_failed(run, EffectFailed(str(error), job_id=run.job.job_id))
            await self._settle([(run, failed)])
        else:
            log.error("job %s cannot be settled and is let go; its lease runs out: %s", run.job.job_id, error)
            self._settled(run, Verdict.STALE)
