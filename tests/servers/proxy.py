"""A TCP proxy in front of a server, which can cut, swallow replies, go silent and come back."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import Any

CHUNK = 65_536


class Proxy:
    """`with Proxy(port) as proxy:`; clients connect to proxy.port. Its loop runs in a thread of its own."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self.port = 0
        self.swallowed = 0  # requests that reached the server, whose replies the client never saw
        self._swallow = 0
        self._silent = threading.Event()
        self._refusing = False
        self._links: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()

    def __enter__(self) -> Proxy:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    # What a test does to the line

    def cut(self) -> None:
        """End every connection, at once and without a word."""
        self._call(self._cut)

    def swallow(self, count: int = 1) -> None:
        """Let the next requests through to the server, then cut instead of handing back what it answers."""
        self._swallow += count

    def silence(self) -> None:
        """Keep connections open and hand nothing on."""
        self._silent.set()

    def refuse(self) -> None:
        """Cut, and take no new connections."""
        self._refusing = True
        self.cut()

    def heal(self) -> None:
        self._refusing = False
        self._swallow = 0
        was_silent = self._silent.is_set()
        self._silent.clear()
        if was_silent:
            self.cut()  # what was held back is lost, as on a line that was down

    # The line

    async def sound(self) -> None:
        while self._silent.is_set():  # noqa: ASYNC110 - set from another thread
            await asyncio.sleep(0.01)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._open())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        await self._cut()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _call(self, work: Callable[[], Awaitable[Any]]) -> None:
        async def run() -> None:
            await work()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    async def _cut(self) -> None:
        for writer in list(self._links):
            writer.transport.abort()
        self._links.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        self._links |= {writer, server_writer}
        line = _Line(self, writer, server_writer)
        await asyncio.gather(line.forth(reader), line.back(server_reader), return_exceptions=True)
        for each in (writer, server_writer):
            self._links.discard(each)
            with contextlib.suppress(OSError, RuntimeError):
                each.transport.abort()


class _Line:
    """One connection. It swallows the reply to a request that was chosen, once that request has been handed on."""

    def __init__(self, proxy: Proxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._greeted = False  # the login is not a request
        self._swallowing = False

    async def forth(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK):
            await self._proxy.sound()
            if self._greeted and self._proxy._swallow > 0 and not self._swallowing:
                self._proxy._swallow -= 1
                self._swallowing = True
            self._server.write(data)
            await self._server.drain()
        self._server.transport.abort()

    async def back(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK):
            await self._proxy.sound()
            if self._swallowing:
                self._proxy.swallowed += 1
                self._client.transport.abort()
                self._server.transport.abort()
                return
            self._client.write(data)
            await self._client.drain()
            if data[-6:-5] == b"Z" or b"Z\x00\x00\x00\x05" in data[-6:]:
                self._greeted = True
        self._client.transport.abort()
