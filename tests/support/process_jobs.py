"""Handlers that run in child processes: they must be at the top level of a module."""

import ctypes
import json
import logging
import math
import os
import resource
import signal
import stat
import threading
import time
from collections.abc import Callable
from typing import Any

from backstay import Backstay, BlockingContext, Context, limits
from backstay.worker import process

_app = Backstay("sqlite:///unused.db")
SMALL_LOG_BYTES = limits.MIB // 2
SMALL_MESSAGE_BYTES = 2 * limits.MIB


@_app.job("talk", isolation="process", max_attempts=1)
def talk(payload: int, ctx: BlockingContext) -> dict[str, Any]:
    ctx.progress(0.5, stage="talking")
    ctx.log.info("from the child")
    ctx.metric("m", payload)
    return {"pid": os.getpid(), "step": ctx.once("double", lambda: payload * 2)}


@_app.job("adds", isolation="process", max_attempts=1)
def adds(one: int, other: int = 2, *, ctx: BlockingContext) -> list[int]:
    return [one + other, ctx.attempt]


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


@_app.job("never_returns", isolation="process", max_attempts=1)
def never_returns(payload: int, ctx: BlockingContext) -> None:
    ctx.progress(0.5)
    threading.Event().wait()


@_app.job("says_no_numbers", isolation="process", max_attempts=1)
def says_no_numbers(payload: None, ctx: BlockingContext) -> None:
    for value in (math.nan, math.inf, -math.inf):
        ctx.progress(value)
        ctx.metric("loss", value)
    ctx.progress(0.1 + 0.2, stage="\ud800")
    ctx.metric("\ud800", 0.1 + 0.2)


@_app.job("warns", isolation="process", max_attempts=1)
def warns(payload: dict[str, str]) -> None:
    """Log a line. As JSON, because payloads have no lone surrogates."""
    logging.getLogger(json.loads(payload["logger"])).warning(json.loads(payload["text"]))


@_app.job("logs_a_lot", isolation="process", max_attempts=1)
def logs_a_lot(payload: str) -> None:
    """Log far more than a message and a job's log hold, with limits that are small in this process, too."""
    limits.LOG_FILE_BYTES_MAX, process.MESSAGE_BYTES_MAX = SMALL_LOG_BYTES, SMALL_MESSAGE_BYTES
    logging.getLogger("odd").warning(payload * 2 * SMALL_MESSAGE_BYTES)


def bind(make_app: Callable[..., Backstay]) -> Backstay:
    """Return an app on a test's own file with these handlers."""
    app = make_app()
    app.handlers.update(_app.handlers)
    return app
