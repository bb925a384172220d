"""Running jobs inside a test: everything that is runnable (drain), or each as it is submitted (inline).

Both use a worker of the app on the app's own store, so that results, retries and errors are those of production. What
differs is what stands between the two: the store hands out one job at a time, and a retry is due at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, closing, contextmanager
from datetime import datetime, timedelta
from typing import Any, cast, overload

from holdfast import sync
from holdfast.app import Holdfast
from holdfast.batches import BatchHandler
from holdfast.clock import Instant, micros, to_datetime, to_instant
from holdfast.errors import InvalidOption, StoreMoved
from holdfast.job import Job
from holdfast.lifecycle import Event, Status
from holdfast.limits import RESULT_POLL_SECONDS
from holdfast.store.moves import FROM, refusal
from holdfast.store.port import Store
from holdfast.store.types import Inserted, NewJob, Signal
from holdfast.testing.fronts import AtOnce, Turns, behind
from holdfast.testing.manual_clock import ManualClock
from holdfast.waits import within

SLOTS = 100  # one job runs at a time, but a thread that was timed out keeps its slot, and must not stop the others


@overload
async def drain(
    app: Holdfast, *, advance: bool = False, until: datetime | timedelta | None = None, batches: bool = False
) -> list[Job]: ...


@overload
def drain(
    app: sync.Holdfast, *, advance: bool = False, until: datetime | timedelta | None = None, batches: bool = False
) -> list[Job]: ...


def drain(
    app: Holdfast | sync.Holdfast,
    *,
    advance: bool = False,
    until: datetime | timedelta | None = None,
    batches: bool = False,
) -> Any:
    """Run what is runnable, one job after another, until nothing is; the jobs that ran, as they are now.

    What is due later stays, unless a manual clock is moved to it: to one due time after another until nothing is left
    (`advance=True`), or up to a moment (`until=`, a datetime, or a timedelta from now). Up to a moment schedules come
    round as well. A batch handler is called for one job at a time, or with `batches=True` for as many as it takes.
    """
    if isinstance(app, sync.Holdfast):
        return app._call(_drain(app.inner, advance, until, batches))
    return _drain(app, advance, until, batches)


async def _drain(app: Holdfast, advance: bool, until: datetime | timedelta | None, batches: bool) -> list[Job]:
    if (advance or until is not None) and not isinstance(app.clock, ManualClock):
        raise InvalidOption("advance and until move the clock: give the app one, Holdfast(url, clock=ManualClock())")
    state = await app.store.moving()
    if state is not None and (state.role == FROM or not state.done):  # nothing is claimed: a worker would wait for ever
        raise StoreMoved(refusal(state))
    last = None if until is None else _moment(until, app.clock.now())
    ran = await _run_all(app, advance=advance, until=last, batches=batches)
    if last is not None and last > app.clock.now():
        cast(ManualClock, app.clock).set(to_datetime(last))
    return [await app.get(job_id) for job_id in ran]


def _moment(until: datetime | timedelta, now: Instant) -> Instant:
    match until:
        case timedelta():
            return now + micros(until)
        case datetime():
            return to_instant(until)
        case _:
            raise InvalidOption(f"until={until!r:.80}: give a datetime, or a timedelta from now")


async def _run_all(
    app: Holdfast, *, advance: bool = False, until: Instant | None = None, batches: bool = False
) -> list[str]:
    sizes = {
        name: handler.max_size if batches and isinstance(handler, BatchHandler) else 1
        for name, handler in app.handlers.items()
    }
    turns = Turns(app.store, app.clock, sizes, advance=advance, until=until)
    with closing(turns):
        worker = behind(app, turns).worker(concurrency=SLOTS)
        worker.call_batches_at_once()
        async with worker:
            try:
                while worker.failure is None and not await within(RESULT_POLL_SECONDS, turns.done.wait()):
                    pass
            finally:
                turns.close()  # before the worker stops: that waits for its last claim
                worker.hurry()  # what still runs was abandoned, or the test was: there is nothing to wait for
    if worker.failure is not None:
        raise worker.failure
    if turns.problem is not None:
        raise turns.problem
    return list(turns.ran)


@overload
def inline(app: Holdfast) -> AbstractAsyncContextManager[Holdfast]: ...


@overload
def inline(app: sync.Holdfast) -> AbstractContextManager[sync.Holdfast]: ...


def inline(app: Holdfast | sync.Holdfast) -> Any:
    """`async with inline(app):` opens the app; inside, a submit returns when the job has run to its end.

    So has all that the job set off: its retries, without waiting for their backoff, and the jobs that it submitted.
    A job for later stays where it is.
    """
    return _inline_blocking(app) if isinstance(app, sync.Holdfast) else _inline(app)


@asynccontextmanager
async def _inline(app: Holdfast) -> AsyncIterator[Holdfast]:
    async with app:
        with _submits_run(app):
            yield app


@contextmanager
def _inline_blocking(app: sync.Holdfast) -> Iterator[sync.Holdfast]:
    with app, _submits_run(app.inner):
        yield app


@contextmanager
def _submits_run(app: Holdfast) -> Iterator[None]:
    store = app.store
    app._store = cast(Store, _Inline(store, app))
    try:
        yield
    finally:
        app._store = store


class _Inline(AtOnce):
    """An insert returns when what it stored has run. A handler that submits waits for it in the same way: every insert
    has a worker of its own, so that no depth of nesting runs out of slots."""

    def __init__(self, store: Store, app: Holdfast) -> None:
        super().__init__(store, {Event.RETRY})
        self._app = app

    async def insert(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        inserted = await self._store.insert(jobs, now)
        if new := [each.job_id for each in inserted if each.existing is None]:
            await self._run(new)
        return inserted

    async def _run(self, job_ids: list[str]) -> None:
        stir = asyncio.Event()
        unlisten = self._store.listen(frozenset(Signal), lambda _: stir.set())
        try:
            while True:
                stir.clear()
                await _run_all(self._app)
                if Status.PROCESSING not in await self._store.statuses(job_ids):
                    return
                await within(RESULT_POLL_SECONDS, stir.wait())  # another submit of this moment took it: it ends there
        finally:
            unlisten()
