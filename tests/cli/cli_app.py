"""The app that the worker processes of these tests run."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import threading
import time

from pydantic import BaseModel

from backstay import Backoff, Backstay, BlockingBatchContext, Context

app = Backstay()


class Numbers(BaseModel):
    a: int = 0
    b: int = 0


class Gate(BaseModel):
    fifo: str


@app.job("add")
async def add(payload: Numbers, ctx: Context) -> dict[str, int]:
    ctx.log.info("adding")
    await ctx.progress(0.5, stage="adding")
    return {"sum": payload.a + payload.b}


@app.job("apart", isolation="process")
def apart(payload: Numbers) -> None:
    logging.getLogger("some.library").warning("from a process")


@app.batch_job("together", max_size=3, max_wait=5, isolation="process")
def together(payloads: list[Numbers], ctx: BlockingBatchContext) -> list[None]:
    ctx.log.info("all of them")
    ctx.item(0).log.info("the first")
    return [None for _ in payloads]


@app.job("fail", max_attempts=2, backoff=Backoff(base=0.01, factor=1, max=0.01, jitter=0))
async def fail(payload: Numbers) -> None:
    raise ValueError("no such number")


@app.job("until_told")
async def until_told(payload: Gate, ctx: Context) -> str:
    """Ends when a byte comes through the fifo."""
    ctx.log.info("begun")
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    fifo = os.open(payload.fifo, os.O_RDWR | os.O_NONBLOCK)
    loop.add_reader(fifo, told.set)
    try:
        await told.wait()
    finally:
        loop.remove_reader(fifo)
        os.close(fifo)
    return "told"


@app.job("endless")
async def endless(payload: Numbers, ctx: Context) -> None:
    ctx.log.info("begun")
    await asyncio.Event().wait()


@app.job("blocks", timeout=1, backoff=Backoff(base=60, jitter=0))
async def blocks(payload: Numbers, ctx: Context) -> None:
    ctx.log.info("begun")
    time.sleep(payload.a)  # noqa: ASYNC251  # the mistake under test


def _starve_other_threads() -> None:
    """As on a busy machine: none of them runs while this one does, though it releases the interpreter lock."""
    cpu = min(os.sched_getaffinity(0))
    for thread in threading.enumerate():
        if thread.native_id is not None:
            os.sched_setaffinity(thread.native_id, {cpu})
            if thread is not threading.current_thread():
                os.sched_setscheduler(thread.native_id, os.SCHED_IDLE, os.sched_param(0))


@app.job("backtracks")
async def backtracks(payload: Numbers, ctx: Context) -> None:
    ctx.log.info("begun")
    if payload.a:
        _starve_other_threads()
        os.kill(os.getpid(), signal.SIGTERM)
    re.match("(a+)+$", "a" * 60 + "b")  # no other thread runs: this takes years, and holds the interpreter lock


@app.job("stops")
async def stops(payload: Numbers) -> str:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)
    return "stopped"


async def _leave() -> None:
    raise SystemExit(3)


@app.job("exits", max_attempts=1)
async def exits(payload: Numbers) -> None:
    await asyncio.wait_for(_leave(), 10)


@app.job("forks")
def forks(payload: Numbers) -> int | None:
    """Starts a child by fork, and terminates it."""
    import multiprocessing  # here: it is no part of an idle worker, whose memory is measured

    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    child.terminate()
    child.join(10)
    return child.exitcode


@app.job("work", queue="bulk")
def work(payload: Numbers) -> None:
    time.sleep(0.02)  # real work, so that two processes share it
