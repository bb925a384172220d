"""A worker whose handler puts rows: `python -m tests.crash.rows_process URL`."""

import asyncio
import sys
from typing import Any

from holdfast import Backoff, Context, Holdfast, ResultRow
from tests.eventually import eventually

COUNT = 1_200  # three parts


class Number(ResultRow, table="numbers", key="number"):
    number: int
    attempt: int


def app_of(url: str) -> Holdfast:
    app = Holdfast(url, lease=1)

    @app.job("put", results=[Number], max_attempts=5, backoff=Backoff(base=0))
    async def put(payload: Any, ctx: Context) -> int:
        """Each attempt puts other keys, some of them those of the one before."""
        first = 100 * ctx.attempt
        rows = (Number(number=n, attempt=ctx.attempt) for n in range(first, first + COUNT))
        await ctx.results(Number).put(rows)
        return ctx.attempt

    return app


async def work(url: str) -> None:
    async with app_of(url) as app, app.worker(poll_interval=0.1):
        await eventually(lambda: ended(app), 40)


async def ended(app: Holdfast) -> bool:
    return (await app.counts()).get("completed", 0) == 1


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
