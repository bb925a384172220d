"""One HTTP/1.1 connection that is kept alive. It tells whether a request that was not answered had been sent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.stores.dynamodb.errors import Unanswered

CONNECT_SECONDS = 1.0
IDLE_SECONDS = 15.0  # the server closes at about 20
REPLY_BYTES_MAX = 32 * 1024 * 1024  # a page ends at 1 MB, a batch at 16
HEAD_BYTES_MAX = 64 * 1024


class Reply(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: bytes


class _Reader(asyncio.StreamReader):
    """One that knows how much came that nobody has read: it belongs to no request of ours."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=HEAD_BYTES_MAX, loop=loop)
        self.unread = 0

    def feed_data(self, data: Any) -> None:
        self.unread += len(data)
        super().feed_data(data)

    async def readuntil(self, separator: Any = b"\n") -> bytes:
        found = await super().readuntil(separator)
        self.unread -= len(found)
        return found

    async def readexactly(self, n: int) -> bytes:
        found = await super().readexactly(n)
        self.unread -= len(found)
        return found


class Connection:
    def __init__(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.idle_since = asyncio.get_running_loop().time()
        self.reusable = True

    @classmethod
    async def open(cls, host: str, port: int, context: ssl.SSLContext | None) -> Connection:
        loop = asyncio.get_running_loop()
        reader = _Reader(loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                transport, _ = await loop.create_connection(
                    lambda: protocol, host, port, ssl=context, server_hostname=host if context else None
                )
        except (OSError, TimeoutError) as error:
            raise Unanswered(f"no connection to {host}:{port}: {_why(error)}", sent=False, astray=True) from None
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    @property
    def stale(self) -> bool:
        """Whether it may not be used again. What came unasked would be taken for the answer to the next request."""
        if not self.reusable or self._reader.unread or self._reader.at_eof() or self._writer.is_closing():
            return True
        return asyncio.get_running_loop().time() - self.idle_since > IDLE_SECONDS

    async def ask(self, head: bytes, body: bytes, seconds: float) -> Reply:
        self.reusable = False  # until the whole reply has been read
        try:
            async with asyncio.timeout(seconds):
                self._writer.write(head + body)
                await self._writer.drain()
                reply = await self._reply()
            _refuse_damaged(reply)
        except (OSError, TimeoutError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            self.close()
            raise Unanswered(f"no reply: {_why(error)}", sent=True, astray=isinstance(error, ValueError)) from None
        except BaseException:
            self.close()
            raise
        self.idle_since = asyncio.get_running_loop().time()
        return reply

    async def _reply(self) -> Reply:
        head = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1."):
            raise ValueError("the reply is not HTTP")
        status = int(rest[:3])
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            if name:
                headers[name.lower()] = value.strip()
        body = await self._body(status, headers)
        self.reusable = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
        return Reply(status, headers, body)

    async def _body(self, status: int, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await self._chunks()
        if "content-length" not in headers:
            raise ValueError("the reply does not say how long it is")
        length = int(headers["content-length"])
        if not 0 <= length <= REPLY_BYTES_MAX:
            raise ValueError("the reply is too long")
        return await self._reader.readexactly(length)

    async def _chunks(self) -> bytes:
        parts: list[bytes] = []
        total = 0
        while True:
            line = await self._reader.readuntil(b"\r\n")
            length = int(line.split(b";")[0], 16)
            total += length
            if length < 0 or total > REPLY_BYTES_MAX:
                raise ValueError("the reply is too long")
            if length == 0:
                while await self._reader.readuntil(b"\r\n") != b"\r\n":
                    pass
                return b"".join(parts)
            parts.append(await self._reader.readexactly(length))
            if await self._reader.readexactly(2) != b"\r\n":
                raise ValueError("the reply is not HTTP")

    def close(self) -> None:
        self.reusable = False
        self._writer.close()

    async def closed(self) -> None:
        self.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                await self._writer.wait_closed()


def _refuse_damaged(reply: Reply) -> None:
    if reply.status == 408:
        raise ValueError("the server gave up waiting for a request")  # for which one of ours, it does not say
    checksum = reply.headers.get("x-amz-crc32")
    if checksum is not None and checksum != str(zlib.crc32(reply.body)):
        raise ValueError("it was damaged on its way")


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "not in time"
    if isinstance(error, EOFError):
        return "the server closed the connection"
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    strerror = error.strerror if isinstance(error, OSError) else None
    return strerror or str(error) or type(error).__name__
