"""A client for `workloads/http.py`, in a process of its own: HTTP/1.1 by hand on kept connections, no more than the
measurement needs, so that the server is what is measured.

`python -m bench.harness.http_client` reads an order as JSON from standard input and prints what it found. Each
connection has one request in flight at a time.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, cast
from urllib.parse import urlsplit

END_OF_HEAD = b"\r\n\r\n"
LENGTH = b"content-length:"


@dataclass(frozen=True, slots=True)
class Asked:
    address: str
    method: str
    paths: list[str]  # requested in turn
    expects: int  # the expected status of each response
    connections: int = 1
    seconds: float = 0.0  # duration; 0: until there are `requests` responses
    requests: int = 0
    warm_up: int = 0  # requests before the clock starts
    pause_seconds: float = 0.0  # between a response and the next request
    body: str = ""
    marks: list[str] = field(default_factory=list)  # the first response that contains all of these is reported

    def in_json(self) -> str:
        return json.dumps(asdict(self))


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def ask(self, request: bytes) -> asyncio.Future[tuple[int, bytes]]:
        assert self._transport is not None
        self._answer = self._loop.create_future()
        self._transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(END_OF_HEAD)
        if end < 0:
            return
        head = bytes(self._buffer[:end]).lower()
        at = head.find(LENGTH)
        assert at >= 0, "an answer that does not say how long it is"
        length = int(head[at + len(LENGTH) :].split(b"\r\n", 1)[0])
        whole = end + len(END_OF_HEAD) + length
        if len(self._buffer) >= whole:
            body = bytes(self._buffer[end + len(END_OF_HEAD) : whole])
            del self._buffer[:whole]
            self._answered(int(head.split(b" ", 2)[1]), body)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the server closed the connection"))

    def _answered(self, status: int, body: bytes) -> None:
        assert self._answer is not None
        self._answer.set_result((status, body))


@dataclass(slots=True)
class Found:
    times: list[float] = field(default_factory=list)  # seconds for each response, in order
    marked: int | None = None  # the index of the first response with all marks


async def measure(asked: Asked) -> dict[str, Any]:
    requests = _requests(asked)
    marks = [mark.encode() for mark in asked.marks]
    connections = [await _connect(asked.address) for _ in range(asked.connections)]
    ends_warm_up = itertools.count()
    await _together(connections, requests, asked, marks, lambda: next(ends_warm_up) >= asked.warm_up)
    cpu, start = time.process_time(), time.perf_counter()
    begun = itertools.count()
    ends = start + asked.seconds

    def is_over() -> bool:
        return time.perf_counter() >= ends if asked.seconds else next(begun) >= asked.requests

    found = await _together(connections, requests, asked, marks, is_over)
    seconds = time.perf_counter() - start
    in_order = sorted(found.times)
    return {
        "rate": len(in_order) / seconds,
        "answers": asked.warm_up + len(in_order),
        "p50_ms": 1000 * median(in_order),
        "p95_ms": 1000 * in_order[int(0.95 * (len(in_order) - 1))],
        "client_cpu": (time.process_time() - cpu) / seconds,
        **({"times_ms": [1000 * each for each in found.times], "marked": found.marked} if asked.requests else {}),
    }


async def _together(
    connections: list[Connection],
    requests: Iterator[bytes],
    asked: Asked,
    marks: list[bytes],
    is_over: Callable[[], bool],
) -> Found:
    found = Found()
    await asyncio.gather(*(_go_on(each, requests, asked, marks, is_over, found) for each in connections))
    return found


async def _go_on(
    connection: Connection,
    requests: Iterator[bytes],
    asked: Asked,
    marks: list[bytes],
    is_over: Callable[[], bool],
    found: Found,
) -> None:
    while not is_over():
        start = time.perf_counter()
        status, body = await connection.ask(next(requests))
        found.times.append(time.perf_counter() - start)
        assert status == asked.expects, f"status {status}: {body[:300]!r}"
        if marks and found.marked is None and all(mark in body for mark in marks):
            found.marked = len(found.times) - 1
        if asked.pause_seconds:
            await asyncio.sleep(asked.pause_seconds)


def _requests(asked: Asked) -> Iterator[bytes]:
    host = urlsplit(asked.address).netloc
    body = asked.body.encode()
    content = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
    return itertools.cycle(
        [f"{asked.method} {path} HTTP/1.1\r\nHost: {host}\r\n{content}\r\n".encode() + body for path in asked.paths]
    )


async def _connect(address: str) -> Connection:
    parts = urlsplit(address)
    _, connection = await asyncio.get_running_loop().create_connection(Connection, parts.hostname, parts.port)
    return connection


def main() -> None:
    asked = Asked(**json.load(sys.stdin))
    try:
        import uvloop
    except ImportError:
        print(json.dumps(asyncio.run(measure(asked))))
    else:
        print(json.dumps(uvloop.run(measure(asked))))


if __name__ == "__main__":
    main()
