"""A worker whose handler writes rows: `python -m tests.campaigns.processes.rows URL`."""

import asyncio
import sys
from typing import Any

from backstay import Backoff, Backstay, Context, ResultRow
from tests.support.eventually import eventually

COUNT = 1_200  # three parts


class Number(ResultRow, table="numbers", key="number"):
    number: int
    attempt: int


def app_of(url: str) -> Backstay:
    app = Backstay(url, lease=1)

    @app.job("put", results=[Number], max_attempts=5, backoff=Backoff(base=0))
    async def put(payload: Any, ctx: Context) -> int:
        """Write rows: each attempt has other keys, some of them those of the previous one."""
        first = 100 * ctx.attempt
        rows = (Number(number=n, attempt=ctx.attempt) for n in range(first, first + COUNT))
        await ctx.results(Number).put(rows)
        return ctx.attempt

    return app


async def work(url: str) -> None:
    async with app_of(url) as app, app.worker(poll_interval=0.1):
        await eventually(lambda: ended(app), 40)


async def ended(app: Backstay) -> bool:
    return (await app.counts()).get("completed", 0) == 1


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
