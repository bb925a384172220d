"""One SQLite file, opened: on which thread each verb runs, and who is woken after it."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import apsw

from holdfast.errors import ConfigurationError, ForkedStore, NotOpen
from holdfast.limits import POLL_SECONDS, RECORD_INTERVAL_SECONDS
from holdfast.store.port import Listener
from holdfast.store.types import Signal
from holdfast.stores.sqlite import connection
from holdfast.stores.sqlite.bell import Bell
from holdfast.stores.sqlite.errors import translate
from holdfast.stores.sqlite.forking import inside
from holdfast.stores.sqlite.tx import Tx
from holdfast.stores.sqlite.writer import Writer

T = TypeVar("T")
READERS = 2  # threads; reads are short, and more would only contend for the GIL


class Running:
    def __init__(self, url: str) -> None:
        self.path = connection.path_of(url)
        self._writer: Writer | None = None
        self._bell = Bell(self.path)
        self._listeners: list[tuple[frozenset[Signal], Listener]] = []
        self._readers: ThreadPoolExecutor | None = None
        self._reader_state = threading.local()
        self._reader_connections: list[apsw.Connection] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()

    @property
    def location(self) -> str:
        return f"sqlite:///{self.path}"

    @property
    def files_root(self) -> str | None:
        return f"{self.path}.files"

    @property
    def poll_seconds(self) -> float:
        return POLL_SECONDS

    @property
    def record_seconds(self) -> float:
        return RECORD_INTERVAL_SECONDS

    # Opening

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        opened = await self._loop.run_in_executor(None, self._prepare)
        self._bell.open()
        self._writer = Writer(opened, self.path, self._loop, self._committed)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="holdfast-sqlite-reader")

    def _prepare(self) -> apsw.Connection:
        with inside():
            connection.create(self.path)
            opened = connection.connect(self.path)
            try:
                connection.migrate(opened, self.path)
            except BaseException:
                opened.close()
                raise
            return opened

    async def exists(self) -> bool:
        """Whether the file is there; makes none."""
        return self.path.exists()

    async def migrate(self) -> list[str]:
        def run() -> list[str]:
            with inside():
                connection.create(self.path)
                opened = connection.connect(self.path)
                try:
                    return connection.migrate(opened, self.path)
                finally:
                    opened.close()

        return await asyncio.get_running_loop().run_in_executor(None, run)

    def migration_sql(self) -> None:
        """None: whoever may write the file may migrate it."""

    async def erase(self) -> list[str]:
        raise ConfigurationError(f"a queue in a file is deleted with it: stop all workers, then remove {self.path}*")

    async def close(self) -> None:
        writer, readers, self._writer, self._readers = self._writer, self._readers, None, None
        if writer is None or readers is None or os.getpid() != self._pid:
            return
        self._bell.fall_silent()

        def run() -> None:
            writer.stop()
            readers.shutdown()
            with inside():
                for each in self._reader_connections:
                    each.close()
                self._reader_connections.clear()
                writer.connection.close()
            self._bell.close()

        await asyncio.get_running_loop().run_in_executor(None, run)

    # Threads

    def _refuse_fork(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedStore("this store was opened before fork(): open the app anew in the child process")

    def _write(self, name: str, run: Callable[[Tx], T], *, essential: bool) -> asyncio.Future[T]:
        writer, loop = self._opened()
        future: asyncio.Future[T] = loop.create_future()
        writer.put(name, run, functools.partial(answer, future), essential)
        return future

    def _opened(self) -> tuple[Writer, asyncio.AbstractEventLoop]:
        if self._writer is None or self._loop is None:
            raise NotOpen("the store is not open: use it inside `async with app:`")
        return self._writer, self._loop

    async def _read(self, run: Callable[[apsw.Connection], T]) -> T:
        self._refuse_fork()
        if self._readers is None or self._loop is None:
            raise NotOpen("the store is not open: use it inside `async with app:`")
        return await self._loop.run_in_executor(self._readers, self._run_read, run)

    def _run_read(self, run: Callable[[apsw.Connection], T]) -> T:
        own: apsw.Connection | None = getattr(self._reader_state, "connection", None)
        if self._writer is not None:
            self._writer.identity.check()
        try:
            with inside():
                if own is None:
                    own = self._reader_state.connection = connection.connect(self.path)
                    self._reader_connections.append(own)
                own.execute("BEGIN")  # one snapshot for all statements of a read
                try:
                    return run(own)
                finally:
                    own.execute("ROLLBACK")
        except apsw.Error as error:
            raise translate(error, str(self.path)) from None

    def _committed(self, signals: set[Signal]) -> None:
        """On the writer thread, after COMMIT."""
        self._bell.ring(signals)
        if self._listeners and self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake, signals)

    def _wake(self, signals: set[Signal]) -> None:
        for wanted, listener in tuple(self._listeners):
            for signal in wanted & signals:
                listener(signal)

    def listen(self, signals: frozenset[Signal], listener: Listener) -> Callable[[], None]:
        if self._loop is None:
            raise NotOpen("the store is not open: use it inside `async with app:`")
        entry = (signals, listener)
        self._listeners.append(entry)
        stop_bell = self._bell.listen(signals, listener, self._loop)

        def stop() -> None:
            self._listeners.remove(entry)
            stop_bell()

        return stop


def answer(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """On the event loop. Whoever was cancelled meanwhile no longer waits."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
