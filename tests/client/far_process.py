"""A remote worker in a process of its own, until death: python far_process.py URL FOLDER. It notes what it ran."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from backstay.client import Client, RemoteContext, RemoteWorker


async def main(url: str, folder: Path) -> None:
    done = folder / f"{os.getpid()}.ran"
    async with Client(url) as client:
        worker = RemoteWorker(client, concurrency=4)

        @worker.job("count")
        async def count(payload: dict[str, Any], ctx: RemoteContext) -> dict[str, Any]:
            if payload["is_trap"] and ctx.attempt == 1:
                await asyncio.Event().wait()  # until it is killed
            with done.open("a") as file:
                file.write(f"{payload['number']} {ctx.attempt}\n")
            return {"number": payload["number"], "attempt": ctx.attempt, "pid": os.getpid()}

        await worker.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
