"""Batch handlers that run in child processes: they must stand at the top level of a module."""

import os
from collections.abc import Callable
from typing import Any

from backstay import Backstay, BatchContext, BlockingBatchContext

_app = Backstay("sqlite:///unused.db")
TOGETHER: Any = {"max_size": 8, "max_wait": 0.2, "isolation": "process"}


@_app.batch_job("talk", **TOGETHER)
def talk(payloads: list[int], ctx: BlockingBatchContext) -> list[Any]:
    ctx.log.info("to all")
    for item, payload in zip(ctx, payloads, strict=True):
        item.log.info("to %d", payload)
        item.metric("m", payload)
        item.progress(0.5)
        item.artifact("own.txt", str(payload))
        with item.transaction() as tx:
            tx.execute("INSERT INTO ledger VALUES (?, ?)", ("child", payload))
    return [ValueError("three") if each == 3 else {"step": ctx.item(n).once("s", lambda: 1), "all": len(payloads)}
            for n, each in enumerate(payloads)]  # fmt: skip


@_app.batch_job("talk_async", **TOGETHER)
async def talk_async(payloads: list[int], ctx: BatchContext) -> list[int]:
    return [await item.once("double", lambda n=n: n * 2) for n, item in zip(payloads, ctx, strict=True)]  # type: ignore[misc]


@_app.batch_job("dies", max_attempts=2, **TOGETHER)
def dies(payloads: list[int]) -> list[int]:
    if 3 in payloads:
        os._exit(7)
    return payloads


def bind(make_app: Callable[..., Backstay]) -> Backstay:
    app = make_app()
    app.handlers.update(_app.handlers)
    return app
