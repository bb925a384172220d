"""A worker among whose jobs one kills it: `python -m tests.campaigns.processes.poison URL`."""

import asyncio
import os
import sys

from backstay import Backstay
from tests.support.eventually import eventually

SIZE, POISON, MAX_ATTEMPTS = 8, 3, 2
STREAM, POISONS, STREAM_ATTEMPTS = 16, (2, 9), 3  # several that kill their worker, among others


def app_of(url: str) -> Backstay:
    app = Backstay(url)

    @app.job("one", max_attempts=MAX_ATTEMPTS)
    async def one(payload: int) -> int:
        return run([payload])[0]

    @app.batch_job("many", max_size=SIZE, max_wait=5, max_attempts=MAX_ATTEMPTS)
    async def many(payloads: list[int]) -> list[int]:
        return run(payloads)

    @app.job("several", max_attempts=STREAM_ATTEMPTS)
    async def several(payload: int) -> int:
        await asyncio.sleep(0.02)
        if payload in POISONS:
            os._exit(7)
        return payload

    return app


def run(payloads: list[int]) -> list[int]:
    if POISON in payloads:
        os._exit(7)
    return payloads


async def work(url: str) -> None:
    async with app_of(url) as app, app.worker(poll_interval=0.1, concurrency=10):
        await eventually(lambda: all_ended(app), 40)


async def all_ended(app: Backstay) -> bool:
    counts = await app.counts()
    return counts["completed"] + counts["failed"] == sum(counts.values())


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
