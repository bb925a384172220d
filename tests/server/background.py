"""A server in a thread of its own, for clients that block: its address, and the status of every answer it gave."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from backstay import Backstay
from backstay.server import listen
from backstay.server.application import assemble
from backstay.server.gate import Bounds, Gate

STREAM_SECONDS = 0.2  # how long a stream lasts here: one of a job that nobody runs would last for ever


@dataclass(slots=True)
class Background:
    address: str = ""
    key: str = ""
    answers: Counter[tuple[str, str, int]] = field(default_factory=Counter)


@contextmanager
def in_background(app: Backstay, bounds: Bounds) -> Iterator[Background]:
    found, started, stop = Background(), threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(app, bounds, found, started, stop)), daemon=True)
    thread.start()
    try:
        if not started.wait(30):
            raise TimeoutError("the server did not start")
        yield found
    finally:
        stop.set()
        thread.join(30)


async def _serve(
    app: Backstay, bounds: Bounds, found: Background, started: threading.Event, stop: threading.Event
) -> None:
    gate = assemble(app, hosts=(), bounds=bounds)
    bound = listen.bind("127.0.0.1", 0)
    async with app, app.worker(concurrency=2):
        found.key = (await app.create_key("tester", ["admin"])).text
        found.address = listen.url(bound)
        server = listen.Server(_counting(gate, found), started.set)  # type: ignore[arg-type]
        ending = asyncio.create_task(_end_streams(gate))
        serves = asyncio.create_task(server.serve([bound]))
        await asyncio.to_thread(stop.wait)
        ending.cancel()
        gate.end_streams()
        server.should_exit = True
        await serves


def _counting(gate: Gate, found: Background) -> Any:
    async def counted(scope: Any, receive: Any, send: Any) -> None:
        async def told(message: Any) -> None:
            if message["type"] == "http.response.start":
                found.answers[scope["method"], scope["path"], message["status"]] += 1
            await send(message)

        await gate(scope, receive, told if scope["type"] == "http" else send)

    return counted


async def _end_streams(gate: Gate) -> None:
    """As if the server stopped again and again: streams end, and who waits for jobs waits no longer."""
    while True:
        await asyncio.sleep(STREAM_SECONDS)
        gate.end_streams()
        await asyncio.sleep(STREAM_SECONDS / 4)
        gate.stopping.clear()
