"""Replies are read whole or not at all, and a request that may have been applied is known as such."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from backstay.engines.dynamodb.transport import Connection, Unanswered

Connect = Callable[[bytes], "asyncio.Future[Connection]"]
OK = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[bytes], object]]:
    """A connection to a server that answers anything with these bytes, and hangs up."""
    servers: list[asyncio.Server] = []
    connections: list[Connection] = []

    async def make(reply: bytes) -> Connection:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reply)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        servers.append(server)
        connection = await Connection.open("127.0.0.1", server.sockets[0].getsockname()[1], None)
        connections.append(connection)
        return connection

    yield make
    for connection in connections:
        await connection.closed()
    for server in servers:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    "reply",
    [
        OK + b"Content-Length: 2\r\n\r\n{}",
        OK + b"content-length:2\r\nx-amz-crc32: 2745614147\r\n\r\n{}",
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1;x=y\r\n}\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nTrailer: x\r\n\r\n",
    ],
)
async def test_a_whole_reply_is_read(connect: Callable[[bytes], object], reply: bytes) -> None:
    connection = await connect(reply)  # type: ignore[misc]

    answer = await connection.ask(b"POST / HTTP/1.1\r\n\r\n", b"", 5)

    assert (answer.status, answer.body) == (200, b"{}")
    assert connection.reusable


async def test_a_server_that_wants_to_close_is_not_asked_again(connect: Callable[[bytes], object]) -> None:
    connection = await connect(OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n")  # type: ignore[misc]

    await connection.ask(b"POST / HTTP/1.1\r\n\r\n", b"", 5)

    assert not connection.reusable


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 200",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        OK + b"\r\n{}",
        OK + b"Content-Length: 10\r\n\r\n{}",
        OK + b"Content-Length: -1\r\n\r\n{}",
        OK + b"Content-Length: 99999999999\r\n\r\n{}",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}xx",
        OK + b"Content-Length: 2\r\nx-amz-crc32: 1\r\n\r\n{}",
        OK + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        OK + b"Content-Length: 2\r\nx-amz-crc32: abc\r\n\r\n{}",
        b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n",
    ],
    ids=range(14),
)
async def test_a_reply_that_is_broken_off_or_damaged_is_no_answer(
    connect: Callable[[bytes], object], reply: bytes
) -> None:
    connection = await connect(reply)  # type: ignore[misc]

    with pytest.raises(Unanswered) as caught:
        await connection.ask(b"POST / HTTP/1.1\r\n\r\n", b"", 5)

    assert caught.value.sent
    assert not connection.reusable


async def test_what_never_reached_a_server_was_not_sent() -> None:
    with pytest.raises(Unanswered) as caught:
        await Connection.open("127.0.0.1", 1, None)

    assert not caught.value.sent
