"""Waiting for jobs to end, with one reader per app; and log lines about a store outage.

`Waiting` is woken by signals, with polling as the fallback. `Trouble` logs one line when an outage begins, one a minute
while it lasts and one when it is over: all loops of a worker meet the same outage, and each would log every try.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from backstay.clock import Clock, SystemClock
from backstay.core.checks import after_attempts
from backstay.core.port import Store
from backstay.core.records import JobRecord, Signal
from backstay.core.states import TERMINAL, Status
from backstay.errors import (
    BackstayError,
    ConfigurationError,
    ForkedStore,
    JobCancelled,
    JobFailed,
    JobNotFound,
    NotOpen,
    ResultGone,
    StoreBusy,
    StoreFull,
    StoreGone,
    StoreUnavailable,
)
from backstay.limits import FIND_LIMIT_MAX, RESULT_POLL_SECONDS

AGAIN_SECONDS = 60.0
HOPELESS = (StoreGone, ForkedStore)  # no try will ever succeed
# Not the fault of any job, and temporary: keys that have run out come back as a ConfigurationError.
OF_THE_STORE = (StoreBusy, StoreFull, StoreUnavailable, ConfigurationError)


class Trouble:
    """Shared by everything that retries on the same store. Any thread may call it."""

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self.lasts = False  # something failed, and not everything has succeeded since
        self._met: set[str] = set()  # what could not be done when it was last tried
        self._said: dict[type[Exception], float] = {}
        self._since = 0.0

    def met(self, what: str, error: Exception, *, soon: bool = True) -> None:
        """Report that `what` failed and is tried again. Without `soon`, a recovery does not wait for that try. An error
        that is not a BackstayError is a bug, and is logged with its traceback."""
        now = self._clock.monotonic()
        kind = type(error)
        with self._lock:
            if not self._said:
                self._since = now
            if soon:
                self._met.add(what)
            if now - self._said.get(kind, float("-inf")) < AGAIN_SECONDS:
                return
            self._said[kind] = now
            self.lasts = True
        if isinstance(error, BackstayError):
            self._log.warning("%s failed, trying again: %s", what, error)
        else:
            self._log.error("%s failed, trying again", what, exc_info=error)

    def over(self, what: str) -> None:
        """Report that `what` has succeeded. Needed only while the trouble lasts."""
        if not self.lasts:
            return
        with self._lock:
            self._met.discard(what)
            if self._met or not self._said:
                return
            self._said.clear()
            self.lasts = False
            seconds = self._clock.monotonic() - self._since
        self._log.info("recovered after %.3g s", seconds)


log = logging.getLogger("backstay")


class Waiting:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiters: dict[str, list[asyncio.Future[JobRecord | None]]] = {}
        self._stir = asyncio.Event()
        self._trouble = Trouble(log, SystemClock())
        self._task: asyncio.Task[None] | None = None
        self._unlisten: Callable[[], None] | None = None

    async def ended(self, job_id: str) -> JobRecord | None:
        """Return the record of a job once it has ended; None if there is no such job."""
        future: asyncio.Future[JobRecord | None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(job_id, []).append(future)
        if self._task is None:
            self._unlisten = self._store.listen(frozenset({Signal.ENDED}), lambda _: self._stir.set())
            self._task = asyncio.get_running_loop().create_task(self._work())
        self._stir.set()
        try:
            return await future
        finally:
            waiting = self._waiters.get(job_id, [])
            if future in waiting:
                waiting.remove(future)
            if not waiting:
                self._waiters.pop(job_id, None)

    async def close(self) -> None:
        if self._unlisten is not None:
            self._unlisten()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail_all(NotOpen("the app was closed while this was waiting for a result; the job is still active"))

    def _fail_all(self, error: Exception) -> None:
        for futures in list(self._waiters.values()):
            for future in list(futures):
                if not future.done():
                    future.set_exception(error)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            poll = loop.call_later(RESULT_POLL_SECONDS, self._stir.set) if self._waiters else None
            await self._stir.wait()
            if poll is not None:
                poll.cancel()
            self._stir.clear()
            wanted = list(self._waiters)
            try:
                for start in range(0, len(wanted), FIND_LIMIT_MAX):
                    await self._look(wanted[start : start + FIND_LIMIT_MAX])
                if self._trouble.lasts:
                    self._trouble.over("waiting for results")
            except (StoreGone, ForkedStore, NotOpen) as error:
                self._fail_all(error)
            except BackstayError as error:
                self._trouble.met("waiting for results", error)
            except Exception as error:
                log.exception("waiting for %d jobs", len(wanted))
                self._fail_all(error)

    async def _look(self, job_ids: list[str]) -> None:
        """Read statuses first: of a thousand jobs that are waited for, perhaps one has ended, and records are large."""
        statuses = await self._store.statuses(job_ids)
        ended = [each for each, status in zip(job_ids, statuses, strict=True) if status is None or status in TERMINAL]
        for job_id, record in zip(ended, await self._store.get(ended) if ended else (), strict=True):
            if record is not None and record.status not in TERMINAL:
                continue  # retried in between: it has not ended after all
            for future in self._waiters.pop(job_id, []):
                if not future.done():
                    future.set_result(record)


def check_completed(job_id: str, record: JobRecord | None) -> JobRecord:
    """Return the record of an ended job that has a result; raise why it has none otherwise."""
    if record is None:
        raise JobNotFound(f"no job {job_id}")
    match record.status:
        case Status.COMPLETED if record.archived_at is not None:
            raise ResultGone(f"job {job_id} completed, but its result was deleted by retention: submit it again")
        case Status.COMPLETED:
            return record
        case Status.CANCELLED:
            reason = record.history[-1].why if record.history else None  # the archive keeps none
            raise JobCancelled(
                f"job {job_id} was cancelled{f': {reason}' if reason else ''}",
                job_id=job_id,
                reason=reason,
            )
        case _:
            raise JobFailed(
                f"job {job_id} failed{after_attempts(record.failures, record.max_attempts)}: {record.last_error}",
                job_id=job_id,
                last_error=record.last_error,
            )
