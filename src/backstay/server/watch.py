"""Waiting for changes: shared watches of streams and live pages, store signals, bounds on how many wait.

Streams that follow the same thing share one watch. It looks when the store signals, and every few seconds as well,
since a signal may be lost and progress does not signal.

The number of waiting requests is bounded per server and per key: without the second bound, one client could take what
all others need.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Generic, TypeVar

from fastapi import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from backstay.app import Backstay
from backstay.clock import within
from backstay.core.records import Signal
from backstay.errors import BackstayError, JobNotFound, StoreError
from backstay.server.auth import CHECK_SECONDS, Principal, may_stay
from backstay.server.problems import Problem

T = TypeVar("T")
LIVE_SECONDS = 0.2  # between looks into this process's memory
GAP_SECONDS = 0.1  # between looks at the store, however often it signals …
LOOKS_PER_SECOND = 200  # … and so many for all watches together
REST = 4  # times as long as a look took, before the next one: much may have to be read
BEAT_SECONDS = 15.0  # a comment now and then, so that no proxy takes a silent stream for dead
RECONNECT_MS = 2000  # how soon a browser whose stream broke connects again
RETRY_SECONDS = 5
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Signals:
    """Fans out store signals to waiting requests. Listens while one of them waits, and not longer."""

    def __init__(self, app: Backstay, signals: frozenset[Signal]) -> None:
        self.count = 0  # a reader that has seen this number has missed nothing
        self._app = app
        self._signals = signals
        self._event = asyncio.Event()
        self._listeners = 0
        self._unlisten: Callable[[], None] = lambda: None

    @contextmanager
    def listening(self) -> Iterator[None]:
        if self._listeners == 0:
            self._unlisten = self._app.listen(self._signals, lambda _: self._arrived())
        self._listeners += 1
        try:
            yield
        finally:
            self._listeners -= 1
            if self._listeners == 0:
                self._unlisten()

    async def wait(self, seen: int) -> None:
        """Wait for a signal, unless one has come since `count` was `seen`."""
        if self.count == seen:
            await self._event.wait()

    def _arrived(self) -> None:
        self.count += 1
        self._event.set()
        self._event = asyncio.Event()


Leave = Callable[[], None]


class Places:
    """How many requests wait: in total, and for each key."""

    def __init__(self) -> None:
        self._taken: Counter[str | None] = Counter()

    @property
    def taken(self) -> int:
        return self._taken.total()

    def take(self, key_id: str | None, *, most: int, share: int, refused: Callable[[str], Problem]) -> Leave:
        """Take a place, until the returned function is called. Without keys all clients are on this machine, and one
        may take all places. `refused` makes the problem from who has how many places already."""
        if self.taken >= most:
            raise refused(f"this server has {most:,}")
        if key_id is not None and self._taken[key_id] >= share:
            raise refused(f"this key has {share:,}")
        self._taken[key_id] += 1
        left = False

        def leave() -> None:
            nonlocal left
            if not left:
                left = True
                self._taken[key_id] -= 1
                if not self._taken[key_id]:
                    del self._taken[key_id]

        return leave


class Watch(Generic[T]):
    """The latest state of one thing, for all streams that follow it."""

    def __init__(self, first: T) -> None:
        self.latest = first
        self.error: BackstayError | None = None
        self.looks = 0
        self.streams = 0
        self.task: asyncio.Task[None] | None = None
        self._event = asyncio.Event()

    def tell(self, latest: T) -> None:
        self.latest, self.error = latest, None
        self._wake()

    def fail(self, error: BackstayError) -> None:
        self.error = error
        self._wake()

    def _wake(self) -> None:
        self.looks += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seen: int, seconds: float) -> None:
        """Wait for a look later than `seen`, at most this long."""
        if self.looks == seen:
            await within(seconds, self._event.wait())


class Watches:
    """The watches of one server on one kind of thing, and the streams that they feed."""

    def __init__(self, app: Backstay, signals: frozenset[Signal], gap_seconds: float = GAP_SECONDS) -> None:
        self._app = app
        self._signals = Signals(app, signals)
        self._gap_seconds = gap_seconds
        self._watches: dict[tuple[str, str], Watch[object]] = {}
        self._places = Places()

    @property
    def streams(self) -> int:
        return self._places.taken

    @property
    def signals(self) -> int:
        """Return how many signals have come. If this is part of what is watched, every signal is a change."""
        return self._signals.count

    @asynccontextmanager
    async def on(
        self,
        key: tuple[str, str],
        first: T,
        look: Callable[[], Awaitable[T]],
        glance: Callable[[T], T | None] = lambda _: None,
    ) -> AsyncIterator[Watch[T]]:
        """Return the watch on a thing. `look` reads it from the store; `glance`, if given, from the memory of this
        process."""
        watch: Watch[T] = self._watches.setdefault(key, Watch(first))  # type: ignore[assignment]
        if watch.task is None:
            watch.task = asyncio.get_running_loop().create_task(self._follow(watch, look, glance))
        watch.streams += 1
        try:
            yield watch
        finally:
            watch.streams -= 1
            if not watch.streams:
                self._watches.pop(key, None)
                watch.task.cancel()
                await asyncio.gather(watch.task, return_exceptions=True)

    def place(self, key_id: str | None, *, most: int, share: int, instead: str) -> Leave:
        """Take a place before an answer begins, so that one stream too many gets a problem with an explanation."""

        def refused(whose: str) -> Problem:
            detail = f"{whose} streams open, which is the limit: {instead}"
            return Problem(429, "too-many-streams", detail, retry_after=RETRY_SECONDS)

        return self._places.take(key_id, most=most, share=share, refused=refused)

    async def _follow(self, watch: Watch[T], look: Callable[[], Awaitable[T]], glance: Callable[[T], T | None]) -> None:
        with self._signals.listening():
            while True:
                seen = self._signals.count
                began = self._app.clock.monotonic()
                try:
                    watch.tell(await look())
                except BackstayError as error:  # an unavailable store is not a change
                    watch.fail(error)
                took = self._app.clock.monotonic() - began
                gap = max(self._gap_seconds, len(self._watches) / LOOKS_PER_SECOND, REST * took)
                await asyncio.sleep(gap)
                await self._rest(watch, seen, max(gap, self._app.record_seconds), glance)

    async def _rest(self, watch: Watch[T], seen: int, seconds: float, glance: Callable[[T], T | None]) -> None:
        """Wait for a signal, or until it is time to look; meanwhile follow what runs in this process."""
        until = self._app.clock.monotonic() + seconds
        while (left := until - self._app.clock.monotonic()) > 0:
            live = glance(watch.latest)
            if live is not None:
                watch.tell(live)
            if await within(min(left, LIVE_SECONDS) if live is not None else left, self._signals.wait(seen)):
                return


class EventStream(StreamingResponse):
    """Server-sent events about what a watch sees. The stream keeps its place until it is over, however it ends: because
    the last event was sent, the job was removed, or the client lost its access or left. The gate ends it when the
    server stops."""

    def __init__(
        self,
        request: Request,
        who: Principal,
        watching: AbstractAsyncContextManager[Watch[T]],
        news: Callable[[T], Awaitable[tuple[bytes, bool]]],
        leave: Leave,
        headers: Mapping[str, str] = _HEADERS,
    ) -> None:
        """`news` makes events of the latest state, and tells whether these are the last."""
        super().__init__(_events(request, who, watching, news), media_type="text/event-stream", headers=headers)
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


async def _events(
    request: Request,
    who: Principal,
    watching: AbstractAsyncContextManager[Watch[T]],
    news: Callable[[T], Awaitable[tuple[bytes, bool]]],
) -> AsyncIterator[bytes]:
    clock = request.app.state.backstay.clock
    sent_at = clock.monotonic()
    yield b"retry: %d\n\n" % RECONNECT_MS
    async with watching as watch:
        while True:
            seen = watch.looks
            if isinstance(watch.error, JobNotFound):
                return
            try:
                found, was_last = await news(watch.latest)
            except StoreError:  # an unavailable store is not news
                found, was_last = b"", False
            if not found and clock.monotonic() - sent_at > BEAT_SECONDS:
                found = b":\n\n"
            if found:
                yield found
                sent_at = clock.monotonic()
            if was_last:
                return
            await watch.wait(seen, CHECK_SECONDS)
            if not await may_stay(request, who):
                return
