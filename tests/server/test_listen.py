"""How responses are written to a connection."""

import asyncio
from typing import Any

from backstay.server.listen import Joined


class Wire:
    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.packets.append(data)

    def close(self) -> None:
        self.is_closed = True


def joined(wire: Any) -> Joined:
    return Joined(wire, asyncio.get_running_loop())


async def test_the_head_of_a_response_and_its_body_are_one_packet() -> None:
    wire = Wire()
    connection = joined(wire)

    for part in (b"HTTP/1.1 200 OK\r\n\r\n", b"{}", b""):
        connection.write(part)
    await asyncio.sleep(0)

    assert wire.packets == [b"HTTP/1.1 200 OK\r\n\r\n{}"]


async def test_each_event_of_a_stream_is_sent_when_it_is_written() -> None:
    wire = Wire()
    connection = joined(wire)

    for part in (b"one", b"two"):
        connection.write(part)
        await asyncio.sleep(0)

    assert wire.packets == [b"one", b"two"]


async def test_what_was_written_is_sent_before_the_connection_closes() -> None:
    wire = Wire()
    connection = joined(wire)

    connection.write(b"the end")
    connection.close()

    assert (wire.packets, wire.is_closed) == ([b"the end"], True)


async def test_a_long_body_is_not_gathered_in_memory() -> None:
    wire = Wire()
    connection = joined(wire)

    for _ in range(3):
        connection.write(bytes(65_537))

    assert len(wire.packets) == 3
