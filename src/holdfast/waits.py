"""Waiting with a limit.

Not asyncio.wait_for: before Python 3.12 it swallows a cancellation that arrives together with the result, and a task
that was told to end goes on for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable


async def within(seconds: float | None, done: Awaitable[object]) -> bool:
    """Wait for something for so long at most; whether it came."""
    try:
        async with asyncio.timeout(seconds):
            await done
    except TimeoutError:
        return False
    return True
