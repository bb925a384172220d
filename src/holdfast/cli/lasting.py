"""What commands that run until they are stopped have in common: how they begin, wait for the store, and end."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from holdfast.cli import exits
from holdfast.cli.exits import Exit
from holdfast.cli.stopping import Stop, first_of, leave_within, loop_factory
from holdfast.errors import HoldfastError, StoreUnavailable

T = TypeVar("T")
START_AGAIN_SECONDS = 1.0
LEAVE_SECONDS = 10.0  # once all has stopped, what user code left behind may hold up the exit this long


def run(work: Callable[[], Coroutine[Any, Any, Exit]], log_style: str, log: logging.Logger) -> int:
    """The exit code. Who reads JSON reads only that: an error is a line of the log then."""
    try:
        _tune()
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            code = runner.run(work())
            leave_within(LEAVE_SECONDS, code)
        return code
    except HoldfastError as error:
        if log_style != "json":
            raise
        log.critical("%s", error)
        return exits.of_error(error)


def _tune() -> None:
    """This process is ours alone. The store's thread gets the GIL sooner than Python's 5 ms when a burst of short jobs
    or requests comes, and what was loaded at the start is not searched for garbage again and again."""
    sys.setswitchinterval(0.0002)
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


async def begun(
    start: Callable[[AsyncExitStack], Awaitable[T]], opened: AsyncExitStack, stop: Stop, log: logging.Logger
) -> T | None:
    """What `start` has begun, open in `opened`; None where the command is told to stop before the store is there."""
    starting = asyncio.ensure_future(_when_the_store_is_there(start, opened, log))
    await first_of(starting, stop.asked)
    if starting.done():
        return starting.result()
    starting.cancel()
    await asyncio.wait({starting})
    return None


async def _when_the_store_is_there(
    start: Callable[[AsyncExitStack], Awaitable[T]], opened: AsyncExitStack, log: logging.Logger
) -> T:
    """Machines start in any order, and a worker of all things need not be watched."""
    warned = False
    while True:
        async with AsyncExitStack() as tried:
            try:
                found = await start(tried)
            except StoreUnavailable as error:
                if not warned:
                    log.warning("waiting for the store: %s", error)
                warned = True
            else:
                await opened.enter_async_context(tried.pop_all())
                return found
        await asyncio.sleep(START_AGAIN_SECONDS)
