"""GET /dashboard/live: a stream of hints that something changed. What changed is on the page, which looks again.

Those who follow the same thing share one watch. It looks when the store signals, and every few seconds beside that,
since a signal may be lost and progress makes none. A key with patterns of queues gets hints of its queues alone: it
hears nothing when a store signals, only when what it may see has become different.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from fastapi import Depends, Request, Response

from holdfast.app import Holdfast
from holdfast.dashboard import frame
from holdfast.errors import HoldfastError
from holdfast.job import Job
from holdfast.lifecycle import Status
from holdfast.limits import KEY_LIVE_PAGES_MAX, LIVE_PAGES_MAX
from holdfast.server.guarding import needs, visible
from holdfast.server.places import EventStream, Leave, Places
from holdfast.server.principals import Principal
from holdfast.server.problems import Problem
from holdfast.server.staying import CHECK_SECONDS, may_stay
from holdfast.stats import span
from holdfast.store.types import Signal
from holdfast.waits import within

STREAM_SECONDS = 300.0  # then the browser comes again
BEAT_SECONDS = 15.0  # a line now and then, so that nobody in between takes the stream for dead
SETTLE_SECONDS = 0.25  # what happens together is one hint
LOOKED_AT_MAX = 100  # running jobs whose progress is watched for a list, and jobs of a tree

Look = Callable[[], Awaitable[object]]

router = frame.pages()


@router.get("/live", dependencies=[Depends(needs("read"))])
async def live(request: Request, topic: str = "all") -> Response:
    app, principal = frame.app_of(request), frame.reader_of(request)
    name, look = await _topic(app, principal, topic)
    pulse = frame.kept(request, Pulse)
    leave = pulse.place(principal.key_id)
    events = pulse.events(
        name,
        look,
        lambda: may_stay(request, principal),
        heeds_signals=topic == "all" and principal.sees_all,
    )
    return EventStream(events, leave, {"Cache-Control": "no-store"})


async def _topic(app: Holdfast, principal: Principal, topic: str) -> tuple[str, Look]:
    """The name under which it is shared, and how to see whether it changed."""
    kind, _, job_id = topic.partition(":")
    match kind:
        case "all":
            return f"all {' '.join(principal.queues)}", lambda: _everything(app, principal)
        case "job":
            job = await visible(app, principal, job_id)
            return f"job {job.job_id}", lambda: _of_job(app, job.job_id)
        case "tree":
            job = await visible(app, principal, job_id)
            root = job.root_job_id or job.job_id
            return f"tree {root}", lambda: _of_tree(app, root)
        case _:
            raise Problem(422, "invalid-request", "topic is all, job:<id> or tree:<id>")


async def _everything(app: Holdfast, principal: Principal) -> object:
    """What the counters of this minute say, what runs and how far it is, and which queues are paused."""
    counted = await app.store.counters(*span(app.clock.now(), 2))
    running = await app.find(status=Status.PROCESSING, limit=LOOKED_AT_MAX)
    return (
        [counter for counter in counted if principal.sees(counter.queue)],
        [_mark(job) for job in running if principal.sees(job.queue)],
        [queue for queue in await app.store.queues() if principal.sees(queue.name)],
    )


async def _of_job(app: Holdfast, job_id: str) -> object:
    job = await app.get(job_id)
    return _mark(job), job.record.logs, job.record.metrics, job.record.artifacts


async def _of_tree(app: Holdfast, root: str) -> object:
    return [_mark(await app.get(root)), *map(_mark, await app.find(root=root, limit=LOOKED_AT_MAX))]


def _mark(job: Job) -> object:
    return job.job_id, job.record.version, job.progress, job.stage


class Pulse:
    """The watches of one server, and the streams that are fed by them. The gate ends those when the server stops."""

    def __init__(self, app: Holdfast) -> None:
        self._app = app
        self._watches: dict[str, Watch] = {}
        self._places = Places()

    @property
    def streams(self) -> int:
        return self._places.taken

    def place(self, key_id: str | None) -> Leave:
        return self._places.take(key_id, most=LIVE_PAGES_MAX, share=KEY_LIVE_PAGES_MAX, refused=_too_many)

    async def events(
        self, name: str, look: Look, may_stay: Callable[[], Awaitable[bool]], *, heeds_signals: bool
    ) -> AsyncIterator[bytes]:
        clock = self._app.clock
        async with self._watched(name, look, heeds_signals) as hint:
            spoke_at = clock.monotonic()
            ends_at = spoke_at + STREAM_SECONDS
            yield b"retry: 2000\n\n"
            while (left := ends_at - clock.monotonic()) > 0:
                changed = await within(min(CHECK_SECONDS, left), hint.wait())
                if not await may_stay():
                    return
                hint.clear()
                if changed or clock.monotonic() - spoke_at >= BEAT_SECONDS:
                    yield b"event: changed\ndata: \n\n" if changed else b": here\n\n"
                    spoke_at = clock.monotonic()

    @asynccontextmanager
    async def _watched(self, name: str, look: Look, heeds_signals: bool) -> AsyncIterator[asyncio.Event]:
        watch = self._watches.get(name)
        if watch is None:
            watch = self._watches[name] = Watch(self._app, look, heeds_signals)
        hint = asyncio.Event()
        watch.add(hint)
        try:
            yield hint
        finally:
            if not watch.remove(hint):
                del self._watches[name]


def _too_many(whose: str) -> Problem:
    return Problem(503, "too-many-streams", f"{whose} live pages, which is all it may; yours looks by itself")


class Watch:
    """Looks at one thing for all who follow it."""

    def __init__(self, app: Holdfast, look: Look, heeds_signals: bool) -> None:
        self._app = app
        self._look = look
        self._heeds_signals = heeds_signals
        self._hints: set[asyncio.Event] = set()
        self._stir = asyncio.Event()
        self.began = asyncio.Event()  # what happens from here on is a change
        self._task: asyncio.Task[None] | None = None
        self._seconds = max(1.0, app.store.record_seconds)  # progress is written no more often

    def add(self, hint: asyncio.Event) -> None:
        self._hints.add(hint)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    def remove(self, hint: asyncio.Event) -> bool:
        """Whether others go on."""
        self._hints.discard(hint)
        if not self._hints and self._task is not None:
            self._task.cancel()
        return bool(self._hints)

    async def _work(self) -> None:
        unlisten = self._app.store.listen(frozenset(Signal), lambda _: self._stir.set())
        try:
            before = await self._seen(None)
            self.began.set()
            while True:
                signalled = await within(self._seconds, self._stir.wait())
                await asyncio.sleep(SETTLE_SECONDS)
                self._stir.clear()
                now = await self._seen(before)
                if now != before or (signalled and self._heeds_signals):
                    self._tell()
                before = now
        finally:
            unlisten()

    async def _seen(self, before: object) -> object:
        with suppress(HoldfastError):  # a store that is away has changed nothing; the page says what is wrong with it
            return await self._look()
        return before

    def _tell(self) -> None:
        for hint in self._hints:
            hint.set()
