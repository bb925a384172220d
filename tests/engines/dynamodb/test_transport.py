"""Requests are repeated where that is harmless, as long as there is time, and no longer."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from backstay.engines.dynamodb.address import parse
from backstay.engines.dynamodb.transport import Lane, Refused, Unanswered, Wire

Reply = tuple[int, dict[str, Any]] | bytes | None  # None: the connection is cut
Serve = Callable[..., Awaitable[tuple[Wire, list[bytes]]]]


@pytest.fixture
def patient() -> None:
    """Not here: time limits are what is tested."""


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """A wire to a server that gives these replies, the last for ever; and the requests that came."""
    servers: list[asyncio.Server] = []
    wires: list[Wire] = []

    async def start(*replies: Reply, date: str | None = None) -> tuple[Wire, list[bytes]]:
        left = list(replies)
        came: list[bytes] = []

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while head := await reader.readuntil(b"\r\n\r\n"):
                    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                    came.append(await reader.readexactly(length))
                    reply = left.pop(0) if len(left) > 1 else left[0]
                    if reply is None:
                        break
                    if isinstance(reply, bytes):
                        writer.write(reply)
                        continue
                    body = json.dumps(reply[1]).encode()
                    dated = f"Date: {date}\r\n" if date else ""
                    writer.write(f"HTTP/1.1 {reply[0]} X\r\n{dated}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                    await writer.drain()
            except asyncio.IncompleteReadError:
                pass
            writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        servers.append(server)
        wire = Wire(parse(f"dynamodb://test?endpoint=http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        wires.append(wire)
        return wire, came

    yield start
    for wire in wires:
        await wire.close()
    for server in servers:
        server.close()
        await server.wait_closed()


def _error(code: str, status: int = 400) -> Reply:
    return status, {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "no"}


@pytest.mark.parametrize(
    "first",
    [
        None,
        _error("ProvisionedThroughputExceededException"),
        _error("InternalServerError", 500),
        _error("TransactionConflictException"),
        (503, {}),
    ],
)
async def test_the_same_request_is_sent_again(serve: Serve, first: Reply) -> None:
    wire, came = await serve(first, (200, {"ok": 1}))

    assert await wire.persist("PutItem", {"a": 1}, lane=Lane.USUAL, seconds=5) == {"ok": 1}
    assert len(came) == 2 and came[0] == came[1]


def _raw(status: int, body: bytes) -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    "first",
    [
        _raw(200, b""),
        _raw(204, b""),
        _raw(302, b"{}"),
        _raw(200, b"<html>"),
        _raw(200, b'{"a": "\xff\xfe"}'),
        _raw(200, b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        _raw(400, b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        _raw(400, b'{"__type": "x#TransactionCanceledException", "CancellationReasons": "abc"}'),
        _raw(400, b'{"__type": "x#TransactionCanceledException", "CancellationReasons": [null]}'),
        _raw(400, b'{"__type": "x#ConditionalCheckFailedException", "Item": {"a": {"Z": 1}}}'),
    ],
    ids=range(10),
)
async def test_what_is_not_dynamodbs_is_no_answer(serve: Serve, first: Reply) -> None:
    wire, came = await serve(first, (200, {"ok": 1}))

    assert await wire.persist("TransactWriteItems", {}, lane=Lane.USUAL, seconds=5) == {"ok": 1}
    assert len(came) == 2


async def test_a_figure_that_cannot_be_read_refuses_nothing(serve: Serve) -> None:
    wire, _ = await serve((200, {"ok": 1, "ConsumedCapacity": 5}))

    assert (await wire.call("PutItem", {}, lane=Lane.USUAL, seconds=5))["ok"] == 1


@pytest.mark.parametrize("unasked", [_raw(200, b'{"of": "nobody"}'), _raw(408, b"")])
async def test_what_came_unasked_answers_no_request(serve: Serve, unasked: bytes) -> None:
    wire, came = await serve(_raw(200, b'{"n": 1}') + unasked, _raw(200, b'{"n": 2}'))

    answers = [await wire.persist("GetItem", {}, lane=Lane.USUAL, seconds=5) for _ in range(2)]

    assert answers == [{"n": 1}, {"n": 2}]
    assert len(came) == 2


async def test_a_refusal_is_an_answer(serve: Serve) -> None:
    item = {"wid": {"S": "mine"}}
    wire, came = await serve((400, {"__type": "x#ConditionalCheckFailedException", "Message": "no", "Item": item}))

    with pytest.raises(Refused) as caught:
        await wire.persist("PutItem", {}, lane=Lane.USUAL, seconds=5)

    assert caught.value.item == {"wid": "mine"}
    assert len(came) == 1


async def test_the_reasons_of_a_transaction_come_with_what_stands_there(serve: Serve) -> None:
    reasons = [{"Code": "None"}, {"Code": "ConditionalCheckFailed", "Item": {"n": {"N": "1"}}, "Message": "no"}]
    wire, _ = await serve((400, {"__type": "x#TransactionCanceledException", "CancellationReasons": reasons}))

    with pytest.raises(Refused) as caught:
        await wire.persist("TransactWriteItems", {}, lane=Lane.USUAL, seconds=5)

    assert [(each.code, each.item) for each in caught.value.reasons] == [
        (None, None),
        ("ConditionalCheckFailed", {"n": 1}),
    ]


async def test_time_ends_and_the_last_answer_says_why(serve: Serve) -> None:
    wire, came = await serve(_error("ThrottlingException"))

    with pytest.raises(Refused, match="ThrottlingException"):
        await wire.persist("PutItem", {}, lane=Lane.USUAL, seconds=0.3)

    assert len(came) > 1
    assert wire.meter.throttled == len(came)


async def test_no_answer_at_all_may_have_been_applied(serve: Serve) -> None:
    wire, _ = await serve(None)

    with pytest.raises(Unanswered) as caught:
        await wire.persist("PutItem", {}, lane=Lane.URGENT, seconds=0.2)

    assert caught.value.sent


async def test_a_connection_is_used_again(serve: Serve) -> None:
    wire, came = await serve((200, {}))
    for _ in range(5):
        await wire.call("GetItem", {}, lane=Lane.USUAL, seconds=1)

    assert len(came) == 5
    assert len(wire._free) == 1


async def test_a_clock_that_is_far_off_is_noticed(serve: Serve) -> None:
    wire, _ = await serve((200, {}), date="Mon, 16 Nov 1998 12:00:00 GMT")
    assert wire.skew_seconds is None

    for _ in range(5):
        await wire.call("GetItem", {}, lane=Lane.USUAL, seconds=1)

    assert wire.skew_seconds is not None and wire.skew_seconds > 1_000_000
