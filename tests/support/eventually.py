"""The only place where tests poll, for conditions without a signal."""

import asyncio
from collections.abc import Awaitable, Callable


async def eventually(holds: Callable[[], Awaitable[bool]], seconds: float = 10) -> None:
    """Return as soon as the condition holds; fail if it does not in time."""
    async with asyncio.timeout(seconds):
        while not await holds():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.01)
