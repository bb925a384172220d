"""A proxy in front of PostgreSQL that can cut connections, swallow replies to commits, and hang."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

CHUNK = 65_536
_WRITES = re.compile(rb"\b(INSERT|UPDATE|DELETE)\b|\.(insert_plain|insert_jobs)\(")


class Proxy:
    """`with Proxy(port) as proxy:`; clients connect to proxy.port. Its loop runs in a thread of its own."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self.port = 0
        self.swallowed = 0  # commits whose reply the client did not get
        self._swallow = 0
        self._swallowing = threading.Condition()
        self._sever: list[int] = []
        self._silent = threading.Event()
        self._refusing = False
        self.encryption_answers: list[bytes] = []  # to the next requests for encryption; the connection is cut then
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

    # Faults

    def cut(self) -> None:
        """Close every connection at once."""
        self._call(self._cut)

    def swallow(self, count: int = 1) -> None:
        """Pass the next writes to the server, and cut the connection when it replies that they are committed."""
        with self._swallowing:
            self._swallow += count

    def await_swallowed(self, total: int, seconds: float) -> bool:
        with self._swallowing:
            return self._swallowing.wait_for(lambda: self.swallowed >= total, seconds)

    def take_swallow(self) -> bool:
        """Return whether this reply is to be lost."""
        with self._swallowing:
            if self._swallow <= 0:
                return False
            self._swallow -= 1
            self.swallowed += 1
            self._swallowing.notify_all()
            return True

    def sever(self, after_bytes: int) -> None:
        """Let the next connection that says anything pass this many bytes, and cut it there."""
        self._sever.append(after_bytes)

    def take_sever(self) -> int | None:
        with contextlib.suppress(IndexError):
            return self._sever.pop()
        return None

    def switch(self, target_port: int) -> None:
        """Send new connections to another server, and cut those to the old one."""
        self._target_port = target_port
        self.cut()

    def silence(self) -> None:
        """Keep connections open without passing anything on."""
        self._silent.set()

    def refuse(self) -> None:
        """Close every connection, and accept no new ones."""
        self._refusing = True
        self.cut()

    def heal(self) -> None:
        self._refusing = False
        self._swallow = 0
        self._sever.clear()
        was_silent = self._silent.is_set()
        self._silent.clear()
        if was_silent:
            self.cut()  # what was held back is lost, as after a network outage

    # Connections

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
        if self.encryption_answers:
            await reader.readexactly(8)  # by default, a client asks for encryption first
            writer.write(self.encryption_answers.pop(0))
            await writer.drain()
            writer.close()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        self._links |= {writer, server_writer}
        line = _Line(self, writer, server_writer)
        ways = [asyncio.ensure_future(way) for way in (line.forth(reader), line.back(server_reader))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()  # close both sides: a server that does not notice would keep locks
        await asyncio.gather(*ways, return_exceptions=True)
        for each in (writer, server_writer):
            self._links.discard(each)
            with contextlib.suppress(OSError, RuntimeError):
                each.transport.abort()


class _Line:
    """One connection. It parses enough of the protocol to know which reply acknowledges a commit with writes."""

    def __init__(self, proxy: Proxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._greeted = False  # the login is not parsed
        self._asked, self._answered = _Frames(), _Frames()
        self._statements: dict[bytes, bool] = {}  # by name: whether it writes
        self._writing = False  # whether the running statement may write
        self._wrote = False  # whether there were writes since the last commit
        self._left: int | None = None  # bytes until it is cut

    async def forth(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK):
            await self._proxy.sound()
            if self._greeted:
                self._hear_client(data)
            await self._send(self._server, data)

    async def back(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK):
            await self._proxy.sound()
            if self._greeted and self._tells_of_a_commit(data) and self._proxy.take_swallow():
                return
            self._greeted = self._greeted or data[-6:-5] == b"Z"
            await self._send(self._client, data)

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if self._left is None:
            self._left = self._proxy.take_sever()
        if self._left is not None:
            whole, data, self._left = data, data[: self._left], self._left - len(data)
            if len(data) < len(whole):
                writer.write(data)
                await writer.drain()
                raise ConnectionAbortedError("severed")
        writer.write(data)
        await writer.drain()

    def _hear_client(self, data: bytes) -> None:
        for kind, body in self._asked.of(data):
            if kind == b"P":  # Parse
                name, text, _ = body.split(b"\0", 2)
                self._statements[name] = bool(_WRITES.search(text))
            elif kind == b"B":  # Bind
                self._writing = self._statements.get(body.split(b"\0", 2)[1], False)
            elif kind == b"Q" and body.startswith(b"ROLLBACK"):
                self._wrote = False

    def _tells_of_a_commit(self, data: bytes) -> bool:
        committed = False
        for kind, body in self._answered.of(data):
            if kind == b"E":
                self._wrote = False
            elif kind == b"C":  # it ran, over so many rows
                self._wrote |= self._writing and not body.endswith(b" 0\0")
            elif kind == b"Z" and body == b"I":  # ready, and outside a transaction
                committed, self._wrote = committed or self._wrote, False
        return committed


class _Frames:
    """Splits a stream of bytes into messages: a kind, a length, a body."""

    def __init__(self) -> None:
        self._rest = b""

    def of(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        data = self._rest + data
        start = 0
        while len(data) - start >= 5:
            end = start + 1 + int.from_bytes(data[start + 1 : start + 5], "big")
            if end > len(data):
                break
            yield data[start : start + 1], data[start + 5 : end]
            start = end
        self._rest = data[start:]
