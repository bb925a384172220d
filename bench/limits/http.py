"""The upper limit with HTTP and one commit: a bare ASGI app on uvicorn that inserts the body as one row and returns
201.

`python -m bench.limits.http FILE|URL`; the loop, the protocol and the driver are those of `backstay serve`. No routing,
no validation, no id, no history, no counters, no log. SQLite is written in the event loop itself, without a thread;
PostgreSQL through as many connections as Backstay's pool has.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import uvicorn
from backstay.cli.daemon import loop_for_sockets
from backstay.engines.postgres.connection import POOL_CONNECTIONS

from bench.limits import postgres, sqlite

Insert = Callable[[str], Awaitable[None]]


class Bare:
    def __init__(self, insert: Insert) -> None:
        self._insert = insert

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        await self._insert(json.dumps(json.loads(body)["payload"]))
        answer = b'{"status":"pending"}'
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


@asynccontextmanager
async def opened(where: str) -> AsyncIterator[Insert]:
    if not where.startswith("postgresql://"):
        connection = sqlite.create(Path(where))

        async def insert_here(payload: str) -> None:
            connection.execute(sqlite.INSERT, (payload,))

        yield insert_here
        connection.close()
        return
    connections = [await asyncpg.connect(where) for _ in range(POOL_CONNECTIONS)]
    assert await connections[0].fetchval("SHOW synchronous_commit") == "on"
    await connections[0].execute(postgres.SCHEMA)
    idle: asyncio.LifoQueue[Any] = asyncio.LifoQueue()
    for each in connections:
        idle.put_nowait(await each.prepare(postgres.INSERT))

    async def insert_there(payload: str) -> None:
        insert = await idle.get()
        await insert.fetch(payload)
        idle.put_nowait(insert)

    yield insert_there
    for each in connections:
        await each.close()


async def serve(where: str) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        async with opened(where) as insert:
            config = uvicorn.Config(
                Bare(insert), http="h11", ws="none", lifespan="off", log_config=None, access_log=False
            )
            print(f"  API        http://127.0.0.1:{bound.getsockname()[1]}", flush=True)
            await uvicorn.Server(config).serve([bound])


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_for_sockets()) as runner:
        runner.run(serve(sys.argv[1]))
