"""procrastinate's worker with ten tasks at once, where its default is one."""

from __future__ import annotations

import asyncio

from bench.peers.procrastinate_app import app

CONCURRENCY = 10


async def main() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY, wait=True)


asyncio.run(main())
