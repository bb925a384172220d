"""A remote worker in a process of its own, with handlers that block: python blocked_process.py URL GRACE."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time

from backstay.client import Client, RemoteWorker


async def main(url: str, grace: float) -> None:
    async with Client(url) as client:
        worker = RemoteWorker(client, grace=grace)

        @worker.job("blocks")
        async def blocks(payload: int) -> None:
            print("begun", file=sys.stderr, flush=True)
            time.sleep(600)  # noqa: ASYNC251  # the mistake under test

        @worker.job("waits")
        async def waits(payload: int) -> None:
            print("begun", file=sys.stderr, flush=True)
            await asyncio.sleep(600)

        @worker.job("thread")
        def in_thread(payload: int) -> None:
            print("begun", file=sys.stderr, flush=True)
            threading.Event().wait(600)

        await worker.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
