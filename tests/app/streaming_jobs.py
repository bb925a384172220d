"""Handlers that stream from a child process: they must stand at the top level of a module."""

from collections.abc import Callable
from typing import Any

from backstay import Backstay, BlockingBatchContext, BlockingContext, Context

_app = Backstay("sqlite:///unused.db")


@_app.job("async_child", isolation="process")
async def async_child(payload: list[Any], ctx: Context) -> int:
    for value in payload:
        await ctx.stream(value)
    return len(payload)


@_app.job("child", isolation="process")
def child(payload: list[Any], ctx: BlockingContext) -> int:
    for value in payload:
        ctx.stream(value)
    return len(payload)


@_app.batch_job("batch_child", max_size=4, isolation="process")
def batch_child(payloads: list[str], ctx: BlockingBatchContext) -> list[None]:
    for item, payload in zip(ctx, payloads, strict=True):
        item.stream(payload)
        item.stream("end")
    return [None] * len(payloads)


def bind(make_app: Callable[..., Backstay]) -> Backstay:
    app = make_app()
    app.handlers.update(_app.handlers)
    return app
