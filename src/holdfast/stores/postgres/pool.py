"""A few connections, lent out one at a time. The driver's own pool makes a task, four timers and a proxy for each loan,
which is most of what a single submit would cost."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from holdfast.errors import HoldfastError

IDLE_SECONDS_MAX = 300.0  # longer, and something on the way may have forgotten the connection
Connection = Any  # asyncpg's


class Pool:
    def __init__(self, connect: Callable[[], Awaitable[Connection]], size: int, patience: float) -> None:
        self._connect = connect
        self._size = size
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._idle: list[tuple[Connection, float]] = []  # the one that came back last goes out first
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._all: set[Connection] = set()
        self._opening = 0
        self._closed = False

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Connection]:
        connection = await self._take()
        try:
            yield connection
        except (asyncpg.PostgresError, HoldfastError):
            raise  # the server has answered: the connection is as good as before
        except BaseException:
            connection.terminate()  # an answer may be on its way that nobody waits for
            raise
        finally:
            self._put_back(connection)

    async def _take(self) -> Connection:
        while True:
            while self._idle:
                connection, since = self._idle.pop()
                if not connection.is_closed() and self._loop.time() - since < IDLE_SECONDS_MAX:
                    return connection
                self._drop(connection)
            if len(self._all) + self._opening < self._size:
                return await self._open()
            if (connection := await self._wait()) is not None:
                return connection

    async def _open(self) -> Connection:
        self._opening += 1
        try:
            connection = await self._connect()
        except BaseException:
            self._opening -= 1
            self._tell_next(None)  # who waits may try in our place
            raise
        self._opening -= 1
        self._all.add(connection)
        if self._closed:
            self._drop(connection)
            raise asyncpg.InterfaceError("the pool is closed")
        return connection

    async def _wait(self) -> Connection | None:
        """A connection that came back; None where one was lost and a new one may be opened."""
        waiter: asyncio.Future[Connection | None] = self._loop.create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self._patience):
                return await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                given = waiter.result()  # it was given to us as we gave up
                if given is None:
                    self._tell_next(None)
                else:
                    self._put_back(given)
            raise

    def _put_back(self, connection: Connection) -> None:
        if self._closed or connection.is_closed():
            self._drop(connection)
            self._tell_next(None)
        elif not self._tell_next(connection):
            self._idle.append((connection, self._loop.time()))

    def _tell_next(self, connection: Connection | None) -> bool:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return True
        return False

    def _drop(self, connection: Connection) -> None:
        self._all.discard(connection)
        connection.terminate()

    async def close(self, seconds: float) -> None:
        """Politely where the server answers in time."""
        self._closed = True
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(asyncpg.InterfaceError("the pool is closed"))
        idle, self._idle = self._idle, []
        await asyncio.gather(*(each.close(timeout=seconds) for each, _ in idle), return_exceptions=True)
        for connection in tuple(self._all):
            self._drop(connection)
