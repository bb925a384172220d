"""The one place where tests look again and again, for what sends no signal."""

import asyncio
from collections.abc import Awaitable, Callable


async def eventually(holds: Callable[[], Awaitable[bool]], seconds: float = 10) -> None:
    """Return as soon as it holds; fail when it does not in time."""
    async with asyncio.timeout(seconds):
        while not await holds():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.01)
