"""A worker whose handler streams: `python -m tests.campaigns.processes.output URL`."""

import asyncio
import sys
from typing import Any

from backstay import Backoff, Backstay, Context
from tests.support.eventually import eventually

COUNT = 40
PAUSE_SECONDS = 0.02  # so that they take several writes


def app_of(url: str) -> Backstay:
    app = Backstay(url, lease=1)

    @app.job("tell", max_attempts=5, backoff=Backoff(base=0))
    async def tell(payload: Any, ctx: Context) -> int:
        """Stream values that tell the attempt, and return it."""
        for number in range(COUNT):
            await ctx.stream([ctx.attempt, number])
            await asyncio.sleep(PAUSE_SECONDS)
        return ctx.attempt

    return app


async def work(url: str) -> None:
    async with app_of(url) as app, app.worker(poll_interval=0.1):
        await eventually(lambda: ended(app), 40)


async def ended(app: Backstay) -> bool:
    return (await app.counts()).get("completed", 0) == 1


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
