"""Handlers that run in child processes: they must stand at the top level of a module."""

import ctypes
import os
import resource
import signal
import stat
import time
from collections.abc import Callable
from typing import Any

from holdfast import BlockingContext, Context, Holdfast

_app = Holdfast("sqlite:///unused.db")


@_app.job("talk", isolation="process", max_attempts=1)
def talk(payload: int, ctx: BlockingContext) -> dict[str, Any]:
    ctx.progress(0.5, stage="talking")
    ctx.log.info("from the child")
    ctx.metric("m", payload)
    return {"pid": os.getpid(), "step": ctx.once("double", lambda: payload * 2)}


@_app.job("effects", isolation="process", max_attempts=1)
def effects(payload: int, ctx: BlockingContext) -> None:
    ctx.artifact("child.txt", "from the child")
    with ctx.transaction() as tx:
        tx.execute("INSERT INTO ledger VALUES (?, ?)", ("child", payload))


@_app.job("talk_async", isolation="process", max_attempts=1)
async def talk_async(payload: int, ctx: Context) -> int:
    await ctx.progress(0.5)
    return await ctx.once("double", lambda: payload * 2)


@_app.job("hang", isolation="process", max_attempts=1, timeout=1.5)
def hang(payload: int, ctx: BlockingContext) -> None:
    ctx.log.info("%d", os.getpid())
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    while True:
        time.sleep(1)


@_app.job("segfault", isolation="process", max_attempts=1)
def segfault(payload: int) -> None:
    ctypes.string_at(0)


@_app.job("exit", isolation="process", max_attempts=1)
def leave(payload: int) -> None:
    os._exit(7)


@_app.job("out_of_memory", isolation="process", max_attempts=1)
def out_of_memory(payload: int) -> int:
    limit = 2 * 1024**3
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return len(bytearray(4 * 1024**3))


@_app.job("stops_itself", isolation="process", max_attempts=1, timeout=2)
def stops_itself(payload: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@_app.job("writes_rubbish", isolation="process", max_attempts=1)
def writes_rubbish(payload: int) -> None:
    for descriptor in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.write(descriptor, b"\x00\x00\x00\x05hello")
        except OSError:
            pass
    time.sleep(30)


@_app.job("leaves_a_grandchild", isolation="process", max_attempts=1)
def leaves_a_grandchild(payload: int) -> None:
    if os.fork() == 0:
        time.sleep(5)
        os._exit(0)
    os._exit(3)


@_app.job("stores_bytes", isolation="process", max_attempts=1)
def stores_bytes(payload: int, ctx: BlockingContext) -> None:
    with ctx.transaction() as tx:
        tx.execute("INSERT INTO blobs VALUES (?)", [b"\x00\xff"])


def bind(make_app: Callable[..., Holdfast]) -> Holdfast:
    """An app on a test's own file with these handlers."""
    app = make_app()
    app.handlers.update(_app.handlers)
    return app
