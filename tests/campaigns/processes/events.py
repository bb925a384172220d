"""A worker whose handler waits for an event by key: `python -m tests.campaigns.processes.events URL`."""

import asyncio
import sys
from typing import Any

from backstay import Backoff, Backstay, Context, EventTimeout
from tests.support.eventually import eventually

KEY = "order-7"


def app_of(url: str) -> Backstay:
    app = Backstay(url, lease=1)

    @app.job("ask", max_attempts=5, backoff=Backoff(base=0))
    async def ask(payload: float | None, ctx: Context) -> Any:
        """Return what was sent to the key, or that nothing was within these seconds."""
        try:
            return await ctx.wait_for_event("paid", key=KEY, timeout=payload)
        except EventTimeout:
            return "nothing"

    return app


async def work(url: str) -> None:
    async with app_of(url) as app, app.worker(poll_interval=0.1):
        await eventually(lambda: ended(app), 40)


async def ended(app: Backstay) -> bool:
    counts = await app.counts()
    return not any(counts[name] for name in ("pending", "scheduled", "retrying", "waiting", "processing"))


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
