"""Clients that mean harm, over real sockets."""

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from backstay import limits
from backstay.server.gate import Bounds
from tests.server.gated import listening, served

MIB = 1024 * 1024


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


def place(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("http://").rpartition(":")
    return host, int(port)


async def test_a_long_upload_without_a_length_is_refused_and_takes_no_memory(tmp_path: Path) -> None:
    async with served(tmp_path) as server, listening(server.gate) as address:
        reader, writer = await asyncio.open_connection(*place(address))
        head = "POST /jobs/anything HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        before = resident_bytes()
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        for _ in range(160):
            writer.write(chunk)
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        async with asyncio.timeout(20):
            answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"connection: close" in answer
        assert resident_bytes() - before < 8 * MIB


async def test_those_who_never_say_what_they_want_are_sent_away_and_hold_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_READ_SECONDS", 1.0)
    async with served(tmp_path) as server, listening(server.gate) as address:
        slow = [await asyncio.open_connection(*place(address)) for _ in range(100)]
        for number, (_, writer) in enumerate(slow):
            writer.write(
                [b"", b"GET", b"GET /jobs HTTP/1.1\r\nHost: local", b"GET / HTTP/1.1\r\nHost: x\r\nA: "][number % 4]
            )
        async with httpx.AsyncClient(base_url=address) as client:
            began = time.monotonic()
            assert (await client.get("/healthz")).status_code == 200
            assert time.monotonic() - began < 5  # 200 ms on a machine that has nothing else to do
        async with asyncio.timeout(20):
            ends = await asyncio.gather(*(reader.read() for reader, _ in slow))
        assert set(ends) == {b""}
        for _, writer in slow:
            writer.close()


async def test_a_body_that_trickles_in_is_given_up_on_and_the_connection_with_it(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, bounds=Bounds(read_seconds=0.1)) as server, listening(server.gate) as address:
        reader, writer = await asyncio.open_connection(*place(address))
        head = "POST /jobs/anything HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f'{head}Content-Length: 1000\r\n\r\n{{"payload":'.encode())
        async with asyncio.timeout(20):
            answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 408 ")


async def test_a_connection_that_is_kept_for_the_next_request_may_rest(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as server,
        listening(server.gate) as address,
        httpx.AsyncClient(base_url=address) as client,
    ):
        for _ in range(3):
            answer = await client.get("/jobs")
            assert answer.status_code == 200 and "server" not in answer.headers


@pytest.mark.parametrize(
    "head",
    [
        b"GET /jobs HTTP/1.1\r\n\r\n",
        b"GET /jobs HTTP/1.1\r\nHost: localhost\r\nHost: evil.test\r\n\r\n",
        b"GET /jobs HTTP/1.1\r\nHost: localhost\r\nX: a\rSet-Cookie: b\r\n\r\n",
        b"POST /jobs/anything HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /jobs/anything HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET /jobs HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["no host", "two hosts", "a line end", "two lengths", "a negative length", "a long header", "not HTTP"],
)
async def test_a_head_that_could_be_read_in_two_ways_is_refused(tmp_path: Path, head: bytes) -> None:
    async with served(tmp_path) as server, listening(server.gate) as address:
        reader, writer = await asyncio.open_connection(*place(address))
        writer.write(head)
        writer.write_eof()
        async with asyncio.timeout(20):
            answer = await reader.read()
        writer.close()
        assert answer[:13] in (b"HTTP/1.1 400 ", b"HTTP/1.1 421 ", b"")  # nothing: the connection was cut
        assert b"set-cookie: b" not in answer.lower()
