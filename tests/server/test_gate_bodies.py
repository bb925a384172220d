"""Limits come before work: sizes, depths, types and times."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from backstay import Backstay, limits
from backstay.server.auth import Buckets
from backstay.server.gate import Bounds
from tests.server.gated import listening, served
from tests.support.eventually import eventually

JSON = {"Content-Type": "application/json"}
MIB = 1024 * 1024


async def test_a_body_over_the_limit_is_refused_by_its_length_alone(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        sent: list[int] = []

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(200):
                sent.append(MIB)
                yield b" " * MIB

        for length in ("1048577", "999999999999", "9" * 40):
            sent.clear()
            answer = await server.client.post(
                "/jobs/anything", content=parts(), headers={**JSON, "Content-Length": length}
            )
            assert answer.status_code == 413
            assert answer.json()["detail"] == "a body may have 1,048,576 bytes: send less at once"
            assert sum(sent) <= 20 * MIB  # what a refused client still sends is let go, and not for ever


async def test_a_body_without_a_length_is_refused_once_it_is_too_long(tmp_path: Path) -> None:
    async with served(tmp_path) as server:

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(40):
                yield b" " * (256 * 1024)

        answer = await server.client.post("/jobs/anything", content=parts(), headers=JSON)
        assert answer.status_code == 413
        fits = json.dumps({"payload": "x" * 200_000}).encode()
        assert (await server.client.post("/jobs/anything", content=fits, headers=JSON)).status_code == 201


async def test_a_payload_over_its_own_limit_is_refused_by_name(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        answer = await server.client.post("/jobs/anything", json={"payload": "x" * limits.PAYLOAD_BYTES_MAX})
        assert (answer.status_code, answer.json()["type"]) == (413, "/problems/payload-too-large")


async def test_nothing_is_unpacked_for_a_client(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        bomb = gzip.compress(b"[" * 10_000_000)
        for encoding in ("gzip", "br", "deflate, gzip", "x"):
            answer = await server.client.post(
                "/jobs/anything", content=bomb, headers={**JSON, "Content-Encoding": encoding}
            )
            assert answer.status_code == 415
        plain = {**JSON, "Content-Encoding": "identity"}
        assert (await server.client.post("/jobs/anything", content=b"{}", headers=plain)).status_code == 201


async def test_a_body_that_is_not_called_json_is_refused(tmp_path: Path) -> None:
    others = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "*/*")
    async with served(tmp_path) as server:
        for media_type in (*others, "application/json; charset=latin-1"):
            answer = await server.client.post("/jobs/anything", content=b"{}", headers={"Content-Type": media_type})
            assert answer.status_code == 415, media_type
        for media_type in ("application/json", "Application/JSON; charset=UTF-8"):
            answer = await server.client.post("/jobs/anything", content=b"{}", headers={"Content-Type": media_type})
            assert answer.status_code == 201


UNREADABLE = [
    (b"[" * 1_000_000, "nested deeper than 64"),
    (b'{"payload":' * 65 + b"1" + b"}" * 65, "nested deeper than 64"),
    (b'{"payload": NaN}', "NaN is not JSON"),
    (b'{"payload": 9223372036854775808}', "beyond 64 bits"),
    (b'{"payload": ' + b"9" * 5000 + b"}", "cannot be read"),
    (b'{"payload": 1e999}', "too large for a 64-bit float"),
    (b'{"payload": 1, "payload": 2}', "the same name twice"),
    (b'{"payload": "\\u0000"}', "NUL"),
    (b'{"payload": "\\ud800"}', "lone surrogate"),
    (b"\xff\xfe{}", "not UTF-8"),
    (b"{", "the body is not valid JSON"),
    (b"{} {}", "the body is not valid JSON"),
]


async def test_json_that_could_be_read_in_two_ways_or_not_at_all_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        for body, says in UNREADABLE:
            answer = await server.client.post("/jobs/anything", content=body, headers=JSON)
            assert (answer.status_code, answer.headers["Content-Type"]) == (400, "application/problem+json"), says
            assert says in answer.json()["detail"]
        assert (await server.client.get("/jobs")).json()["items"] == []


async def test_a_body_that_never_ends_is_given_up_on(tmp_path: Path) -> None:
    async with served(tmp_path, bounds=Bounds(read_seconds=0.05)) as server:
        never = asyncio.Event()

        async def trickle() -> AsyncIterator[bytes]:
            yield b'{"payload":'
            await never.wait()

        async with asyncio.timeout(10):
            answer = await server.client.post("/jobs/anything", content=trickle(), headers=JSON)
        assert (answer.status_code, answer.json()["title"]) == (408, "The request arrived too slowly")


async def test_a_body_with_two_lengths_is_refused_and_the_connection_ends(tmp_path: Path) -> None:
    async with served(tmp_path) as server, listening(server.gate) as address:
        host, port = address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        hidden = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        head = b"POST /jobs/anything HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(head + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden)
        async with asyncio.timeout(10):
            said = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert said.startswith(b"HTTP/1.1 400") and b"connection: close" in said.lower()
        assert b"two-lengths" in said and said.count(b"HTTP/1.1") == 1


async def test_a_server_that_stops_waits_for_a_slow_body_no_longer_than_it_has_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_STOP_SECONDS", 2.0)
    monkeypatch.setattr("backstay.server.request.LINGER_SECONDS", 0.1)
    async with served(tmp_path) as server, asyncio.timeout(10):
        async with listening(server.gate) as address:
            host, port = address.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            head = b"POST /jobs/anything HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            writer.write(head + b"Content-Length: 40\r\n\r\n{")

            async def is_read() -> bool:
                return bool(server.gate._reading)

            await eventually(is_read)
            stopped = asyncio.create_task(reader.readline())
        assert (await stopped).startswith(b"HTTP/1.1 408")
        writer.close()
        await writer.wait_closed()
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []


async def test_an_answer_that_does_not_come_is_given_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(tmp_path, bounds=Bounds(answer_seconds=0.05)) as server:
        stopped = asyncio.Event()

        async def hang(*_: Any, **__: Any) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        monkeypatch.setattr(Backstay, "find", hang)
        answer = await server.client.get("/jobs")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert stopped.is_set()


async def test_a_page_has_a_size(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        for query in ("limit=1e9", "limit=1000000000", "limit=0", "limit=-1", "after=%00", "nonsense=1"):
            assert (await server.client.get(f"/jobs?{query}")).status_code == 422, query


def test_a_bucket_fills_with_time_and_forgets_who_has_not_come_for_long() -> None:
    buckets = Buckets(per_second=2, burst=2, names_max=2)
    assert [buckets.take("a", 0) for _ in range(3)] == [True, True, False]
    assert buckets.wait_seconds("a", 0) == 1
    assert buckets.take("a", 0.5) and not buckets.take("a", 0.5)
    assert not buckets.has_one("a", 0.2)  # a clock that went back gives nothing
    for name in ("b", "c", "d"):
        assert buckets.take(name, 1)
    assert len(buckets._left) == 2
