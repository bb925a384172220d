"""The lifespan of an app: what a process makes before it runs the first handler, and takes away after the last.

Start and end run in one task (or, for a plain generator, in one thread): some libraries insist on leaving a block where
it was entered, and a database connection may belong to a thread.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import Any, NoReturn

from backstay import failpoints
from backstay.errors import ConfigurationError, LifespanFailed
from backstay.limits import LIFESPAN_END_SECONDS

log = logging.getLogger("backstay.worker")
Make = Callable[
    [], AsyncIterator[Any] | Iterator[Any] | AbstractAsyncContextManager[Any] | AbstractContextManager[Any]
]  # what @app.lifespan takes


class Lifespan:
    """A function whose one `yield` gives the state, or a function that returns a context manager."""

    def __init__(self, target: Any) -> None:
        self.name = getattr(target, "__qualname__", repr(target))
        self._block = self._checked(target)

    def _checked(self, target: Any) -> Callable[[], Any]:
        if not callable(target):
            raise ConfigurationError(f"a lifespan is a function with a yield, not {target!r:.80}")
        with suppress(TypeError, ValueError):  # a signature that cannot be read shows its mistake when it is called
            required = [
                each.name
                for each in inspect.signature(target).parameters.values()
                if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
            ]
            if required:
                raise ConfigurationError(
                    f"the lifespan {self.name} is called without arguments, and takes {', '.join(required)}"
                )
        if inspect.isasyncgenfunction(target):
            return asynccontextmanager(target)
        if inspect.isgeneratorfunction(target):
            return contextmanager(target)
        if inspect.iscoroutinefunction(target):
            raise ConfigurationError(f"the lifespan {self.name} has no yield: what it yields is ctx.state")
        return target  # type: ignore[no-any-return]

    def block(self) -> Any:
        """Return a new context manager, async or plain."""
        block = self._block()
        if not isinstance(block, AbstractAsyncContextManager | AbstractContextManager):
            raise TypeError(f"{self.name} returned {block!r:.80}: write a yield in it, or return a context manager")
        return block


class _Started:
    """What a lifespan has made on one event loop, and how many use it there."""

    def __init__(self) -> None:
        self.users = 0
        self.lock = asyncio.Lock()
        self.state: Any = None
        self._leave: Callable[[], object] = lambda: None
        self._over: asyncio.Future[None] | None = None

    async def start(self, lifespan: Lifespan) -> None:
        failpoints.hit("lifespan.before")
        try:
            block = lifespan.block()
        except BaseException as error:
            raise failed(lifespan, error) from error
        loop = asyncio.get_running_loop()
        begun: asyncio.Future[Any] = loop.create_future()
        if isinstance(block, AbstractAsyncContextManager):
            left = asyncio.Event()
            self._leave = left.set
            self._over = loop.create_task(_live(block, begun, left))
        else:
            self._leave, self._over = _live_in_thread(block, begun, loop)
        try:
            self.state = await begun
        except asyncio.CancelledError:  # no one waits for it any more: what it began, it can take back
            self._leave()  # a thread cannot be cancelled, and leaves once it has entered
            self._over.cancel()
            with suppress(BaseException):
                await asyncio.wait({self._over}, timeout=LIFESPAN_END_SECONDS)
            raise
        except BaseException as error:
            raise failed(lifespan, error) from error
        failpoints.hit("lifespan.started")

    async def end(self, lifespan: Lifespan) -> None:
        """Take it away, in bounded time. Never raises: the jobs are done."""
        over = self._over
        assert over is not None  # noqa: S101 - it has started
        failpoints.hit("lifespan.ending")
        self._leave()
        await asyncio.wait({over}, timeout=LIFESPAN_END_SECONDS)
        if not over.done():
            log.error(
                "the lifespan %s has not ended within %g s: continuing without it", lifespan.name, LIFESPAN_END_SECONDS
            )
            over.cancel()
        elif not over.cancelled() and (error := over.exception()) is not None:
            log.error("the end of the lifespan %s raised %s", lifespan.name, type(error).__name__, exc_info=error)


async def _live(block: AbstractAsyncContextManager[Any], begun: asyncio.Future[Any], left: asyncio.Event) -> None:
    try:
        async with block as state:
            if not begun.done():
                begun.set_result(state)
            await left.wait()
    except BaseException as error:  # a SystemExit in a task would end the loop of the worker
        if begun.done():
            raise _plain(error) from error
        begun.set_exception(_plain(error))


def _live_in_thread(
    block: AbstractContextManager[Any], begun: asyncio.Future[Any], loop: asyncio.AbstractEventLoop
) -> tuple[Callable[[], object], asyncio.Future[None]]:
    """Enter and leave a plain block in a thread of its own, which keeps no process from exiting."""
    left = threading.Event()
    over: asyncio.Future[None] = loop.create_future()

    def tell(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_resolve, future, value, error)

    def live() -> None:
        try:
            with block as state:
                tell(begun, state, None)
                left.wait()
        except BaseException as error:
            tell(begun, None, _plain(error))
            tell(over, None, _plain(error))
        else:
            tell(over, None, None)

    threading.Thread(target=live, name="backstay-lifespan", daemon=True).start()
    over.add_done_callback(lambda done: done.cancelled() or done.exception())  # read, even if no one waits
    return left.set, over


def _resolve(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def _plain(error: BaseException) -> BaseException:
    """Return an error that a future can have and that ends no event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    plain = RuntimeError(f"it raised {type(error).__name__}: {error}")
    plain.__cause__ = error
    return plain


def failed(lifespan: Lifespan, error: BaseException) -> LifespanFailed:
    """Return the error of a lifespan that did not start; its traceback goes to the log."""
    log.error("the lifespan %s did not start", lifespan.name, exc_info=error)
    return LifespanFailed(
        f"the lifespan {lifespan.name} raised {type(error).__name__}: {str(error)[:1000]}; no job is run without it"
    )


class Lifespans:
    """The lifespan of an app, and what it has made, on each event loop that runs its handlers: workers that share a
    loop share the state."""

    def __init__(self) -> None:
        self.lifespan: Lifespan | None = None
        self._started: dict[asyncio.AbstractEventLoop, _Started] = {}

    def register(self, target: Any) -> None:
        if self.lifespan is not None:
            raise ConfigurationError(
                f"this app already has the lifespan {self.lifespan.name}: enter both in one function, and yield what"
                " handlers need of both"
            )
        self.lifespan = Lifespan(target)

    async def enter(self) -> Any:
        """Start the lifespan, unless another worker has, and return its state."""
        lifespan = self.lifespan
        assert lifespan is not None  # noqa: S101 - the caller has looked
        loop = asyncio.get_running_loop()
        started = self._started.setdefault(loop, _Started())
        started.users += 1
        try:
            async with started.lock:  # the second worker waits for the start by the first
                if started.users and started._over is None:
                    await started.start(lifespan)
        except BaseException:
            self._leave(loop, started)
            raise
        return started.state

    async def leave(self) -> None:
        loop = asyncio.get_running_loop()
        started = self._started[loop]
        if self._leave(loop, started):
            assert self.lifespan is not None  # noqa: S101 - it was entered
            await started.end(self.lifespan)

    def _leave(self, loop: asyncio.AbstractEventLoop, started: _Started) -> bool:
        """Return whether this was the last to leave."""
        started.users -= 1
        if started.users:
            return False
        self._started.pop(loop, None)
        return True


class Resources:
    """What one worker, or one call of `handler.call`, has of the lifespan of its app: `ctx.state`."""

    def __init__(self, lifespans: Lifespans | None) -> None:
        self._lifespans = lifespans
        self._state: Any = None
        self._is_entered = False

    @property
    def state(self) -> Any:
        """What the lifespan has yielded."""
        return self._state if self._is_entered else no_state()

    async def start(self) -> None:
        """Start the lifespan, if there is one. Raises LifespanFailed."""
        if self._lifespans is not None and self._lifespans.lifespan is not None:
            self._state = await self._lifespans.enter()
            self._is_entered = True

    async def end(self) -> None:
        if self._lifespans is not None and self._is_entered:
            self._is_entered = False
            await self._lifespans.leave()

    async def __aenter__(self) -> Resources:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.end()


def no_state() -> NoReturn:
    raise ConfigurationError(
        "ctx.state is what the app's lifespan yields, and this app has none: write a function with a yield, and"
        " register it with @app.lifespan"
    )
