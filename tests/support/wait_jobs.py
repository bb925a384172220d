"""Handlers in child processes that sleep and wait for events."""

from __future__ import annotations

from typing import Any

from backstay import Backstay, BlockingContext, Context, EventTimeout


def blocking(payload: int, ctx: BlockingContext) -> list[Any]:
    ctx.sleep("nap", 60)
    approval = ctx.wait_for_event("approved")
    try:
        ctx.wait_for_event("never", timeout=0)
    except EventTimeout:
        return [approval["by"], "late"]
    return []


async def asynchronous(payload: int, ctx: Context) -> list[Any]:
    await ctx.sleep("nap", 60)
    approval = await ctx.wait_for_event("approved")
    try:
        await ctx.wait_for_event("never", timeout=0)
    except EventTimeout:
        return [approval["by"], "late"]
    return []


app = Backstay()
for function in (blocking, asynchronous):
    app.job(function.__name__, isolation="process")(function)


def register(other: Backstay) -> None:
    """Give another app these handlers, which their child processes import from here."""
    other.handlers.update(app.handlers)
