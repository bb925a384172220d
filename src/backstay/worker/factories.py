"""Apps that a function makes, `--app module:create_app`: called in a worker and in processes of handlers."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from typing import Any


def made(name: str) -> Any:
    """Return what the function of this name, "module:function", returns; an `async def` is run to its end."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return called(found)


def called(factory: Any) -> Any:
    """Call a function without arguments."""
    answer = factory()
    return asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer


async def _awaited(answer: Any) -> Any:
    return await answer
