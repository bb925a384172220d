"""One request over ASGI, as far as its answer tells who may ask: a stream is let go once it has begun."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from backstay.server.gate import Gate


@dataclass(slots=True)
class Answered:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


async def ask(
    gate: Gate, method: str, path: str, headers: dict[str, str], body: bytes = b"", client: str = "127.0.0.1"
) -> Answered:
    answered, streams, sent = Answered(), asyncio.Event(), False
    target, _, query = path.partition("?")

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            await asyncio.Event().wait()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answered.status = message["status"]
            answered.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            if answered.headers.get("content-type", "").startswith("text/event-stream"):
                streams.set()
        else:
            answered.body += message.get("body", b"")

    task = asyncio.create_task(gate(_scope(method, target, query, headers, client), receive, send))
    streaming = asyncio.create_task(streams.wait())
    async with asyncio.timeout(30):
        await asyncio.wait({task, streaming}, return_when=asyncio.FIRST_COMPLETED)
    streaming.cancel()
    if not task.done():
        task.cancel()
    await asyncio.gather(task, streaming, return_exceptions=True)
    return answered


def _scope(method: str, path: str, query: str, headers: dict[str, str], client: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"localhost"), *((k.lower().encode(), v.encode()) for k, v in headers.items())],
        "client": (client, 4711),
        "server": ("127.0.0.1", 80),
        "state": {},
    }
