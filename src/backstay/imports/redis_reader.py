"""Reads a Redis server that another system keeps its jobs in, by Redis's own protocol.

Commands that write do not exist here.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from backstay.errors import ConfigurationError, StoreUnavailable
from backstay.limits import IMPORT_PAGE

Read = Literal[
    "EXISTS", "GET", "HGET", "HGETALL", "HSCAN", "HLEN", "LLEN", "LRANGE", "SCAN", "SMEMBERS", "TIME",
    "XREVRANGE", "ZSCORE",
]  # fmt: skip
Command = tuple[Read, *tuple[str | int, ...]]
_LINE_MAX = 1 << 16
_PORT = 6379


class RedisReader:
    """A connection. Parameters of the address that a source knows, `options`, are not the server's."""

    def __init__(self, address: str, what: str, **options: str) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("redis", "rediss"):
            raise ConfigurationError(f"{what} is in Redis: give its address as redis://…")
        given = dict(parse_qsl(parts.query))
        if unknown := [name for name in given if name not in options]:
            raise ConfigurationError(f"unknown parameter {unknown[0]!r:.40} in the address of {what}")
        self.options = {**options, **given}
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or _PORT
        self._tls = ssl.create_default_context() if parts.scheme == "rediss" else None
        self._login = [unquote(each) for each in (parts.username, parts.password) if each]
        path = parts.path.strip("/") or "0"
        if not path.isdigit():
            raise ConfigurationError("the path of a Redis address is the number of a database: redis://host/0")
        self._database = int(path)
        named = urlencode(given)
        self.location = f"{parts.scheme}://{self._host}:{self._port}/{self._database}{named and f'?{named}'}"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def open(self) -> None:
        try:
            self._streams = await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=_LINE_MAX)
            if self._login:
                await self._exchange([("AUTH", *self._login)])
            await self._exchange([("SELECT", self._database)])
        except (OSError, EOFError) as error:
            raise StoreUnavailable(f"{self.location} cannot be reached: {error}") from None

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()

    async def ask(self, *command: *Command) -> Any:
        [answer] = await self.ask_all([command])
        return answer

    async def ask_all(self, commands: Sequence[Command]) -> list[Any]:
        """Return the answers to several commands, which go out together."""
        try:
            return await self._exchange(commands)
        except (OSError, EOFError) as error:
            raise StoreUnavailable(f"{self.location} has closed the connection: {error}") from None

    async def keys(self, prefix: str) -> AsyncIterator[list[str]]:
        """Yield the keys that begin so, in pages; one may come twice."""
        pattern = "".join(f"\\{each}" if each in "*?[]\\^" else each for each in prefix) + "*"
        cursor = "0"
        while True:
            after, found = await self.ask("SCAN", cursor, "MATCH", pattern, "COUNT", IMPORT_PAGE)
            yield [key.decode("utf-8", "surrogateescape") for key in found]
            cursor = after.decode()
            if cursor == "0":
                return

    async def _exchange(self, commands: Sequence[tuple[str | int, ...]]) -> list[Any]:
        if self._streams is None:
            raise ConfigurationError(f"{self.location} is not open")
        reader, writer = self._streams
        writer.write(b"".join(_encoded(command) for command in commands))
        await writer.drain()
        answers = [await _answer(reader) for _ in commands]
        for command, answer in zip(commands, answers, strict=True):
            if isinstance(answer, _Refusal):
                asked = " ".join(str(part) for part in command[: 1 if command[0] == "AUTH" else 2])
                raise ConfigurationError(f"{self.location} answers to {asked}: {answer.message}")
        return answers


class _Refusal:
    def __init__(self, message: str) -> None:
        self.message = message


def _encoded(command: tuple[str | int, ...]) -> bytes:
    parts = [str(each).encode("utf-8", "surrogateescape") for each in command]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


async def _answer(reader: asyncio.StreamReader) -> Any:
    line = (await reader.readuntil(b"\r\n"))[:-2]
    kind, rest = line[:1], line[1:]
    match kind:
        case b"+":
            return rest
        case b"-":
            return _Refusal(rest.decode("utf-8", "replace"))
        case b":":
            return int(rest)
        case b"$":
            return None if rest == b"-1" else (await reader.readexactly(int(rest) + 2))[:-2]
        case b"*":
            return None if rest == b"-1" else [await _answer(reader) for _ in range(int(rest))]
        case _:
            raise ConfigurationError("this is not a Redis server")
