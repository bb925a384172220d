"""The app of a worker process whose jobs keep files, in each way that a handler can run."""

import logging
from typing import Any

from backstay import Backoff, Backstay, BlockingContext, Context, limits

LINES = 2_000  # more than a record keeps
LARGE = limits.RESULT_INLINE_BYTES_MAX + 1

app = Backstay()


@app.job("async")
async def in_the_loop(payload: Any, ctx: Context) -> str:
    _talk(ctx.log)
    await ctx.artifact("report.txt", f"by {payload}")
    return "x" * LARGE


@app.job("thread")
def in_a_thread(payload: Any, ctx: BlockingContext) -> str:
    _talk(ctx.log)
    ctx.artifact("report.txt", f"by {payload}")
    return "x" * LARGE


@app.job("process", isolation="process")
def in_a_process(payload: Any, ctx: BlockingContext) -> str:
    _talk(ctx.log)
    ctx.artifact("report.txt", f"by {payload}")
    return "x" * LARGE


@app.job("quiet", backoff=Backoff(base=0.01, factor=1, max=0.01, jitter=0))
async def quiet(payload: Any, ctx: Context) -> str:
    """Two files and no log: its artifact, then its result."""
    await ctx.artifact("report.txt", f"attempt {ctx.attempt}")
    return "x" * LARGE


def _talk(log: logging.Logger) -> None:
    for number in range(LINES):
        log.info("line %d", number)
