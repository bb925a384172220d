"""A worker with a batch handler that one of its jobs breaks: `python -m tests.campaigns.processes.batch URL`."""

import asyncio
import sys

from backstay import Backoff, Backstay
from tests.support.eventually import eventually

SIZE, POISON = 12, 7


def app_of(url: str) -> Backstay:
    app = Backstay(url, lease=1)

    @app.batch_job("embed", max_size=SIZE, max_wait=5, max_attempts=2, backoff=Backoff(base=0))
    async def embed(payloads: list[int]) -> list[int]:
        if POISON in payloads:
            raise RuntimeError("poison")
        return payloads

    return app


async def work(url: str) -> None:
    async with app_of(url) as app, app.worker(poll_interval=0.1):
        await eventually(lambda: all_ended(app), 40)


async def all_ended(app: Backstay) -> bool:
    counts = await app.counts()
    return counts.get("completed", 0) + counts.get("failed", 0) == SIZE


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
