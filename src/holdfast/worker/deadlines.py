"""Timeouts with one timer for all runs: a timer per job would cost more than a short job itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from holdfast.clock import MICROS
from holdfast.worker.execution import Execution


class Deadlines:
    def __init__(self, runs: Callable[[], Iterable[Execution]], expire: Callable[[Execution], None]) -> None:
        self._runs = runs
        self._expire = expire
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._next = float("inf")

    def watch(self, run: Execution) -> None:
        run.deadline = self._loop.time() + run.timeout_micros / MICROS
        if run.deadline < self._next:
            self._arm(run.deadline)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, when: float) -> None:
        self.close()
        self._next = when
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        """Ends what is overdue, then waits for the next; the timer may have been set for a run that has ended."""
        self._next = float("inf")
        now = self._loop.time()
        waiting = []
        for run in list(self._runs()):
            if run.deadline <= now:
                self._expire(run)
            elif not run.is_stopped:
                waiting.append(run.deadline)
        if waiting:
            self._arm(min(waiting))
