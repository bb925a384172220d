"""`StoreReleaser`: gives a worker's jobs back from the lease keeper's thread, while its event loop is blocked."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import msgspec

from backstay.backoff import Backoff
from backstay.clock import Clock
from backstay.core.lifecycle import GivenBack, Outcome, decide
from backstay.core.port import Store
from backstay.core.records import ClaimedJob, ClaimRequest, Hold, Transition
from backstay.worker.fetcher import Fetcher
from backstay.worker.run import LOST, Run, Runs
from backstay.worker.settler import Settler
from backstay.worker.watchdog import Releaser

log = logging.getLogger("backstay.worker")


class StoreReleaser(Releaser[Run]):
    def __init__(
        self,
        worker_id: str,
        clock: Clock,
        runs: Runs,
        settler: Settler,
        fetcher: Fetcher,
        lose: Callable[[Run], None],
    ) -> None:
        self._worker_id = worker_id
        self._clock = clock
        self._runs = runs
        self._settler = settler
        self._fetcher = fetcher
        self._lose = lose
        self._loop = asyncio.get_running_loop()  # the one that is watched
        self._released: set[Hold] = set()
        self._store: Store | None = None

    def open(self, store: Store) -> None:
        """Take the store of the lease keeper's thread."""
        self._store = store

    def holds(self, run: Run) -> bool:
        """Return whether to extend a run's lease further."""
        return not self._released or run.hold not in self._released

    async def held(self) -> list[Run]:
        return [run for run in list(self._runs.held.values()) if self.holds(run) and not run.settling]

    def forget(self) -> None:
        self._released.clear()

    async def release(self, outcomes: Mapping[Run, Outcome]) -> None:
        for run in outcomes:
            run.lost = True
            run.stop_reason = run.stop_reason or LOST
            if run.cancelled is not None:
                run.cancelled.set()
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._lose, run)  # once it runs again
        transitions = [
            self._decide(run.job, outcome, run.token, run.handler.backoff) for run, outcome in outcomes.items()
        ]
        await self._apply(transitions)
        for run, transition in zip(outcomes, transitions, strict=True):
            self._released.add(run.hold)
            log.warning(
                "%s job %s attempt %d → %s: %s",
                run.job.job_type,
                run.job.job_id,
                run.job.attempt,
                transition.target.value,
                transition.reason,
            )

    async def release_unread(self, outcome: GivenBack) -> None:
        request = self._fetcher.under_way
        if request is None or self._store is None:
            return
        jobs = [job for job in await unread(self._store, request, self._clock) if not self._fetcher.is_released(job)]
        for job in jobs:
            self._fetcher.release(job)
        await self._apply([self._decide(job, outcome, request.token, Backoff()) for job in jobs])

    async def settle_decided(self) -> None:
        await self._apply([transition for _, transition in list(self._settler.waiting)])

    def _decide(self, job: ClaimedJob, outcome: Outcome, token: str, backoff: Backoff) -> Transition:
        return decide(
            job,
            outcome,
            now=self._clock.now(),
            backoff=backoff,
            draw=random.random(),
            token=token,
            by=self._worker_id,
        )

    async def _apply(self, transitions: Iterable[Transition]) -> None:
        found = list(transitions)
        if found and self._store is not None:
            await self._store.apply(found, self._clock.now())


async def unread(store: Store, request: ClaimRequest, clock: Clock) -> list[ClaimedJob]:
    """Return what a claim took, by repeating it. A repeat without slots takes nothing new."""
    only_ask = msgspec.structs.replace(request, slots={}, limit=0, repeat=True)
    return await store.claim(only_ask, clock.now())
