"""Watches the event loop from another thread, and lets jobs go when a handler blocks it.

    on time ──▶ late by NOTICE_SECONDS: the log and the worker's row say so; what has not begun is given back
            ──▶ late by a few leases: coroutines that cannot continue are given back too, at no cost
            ──▶ the blocking handler is over its timeout: its job has failed, all others are given back, and the loop
                counts as dead

A job that was let go is marked before the store hears of it, so that a loop that wakes up does not begin it. What it
still does is refused by the store: its claim has ended, and a later claim has another attempt and token.
Jobs in threads and child processes really run, and keep their claims until the loop counts as dead: then what they
return could never be stored, and they run again elsewhere, possibly while they still run here.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from backstay.clock import MICROS, Clock, SystemClock
from backstay.core.lifecycle import GivenBack, Outcome, Raised
from backstay.core.records import BlockedLoop, ErrorEntry
from backstay.handlers import Handler
from backstay.ops.wait import Trouble
from backstay.worker.pulse import ADVICE, BEAT_SECONDS, STALL_SECONDS, Pulse
from backstay.worker.run import SHUT_DOWN, Execution, Named
from backstay.worker.settler import STOP_SECONDS

log = logging.getLogger("backstay.worker")
NOTICE_SECONDS = 5.0  # until it is said and what has not begun is given back; a lease, where that is shorter
PATIENCE_LEASES = 3  # for coroutines that cannot continue while another one blocks the loop
_CLOCK = SystemClock()  # the loop is blocked in real time, whatever the clock of a test says


class Claimed(Protocol):
    """An attempt that this worker has claimed."""

    @property
    def job(self) -> Named: ...

    @property
    def handler(self) -> Handler: ...

    @property
    def timeout_micros(self) -> int: ...

    @property
    def execution(self) -> Execution:
        """The call of the handler: the job's own, or that of its batch."""
        ...


R = TypeVar("R", bound=Claimed)


class Releaser(ABC, Generic[R]):
    """The claims of a worker, and how to give them back without its event loop."""

    @abstractmethod
    async def held(self) -> list[R]:
        """Return the claims that are neither settled nor let go."""

    @abstractmethod
    async def release(self, outcomes: Mapping[R, Outcome]) -> None:
        """End these attempts. They are marked first, so that the loop does not start them. Raises if this has to be
        repeated."""

    @abstractmethod
    async def release_unread(self, outcome: GivenBack) -> None:
        """Give back what a claim took whose answer the loop has not read."""

    @abstractmethod
    async def settle_decided(self) -> None:
        """Store the outcomes that are already known and still wait for the loop."""

    @abstractmethod
    def forget(self) -> None:
        """Forget what was let go: the loop runs again."""


class Watchdog(Generic[R]):
    """Runs on the thread that extends the leases."""

    def __init__(
        self, clock: Clock, lease_seconds: float, pulse: Pulse, releaser: Releaser[R], trouble: Trouble
    ) -> None:
        self._clock = clock
        self._pulse = pulse
        self._releaser = releaser
        self._trouble = trouble
        self._notice_seconds = max(STALL_SECONDS, min(NOTICE_SECONDS, lease_seconds))
        self._patience_seconds = max(self._notice_seconds, PATIENCE_LEASES * lease_seconds)
        self._overtime_seconds = min(STOP_SECONDS, lease_seconds)
        self.blocked: BlockedLoop | None = None  # for the worker's row
        self.on_dead: Callable[[], None] | None = None  # called when nothing is left that this process could do
        self._stood_still = 0.0  # of the stall under way: the whole process did not run, stopped or without a processor

    async def look(self, stood_still: float) -> bool:
        """Return whether the worker's row has changed. `stood_still` is how late this look itself is."""
        late = self._pulse.late()
        if late < BEAT_SECONDS:
            was, self.blocked = self.blocked, None
            self._releaser.forget()
            self._stood_still = 0.0
            return was is not None
        self._stood_still += stood_still
        late -= self._stood_still
        self._pulse.look()
        if late < self._notice_seconds:
            return False
        by = self._pulse.blocked_by
        before, self.blocked = self.blocked, self._blocked(late, by)
        if before is None or before.job_id != self.blocked.job_id:
            self._say(late, by)
        await self._let_go(late, by)
        return before is None or before.job_id != self.blocked.job_id

    def _blocked(self, late: float, by: Execution | None) -> BlockedLoop:
        job = None if by is None else by.jobs[0]
        return BlockedLoop(
            since=self._clock.now() - round(late * MICROS) if self.blocked is None else self.blocked.since,
            job_type=None if job is None else job.job_type,
            job_id=None if job is None else job.job_id,
            where=self._pulse.where(),
        )

    def _say(self, late: float, by: Execution | None) -> None:
        where = None if self.blocked is None else self.blocked.where
        at = "" if where is None else f", which is at {where}"
        if by is None:
            log.warning("the event loop has not run for %.1f s%s", late, at.replace("which", "its thread"))
        else:
            log.warning(
                "the event loop has been blocked for %.1f s by %s%s: no other job of this worker can continue; %s",
                late,
                by.title,
                at,
                ADVICE,
            )

    # Letting go

    async def _let_go(self, late: float, by: Execution | None) -> None:
        is_over_time = self._is_over_time(by)
        is_long = late > self._patience_seconds or is_over_time
        is_dead = is_over_time or (is_long and by is None)
        outcomes: dict[R, Outcome] = {}
        try:
            for run in await self._releaser.held():
                execution = run.execution
                if execution is by:
                    if is_over_time:
                        outcomes[run] = self._failed(run, late)
                elif not execution.begun or (is_long and run.handler.isolation == "async") or is_dead:
                    outcomes[run] = GivenBack(_reason(by))
            await self._releaser.release(outcomes)
            await self._releaser.release_unread(GivenBack(_reason(by)))
        except Exception as error:  # the claims are kept until it works
            self._trouble.met("giving jobs back", error)
            return
        if is_dead and self.on_dead is not None:
            self.on_dead()

    async def abandon(self) -> None:
        """Give back everything, because the process ends, whatever its event loop does."""
        by, late = self._pulse.blocked_by, self._pulse.late()
        is_over_time = self._is_over_time(by)
        outcomes: dict[R, Outcome] = {
            run: self._failed(run, late) if is_over_time and run.execution is by else GivenBack(SHUT_DOWN)
            for run in await self._releaser.held()
        }
        await self._releaser.settle_decided()
        await self._releaser.release(outcomes)
        await self._releaser.release_unread(GivenBack(SHUT_DOWN))

    def _is_over_time(self, by: Execution | None) -> bool:
        return by is not None and _CLOCK.monotonic() > by.deadline + self._overtime_seconds

    def _failed(self, run: R, late: float) -> Outcome:
        seconds = run.timeout_micros / MICROS
        said = (
            f"ran longer than its timeout of {seconds:g} s, and has blocked the event loop for {late:.0f} s: {ADVICE}"
        )
        return Raised(ErrorEntry(run.job.attempt, self._clock.now(), "JobTimeout", said))


def _reason(by: Execution | None) -> str:
    if by is None:
        return "the event loop of its worker does not run"
    return f"{by.jobs[0].job_type} blocks the event loop of its worker"
