"""A worker among whose jobs one kills it: `python -m tests.campaigns.processes.poison URL`."""

import asyncio
import os
import sys

from backstay import Backstay
from tests.support.eventually import eventually

SIZE, POISON, MAX_ATTEMPTS = 8, 3, 2


def app_of(url: str) -> Backstay:
    app = Backstay(url)

    @app.job("one", max_attempts=MAX_ATTEMPTS)
    async def one(payload: int) -> int:
        return run([payload])[0]

    @app.batch_job("many", max_size=SIZE, max_wait=5, max_attempts=MAX_ATTEMPTS)
    async def many(payloads: list[int]) -> list[int]:
        return run(payloads)

    return app


def run(payloads: list[int]) -> list[int]:
    if POISON in payloads:
        os._exit(7)
    return payloads


async def work(url: str) -> None:
    async with app_of(url) as app, app.worker(poll_interval=0.1):
        await eventually(lambda: all_ended(app), 40)


async def all_ended(app: Backstay) -> bool:
    counts = await app.counts()
    return counts["completed"] + counts["failed"] == SIZE


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
