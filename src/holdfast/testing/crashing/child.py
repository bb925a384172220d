"""What runs inside a child: the app begins anew on the trial's own file, and works until the job has ended."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from holdfast import failpoints, sync
from holdfast.app import Holdfast
from holdfast.errors import JobCancelled, JobFailed
from holdfast.handlers import Handler
from holdfast.lifecycle import Event
from holdfast.limits import FIND_LIMIT_MAX
from holdfast.offspring import Ended
from holdfast.outcomes import Discard
from holdfast.submission import SubmitOptions
from holdfast.testing.crashing.children import Link
from holdfast.testing.fronts import AtOnce, behind
from holdfast.testing.urls import throwaway_url
from holdfast.trees import Awaits
from holdfast.worker.children import Children
from holdfast.worker.run import Run

QUEUE = "crash-test"  # of its own: jobs that the handler submits are counted, and do not run
POLL_SECONDS = 0.1  # how soon a lease that ran out is found; the file is our own, and asking is cheap
REACHED = b"reached"


@dataclass(frozen=True, slots=True)
class Moment:
    """The nth time that a child passes a point."""

    point: str
    nth: int


@dataclass(frozen=True, slots=True)
class Orders:
    """The job that is tried, the same in all trials."""

    app: Holdfast | sync.Holdfast
    handler: Handler
    payload: str
    options: SubmitOptions
    job_id: str
    grace_seconds: float


class Told(msgspec.Struct, frozen=True):
    """A child's last line: how the job stands, and which points the child passed."""

    status: str
    error: str | None
    attempts: int
    submitted: dict[str, int]  # jobs that the handler submitted, by type
    passed: dict[str, int]


def make_queue(orders: Orders, folder: Path) -> None:
    """An empty queue; what opens it later finds the schema made."""

    async def run(app: Holdfast) -> None:
        async with app:
            pass

    _anew(orders.app, folder)
    _run(orders.app, run)


def work(
    orders: Orders, folder: Path, lease: float, moment: Moment | None, deed: Callable[[], None], link: Link
) -> None:
    """Submit the job (again: it has one effect), work until it has ended, and tell. `deed` is done at `moment`."""
    points = _Points(moment, deed)
    points.watch()
    _refuse_waits()
    _anew(orders.app, folder)
    orders.handler.rate = None  # a second run would wait for it
    told = _run(orders.app, lambda app: _work(app, orders, lease, points))
    link.say(msgspec.json.encode(told))


def die() -> None:
    """The whole group at once, as when a machine loses power."""
    os.killpg(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # the signal is on its way; nothing after this line may happen


def pause(link: Link) -> None:
    """Where the parent stops us, until it lets us go on."""
    link.say(REACHED)
    link.wait()


class _Points:
    def __init__(self, moment: Moment | None, deed: Callable[[], None]) -> None:
        self._moment = moment
        self._deed = deed
        self.passed: Counter[str] = Counter()

    def hit(self, point: str) -> None:
        self.passed[point] += 1
        if self._moment == Moment(point, self.passed[point]):
            self._deed()

    def watch(self) -> None:
        """This process was forked for one run and ends with it: nobody else sees what is changed here."""
        inner_hit, inner_say = failpoints.hit, Run.say_progress

        def hit(name: str) -> None:
            self.hit(name)
            inner_hit(name)

        def say_progress(run: Run, fraction: float, stage: str | None) -> None:
            inner_say(run, fraction, stage)
            self.hit("progress")

        failpoints.hit = hit
        Run.say_progress = say_progress  # type: ignore[method-assign, assignment]


def _refuse_waits() -> None:
    """Its children do not run here, so a parent that waits for them would wait for ever."""
    inner = Children.ended

    async def ended(children: Children, run: Run, awaits: Awaits) -> Ended:
        if (found := await inner(children, run, awaits)) is None:
            raise Discard("crash_test runs no children, so it cannot try a handler that waits for them: try its parts")
        return found

    Children.ended = ended  # type: ignore[method-assign, assignment]


def _anew(app: Holdfast | sync.Holdfast, folder: Path) -> None:
    """The app as after its import: not open, whatever it was in the parent, and on the trial's own file. The object
    stays, because handlers that submit know it."""
    if isinstance(app, sync.Holdfast):
        inner = app.inner
        _anew(inner, folder)
        sync.Holdfast.__init__(app, inner.url)
        app.inner = inner
        return
    handlers = app.handlers
    Holdfast.__init__(app, throwaway_url(folder), artifacts=(folder / "files").as_uri(), poll_interval=POLL_SECONDS)
    app.handlers = handlers


def _run(app: Holdfast | sync.Holdfast, program: Callable[[Holdfast], Any]) -> Any:
    if isinstance(app, sync.Holdfast):
        with app:
            return app._call(program(app.inner))
    return asyncio.run(program(app))


async def _work(app: Holdfast, orders: Orders, lease: float, points: _Points) -> Told:
    handler = orders.handler
    async with app:
        await app.submit(handler, handler.decode(orders.payload), **orders.options)
        hurried = behind(app, AtOnce(app.store, {Event.RETRY, Event.SNOOZE}))
        async with hurried.worker(
            concurrency=1, job_types=[handler.name], queues=[QUEUE], lease=lease, grace=orders.grace_seconds
        ):
            with suppress(JobFailed, JobCancelled):
                await app.result(orders.job_id)
        job = await app.get(orders.job_id)
        return Told(job.status.value, job.last_error, job.attempt, await _submitted(app, orders.job_id), points.passed)


async def _submitted(app: Holdfast, job_id: str) -> dict[str, int]:
    counts: Counter[str] = Counter()
    after: str | None = None
    while True:
        page = await app.find(after=after, limit=FIND_LIMIT_MAX)
        counts.update(job.job_type for job in page if job.job_id != job_id)
        if page.next is None:
            return dict(counts)
        after = page.next
